"""The slope of a network along a direction, which can be differentiated."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch.autograd import forward_ad


def along(
    network: Callable[[torch.Tensor], torch.Tensor], images: torch.Tensor, direction: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """f(x) and df/dx . t, of the same shape, by forward differentiation: t goes through the network
    beside x.

    Args:
        network: f; its normalisation by `core.models.batchnorm.quicken`, for the gradient of the slope
            of PyTorch's own batch normalisation is wrong.
        images: x; direction: t, of a shape that can be expanded to that of x.
    """
    with forward_ad.dual_level():
        with warnings.catch_warnings():
            # at its first use PyTorch loads rules by a function that it has itself deprecated
            warnings.simplefilter("ignore", FutureWarning)
            there = forward_ad.make_dual(images, direction.expand_as(images).contiguous())
        values, slope = forward_ad.unpack_dual(network(there))
    if slope is None:
        slope = torch.zeros_like(values)
    return values, slope
