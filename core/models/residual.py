"""The block that both residual networks are made of."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


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
            shortcut = self.downsample(maps[..., :: self.stride, :: self.stride])
        maps = F.relu(self.bn1(self.conv1(maps)))
        return F.relu(self.bn2(self.conv2(maps)) + shortcut)
