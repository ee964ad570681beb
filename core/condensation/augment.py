"""Differentiable siamese augmentation (Zhao and Bilen 2021), for whole batches at once.

Real and condensed images that are compared get the same random transform, and gradients flow back
through it. One draw picks ONE of the strategy's transforms, all with equal odds, with the
parameters of the official code:

    color     x + b with b in [-0.5, 0.5]; then saturation: distance from the mean of the pixel's
              channels times s in [0, 2]; then contrast: distance from the image's mean times c in
              [0.5, 1.5]
    crop      a shift by whole pixels, up to 1/8 of the side in each direction
    cutout    a square of half the side set to 0, its centre anywhere in the image (so that part of
              it may lie outside)
    flip      left to right, with probability 1/2
    scale     width and height each by 1/s with s in [1/1.2, 1.2], about the centre
    rotate    by up to 15 degrees either way, about the centre

All ranges are uniform. Images are normalised, so pixels from outside are 0, the mean colour.
FedVCK's released code uses "color_crop_cutout_flip_scale_rotate".
"""

from __future__ import annotations

import math

import attrs
import torch
from torch.nn import functional as F

from core.errors import unknown
from core.models.tensors import at_least_float32
from core.rng import Rng

TRANSFORMS = ("color", "crop", "cutout", "flip", "scale", "rotate")
GEOMETRIC = frozenset({"crop", "flip", "scale", "rotate"})
#: uniform numbers that make one draw: which transform, and up to three parameters
UNIFORMS = 4

BRIGHTNESS, SATURATION, CONTRAST = 1.0, 2.0, 0.5
CROP, CUTOUT = 0.125, 0.5
SCALE, ROTATE = 1.2, math.radians(15)


@attrs.frozen(eq=False)
class Augmentation:
    """K draws of a strategy for square images; transforms that were not picked have identity values."""

    strategy: str
    size: int
    #: (K, 3): brightness (added), saturation, contrast
    colour: torch.Tensor
    #: (K, 4): first row, last row, first column, last column that are cut out, ends included; last <
    #: first: none
    cutout: torch.Tensor
    #: (K, 2, 3): from column and row of an output pixel, counted from the centre, to those of its
    #: source
    affine: torch.Tensor
    #: (K,) bool: whether the affine map is not the identity
    mapped: torch.Tensor

    def __len__(self) -> int:
        return len(self.mapped)

    @classmethod
    def of(cls, uniform: torch.Tensor, strategy: str, size: int) -> Augmentation:
        """The draws of uniform numbers (K, 4) in [0, 1). InputError for an unknown transform."""
        parts = parts_of(strategy)
        which = (uniform[:, 0] * len(parts)).long().clamp(max=max(len(parts) - 1, 0))
        a, b, c = uniform[:, 1:].unbind(1)
        picked = {name: torch.zeros_like(which, dtype=torch.bool) for name in TRANSFORMS}
        for position, name in enumerate(parts):
            picked[name] = picked[name] | (which == position)
        flipped = picked["flip"] & (a < 0.5)
        return cls(
            strategy,
            size,
            _colour(picked, a, b, c),
            _cutout(picked, a, b, size),
            _affine(picked, flipped, a, b, size),
            picked["crop"] | flipped | picked["scale"] | picked["rotate"],
        )

    def select(self, index: torch.Tensor) -> Augmentation:
        """The draws of the given numbers, (n,) int64, in that order."""
        return Augmentation(
            self.strategy, self.size, *(getattr(self, name)[index] for name in _TENSORS)
        )


_TENSORS = ("colour", "cutout", "affine", "mapped")


def parts_of(strategy: str) -> tuple[str, ...]:
    """Transforms named in a strategy such as "color_flip" or "none". InputError for an unknown one."""
    if strategy in ("", "none"):
        return ()
    parts = tuple(strategy.split("_"))
    for part in parts:
        if part not in TRANSFORMS:
            raise unknown("augmentation", part, (*TRANSFORMS, "none"))
    return parts


def draw_augmentation(
    strategy: str,
    draws: int,
    size: int,
    generator: torch.Generator,
    device: torch.device | str = "cpu",
    one_kind: bool = False,
) -> Augmentation:
    """`draws` independent draws of a strategy, for square images of `size`; with `one_kind` of one and the
    same transform. Drawn where the generator is. InputError for an unknown transform.
    """
    uniform = torch.rand(draws, UNIFORMS, generator=generator, device=generator.device)
    if one_kind:
        uniform[:, 0] = uniform[0, 0].clone()
    return Augmentation.of(uniform.to(device), strategy, size)


