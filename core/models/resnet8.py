"""ResNet-8, the network of FedIOD and FedDF."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from core.errors import InputError
from core.models.classifier import Classifier, at_least
from core.models.residual import BasicBlock


class ResNet8(Classifier):
    """A 3x3 convolution and three residual blocks of width w, 2w and 4w; the later two halve the
    image.

    Two published networks have this name, and differ in size by a factor of 63:

    - `width=128, grid=2`, the default: 4,911,754 parameters for 3 channels and 10 classes. This is
      the network of FedKD's released code (Gong et al. 2022) and of FedIOD's, whose local training
      (SGD 0.0025, batch 16, 500 epochs) is FedKD's too. Two further layers of that code, on which
      no output depends, are left out.
    - `width=16, grid=1`, the CIFAR ResNet of He et al. 2016 with n = 1, which FedDF's own code
      uses: 78,042 parameters.

    The weights start at PyTorch's defaults, as in FedKD's code; FedDF's draws convolutions from a
    normal distribution.

    Args:
        channels, size, classes: images are (N, channels, size, size).
        width: channels of the first block.
        grid: the last map is averaged in grid x grid windows, each of which gives 4 * width
            features; windows at the lower and right edge are smaller where the side is not a
            multiple of `grid`.

    Raises InputError for a bad value, and when the last map cannot be cut into grid x grid windows.
    """

    side_by_side = True

    def __init__(
        self, channels: int, size: int, classes: int, *, width: int = 128, grid: int = 2
    ) -> None:
        super().__init__()
        at_least("width", width, 1)
        at_least("grid", grid, 1)
        side = -(-size // 4)  # each halving rounds up
        self.window = -(-side // grid)
        if -(-side // self.window) != grid:
            raise InputError(
                f"a resnet8 leaves {side}x{side} cells of images of {size}x{size}, which cannot be pooled "
                f"to {grid}x{grid}; choose a smaller grid or larger images"
            )
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = BasicBlock(width, width)
        self.layer2 = BasicBlock(width, 2 * width, stride=2)
        self.layer3 = BasicBlock(2 * width, 4 * width, stride=2)
        self.classifier = nn.Linear(4 * width * grid * grid, classes)

    def embed(self, images: torch.Tensor) -> torch.Tensor:
        """Features (N, 4 * width * grid * grid)."""
        maps = functional.relu(self.bn1(self.conv1(images)))
        maps = self.layer3(self.layer2(self.layer1(maps)))
        return functional.avg_pool2d(maps, self.window, ceil_mode=True).flatten(1)
