"""STL10 in the official binary files, as torchvision lays them out (Coates, Ng and Lee 2011)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from core.data.arrays import as_labels, assemble, resized
from core.data.dataset import Dataset, Split
from core.errors import InputError
from core.files import read_bounded

FOLDER = "stl10_binary"
#: what is looked for, relative to the data folder
FILES = tuple(f"{FOLDER}/{split}_{kind}.bin" for split in ("train", "test") for kind in "Xy")
SIDE = 96  # pixels of the source
#: bytes of the largest file that is read; the test images have 221 million
LARGEST = 2**28
CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")


def _bytes(path: Path) -> np.ndarray:
    return np.frombuffer(read_bounded(path, LARGEST, "file of images"), dtype=np.uint8)


def _split(folder: Path, word: str, size: int) -> Split:
    path = folder / f"{word}_X.bin"
    pixels = _bytes(path)
    if len(pixels) % (3 * SIDE * SIDE) or not len(pixels):
        raise InputError(
            f"{path} holds {len(pixels)} bytes, not a multiple of {3 * SIDE * SIDE}; get it again"
        )
    # each channel is stored column by column
    images = torch.from_numpy(
        np.ascontiguousarray(pixels.reshape(-1, 3, SIDE, SIDE).transpose(0, 1, 3, 2))
    )
    path = folder / f"{word}_y.bin"
    labels = _bytes(path).astype(np.int64) - 1  # numbered from 1 in the file
    return Split(
        resized(images, 3, size), as_labels(labels, f"{path} (less 1)", len(images), len(CLASSES))
    )


def load_stl10(root: Path, size: int) -> Dataset:
    """5,000 and 8,000 labelled colour images, 10 classes, resized from 96x96 to `size` (FedVCK uses
    32). Pixels go to [-1, 1], as in its released code.
    """
    train, test = (_split(root / FOLDER, word, size) for word in ("train", "test"))
    name = "stl10" if size == 32 else f"stl10_{size}"
    return assemble(name, train, None, test, CLASSES, None, None, root / FOLDER)
