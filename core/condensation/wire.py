"""Condensed images as they travel: one byte per pixel and channel (FedVCK, Tables 5 and 9)."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def to_wire(images: torch.Tensor, mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """Normalised float images (N, C, H, W) as uint8: the nearest grey level, and 0 or 255 beyond
    the range.

    `mean` and `std` are those of the data set, per channel, of pixels scaled to [0, 1]. An image
    that lies in the range comes back, by `Dataset.normalise`, within half a grey level.
    """
    scale, shift = (
        torch.tensor(values, dtype=images.dtype, device=images.device).view(1, -1, 1, 1)
        for values in (std, mean)
    )
    levels = (images * scale + shift) * 255
    return levels.round().clamp(0, 255).to(torch.uint8)
