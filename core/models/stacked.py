"""Many networks on one batch of inputs: those of one architecture as one batched program, the
others one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.func import functional_call, vmap

from core.errors import InputError

#: what two networks of one architecture have in common
Form = tuple[str, bool, tuple[tuple[str, torch.Size, torch.dtype], ...]]


class Stacked:
    """K networks that are applied together.

    Networks of one architecture (the same layers with the same shapes) run as one program over
    their stacked weights, by `torch.func.vmap`. That pays on a GPU, which otherwise waits for many
    small kernels to be launched. On a CPU it does not: stacked weights make grouped convolutions,
    which are slower there than one convolution after the other. So `batched=None` batches on CUDA
    only; both ways give the same numbers, and the same gradients.

    The networks stay the owners of their weights: a gradient with respect to an output reaches
    their parameters, and a step of an optimiser on these is seen by the next call. Weights that
    need no gradient are stacked once, so freeze (`requires_grad_(False)`) what stays as it is.

    A network in training mode must have no running statistics, which vmap could not update;
    `eval()` it otherwise.

    Raises InputError when there is no network.
    """

    def __init__(self, networks: Sequence[nn.Module], batched: bool | None = None) -> None:
        if not networks:
            raise InputError("there is no network to apply")
        self.networks = list(networks)
        self.batched = batched
        groups: dict[Form, list[int]] = {}
        for position, network in enumerate(self.networks):
            groups.setdefault(_form(network), []).append(position)
        #: positions of the networks of each architecture
        self.groups = list(groups.values())
        self._frozen: dict[int, dict[str, torch.Tensor]] = {}

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """Outputs (K, N, ...) of all networks for the same inputs (N, ...)."""
        return self._apply(inputs, shared=True)

    def each(self, inputs: torch.Tensor) -> torch.Tensor:
        """Outputs (K, N, ...) of every network for inputs of its own, (K, N, ...)."""
        return self._apply(inputs, shared=False)

    def _apply(self, inputs: torch.Tensor, shared: bool) -> torch.Tensor:
        outputs: dict[int, torch.Tensor] = {}
        for number, positions in enumerate(self.groups):
            if len(positions) > 1 and (inputs.is_cuda if self.batched is None else self.batched):
                # not inputs[positions]: a list of places would be copied to the GPU
                mine = inputs if shared else torch.stack([inputs[k] for k in positions])
                answers = self.run_together(number, mine, shared).unbind()
            else:
                answers = tuple(
                    self.networks[k](inputs if shared else inputs[k]) for k in positions
                )
            outputs |= dict(zip(positions, answers, strict=True))
        return torch.stack([outputs[k] for k in range(len(self.networks))])

    def run_together(self, number: int, inputs: torch.Tensor, shared: bool) -> torch.Tensor:
        """Outputs (k, N, ...) of one group in one program."""
        skeleton = self.networks[self.groups[number][0]]

        def one(weights: dict[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
            return functional_call(skeleton, weights, (inputs,))

        return vmap(one, in_dims=(0, None if shared else 0))(self.weights_of(number), inputs)

    def weights_of(self, number: int) -> dict[str, torch.Tensor]:
        """The weights of a group, each (k, ...)."""
        if number in self._frozen:
            return self._frozen[number]
        members = [
            dict(self.networks[k].named_parameters()) | dict(self.networks[k].named_buffers())
            for k in self.groups[number]
        ]
        stacked = {name: torch.stack([member[name] for member in members]) for name in members[0]}
        if not any(weight.requires_grad for member in members for weight in member.values()):
            self._frozen[number] = stacked
        return stacked


def _form(network: nn.Module) -> Form:
    tensors = tuple(
        (name, tensor.shape, tensor.dtype) for name, tensor in network.state_dict().items()
    )
    return repr(network), network.training, tensors
