"""MNIST and the sets that share its layout: idx files under `<folder>/raw`, as torchvision lays them
out, packed with gzip or not.
"""

from __future__ import annotations

import gzip
import io
import math
import zlib
from pathlib import Path

import attrs
import numpy as np

from core.data.arrays import as_images, as_labels, assemble
from core.data.dataset import Dataset, Split
from core.errors import InputError
from core.files import read_bounded

STEMS = {"train": "train", "test": "t10k"}
KINDS = ("images-idx3-ubyte", "labels-idx1-ubyte")
DIGITS = tuple(str(digit) for digit in range(10))


@attrs.frozen
class IdxSet:
    """A set in idx files: its name, the folder that torchvision gives it, and its classes."""

    name: str
    folder: str
    classes: tuple[str, ...] = DIGITS

    @property
    def files(self) -> tuple[str, ...]:
        """What is looked for, relative to the data folder."""
        return tuple(
            f"{self.folder}/raw/{stem}-{kind}" for stem in STEMS.values() for kind in KINDS
        )

    def load(self, root: Path) -> Dataset:
        """The training and the test images, grey; mean and standard deviation 0.5.

        Raises InputError for files that are missing or broken.
        """
        folder = root / self.folder / "raw"
        train, test = (_split(folder, stem, len(self.classes)) for stem in STEMS.values())
        return assemble(self.name, train, None, test, self.classes, None, None, folder)


MNIST = IdxSet("mnist", "MNIST")
FASHION_MNIST = IdxSet(
    "fashionmnist",
    "FashionMNIST",
    (
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
)
KMNIST = IdxSet("kmnist", "KMNIST", ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"))


#: bytes of the largest idx file that is read; MNIST has 47 million
LARGEST = 2**30


def read_idx(path: Path) -> np.ndarray:
    """The uint8 array in an idx file. Raises InputError when the header or the length is wrong."""
    data = read_bounded(path, LARGEST, "idx file")
    try:
        if path.suffix == ".gz":
            with gzip.open(io.BytesIO(data)) as file:
                data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise InputError(f"{path} would unpack to more than {LARGEST:,} bytes")
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


def _split(folder: Path, stem: str, classes: int) -> Split:
    paths = [_find(folder, f"{stem}-{kind}") for kind in KINDS]
    if paths[0] is None or paths[1] is None:
        raise InputError(f"{folder} lacks the files {stem}-*; get the set again")
    images, labels = (read_idx(path) for path in paths if path is not None)
    pixels = as_images(images, str(paths[0]))
    return Split(pixels, as_labels(labels, str(paths[1]), len(pixels), classes))


def _find(folder: Path, stem: str) -> Path | None:
    found = (path for path in (folder / stem, folder / f"{stem}.gz") if path.is_file())
    return next(found, None)
