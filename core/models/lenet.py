"""LeNet, the network of FedMK."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from core.errors import InputError
from core.models.classifier import Classifier, at_least


class LeNet(Classifier):
    """Two 3x3 convolutions of stride 2 (`first` and `second` channels, batch normalisation, ReLU),
    then two linear layers, with `features` numbers between them.

    FedMK says "LeNet (LeCun et al., 1989)" and counts 105K bytes a model on MNIST (its Appendix A).
    This is the MNIST network of FedGen's released code (Zhu et al. 2021), from which FedMK's
    baselines and their 20 local updates of 32 samples come: 26,434 parameters at 28x28x1 and 10
    classes, which is 105,736 bytes in float32, 0.7% above 105,000. The classic variants are far
    off: LeNet-1989 on 16x16 images has 9,760 parameters (39 kB), LeNet-5 on images padded to 32x32
    has 61,706 (247 kB), and on 28x28 44,426 (178 kB).

    Convolutions have a bias. As in FedGen, nothing stands between the two linear layers. FedMK does
    not give its network for 32x32x3; here it is the same one, with 34,222 parameters at 10 classes.
    FedGen's code lists another one for CIFAR, 16 and 32 channels and 64 features of 2,048 numbers.
    With the pools that it lists, too, there would be 128, so it cannot run; without them there are
    2,048: `first=16, second=32, features=64`, with 136,970 parameters.

    Raises InputError for images below 8x8, and for options below 1.
    """

    side_by_side = True

    def __init__(
        self,
        channels: int,
        size: int,
        classes: int,
        *,
        first: int = 6,
        second: int = 16,
        features: int = 32,
    ) -> None:
        super().__init__()
        if size < 8:
            raise InputError(f"a lenet needs images of at least 8x8, not {size}x{size}")
        for name, value in (("first", first), ("second", second), ("features", features)):
            at_least(name, value, 1)
        side = -(-size // 4)  # each convolution halves the side, rounded up
        self.conv1 = nn.Conv2d(channels, first, 3, stride=2, padding=1)
        self.norm1 = nn.BatchNorm2d(first)
        self.conv2 = nn.Conv2d(first, second, 3, stride=2, padding=1)
        self.norm2 = nn.BatchNorm2d(second)
        self.hidden = nn.Linear(second * side * side, features)
        self.classifier = nn.Linear(features, classes)

    def embed(self, images: torch.Tensor) -> torch.Tensor:
        """Features (N, `features`)."""
        maps = F.relu(self.norm1(self.conv1(images)))
        maps = F.relu(self.norm2(self.conv2(maps)))
        return self.hidden(maps.flatten(1))
