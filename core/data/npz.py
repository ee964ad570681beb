"""Npz files: opened without pickle and within bounds, and written whole."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from core.errors import InputError
from core.files import alone, parsing, write_whole

#: an entry may grow to so many bytes, or to so many times what it takes in the file: images shrink
#: by much less
GROWN, MOST_GROWTH = 2**26, 100


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an npz file by name, without pickle. InputError, naming the file, for one that
    is no npz file, is cut short, grows as no images do, or holds Python objects.
    """
    if not path.is_file():
        raise InputError(f"{path} is not a plain file")
    with parsing(path, "an npz file"):
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if entry.file_size > max(GROWN, MOST_GROWTH * entry.compress_size):
                    raise ValueError(f"{entry.filename} would grow to {entry.file_size:,} bytes")
        with np.load(path, allow_pickle=False) as arrays:
            return {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}


def in_layout(path: Path) -> bool:
    """Return whether `path` is an npz file that is meant to have the layout of MedMNIST: with training
    images. Reading it says what else is missing.
    """
    with contextlib.suppress(Exception):  # a damaged file can make its parser raise anything
        return path.is_file() and "train_images.npy" in zipfile.ZipFile(path).namelist()
    return False


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an npz file, whole or not at all. Raises FileError, or Busy where another writes it."""
    lock = path.with_name(f".{path.name}.lock")
    with alone(lock, f"the file {path}"):
        write_whole(path, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]
        with contextlib.suppress(OSError):
            lock.unlink()
