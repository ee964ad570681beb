"""Image files of others: what they announce is looked at before any of it is decoded."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from core.errors import InputError, one_line
from core.files import read_bounded

if TYPE_CHECKING:
    from PIL.Image import Image

#: bytes of the largest file, and pixels of the largest image; ISIC 2020 has some of 24 million
LARGEST, MOST_PIXELS = 2**26, 8 * 10**7
#: the decoders that may see a file; Pillow has others that start programs
FORMATS = ("JPEG", "PNG")
Result = TypeVar("Result")


def decoded(
    path: Path, use: Callable[[Image], Result], formats: tuple[str, ...] = FORMATS
) -> Result:
    """What `use` makes of the image in a file of one of these formats, by default JPEG and PNG.

    Raises InputError, naming the file, where Pillow is absent, and for a file that is missing, no
    plain file, too large, or of another format.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise InputError(
            f"decoding {path} needs the package pillow; install it with: pip install pillow"
        ) from None
    content = io.BytesIO(read_bounded(path, LARGEST, "image"))
    try:
        with Image.open(content, formats=formats) as image:
            width, height = image.size
            if width * height > MOST_PIXELS:
                raise ValueError(f"it has {width} by {height} pixels")
            return use(image)
    except UnidentifiedImageError:
        raise InputError(
            f"{path} cannot be read as an image (it is no {' or '.join(formats)}); get the set again"
        ) from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(
            f"{path} cannot be read as an image ({one_line(error, 100)}); get the set again"
        ) from None
