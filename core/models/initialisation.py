"""Initial weights from explicit generators."""

from __future__ import annotations

import math

import torch
from torch import nn

from core.errors import InputError
from core.rng import Rng

_UNIFORM = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.InstanceNorm2d)


@torch.no_grad()
def initialise(module: nn.Module, rng: Rng) -> None:
    """Set the parameters of a network and the statistics of its normalisation, in place, to values
    distributed as PyTorch's defaults.

    Weights and biases of convolutions and linear layers are uniform in (-1/sqrt(n), 1/sqrt(n)), n
    being the number of inputs to one output: that is what `kaiming_uniform_(a=sqrt(5))` in
    PyTorch's own layers comes to (He et al. 2015). Normalisation layers start with scale 1, shift
    0, running mean 0 and running variance 1.

    Each parameter has its own stream, `rng.at(name)`, so its values depend neither on the other
    layers nor on the order in which layers were made. The draws are made on the CPU, so they are
    the same on every device.

    Any other layer with parameters of its own draws them by its `reset_parameters`, from PyTorch's
    generator at the start of `rng.at(prefix)`. Raises InputError for one that has none.
    """
    for prefix, layer in module.named_modules():
        if isinstance(layer, _UNIFORM):
            bound = 1 / math.sqrt(layer.weight[0].numel())
            for name, parameter in layer.named_parameters(prefix, recurse=False):
                draws = torch.empty(parameter.shape).uniform_(
                    -bound, bound, generator=rng.at(name).generator()
                )
                parameter.copy_(draws, non_blocking=True)
        elif isinstance(layer, _NORMS):
            _reset_norm(layer)
        elif [*layer.parameters(recurse=False)]:
            # PyTorch's attention has it under the other name
            reset = getattr(layer, "reset_parameters", getattr(layer, "_reset_parameters", None))
            if reset is None:
                raise InputError(
                    f"{type(layer).__name__} ({prefix or 'the network itself'}) has no "
                    "reset_parameters, by which new networks are drawn"
                )
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(rng.at(prefix).key)
                reset()


def _reset_norm(layer: nn.Module) -> None:
    """Scale 1, shift 0, and the statistics of no data."""
    start = {"weight": 1, "bias": 0, "running_mean": 0, "running_var": 1, "num_batches_tracked": 0}
    for name, tensor in (
        *layer.named_parameters(recurse=False),
        *layer.named_buffers(recurse=False),
    ):
        tensor.fill_(start[name])
