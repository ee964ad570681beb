"""The one reader of image files: orientation, bits and transparency are settled here, once."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
#: how Pillow names the order of two bytes, and the other order; N is this machine's
OTHER = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}


def read_image(path: Path, least: int | None = None) -> np.ndarray:
    """An image as a person sees it: (H, W) or (H, W, 3), uint8, or uint16 with all of its bits.

    It is turned as its metadata (EXIF) say; palettes become colours; what is transparent lies on
    white. A JPEG file may be decoded at a fraction of its size, with both sides at least `least`.

    Raises InputError, naming the file, where Pillow is absent, and for a file that is missing, no
    plain file, too large, damaged, of another format, of several images, of numbers that are no
    whole ones from 0 to 65,535, or of more than 8 bits with transparency.
    """
    content = read_bounded(path, LARGEST, "image")
    with parsing(path, "an image"):
        image = _opened(content)
        if least is not None:
            image.draft(None, (least, least))
        if _is_deep(image):
            return _deep(image, content)
        upright = _upright(image)
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
        values = _deep(image, content) if _is_deep(image) else np.asarray(_upright(image))
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
    return image


def _upright(image: ImageFile) -> Image:
    from PIL import ImageOps

    return ImageOps.exif_transpose(image)


def _is_deep(image: ImageFile) -> bool:
    """Whether the file has more than 8 bits a colour, which Pillow keeps of grey images alone."""
    if image.mode == "F":
        raise ValueError("it holds floating-point numbers")
    if image.mode.startswith("I"):
        return True
    if image.format == "TIFF":
        return max(image.tag_v2.get(BITS, (1,))) > 8  # type: ignore[attr-defined]
    if image.format == "PPM":
        return any(isinstance(tile.args, tuple) and tile.args[1] > 255 for tile in image.tile)
    return image.format == "PNG" and any(";16" in str(tile.args) for tile in image.tile)


def _deep(image: ImageFile, content: bytes) -> np.ndarray:
    """Pixels of more than 8 bits, uint16. Of colours Pillow gives the upper eight bits, and the lower
    eight where the two bytes are read in the other order.
    """
    if "transparency" in image.info:
        raise ValueError("it has transparent pixels and more than 8 bits")
    if image.mode.startswith("I"):
        if image.format == "TIFF" and image.tag_v2.get(MEANING) == 0:  # type: ignore[attr-defined]
            raise ValueError("its zero is white, in more than 8 bits")
        values = np.asarray(_upright(image)).astype(np.int64)
        if values.size and not 0 <= values.min() <= values.max() < 2**16:
            raise ValueError(f"it holds {values.min()} to {values.max()}, not 0 to {2**16 - 1}")
        return values.astype(np.uint16)
    swapped = _opened(content)
    swapped.tile = [tile._replace(args=_other_order(tile.args)) for tile in swapped.tile]
    upper, lower = (np.asarray(_upright(half)).astype(np.uint16) for half in (image, swapped))
    values = upper << 8 | lower
    if values.shape[2] == 4 and values[..., 3].min() < values[..., 3].max():
        raise ValueError("it has transparent pixels and more than 8 bits")
    return values[..., :3]


def _other_order(args: Any) -> Any:
    """The arguments of one of Pillow's decoders, with the other order of the bytes of a colour."""
    name, *rest = (args,) if isinstance(args, str) else args
    if not re.fullmatch(r"RGBA?;16[BLN]", name):
        raise ValueError(
            f"it has colours of more than 8 bits, as {name}; save it as a 16-bit RGB PNG"
        )
    name = name[:-1] + OTHER[name[-1]]
    return name if isinstance(args, str) else (name, *rest)
