"""Arrays of pixels and labels as others keep them, as the tensors of a data set."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch.nn.functional import interpolate

from core.errors import InputError, brief

#: weights of red, green and blue in a grey image (ITU-R BT.601)
LUMA = (0.299, 0.587, 0.114)
#: images that are resized at once
AT_ONCE = 2_000


def white_level(highest: int) -> int:
    """Return the value that is white where the brightest pixel is `highest`: the largest of the bits
    in use, at least 8. Medical images often have 12 in 16.
    """
    return (1 << max(8, int(highest).bit_length())) - 1


def eight_bits(array: np.ndarray, white: int, source: str) -> np.ndarray:
    """Pixels of any number type as uint8 of the same shape: whole numbers from 0 to `white`, floating
    point from 0 to 1. Raises InputError, naming `source`, for values outside of these.
    """
    kind = array.dtype.kind
    if array.dtype == np.uint8:
        return array
    if kind not in "biuf":
        raise InputError(f"{source} must hold numbers, not {array.dtype}")
    top = 1 if kind in "bf" else white
    if array.size and not (array.min() >= 0 and array.max() <= top):
        wanted = "from 0 to 1 in floating point" if kind == "f" else "0 or above"
        raise InputError(f"{source} must hold pixels {wanted}, not {array.min()} to {array.max()}")
    return np.rint(array * (255 / top)).astype(np.uint8)


def as_images(parts: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Images (N, H, W) or (N, H, W, 1 or 3) of the parts of a set as uint8 (N, C, S, S), by name.

    Whole numbers beyond 8 bits are scaled by the bits that the brightest pixel of all parts uses;
    images that are no squares are resized to squares of their longer side. The keys name the arrays
    in messages. Raises InputError for another shape, and for values as `eight_bits`.
    """
    whole = [array for array in parts.values() if array.dtype.kind in "iu" and array.size]
    white = white_level(max((array.max() for array in whole), default=0))
    return {source: _as_images(array, white, source) for source, array in parts.items()}


def _as_images(array: np.ndarray, white: int, source: str) -> torch.Tensor:
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim != 4 or array.shape[3] not in (1, 3) or 0 in array.shape[1:3]:
        raise InputError(
            f"{source} must have shape (N, H, W) or (N, H, W, 1 or 3), not {array.shape}"
        )
    pixels = eight_bits(array, white, source).transpose(0, 3, 1, 2)
    images = torch.from_numpy(np.array(pixels, order="C"))  # a copy: the source may be read-only
    height, width = images.shape[2:]
    return images if height == width else resized(images, images.shape[1], max(height, width))


def as_labels(
    array: np.ndarray, source: str, count: int, classes: int | None = None
) -> torch.Tensor:
    """Whole numbers (N,) or (N, 1), as int64 (N,). InputError where they are not whole, not one per image
    (`count`), negative, or not below `classes`, if given.
    """
    array = column(array, source, count)
    if array.dtype.kind not in "iu":
        raise InputError(f"{source} must hold whole numbers, one per image, not {array.dtype}")
    if count and array.min() < 0:
        raise InputError(f"{source} holds the negative number {array.min()}")
    if count and array.max() >= 2**31:
        raise InputError(f"{source} holds the number {array.max()}, which is no class")
    if count and classes is not None and array.max() >= classes:
        raise InputError(
            f"{source} holds class {array.max()}, but the classes are numbered 0 to {classes - 1}"
        )
    return torch.from_numpy(array.astype(np.int64))


def column(array: np.ndarray, source: str, count: int) -> np.ndarray:
    """A value per image: (N,) or (N, 1) as (N,), bytes as text. InputError for another shape."""
    array = np.asarray(array)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise InputError(
            f"{source} must hold one value per image, not an array of shape {array.shape}"
        )
    if len(array) != count:
        raise InputError(f"{source} holds {len(array)} values for {count} images")
    return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array


def composed(name: object) -> str:
    """A name in Unicode NFC, in which equal names are equal. InputError for one that cannot be printed."""
    if not (text := str(name)).isprintable():
        raise InputError(f"names must be printable, not {brief(text)}")
    return unicodedata.normalize("NFC", text)


def as_names(names: Iterable[object], source: str) -> tuple[str, ...]:
    """Names of classes. Raises InputError where fewer than two differ, or two are one."""
    alike = tuple(map(composed, names))
    if len(set(alike)) < max(len(alike), 2):
        raise InputError(f"{source} must be at least two different names, not {brief(list(alike))}")
    return alike


def numbers_of(names: np.ndarray, known: tuple[str, ...], source: str) -> np.ndarray:
    """The places of names (N,) among those that are known. Raises InputError for others."""
    place = {name: number for number, name in enumerate(known)}
    if names.dtype.kind != "U":
        raise InputError(f"{source} must hold names, as other parts do, not {names.dtype}")
    plain = [composed(name) for name in names.tolist()]
    if extra := sorted(set(plain) - set(place)):
        raise InputError(f"{source} holds {brief(extra[0])}, which is none of {brief(list(known))}")
    return np.array([place[name] for name in plain], np.int64)


def resized(images: torch.Tensor, channels: int, size: int) -> torch.Tensor:
    """uint8 images (N, C, H, W) as squares with another number of channels (1 or 3): uint8 (N,
    channels, size, size). What PIL's and torchvision's bilinear resize do, to within one grey level.
    """
    if images.shape[1:] == (channels, size, size):
        return images
    parts = [shaped(part.float(), channels, (size, size)) for part in images.split(AT_ONCE)]
    return torch.cat(parts)


def shaped(images: torch.Tensor, channels: int, shape: tuple[int, int]) -> torch.Tensor:
    """Floats (N, C, H, W) from 0 to 255 as uint8 (N, channels, *shape): antialiased bilinear, rounded."""
    if channels == 1 and images.shape[1] == 3:
        images = (images * torch.tensor(LUMA).view(1, 3, 1, 1)).sum(1, keepdim=True)
    if images.shape[-2:] != shape:
        images = interpolate(images, shape, mode="bilinear", antialias=True)
    return images.round().clamp(0, 255).to(torch.uint8).expand(-1, channels, -1, -1).contiguous()
