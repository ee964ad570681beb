"""Number of images that run through a network at once, and replacement of layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

#: pixels on a CPU: 128 images of 32x32. The maps of more leave its cache: 512 images take 1.3 to
#: 1.8 times as long each
CPU_PIXELS = 128 * 32 * 32
#: images on a GPU, enough to keep it busy, and their pixels: of large ones its memory holds fewer
GPU_IMAGES, GPU_PIXELS = 1024, 1024 * 32 * 32


def at_once(images: torch.Tensor) -> int:
    """Number of such images (N, C, H, W) that a network should see at once."""
    pixels = images.shape[-2] * images.shape[-1]
    if images.device.type != "cpu":
        return max(16, min(GPU_IMAGES, GPU_PIXELS // pixels))
    return max(16, CPU_PIXELS // pixels)


def replace_layers(network: nn.Module, made: Callable[[nn.Module], nn.Module | None]) -> None:
    """Put what `made` makes of a layer in its place, in the order of the network; None: it stays."""
    for name, layer in list(network.named_modules()):
        if (new := made(layer)) is not None:
            parent, _, attribute = name.rpartition(".")
            setattr(network.get_submodule(parent), attribute, new)
