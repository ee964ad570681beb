"""Small networks and real images that the tests of condensation share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from core.condensation.engine import RealData
from core.rng import Rng


def stirred(model: nn.Module) -> nn.Module:
    """Give the batch normalisation of a network scales, shifts and running statistics that matter."""
    generator = Rng(7).generator()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 1.5, generator=generator)
            nn.init.uniform_(layer.bias, -0.5, 0.5, generator=generator)
            layer.running_mean.uniform_(-0.5, 0.5, generator=generator)
            layer.running_var.uniform_(0.5, 1.5, generator=generator)
    return model


def real_data(
    sizes: Sequence[int], owner: Sequence[int], label: Sequence[int], channels: int = 1
) -> RealData:
    """Random images of 8 by 8 pixels, all of a group equally likely."""
    draws = Rng(3).generator()
    images = torch.randint(0, 256, (sum(sizes), channels, 8, 8), dtype=torch.uint8, generator=draws)
    group = torch.repeat_interleave(torch.tensor(sizes))
    share = 1 / torch.tensor(sizes, dtype=torch.float32)[group]
    return RealData(images, group, share, torch.tensor(owner), torch.tensor(label))
