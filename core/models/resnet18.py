"""ResNet-18, the network of FedVCK's 224x224 sets and of GDD-FL."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from core.errors import InputError
from core.models.classifier import Classifier, check_name
from core.models.residual import BasicBlock

POOLS = ("whole", "released")


class ResNet18(Classifier):
    """ResNet-18 (He et al. 2016), with torchvision's layer names except that its `fc` is
    `classifier`.

    11,171,266 parameters for one channel and 2 classes (FedVCK, Table 9: 426.15 MiB for ten
    clients), 11,177,538 for three channels. The weights start at PyTorch's defaults, as in FedVCK's
    code, and not at torchvision's.

    Args:
        channels, size, classes: images are (N, channels, size, size).
        pool: "whole" averages the whole last map (7x7 for 224x224 images); "released" averages
            windows of 4x4 cells and drops the rest, as FedVCK's code does: at 7x7 it sees the 16
            cells in one corner, out of 49.

    Raises InputError for an unknown pool, and for "released" with a last map below 4x4.
    """

    def __init__(self, channels: int, size: int, classes: int, *, pool: str = "whole") -> None:
        super().__init__()
        check_name("pool", pool, POOLS)
        # below 64x64 a 7x7 convolution and max pooling would leave one single cell to the last block
        small = size < 64
        side = -(-size // (8 if small else 32))  # every halving rounds up
        if pool == "released" and side < 4:
            raise InputError(
                f"the released pooling of resnet18 needs a last map of at least 4x4, but images of "
                f"{size}x{size} leave {side}x{side}; choose pool 'whole'"
            )
        self.pool = pool
        self.conv1 = nn.Conv2d(
            channels,
            64,
            3 if small else 7,
            stride=1 if small else 2,
            padding=1 if small else 3,
            bias=False,
        )
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(64, 64, 1)
        self.layer2 = _stage(64, 128, 2)
        self.layer3 = _stage(128, 256, 2)
        self.layer4 = _stage(256, 512, 2)
        windows = side // 4 if pool == "released" else 1
        self.classifier = nn.Linear(512 * windows * windows, classes)

    def embed(self, images: torch.Tensor) -> torch.Tensor:
        """Features (N, 512); with the released pooling 512 for every 4x4 window of the last map."""
        maps = self.maxpool(functional.relu(self.bn1(self.conv1(images))))
        maps = self.layer4(self.layer3(self.layer2(self.layer1(maps))))
        if self.pool == "whole":
            return maps.mean((2, 3))
        return functional.avg_pool2d(maps, 4).flatten(1)


def _stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs))
