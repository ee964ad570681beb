"""MNIST in idx files under `MNIST/raw`, as torchvision lays them out, packed with gzip or not."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from core.data.arrays import as_images, as_labels, assemble
from core.data.dataset import Dataset, Split
from core.errors import InputError

FOLDER = Path("MNIST") / "raw"
STEMS = {"train": "train", "test": "t10k"}
DIGITS = tuple(str(digit) for digit in range(10))
#: what is looked for, relative to the data folder
FILES = tuple(
    f"MNIST/raw/{stem}-{kind}"
    for stem in STEMS.values()
    for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
)


def _find(root: Path, stem: str) -> Path | None:
    for path in (root / FOLDER / stem, root / FOLDER / f"{stem}.gz"):
        if path.is_file():
            return path
    return None


def read_idx(path: Path) -> np.ndarray:
    """The uint8 array in an idx file. Raises InputError when the header or the length is wrong."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read ({error}); get it again") from None
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise InputError(f"{path} is not an idx file of bytes")
    ndim = data[3]
    start = 4 + 4 * ndim
    if len(data) < start or not ndim:
        raise InputError(f"{path} ends within its header")
    shape = tuple(int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(ndim))
    if len(data) - start != math.prod(shape):
        raise InputError(
            f"{path} holds {len(data) - start} bytes where its header announces "
            f"{math.prod(shape)}; get it again"
        )
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)


def _split(root: Path, stem: str) -> Split:
    paths = [_find(root, f"{stem}-{kind}") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")]
    if paths[0] is None or paths[1] is None:
        raise InputError(f"{root / FOLDER} lacks the files {stem}-*; get the set again")
    images, labels = (read_idx(path) for path in paths if path is not None)
    pixels = as_images(images, str(paths[0]))
    return Split(pixels, as_labels(labels, str(paths[1]), len(pixels), 10))


def load_mnist(root: Path) -> Dataset:
    """60,000 and 10,000 grey images of 28x28 pixels, 10 digits; mean and standard deviation 0.5."""
    train, test = (_split(root, stem) for stem in STEMS.values())
    return assemble("mnist", train, None, test, DIGITS, None, None, root / FOLDER)
