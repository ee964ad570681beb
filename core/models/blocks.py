"""How many images run through a network at once."""

from __future__ import annotations

import torch

#: pixels on a CPU: 128 images of 32x32. The maps of more leave its cache: 512 images take 1.3 to
#: 1.8 times as long each
CPU_PIXELS = 128 * 32 * 32
#: images on a GPU: enough to keep it busy
GPU_IMAGES = 1024


def at_once(images: torch.Tensor) -> int:
    """How many of such images (N, C, H, W) a network of this package should see at once where it is
    free to choose.
    """
    if images.device.type != "cpu":
        return GPU_IMAGES
    return max(16, CPU_PIXELS // (images.shape[-2] * images.shape[-1]))
