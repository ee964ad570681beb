"""The slope of a network along a direction, which can be differentiated (forward differentiation)."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable

import torch
from torch.autograd import forward_ad

#: PyTorch has one level of forward differentiation for all threads of a process
_ALONE = threading.Lock()


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
    _load()
    with _ALONE, forward_ad.dual_level():
        there = forward_ad.make_dual(images, direction.expand_as(images).contiguous())
        values, slope = forward_ad.unpack_dual(network(there))
    return values, slope


@functools.cache
def _load() -> None:
    """Have PyTorch load the rules of forward differentiation, by a function that it has deprecated."""
    with warnings.catch_warnings(), _ALONE, forward_ad.dual_level():
        warnings.simplefilter("ignore", FutureWarning)
        forward_ad.make_dual(torch.zeros(1), torch.zeros(1))


def without_slope(maps: torch.Tensor) -> torch.Tensor:
    """The values of maps that carry a slope beside them, of others they themselves."""
    values, slope = forward_ad.unpack_dual(maps)
    return maps if slope is None else values
