"""A set of one's own from folders of images, a folder for each class, as torchvision's `ImageFolder`
reads them: `train/CLASS/*.png`, `test/CLASS/*.png` and, if there are some, `val/CLASS/*.png`.

`fedcon data convert NAME FOLDER` writes what `core.data.npz` reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from core.data.pictures import decoded
from core.errors import InputError, listed

if TYPE_CHECKING:
    from PIL.Image import Image

#: the parts of a set; the first and the last are needed
SPLITS = ("train", "val", "test")
ENDINGS = (".jpeg", ".jpg", ".png")
#: images of other kinds, which are not left out without a word
OTHERS = (".bmp", ".dcm", ".gif", ".nii", ".tif", ".tiff", ".webp")
#: pixels of a side where the images differ in size, or are no squares
USUAL = 64
#: the most of them: an image of such a size takes 12 MB as a network reads it
MOST = 1024


def from_folders(folder: Path, size: int | None = None) -> dict[str, np.ndarray]:
    """The arrays `train_images`, `train_labels`, and so on, and the names of the `classes`.

    Classes and files are taken in alphabetical order. Images are resized to squares of `size` pixels;
    by default they keep theirs where all are squares of one size, else they get `USUAL`. They are grey,
    (N, S, S) uint8, where all files are, else (N, S, S, 3); 16 bits become 8, from as many as the
    brightest pixel of all files uses: medical images often have 12.

    Raises InputError where a part is missing, has another class than `train`, `train` fewer than two, or
    a class no image to train on, for a file that is damaged, for images of another kind and for folders
    within a class.
    """
    found = {split: _files(folder / split) for split in SPLITS if (folder / split).is_dir()}
    if not {"train", "test"} <= found.keys():
        raise InputError(
            f"{folder} should hold the folders train and test, with one for each class"
        )
    names = list(found["train"])
    for split, classes in found.items():
        if others := sorted(classes.keys() - set(names)):
            raise InputError(f"{folder / split} has classes that train lacks: {listed(others)}")
    if len(names) < 2:
        raise InputError(
            f"{folder / 'train'} has fewer than two folders: there is nothing to tell apart"
        )
    if bare := [name for name in names if not found["train"][name]]:
        raise InputError(f"{folder / 'train'} has no PNG or JPEG file of: {listed(bare)}")
    paths = [path for classes in found.values() for each in classes.values() for path in each]
    looks = {
        decoded(path, lambda image: (image.size, _grey(image), _highest(image))) for path in paths
    }
    (width, height), *rest = {shape for shape, _, _ in looks}
    side = size or (width if width == height and not rest else USUAL)
    mode = "L" if all(grey for _, grey, _ in looks) else "RGB"
    white = (1 << max(8, max(top for _, _, top in looks).bit_length())) - 1
    arrays = {"classes": np.array(names)}
    for split, classes in found.items():
        arrays |= _arrays(
            split, classes, names, partial(_pixels, side=side, mode=mode, white=white)
        )
    return arrays


def _files(folder: Path) -> dict[str, list[Path]]:
    """The image files of each class; hidden folders, such as Jupyter makes, are none. Raises InputError
    for what may hold images and is not read.
    """
    classes = sorted(
        entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )
    for path in sorted(path for entry in classes for path in entry.iterdir()):
        unread = path.is_dir() or path.suffix.lower() in OTHERS
        if unread and not path.name.startswith("."):
            raise InputError(f"{path} is not read: a class has PNG and JPEG files, and no folders")
    return {
        entry.name: sorted(path for path in entry.iterdir() if path.suffix.lower() in ENDINGS)
        for entry in classes
    }


def _grey(image: Image) -> bool:
    return image.mode in ("1", "L") or image.mode.startswith("I")


def _highest(image: Image) -> int:
    """The brightest value of an image of more than 8 bits."""
    return int(np.asarray(image).max()) if image.mode.startswith("I") else 0


def _arrays(
    split: str,
    classes: Mapping[str, list[Path]],
    names: list[str],
    pixels: Callable[[Image], np.ndarray],
) -> dict[str, np.ndarray]:
    """The images and labels of a part."""
    pairs = [(path, label) for label, name in enumerate(names) for path in classes.get(name, ())]
    if not pairs:
        raise InputError(f"the part {split} has no PNG or JPEG file")
    images = [decoded(path, pixels) for path, _ in pairs]
    labels = np.array([label for _, label in pairs], dtype=np.int64)
    return {f"{split}_images": np.stack(images), f"{split}_labels": labels}


def _pixels(image: Image, side: int, mode: str, white: int) -> np.ndarray:
    """One image, uint8 (side, side) or (side, side, 3); `white` is the value that becomes 255 where it
    has more than 8 bits.
    """
    from PIL import Image as images

    if image.mode.startswith("I"):  # Pillow would cut 16 bits off at 255
        values = np.asarray(image).astype(np.int64)
        image = images.fromarray((values * 255 // white).clip(0).astype(np.uint8))
    image = image.convert(mode)
    if image.size != (side, side):
        image = image.resize((side, side), images.Resampling.BILINEAR)
    return np.asarray(image)
