"""Networks for whole images: a U-Net, a generator of images from label maps, and a judge of patches.
U-Net and judge are MONAI's (Cardoso et al. 2022), which is imported where they are built.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from core.errors import InputError
from core.models.classifier import at_least


def _monai() -> None:
    try:
        import monai.networks.nets  # noqa: F401
        import skimage  # noqa: F401
    except ImportError:
        raise InputError(
            "networks for whole images, and what they are measured by, need the packages monai and "
            "scikit-image; install them with: pip install monai scikit-image"
        ) from None


class UNet(nn.Module):
    """A map of C values for every pixel (Ronneberger et al. 2015; MONAI's, with strided
    convolutions).

    Args:
        channels, size: images are (N, channels, size, size); `size` is a multiple of 8, for there
            are three steps of halving, and at least 16: the last map is normalised, and one single
            cell would leave nothing.
        classes: C, classes of a pixel or channels of an image.
        width: channels of the first map; each halving doubles them.
        direct: whether a 1x1 convolution of the image is added to the answer. Nothing else reaches it
            at full resolution, which an image made of an image needs.

    Raises InputError for a bad value or size.
    """

    def __init__(
        self,
        channels: int,
        size: int,
        classes: int,
        *,
        width: int = 32,
        direct: bool = False,
    ) -> None:
        super().__init__()
        _monai()
        from monai.networks.nets import UNet as MonaiUNet

        at_least("width", width, 1)
        if size % 8 or size < 16:
            raise InputError(
                f"a U-Net takes images whose side is a multiple of 8 and at least 16, not {size}"
            )
        levels = tuple(width * 2**level for level in range(4))
        self.net = MonaiUNet(2, channels, classes, levels, (2, 2, 2), act="RELU")
        if not isinstance(direct, bool):
            raise InputError(f"direct must be true or false, not {direct!r}")
        self.direct = nn.Conv2d(channels, classes, 1) if direct else None

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Outputs (N, C, size, size) of normalised images (N, channels, size, size)."""
        outputs = self.net(images)
        return outputs if self.direct is None else outputs + self.direct(images)

    def encode(self, images: torch.Tensor) -> list[torch.Tensor]:
        """The maps of the encoder, (N, D, h, w) each, the finest first, the bottleneck last."""
        maps, levels = images, []
        for level in self._levels():
            maps = level(maps)
            levels.append(maps)
        return levels

    def answer(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`forward` and the bottleneck of `encode`, from one pass."""
        *_, bottleneck = self._levels()
        deepest: list[torch.Tensor] = []
        handle = bottleneck.register_forward_hook(lambda module, given, maps: deepest.append(maps))
        try:
            outputs = self(images)
        finally:
            handle.remove()
        return outputs, deepest[0]

    def _levels(self) -> Iterator[nn.Module]:
        """The modules of the encoder, the finest first."""
        block: Any = self.net.model
        while isinstance(block, nn.Sequential) and hasattr(block[1], "submodule"):
            yield block[0]
            block = block[1].submodule
        yield block


class LabelToImage(nn.Module):
    """Images from label maps by the generator of Johnson et al. (ECCV 2016), as in pix2pix: `classes` values
    of a map, `channels` of an image, `width` of the first map, residual `blocks` at a quarter of the side.
    """

    def __init__(self, classes: int, channels: int, *, width: int = 64, blocks: int = 9) -> None:
        super().__init__()
        at_least("width", width, 1)
        at_least("blocks", blocks, 1)
        self.classes = classes
        self.first = nn.Conv2d(classes, width, 7, padding=3, padding_mode="reflect")
        self.down = nn.ModuleList(
            nn.Conv2d(width * scale, 2 * width * scale, 3, stride=2, padding=1) for scale in (1, 2)
        )
        self.blocks = nn.ModuleList(
            nn.Conv2d(4 * width, 4 * width, 3, padding=1, padding_mode="reflect")
            for _ in range(2 * blocks)
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(2 * width * scale, width * scale, 3, 2, 1, 1) for scale in (2, 1)
        )
        self.out = nn.Conv2d(width, channels, 7, padding=3, padding_mode="reflect")

    def forward(self, labels: torch.Tensor) -> torch.Tensor:
        """Images (N, channels, S, S) in [0, 1] of label maps (N, S, S), S a multiple of 4."""
        maps = _norm(self.first(planes(labels, self.classes))).relu()
        for layer in self.down:
            maps = _norm(layer(maps)).relu()
        for first, second in zip(self.blocks[::2], self.blocks[1::2], strict=True):
            maps = maps + _norm(second(_norm(first(maps)).relu()))
        for layer in self.up:
            maps = _norm(layer(maps)).relu()
        return self.out(maps).sigmoid()


class DensePatchDiscriminator(nn.Module):
    """Real or synthetic, patch by patch (Isola et al. CVPR 2017), of an image with its label map:
    MONAI's patch discriminator.

    Args:
        channels: of an image and of the planes of its label map together; size: side of an image;
            width: channels of the first map; layers: steps of halving. After them the map must have
            3x3 cells, for two convolutions take one off each, and the first of them is normalised.

    Raises InputError for a bad value, and where the images are too small for so many layers.
    """

    def __init__(self, channels: int, size: int, *, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        _monai()
        from monai.networks.nets import PatchDiscriminator

        at_least("width", width, 1)
        at_least("layers", layers, 1)
        most = max(0, (size // 3).bit_length() - 1)  # size // 2**most is 3 or more
        if layers > most:
            raise InputError(
                f"a judge of patches halves images of {size}x{size} at most {most} times: it cannot "
                f"have {layers} layers of halving"
            )
        self.net = PatchDiscriminator(2, width, channels, num_layers_d=layers, norm="INSTANCE")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (N, 1, h, w), positive for real, of images with their planes (N, channels, S, S)."""
        return self.net(images)[-1]


def planes(labels: torch.Tensor, classes: int) -> torch.Tensor:
    """A label map (N, H, W) as a plane of zeros and ones for each class, (N, classes, H, W)."""
    return functional.one_hot(labels.long(), classes).movedim(-1, 1).float()


def _norm(maps: torch.Tensor) -> torch.Tensor:
    """Instance normalisation: nothing of one image enters another."""
    return functional.instance_norm(maps)
