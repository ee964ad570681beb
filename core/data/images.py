"""The one reader of image files: orientation, bits and transparency are settled here, once."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from core.files import parsing, read_bounded

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

#: bytes of the largest file, and pixels of the largest image; ISIC 2020 has some of 24 million
LARGEST, MOST_PIXELS = 2**26, 8 * 10**7
#: the decoders that may see a file, by the endings of its name; Pillow has others that start programs
FORMATS = {
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "JPEG": (".jfif", ".jpe", ".jpeg", ".jpg"),
    "PNG": (".png",),
    "PPM": (".pbm", ".pgm", ".pnm", ".ppm"),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
}
ENDINGS = tuple(ending for endings in FORMATS.values() for ending in endings)
#: TIFF's tags of the bits of each colour, and of what zero means
BITS, MEANING = 258, 262


def read_image(path: Path) -> np.ndarray:
    """An image as a person sees it: (H, W) or (H, W, 3) uint8, or grey (H, W) uint16 with all of its
    bits.

    It is turned as its metadata (EXIF) say; palettes become colours; what is transparent lies on
    white.

    Raises InputError, naming the file, where Pillow is absent, and for a file that is missing, no
    plain file, too large, damaged, of another format, of several images, of numbers that are no
    whole ones from 0 to 65,535, or of more than 8 bits in colour or with transparency, which Pillow
    cuts to 8.
    """
    content = read_bounded(path, LARGEST, "image")
    with parsing(path, "an image"):
        image = _opened(content)
        upright = _upright(image)
        if image.mode.startswith("I"):
            return _sixteen_bits(image, upright)
        grey = image.mode in ("1", "L", "LA")
        if not upright.has_transparency_data:
            return np.asarray(upright.convert("L" if grey else "RGB"))
        values = np.asarray(upright.convert("LA" if grey else "RGBA")).astype(np.uint16)
        colour, alpha = values[..., :-1], values[..., -1:]
        blended = ((colour * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
        return blended[..., 0] if grey else blended


def read_mask(path: Path) -> np.ndarray:
    """The numbers in a mask as they are stored, also those of a palette: (H, W), or (H, W, 3) where
    they are colours. Raises InputError as `read_image`.
    """
    content = read_bounded(path, LARGEST, "image")
    with parsing(path, "an image"):
        image = _opened(content)
        upright = _upright(image)
        values = (
            _sixteen_bits(image, upright) if image.mode.startswith("I") else np.asarray(upright)
        )
        return values[..., :3] if values.ndim == 3 and values.shape[2] == 4 else values


def resized(image: np.ndarray, size: int) -> np.ndarray:
    """A uint8 image (H, W[, 3]) as a square of `size` pixels, bilinear and antialiased."""
    from PIL import Image

    if image.shape[:2] == (size, size):
        return image
    return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR))


def _opened(content: bytes) -> ImageFile:
    """The image that a file announces, with nothing of it decoded yet."""
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(content), formats=tuple(FORMATS))
    except UnidentifiedImageError:
        raise ValueError(f"it is none of {', '.join(FORMATS)}") from None
    if image.width * image.height > MOST_PIXELS:
        raise ValueError(f"it has {image.width} by {image.height} pixels")
    # the second image of a camera's JPEG is a preview
    if image.format != "MPO" and getattr(image, "n_frames", 1) > 1:
        raise ValueError("it holds several images")
    if image.mode == "F":
        raise ValueError("it holds floating-point numbers")
    if not image.mode.startswith("I") and _is_deep(image):
        raise ValueError("it has colours or transparency of more than 8 bits; save it with 8")
    return image


def _upright(image: ImageFile) -> Image:
    from PIL import ImageOps

    return ImageOps.exif_transpose(image)


def _is_deep(image: ImageFile) -> bool:
    """Return whether the file has more than 8 bits a colour."""
    if image.format == "TIFF":
        return max(image.tag_v2.get(BITS, (1,))) > 8  # type: ignore[attr-defined]
    if image.format == "PPM":
        return any(isinstance(tile.args, tuple) and tile.args[1] > 255 for tile in image.tile)
    return image.format == "PNG" and any(";16" in str(tile.args) for tile in image.tile)


def _sixteen_bits(image: ImageFile, upright: Image) -> np.ndarray:
    """Grey pixels of more than 8 bits, (H, W) uint16."""
    if "transparency" in image.info:
        raise ValueError("it has transparent pixels and more than 8 bits")
    if image.format == "TIFF" and image.tag_v2.get(MEANING) == 0:  # type: ignore[attr-defined]
        raise ValueError("its zero is white, in more than 8 bits")
    values = np.asarray(upright).astype(np.int64)
    if values.size and not 0 <= values.min() <= values.max() < 2**16:
        raise ValueError(f"it holds {values.min()} to {values.max()}, not 0 to {2**16 - 1}")
    return values.astype(np.uint16)
