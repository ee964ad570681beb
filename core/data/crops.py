"""Augmentation of training images by loaders of CIFAR: a random crop after padding, and a flip."""

from __future__ import annotations

import torch
from torch.nn import functional as F

#: black pixels around an image before it is cropped to its size again
PADDING = 4


def crop_and_flip(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Images (N, C, H, W), each shifted by up to `PADDING` pixels each way and flipped half of the time,
    black from outside; draws on their device in fixed order: down, right, flips.
    """
    count, _, height, width = images.shape
    device = images.device
    shifts = torch.randint(2 * PADDING + 1, (2, count, 1), generator=generator, device=device)
    flips = torch.randint(2, (count, 1), generator=generator, device=device).bool()
    rows = shifts[0] + torch.arange(height, device=device)
    across = torch.arange(width, device=device)
    columns = shifts[1] + torch.where(flips, across.flip(0), across)
    padded = F.pad(images, (PADDING,) * 4).permute(0, 2, 3, 1)
    each = torch.arange(count, device=device)[:, None, None]
    return padded[each, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