def augment(
    images: torch.Tensor, augmentation: Augmentation | None, index: torch.Tensor
) -> torch.Tensor:
    """Images (N, C, size, size), each transformed by the draw numbered in `index` (N,) int64; dtype and
    memory format stay. Differentiable in the images.
    """
    if augmentation is None:
        return images
    parts = parts_of(augmentation.strategy)
    if len(augmentation) > len(images):  # the draws of many clients, the images of a few
        augmentation = augmentation.select(index)
        index = torch.arange(len(images), device=index.device)
    if "color" in parts:
        images = _coloured(images, augmentation.colour.to(images.dtype)[index])
    if "cutout" in parts:
        images = images * _mask(augmentation).to(images.dtype)[index]
    if GEOMETRIC.intersection(parts):
        wide = at_least_float32(images)
        sampled = F.grid_sample(
            wide, _grid(augmentation).to(wide.dtype)[index], align_corners=False
        ).to(images.dtype)
        # in this order the result has the memory format of the images
        images = torch.where(~augmentation.mapped[index].view(-1, 1, 1, 1), images, sampled)
    return images


def siamese_augment(images: torch.Tensor, strategy: str, rng: Rng) -> torch.Tensor:
    """All images (N, C, H, W), H = W, under one draw of `rng`: two batches are treated alike."""
    if not parts_of(strategy):
        return images
    augmentation = draw_augmentation(strategy, 1, images.shape[-1], rng.generator(), images.device)
    return augment(
        images, augmentation, torch.zeros(len(images), dtype=torch.int64, device=images.device)
    )


def _colour(
    picked: dict[str, torch.Tensor], a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> torch.Tensor:
    on = picked["color"]
    return torch.stack(
        [
            torch.where(on, (a - 0.5) * BRIGHTNESS, 0.0),
            torch.where(on, b * SATURATION, 1.0),
            torch.where(on, c + CONTRAST, 1.0),
        ],
        1,
    )


def _cutout(
    picked: dict[str, torch.Tensor], a: torch.Tensor, b: torch.Tensor, size: int
) -> torch.Tensor:
    side = _rounded(size * CUTOUT)
    centres = size + 1 - side % 2
    ends = []
    for uniform in (a, b):
        first = _whole(uniform, centres) - side // 2
        ends += [
            torch.where(picked["cutout"], first, 0),
            torch.where(picked["cutout"], first + side - 1, -1),
        ]
    return torch.stack(ends, 1)


def _affine(
    picked: dict[str, torch.Tensor],
    flipped: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    size: int,
) -> torch.Tensor:
    reach = _rounded(size * CROP)
    angle = torch.where(picked["rotate"], (2 * a - 1) * ROTATE, 0.0)
    across, down = (
        torch.where(picked["scale"], 1 / SCALE + u * (SCALE - 1 / SCALE), 1.0) for u in (a, b)
    )
    right, below = (
        torch.where(picked["crop"], _whole(u, 2 * reach + 1) - reach, 0).to(a.dtype) for u in (a, b)
    )
    across = torch.where(flipped, -1.0, across)
    return torch.stack(
        [
            torch.stack([angle.cos() * across, -angle.sin(), right], 1),
            torch.stack([angle.sin(), angle.cos() * down, below], 1),
        ],
        1,
    )


def _rounded(length: float) -> int:
    return int(length + 0.5)


def _whole(uniform: torch.Tensor, values: int) -> torch.Tensor:
    """Whole numbers 0..values-1, all with equal odds."""
    return (uniform * values).long().clamp(max=values - 1)


def _coloured(images: torch.Tensor, colour: torch.Tensor) -> torch.Tensor:
    """Brightness, then saturation, then contrast, as one sum of three terms."""
    brightness, saturation, contrast = colour.view(-1, 3, 1, 1, 1).unbind(1)
    pixel = images.mean(1, keepdim=True)
    rest = contrast * (1 - saturation) * pixel + (
        (1 - contrast) * pixel.mean((2, 3), keepdim=True) + brightness
    )
    return contrast * saturation * images + rest


def _mask(augmentation: Augmentation) -> torch.Tensor:
    """False where a draw cuts out, (K, 1, size, size)."""
    place = torch.arange(augmentation.size, device=augmentation.cutout.device)
    top, bottom, left, right = augmentation.cutout[:, :, None].unbind(1)
    rows, columns = (place >= top) & (place <= bottom), (place >= left) & (place <= right)
    return ~(rows[:, :, None] & columns[:, None, :])[:, None]


def _grid(augmentation: Augmentation) -> torch.Tensor:
    """Sources of the output pixels, (K, size, size, 2), as `grid_sample` takes them; without
    `affine_grid`, whose matrix product a GPU may do in less than float32.
    """
    size = augmentation.size
    place = (
        torch.arange(size, device=augmentation.affine.device, dtype=augmentation.affine.dtype)
        - (size - 1) / 2
    )
    to_column, to_row, shift = augmentation.affine[..., None, None].unbind(2)
    source = to_column * place + to_row * place[:, None] + shift
    return source.permute(0, 2, 3, 1) * (2 / size)
