"""SVHN in the cropped 32x32 .mat files, as torchvision lays them out (Netzer et al. 2011)."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from core.data.arrays import as_images, as_labels, assemble
from core.data.dataset import Dataset, Split
from core.errors import InputError, one_line
from core.files import read_bounded

#: bytes of the largest file that is read, and of what one of its parts may unpack to: the training
#: images have 182 and 225 million
LARGEST, GROWN = 2**28, 2**29
#: packed bytes that are given to zlib at once
SLICE = 2**16
#: how a .mat file marks a part that is packed
COMPRESSED = 15
FILES = {"train": "train_32x32.mat", "test": "test_32x32.mat"}
#: channel statistics of the training images, as the dataset condensation papers use them (Zhao et
#: al. 2021)
MEAN, STD = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)


def _bounded(content: bytes) -> None:
    """Look at how far the parts of a .mat file unpack before one is parsed. Raises ValueError for
    more than `GROWN` bytes, and for another version or byte order.
    """
    if content[124:128] != b"\x00\x01IM":
        raise ValueError("it is not of version 5")
    at, view = 128, memoryview(content)
    while at + 8 <= len(content):
        kind, size = struct.unpack_from("<II", content, at)
        part, at = view[at + 8 : at + 8 + size], at + 8 + size
        grown = 0
        for block in _unpacked(part) if kind == COMPRESSED else ():
            grown += len(block)
            if grown > GROWN:
                raise ValueError(f"it would unpack to more than {GROWN:,} bytes")


def _unpacked(part: memoryview) -> Iterator[bytes]:
    """A part that is packed, at most a megabyte of it at a time."""
    unpacker = zlib.decompressobj()
    # in slices: after every call zlib copies what it has not read yet
    for start in range(0, len(part), SLICE):
        waiting: bytes | memoryview = part[start : start + SLICE]
        while waiting and not unpacker.eof:
            yield unpacker.decompress(waiting, 2**20)
            waiting = unpacker.unconsumed_tail
        if unpacker.eof:
            return


def _split(path: Path) -> Split:
    try:
        from scipy.io import loadmat
    except ImportError:
        raise InputError(
            "reading SVHN needs the package scipy; install it with: pip install scipy"
        ) from None
    content = read_bounded(path, LARGEST, "file of images")
    try:
        _bounded(content)
        table = loadmat(io.BytesIO(content), variable_names=("X", "y"))
    except Exception as error:  # scipy raises many kinds on damaged files
        reason = one_line(error, 150)
        raise InputError(f"{path} cannot be read as a .mat file ({reason}); get it again") from None
    for key in ("X", "y"):
        if key not in table:
            raise InputError(f"{path} has no array {key!r}")
    pixels, labels = np.asarray(table["X"]), np.asarray(table["y"])
    if pixels.ndim != 4:
        raise InputError(f"{path}: X must have shape (32, 32, 3, N), not {pixels.shape}")
    images = as_images(pixels.transpose(3, 0, 1, 2), f"{path}: X")
    digits = as_labels(labels, f"{path}: y", len(images), 11)
    return Split(images, digits % 10)  # the digit 0 has label 10 in the file


def load_svhn(root: Path) -> Dataset:
    """73,257 and 26,032 colour images of 32x32 pixels, 10 digits (the 531,131 extra images are not
    used; FedMK's paper counts them in, but does not say that it trains on them).
    """
    train, test = (_split(root / name) for name in FILES.values())
    return assemble(
        "svhn", train, None, test, tuple(str(digit) for digit in range(10)), MEAN, STD, root
    )
