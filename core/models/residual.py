"""The block that both residual networks are made of."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from core.models.convolved import convolved
from core.models.fused import activate


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch normalisation around a shortcut (He et al. 2016, Fig. 5
    left).

    Where the stride or the number of channels changes, the shortcut is a 1x1 convolution with batch
    normalisation (their option B). Layers have torchvision's names. (N, inputs, H, W) becomes (N,
    outputs, H / stride, W / stride), rounded up.

    The shortcut's stride is taken by indexing, which gives the same maps. With a stride of its own,
    a 1x1 convolution of few channels writes past its memory on CPUs, in the gradient of its weights
    (oneDNN, issue 6035).
    """

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """The block's output maps."""
        shortcut = maps
        if self.downsample is not None:
            conv, norm = self.downsample
            maps, thinned = _thinned(maps, self.stride)
            shortcut = activate(conv(thinned), norm, slope=1.0)
        maps = convolved(self.conv1, maps, self.bn1)
        return convolved(self.conv2, maps, self.bn2, shortcut=shortcut)


def _thinned(maps: torch.Tensor, stride: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The maps, and beside them every so many-th of their rows and columns."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return maps, maps[..., ::stride, ::stride]
    return _Thinned.apply(maps, stride)


class _Thinned(torch.autograd.Function):
    """PyTorch's gradient of such a choice is a new map of zeros with channels first, to which all that
    comes after is added slowly; here it is added to that of the maps where they lie.
    """

    @staticmethod
    def forward(ctx: Any, maps: torch.Tensor, stride: int) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.stride = stride
        return maps.view_as(maps), maps[..., ::stride, ::stride]

    @staticmethod
    def jvp(ctx: Any, t: torch.Tensor, _: None) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        return t.view_as(t), t[..., :: ctx.stride, :: ctx.stride]

    @staticmethod
    def backward(
        ctx: Any, d_maps: torch.Tensor, d_thinned: torch.Tensor
    ) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        total = d_maps.clone()
        total[..., :: ctx.stride, :: ctx.stride] += d_thinned
        return total, None
