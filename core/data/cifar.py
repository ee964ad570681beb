"""CIFAR-10 and CIFAR-100 in the official python batches, as torchvision lays them out (Krizhevsky
2009).

The batches are Python pickles. They are read by an unpickler that can build NumPy arrays and plain
containers and nothing else, so that a file that was tampered with is refused and not run.
"""

from __future__ import annotations

import codecs
import io
import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from core.data.arrays import as_labels, assemble
from core.data.cifar_names import CIFAR10_CLASSES, COARSE_OF_FINE, FINE, SUPERCLASSES
from core.data.dataset import Dataset, Split
from core.data.npz import load_npz
from core.errors import InputError, brief, listed, one_line
from core.files import read_bounded

MEAN10, STD10 = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
MEAN100, STD100 = (0.5071, 0.4866, 0.4409), (0.2673, 0.2564, 0.2762)

FOLDER10, FOLDER100 = "cifar-10-batches-py", "cifar-100-python"
TRAIN10 = tuple(f"data_batch_{i}" for i in range(1, 6))
#: what is looked for, relative to the data folder
FILES10 = tuple(f"{FOLDER10}/{name}" for name in (*TRAIN10, "test_batch"))
FILES100 = (f"{FOLDER100}/train", f"{FOLDER100}/test")


#: bytes of the largest batch that is read; CIFAR-100's training images have 155 million
LARGEST = 2**28


class _Bytes:
    """Stands for the dtype of bytes, the only one that is allowed."""

    def __init__(self, code: Any, *_: Any) -> None:
        if code not in ("u1", b"u1"):
            raise pickle.UnpicklingError(f"data must be uint8, not {brief(code)}")

    def __setstate__(self, state: Any) -> None:
        """NumPy's byte order and alignment: bytes have neither."""


class _Array:
    """Stands for an array, which NumPy makes empty first and fills from its state."""

    values: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, _, by_columns, content = state
        values = np.frombuffer(content, dtype=np.uint8)
        self.values = values.reshape(shape, order="F" if by_columns else "C")


#: stands for numpy.ndarray: enough for `_reconstruct`, and nothing that could be called
_NDARRAY = object()


def _encode(text: str, encoding: str) -> bytes:
    # Python 3 writes bytes this way in old protocols; any other codec could run code of its own
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"codec {encoding!r} is not allowed")
    return codecs.latin_1_encode(text)[0]


def _reconstruct(subtype: Any, shape: Any, code: Any) -> _Array:
    if subtype is not _NDARRAY or shape != (0,):
        raise pickle.UnpicklingError("only plain arrays are allowed")
    return _Array()


class ArrayUnpickler(pickle._Unpickler):
    """Builds bytes, numbers, lists, tables and arrays of bytes; refuses everything else.

    It is Python's unpickler in Python: the one in C makes room for as many objects as a number in
    the file says.
    """

    allowed: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy", "ndarray"): _NDARRAY,
        ("numpy", "dtype"): _Bytes,
        ("_codecs", "encode"): _encode,
    }

    stack: list[Any]

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self.allowed[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, which is not allowed"
            ) from None

    def build(self) -> None:
        """Give an object its state: an array or its dtype, and no other."""
        state = self.stack.pop()
        if type(self.stack[-1]) not in (_Array, _Bytes):
            raise pickle.UnpicklingError("only arrays may have a state")
        self.stack[-1].__setstate__(state)

    dispatch: ClassVar[dict[int, Any]] = pickle._Unpickler.dispatch | {pickle.BUILD[0]: build}


def _read(path: Path) -> dict[str, Any]:
    """The table in a batch file, with its keys as text. Raises InputError when it cannot be read
    safely.
    """
    content = read_bounded(path, LARGEST, "CIFAR batch")
    try:
        table = ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise InputError(
            f"{path} cannot be read as a CIFAR batch ({one_line(error, 150)}); get it again"
        ) from None
    if not isinstance(table, dict):
        raise InputError(f"{path} is not a CIFAR batch: it holds a {type(table).__name__}")
    return {
        key.decode("latin1") if isinstance(key, bytes) else str(key): value
        for key, value in table.items()
    }


def _batch(path: Path, key: str, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (N, 3, 32, 32) uint8 and labels (N,) of one batch file."""
    table = _read(path)
    for need in ("data", key):
        if need not in table:
            raise InputError(f"{path} has no {need!r}; it holds: {listed(list(table))}")
    pixels = table["data"].values if isinstance(table["data"], _Array) else None
    if pixels is None or pixels.ndim != 2 or pixels.shape[1] != 3072:
        raise InputError(f"{path}: data must be uint8 of shape (N, 3072)")
    labels = table[key]
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise InputError(f"{path}: {key} must be a list of whole numbers")
    checked = as_labels(np.array(labels), f"{path}: {key}", len(pixels), classes)
    return pixels.reshape(-1, 3, 32, 32), checked.numpy()


def _split(paths: list[Path], key: str, classes: int) -> Split:
    batches = [_batch(path, key, classes) for path in paths]
    pixels = np.concatenate([batch[0] for batch in batches])
    labels = np.concatenate([batch[1] for batch in batches])
    return Split(torch.from_numpy(pixels), torch.from_numpy(labels))


def load_cifar10(root: Path) -> Dataset:
    """50,000 and 10,000 colour images of 32x32 pixels, 10 classes, in the official order."""
    folder = root / FOLDER10
    train = _split([folder / batch for batch in TRAIN10], "labels", 10)
    test = _split([folder / "test_batch"], "labels", 10)
    return assemble("cifar10", train, None, test, CIFAR10_CLASSES, MEAN10, STD10, folder)


def load_cifar100(root: Path, coarse: bool) -> Dataset:
    """50,000 and 10,000 colour images of 32x32 pixels in 100 classes, or, `coarse`, in their 20
    superclasses.

    Read from the official batches or, where these are absent, from `cifar100.npz` in the MedMNIST
    layout with fine labels. FedMK uses the coarse labels, FedIOD the fine ones.
    """
    name, classes = ("cifar100_coarse", SUPERCLASSES) if coarse else ("cifar100", FINE)
    folder = root / FOLDER100
    path = root / "cifar100.npz"
    if all((root / file).is_file() for file in FILES100) or not path.is_file():
        key = "coarse_labels" if coarse else "fine_labels"
        train, test = (_split([folder / part], key, len(classes)) for part in ("train", "test"))
        return assemble(name, train, None, test, classes, MEAN100, STD100, folder)
    fine = load_npz(path, name, FINE, MEAN100, STD100, size=32)
    if not coarse:
        return fine
    train, val, test = (
        Split(s.images, COARSE_OF_FINE[s.labels]) for s in (fine.train, fine.val, fine.test)
    )
    return assemble(name, train, val, test, classes, MEAN100, STD100, path)
