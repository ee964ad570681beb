"""A block's convolution together with what follows it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from core.models.convolution import convolve
from core.models.fused import FusedNorm, activate, heard


def convolved(
    conv: nn.Conv2d,
    images: torch.Tensor,
    norm: nn.Module | None = None,
    *,
    shortcut: torch.Tensor | None = None,
    slope: float = 0.0,
    pool: int = 1,
) -> torch.Tensor:
    """pool(f(norm(conv(images)) + shortcut)): a convolution and what follows it in a block, of images
    or maps (N, C, H, W); see `activate`.

    A GPU adds a bias in a pass of its own, which takes longer than the convolution of a small
    network; a `FusedNorm` takes it on.
    """
    if isinstance(norm, FusedNorm) and images.is_cuda and _adds_bias(conv) and not heard(norm):
        bare = F.conv2d(
            images, conv.weight, None, conv.stride, conv.padding, conv.dilation, conv.groups
        )
        assert conv.bias is not None
        return norm.biased(bare, conv.bias, shortcut, slope, pool)
    return activate(convolve(conv, images), norm, shortcut=shortcut, slope=slope, pool=pool)


def _adds_bias(conv: nn.Conv2d) -> bool:
    """Whether this is a plain convolution with a bias, whose output nobody else wants."""
    plain = type(conv) is nn.Conv2d and conv.padding_mode == "zeros" and not heard(conv)
    return plain and conv.bias is not None
