"""ConvNet, the network of most condensation papers."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from core.checks import check_whole
from core.errors import InputError
from core.models.classifier import Classifier, at_least, check_name

#: no image can be halved more often
DEEPEST = 16

NORMS = ("batch", "instance", "none")


class ConvNet(Classifier):
    """Blocks of 3x3 convolution, normalisation, ReLU and 2x2 average pooling, then one linear
    layer.

    Gidaris and Komodakis 2018, in the form of Zhao et al.'s dataset condensation, which FedVCK and
    GDD-FL use. Images of 28x28 are brought to 32x32 by the first convolution (padding 3 instead of
    1), whatever their number of channels; this gives the parameter counts behind FedVCK's Table 9,
    for example 317,961 for PathMNIST.

    Args:
        channels, size, classes: images are (N, channels, size, size).
        depth: number of blocks; each halves the image (rounded down).
        width: channels of every block.
        norm: "batch" (FedVCK), "instance" (one group per channel, with scale and shift) or "none".

    Raises InputError for a bad value, and when an image side is below 2**depth, so that nothing
    would be left of it.
    """

    side_by_side = True

    def __init__(
        self,
        channels: int,
        size: int,
        classes: int,
        *,
        depth: int = 3,
        width: int = 128,
        norm: str = "batch",
    ) -> None:
        super().__init__()
        check_whole("depth", depth, 1, DEEPEST)
        at_least("width", width, 1)
        check_name("normalisation", norm, NORMS)
        if size < 2**depth:
            raise InputError(
                f"a convnet of depth {depth} needs images of at least {2**depth}x{2**depth}, "
                f"not {size}x{size}; choose a smaller depth"
            )
        pad = 3 if size == 28 else 1
        side = (size + 2 * (pad - 1)) // 2**depth
        self.blocks = nn.Sequential(
            *(
                Block(width if i else channels, width, norm, pad if i == 0 else 1)
                for i in range(depth)
            )
        )
        self.classifier = nn.Linear(width * side * side, classes)

    def embed(self, images: torch.Tensor) -> torch.Tensor:
        """Features (N, width * side * side); side is 4 for images of 28x28 and 32x32."""
        return self.blocks(images).flatten(1)


class Block(nn.Module):
    """3x3 convolution, norm, ReLU, 2x2 average pool: (N, inputs, H, W) to (N, width, H // 2, W // 2)."""

    def __init__(self, inputs: int, width: int, norm: str, padding: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, width, 3, padding=padding)
        self.norm: nn.Module = nn.Identity()
        if norm == "batch":
            self.norm = nn.BatchNorm2d(width)
        elif norm == "instance":
            self.norm = nn.GroupNorm(width, width)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """The block's output maps."""
        return F.avg_pool2d(F.relu(self.norm(self.conv(maps))), 2)
