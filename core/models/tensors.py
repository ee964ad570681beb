"""A network's state as named tensors: what clients and server send each other."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from core.errors import InputError

Tensors = dict[str, torch.Tensor]


def _live(model: nn.Module) -> tuple[Tensors, Tensors]:
    """The parameters and floating-point buffers themselves, by name."""
    buffers = {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()}
    return dict(model.named_parameters()), buffers


def parameters_and_buffers(model: nn.Module) -> tuple[Tensors, Tensors]:
    """Detached copies of parameters and floating-point buffers (running means and variances) by name;
    `num_batches_tracked`, an integer without an average, is left out.
    """
    parameters, buffers = _live(model)
    return (
        {name: tensor.detach().clone() for name, tensor in parameters.items()},
        {name: tensor.detach().clone() for name, tensor in buffers.items()},
    )


@torch.no_grad()
def load(model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy tensors into a network's parameters and floating-point buffers, in place, as its dtypes. All must
    be given. InputError, before anything is copied, where a name or a shape does not fit.
    """
    parameters, buffers = _live(model)
    own = parameters | buffers
    if missing := sorted(own.keys() - tensors.keys()):
        raise InputError(f"the model's {missing[0]!r} is missing from the tensors to load")
    if extra := sorted(tensors.keys() - own.keys()):
        raise InputError(f"the model has no {extra[0]!r} to load")
    for name, tensor in own.items():
        if tensor.shape != tensors[name].shape:
            raise InputError(
                f"the model's {name!r} has shape {tuple(tensor.shape)}, not {tuple(tensors[name].shape)}"
            )
    for name, tensor in own.items():
        tensor.copy_(tensors[name])


def count_parameters(model: nn.Module) -> int:
    """The number of parameters; buffers are not counted."""
    return sum(parameter.numel() for parameter in model.parameters())


def at_least_float32(values: torch.Tensor) -> torch.Tensor:
    """The values in float32, or in float64 where they already are: also where autocast gave less."""
    return values if values.dtype == torch.float64 else values.float()
