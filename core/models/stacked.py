"""Many networks on one batch of inputs: those of one architecture as one batched program, the
others one by one.

K networks of one architecture run side by side as one network with K times the channels. What is
done to a channel by itself, such as normalisation, a rectifier or pooling, is done to all channels
of all networks in one call; a convolution becomes one of K times the groups, a linear layer K
products. On a CPU with small batches that saves K - 1 of K starts of every kernel.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn
from torch.func import functional_call, vmap

from core.errors import InputError
from core.models.blocks import at_once

#: what two networks of one architecture have in common: layers, plain attributes, weights
Form = tuple[str, tuple[str, ...], tuple[tuple[str, torch.Size, torch.dtype], ...]]
#: what an attribute may be for two networks to be told apart by it
PLAIN = (str, int, float, tuple, type(None))
#: layers that see each channel by itself and keep what they know of it in tensors (C,)
PER_CHANNEL = (nn.BatchNorm2d, nn.InstanceNorm2d)


class Stacked:
    """K networks that are applied together.

    Networks of one architecture (the same layers with the same shapes, modes and settings, such as a
    way of pooling that is kept as a text) run as one program over their stacked weights: side by
    side, as one network with more channels, where they can, else by `torch.func.vmap`. That pays
    where many small kernels cost more to start than to run: on a GPU, and on a CPU with small
    batches, where as many run side by side as `at_once` allows. All ways give the same numbers within
    rounding, and the same gradients.

    The networks stay the owners of their weights: a gradient with respect to an output reaches
    their parameters, and a step of an optimiser on these is seen by the next call. Weights that
    need no gradient are stacked once, so freeze (`requires_grad_(False)`) what stays as it is.

    A network in training mode moves its running statistics where it runs side by side with others;
    vmap could not update them, so it must have none there.

    Raises InputError when there is no network.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        if not networks:
            raise InputError("there is no network to apply")
        self.networks = list(networks)
        self._forms = [_form(network) for network in self.networks]
        groups: dict[Form, list[int]] = {}
        for position, form in enumerate(self._forms):
            groups.setdefault(form, []).append(position)
        #: positions of the networks of each architecture
        self.groups = list(groups.values())
        self._wide: dict[tuple[Form, int], nn.Module | None] = {}
        self._frozen: dict[tuple[int, ...], dict[str, torch.Tensor]] = {}

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """Outputs (K, N, ...) of all networks for the same inputs (N, ...)."""
        return self._apply(inputs, shared=True)

    def each(self, inputs: torch.Tensor) -> torch.Tensor:
        """Outputs (K, N, ...) of every network for inputs of its own, (K, N, ...)."""
        return self._apply(inputs, shared=False)

    def in_parts(self, inputs: torch.Tensor) -> torch.Tensor:
        """Outputs (K, N, ...) in float32 for the same inputs (N, ...), some of them at a time."""
        return torch.cat([self(part).float() for part in inputs.split(at_once(inputs))], 1)

    def _apply(self, inputs: torch.Tensor, shared: bool) -> torch.Tensor:
        outputs: dict[int, torch.Tensor] = {}
        own = None if shared else inputs.unbind()
        for positions in self.groups:
            size = self.at_once(positions, inputs)
            for first in range(0, len(positions), size):
                some = positions[first : first + size]
                if len(some) == 1:
                    given = inputs if own is None else own[some[0]]
                    answers: Sequence[torch.Tensor] = (self.networks[some[0]](given),)
                else:
                    # not inputs[some]: a list of places would be copied to the GPU
                    given = inputs if own is None else torch.stack([own[k] for k in some])
                    answers = self.run_together(tuple(some), given, shared).unbind()
                outputs |= dict(zip(some, answers, strict=True))
        return torch.stack([outputs[k] for k in range(len(self.networks))])

    def at_once(self, positions: Sequence[int], inputs: torch.Tensor) -> int:
        """Number of the networks at these positions, all of one architecture, that run together."""
        if inputs.is_cuda:
            return len(positions)
        if self.side_by_side(positions[:2]) is not None:
            return max(1, at_once(inputs) // inputs.shape[-4])
        return 1

    def run_together(
        self, positions: tuple[int, ...], inputs: torch.Tensor, shared: bool
    ) -> torch.Tensor:
        """Outputs (k, N, ...) of networks of one architecture in one program."""
        skeleton, weights = self.networks[positions[0]], self.weights_of(positions)
        wide = self.side_by_side(positions)
        if wide is not None:
            if wide.training != skeleton.training:  # it has changed since the wide one was made
                wide.train(skeleton.training)
            each, moved = inputs[None] if shared else inputs, joined(weights)
            outputs = functional_call(wide, moved, merged(each, len(positions)))
            if skeleton.training:
                self.keep_statistics(positions, moved)
            return parted(outputs, len(positions))

        def single(weights: dict[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
            return functional_call(skeleton, weights, (inputs,))

        return vmap(single, in_dims=(0, None if shared else 0))(weights, inputs)

    def keep_statistics(self, positions: tuple[int, ...], moved: dict[str, torch.Tensor]) -> None:
        """Give each network its part of what a call in training mode has moved. A count, which has no
        channels, grows in each by what it has grown in the first.
        """
        buffers = [dict(self.networks[k].named_buffers()) for k in positions]
        for name, first in buffers[0].items():
            each = [own[name] for own in buffers]
            if first.ndim:
                torch._foreach_copy_(each, list(moved[name].unflatten(0, (len(each), -1))))
            else:
                # a list: of a single tensor PyTorch would ask for the value, and wait for a GPU
                torch._foreach_add_(each, [moved[name] - first] * len(each))

    def side_by_side(self, positions: Sequence[int]) -> nn.Module | None:
        """Networks of one architecture side by side, or None where they cannot."""
        kind = self._forms[positions[0]], len(positions)
        if kind not in self._wide:
            self._wide[kind] = widened(self.networks[positions[0]], len(positions))
        return self._wide[kind]

    def weights_of(self, positions: tuple[int, ...]) -> dict[str, torch.Tensor]:
        """The weights of some networks, each (k, ...)."""
        if positions in self._frozen:
            return self._frozen[positions]
        members = [
            dict(self.networks[k].named_parameters()) | dict(self.networks[k].named_buffers())
            for k in positions
        ]
        stacked = {name: torch.stack([member[name] for member in members]) for name in members[0]}
        if not any(weight.requires_grad for member in members for weight in member.values()):
            self._frozen[positions] = stacked
        return stacked


def _form(network: nn.Module) -> Form:
    tensors = tuple(
        (name, tensor.shape, tensor.dtype) for name, tensor in network.state_dict().items()
    )
    # a network's text does not show what it keeps as plain attributes, nor the mode of a layer
    attributes = tuple(
        f"{path}.{name} = {value!r}"
        for path, module in network.named_modules()
        for name, value in sorted(vars(module).items())
        if not name.startswith("_") and isinstance(value, PLAIN)
    )
    return repr(network), attributes, tensors


def widened(network: nn.Module, number: int) -> nn.Module | None:
    """A network that does what `number` of the given one do side by side: from (N, number * C, H, W) to
    (N, number * outputs, ...), with the weights of `joined`. None where the network does not say
    (`side_by_side = True`) that it treats channels one by one.
    """
    if not getattr(network, "side_by_side", False):
        return None
    wide = copy.deepcopy(network).to("meta")
    for name, layer in list(wide.named_modules()):
        if isinstance(layer, nn.Conv2d):
            layer.in_channels *= number
            layer.out_channels *= number
            layer.groups *= number
        elif isinstance(layer, nn.GroupNorm):
            layer.num_channels *= number
            layer.num_groups *= number
        elif isinstance(layer, PER_CHANNEL):
            layer.num_features *= number
        elif isinstance(layer, nn.Linear) and layer.bias is not None:
            parent, _, attribute = name.rpartition(".")
            setattr(wide.get_submodule(parent), attribute, Linears(layer, number))
        elif next(iter(layer.parameters(recurse=False)), None) is not None:
            return None
    return wide


def joined(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights of the wide network from stacked ones, (K, ...) each."""
    return {
        name: value.flatten(0, 1) if value.ndim > 1 else value[0] for name, value in weights.items()
    }


def merged(images: torch.Tensor, number: int) -> torch.Tensor:
    """Images (N, number * C, H, W) of all networks, channels last in memory, from those of each,
    (number, N, C, H, W), or from those of all, (1, N, C, H, W).
    """
    each = images.expand(number, *images.shape[1:])
    return each.transpose(0, 1).flatten(1, 2).contiguous(memory_format=torch.channels_last)


def parted(outputs: torch.Tensor, number: int) -> torch.Tensor:
    """Outputs (K, N, ...) of each network from those of all, (N, K * outputs, ...)."""
    return outputs.unflatten(1, (number, -1)).transpose(0, 1)


class Linears(nn.Module):
    """K linear layers, each on its part of the features: (N, K * D) becomes (N, K * outputs)."""

    def __init__(self, layer: nn.Linear, number: int) -> None:
        super().__init__()
        # named as in the layer: weights are given by name
        self.weight, self.bias, self.number = layer.weight, layer.bias, number
        self.in_features, self.out_features = layer.in_features, layer.out_features

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """The outputs of all layers."""
        inputs = features.unflatten(1, (self.number, -1)).transpose(0, 1)
        weight = self.weight.unflatten(0, (self.number, -1)).mT
        bias = self.bias.unflatten(0, (self.number, 1, -1))
        return torch.baddbmm(bias, inputs, weight).transpose(0, 1).flatten(1)
