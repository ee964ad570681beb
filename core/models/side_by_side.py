"""K networks of one architecture as one network with K times the channels.

What is done to a channel by itself, such as normalisation, a rectifier or pooling, is done to all
channels of all networks in one call; a convolution becomes one of K times the groups, a linear
layer K products. On a CPU with small batches that saves K - 1 of K starts of every kernel, and with
channels last a grouped convolution takes no longer than K single ones.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from core.models.images_last import images_last

Weights = dict[str, torch.Tensor]
#: layers that see each channel by itself and keep what they know of it in tensors (C,)
PER_CHANNEL = (nn.BatchNorm2d, nn.InstanceNorm2d)


def widened(network: nn.Module, number: int) -> nn.Module | None:
    """A network that does what so many of the given architecture do side by side: from images
    (N, number * C, H, W) to outputs (N, number * outputs, ...). Its weights have no values: apply it
    to those of `joined`.

    None where the network does not say (`side_by_side = True`) that all it does is done to each
    channel by itself or by a layer known here.
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


def joined(weights: Weights) -> Weights:
    """The weights of the wide network from stacked ones, (K, ...) each."""
    return {
        name: value.flatten(0, 1) if value.ndim > 1 else value[0] for name, value in weights.items()
    }


def merged(images: torch.Tensor, number: int, last: bool = False) -> torch.Tensor:
    """Images (N, number * C, H, W) of all networks from those of each, (number, N, C, H, W), or from
    those of all, (1, N, C, H, W): with the channels last in memory or, for networks that want it so,
    with the images `last`.
    """
    if last:
        rows = images_last(images).permute(0, 2, 3, 4, 1)
        return rows.expand(number, *rows.shape[1:]).flatten(0, 1).permute(3, 0, 1, 2)
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
