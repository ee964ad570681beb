"""Networks of several clients as one that is quick to differentiate twice on a CPU.

In FedMK's networks of few channels, kernels of convolutions and of their second derivatives take
most of the time, and take it badly: they want sixteen channels, and there are six. Here the memory
of all maps has the images last, (C, H, W, N); see `core.models.images_last`.
"""

from __future__ import annotations

import attrs
import torch
from torch import nn
from torch.func import functional_call

from core.models import Classifier, replace_layers
from core.models.fused import FusedNorm, finish
from core.models.images_last import Window, affine, convolve, standardise
from core.models.side_by_side import Linears, joined, parted, widened

Weights = dict[str, torch.Tensor]
#: channels of a layer up to which this is faster than the kernels of convolutions
NARROW = 32


@attrs.define
class _Turn:
    """Whose statistics the normalisation of the images that run through a network takes: their
    "own"; "keep": their own, which are kept for the next pass; "kept": those of the pass before.
    """

    by: str = "own"


class Alongside(nn.Module):
    """So many networks of one architecture, each with its own weights and images."""

    def __init__(self, wide: nn.Module, number: int) -> None:
        super().__init__()
        self.wide, self.number, self._turn = wide, number, _Turn()
        replace_layers(wide, self._made)

    def _made(self, layer: nn.Module) -> nn.Module | None:
        """A layer of the networks side by side, for weights that are given."""
        if isinstance(layer, nn.Conv2d):
            return _Convolution(layer)
        if isinstance(layer, Linears):
            return _Linear(layer, self.number)
        return _Norm(layer, self._turn) if isinstance(layer, nn.BatchNorm2d) else None

    @classmethod
    def of(cls, model: Classifier, number: int) -> Alongside | None:
        """None where the model is too wide or of layers that this does not know."""
        for layer in model.modules():
            if isinstance(layer, nn.Conv2d) and not _simple(layer):
                return None
            if isinstance(layer, nn.BatchNorm2d) and not layer.affine:
                return None
        wide = widened(model, number)
        return None if wide is None else cls(wide, number)

    def logits(self, weights: Weights, images: torch.Tensor) -> torch.Tensor:
        """Logits (K, N, C) of images (K, N, ...) by weights (K, ...)."""
        return self._run("own", weights, images)

    def logits_beside(
        self, weights: Weights, images: torch.Tensor, knowledge: torch.Tensor
    ) -> torch.Tensor:
        """Logits of images that are normalised by the statistics of the knowledge (K, M, ...)."""
        self._run("keep", weights, knowledge)
        return self._run("kept", weights, images)

    def _run(self, by: str, weights: Weights, images: torch.Tensor) -> torch.Tensor:
        self._turn.by = by
        # (N, K C, H, W), with the images last in memory
        maps = images.permute(0, 2, 3, 4, 1).flatten(0, 1).permute(3, 0, 1, 2)
        return parted(functional_call(self.wide, joined(weights), (maps,)), self.number)


def _simple(layer: nn.Conv2d) -> bool:
    square = (
        len({*layer.kernel_size}) == len({*layer.stride}) == 1
        and layer.padding in ((0, 0), (1, 1), (2, 2), (3, 3))
        and layer.dilation == (1, 1)
        and layer.padding_mode == "zeros"
    )
    return square and layer.groups == 1 and layer.out_channels <= NARROW and layer.bias is not None


class _Linear(nn.Module):
    """Linear layers: features (N, G * D) become (N, G * outputs)."""

    def __init__(self, layer: Linears, groups: int) -> None:
        super().__init__()
        # named as in the layer: weights are given by name
        self.weight, self.bias, self.groups = layer.weight, layer.bias, groups

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """The outputs of all layers."""
        weight, bias, seen = (
            each.reshape(self.groups, len(each) // self.groups, -1)
            for each in (self.weight, self.bias, features.T)
        )
        return torch.baddbmm(bias, weight, seen).flatten(0, 1).T


class _Convolution(nn.Module):
    """Convolutions: maps (N, G * inputs, H, W) become (N, G * outputs, h, w)."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        # named as in the layer: weights are given by name
        self.weight, self.bias = layer.weight, layer.bias
        self.window = Window(
            layer.kernel_size[0], layer.stride[0], int(layer.padding[0]), layer.groups
        )

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """The maps of all layers."""
        rows = convolve(maps.permute(1, 2, 3, 0), self.weight, self.bias, self.window)
        return rows.permute(3, 0, 1, 2)


class _Norm(FusedNorm):
    """Batch normalisation by the statistics of the images themselves or of those before."""

    def __init__(self, layer: nn.BatchNorm2d, turn: _Turn) -> None:
        super().__init__()
        self.weight, self.bias, self.eps, self._turn = layer.weight, layer.bias, layer.eps, turn
        self._kept: tuple[torch.Tensor, torch.Tensor] | None = None

    def activate(
        self, maps: torch.Tensor, shortcut: torch.Tensor | None, slope: float, pool: int
    ) -> torch.Tensor:
        """What follows a convolution, as in `core.models.fused.activate`."""
        if shortcut is None and pool == 1:
            return self._normalised(maps, slope)
        return finish(self._normalised(maps, 1.0), shortcut, slope, pool)

    def _normalised(self, maps: torch.Tensor, slope: float) -> torch.Tensor:
        rows = maps.permute(1, 2, 3, 0)
        if self._turn.by == "kept":
            assert self._kept is not None
            rows = affine(rows, *self._kept, slope)
        else:
            rows, *values, _, _ = standardise(rows, self.weight, self.bias, self.eps, slope)
            self._kept = (values[0], values[1]) if self._turn.by == "keep" else None
        return rows.permute(3, 0, 1, 2)
