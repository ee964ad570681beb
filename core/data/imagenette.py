"""Imagenette at 64x64 (Howard 2019): from `imagenette_64.npz`, or from the images as torchvision
lays them out. Pixels go to [-1, 1] and images to squares, as in FedVCK's released code.

In the folders `imagenette2`, `imagenette2-320` or `imagenette2-160` lie `train/<class>/*.JPEG` and
`val/<class>/*.JPEG`; classes and files are taken in alphabetical order, the order that FedVCK's
split files count in.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import numpy as np
import torch

from core.data.arrays import assemble
from core.data.dataset import Dataset, Split
from core.data.npz import load_npz, save_npz
from core.data.pictures import decoded
from core.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

#: torchvision's folders, the smallest images first: they suffice for 64x64 and decode fastest
FOLDERS = ("imagenette2-160", "imagenette2-320", "imagenette2")
CLASSES = {
    "n01440764": "tench",
    "n02102040": "English springer",
    "n02979186": "cassette player",
    "n03000684": "chain saw",
    "n03028079": "church",
    "n03394916": "French horn",
    "n03417042": "garbage truck",
    "n03425413": "gas pump",
    "n03445777": "golf ball",
    "n03888257": "parachute",
}


def packed(root: Path, size: int) -> Path:
    """Where the decoded images of `size` pixels are kept."""
    return root / f"imagenette_{size}.npz"


def layouts(size: int) -> tuple[tuple[str, ...], ...]:
    """What is looked for, relative to the data folder: the packed file or one of torchvision's
    folders.
    """
    return ((f"imagenette_{size}.npz",), *((f"{name}/train", f"{name}/val") for name in FOLDERS))


def _fit(image: Image, size: int) -> np.ndarray:
    """One image, uint8 (size, size, 3), both sides resized to `size`."""
    from PIL.Image import Resampling

    return np.asarray(image.convert("RGB").resize((size, size), Resampling.BILINEAR))


def _split(folder: Path, size: int) -> Split:
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; get the set again")
    found = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    if found != list(CLASSES):
        raise InputError(
            f"{folder} should hold the folders {', '.join(CLASSES)}, but holds: {', '.join(found)}"
        )
    images, labels = [], []
    for label, wnid in enumerate(CLASSES):
        paths = sorted(path for path in (folder / wnid).iterdir() if path.suffix.lower() == ".jpeg")
        if not paths:
            raise InputError(f"{folder / wnid} holds no .JPEG files; get the set again")
        images += [decoded(path, lambda image: _fit(image, size)) for path in paths]
        labels += [label] * len(paths)
    pixels = torch.from_numpy(np.stack(images).transpose(0, 3, 1, 2).copy())
    return Split(pixels, torch.tensor(labels))


def load_imagenette(root: Path, size: int) -> Dataset:
    """9,469 and 3,925 colour images, 10 classes; the source's `val` is the test split, as in
    FedVCK.

    Decoding the folders takes about half a minute; `core.data.get` packs them once. Raises
    InputError when PIL is absent and needed, or a file is broken.
    """
    names = tuple(CLASSES.values())
    if packed(root, size).is_file():
        return load_npz(packed(root, size), "imagenette", names, size=size)
    parts = ("train", "val")
    whole = (root / n for n in FOLDERS if all((root / n / part).is_dir() for part in parts))
    folder = next(whole, root / FOLDERS[0])
    train, test = _split(folder / "train", size), _split(folder / "val", size)
    return assemble("imagenette", train, None, test, names, None, None, folder)


def pack(root: Path, size: int) -> None:
    """Decode the folders once and keep the result as `imagenette_<size>.npz`; does nothing where it
    is there.
    """
    target = packed(root, size)
    if target.is_file():
        return
    data = load_imagenette(root, size)
    save_npz(target, attrs.evolve(data, classes=tuple(CLASSES)))
