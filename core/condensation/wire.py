"""Condensed images as they travel: one byte per pixel and channel (FedVCK, Tables 5 and 9)."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def to_wire(images: torch.Tensor, mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """Normalised float images (N, C, H, W) as uint8: the nearest grey level, and 0 or 255 beyond
    the range.

    `mean` and `std` are those of the data set, per channel, of pixels scaled to [0, 1]. An image
    that lies in the range comes back within half a grey level.
    """
    levels = (images * per_channel(std, images) + per_channel(mean, images)) * 255
    return levels.round().clamp(0, 255).to(torch.uint8)


def from_wire(images: torch.Tensor, mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """uint8 images (N, C, H, W) as normalised float32, (x / 255 - mean) / std: the inverse of
    `to_wire`.
    """
    levels = images.float() / 255
    return (levels - per_channel(mean, levels)) / per_channel(std, levels)


def per_channel(values: Sequence[float], images: torch.Tensor) -> torch.Tensor:
    """One value per channel, as (1, C, 1, 1) beside images (N, C, H, W)."""
    return torch.tensor(values, dtype=images.dtype, device=images.device).view(1, -1, 1, 1)
