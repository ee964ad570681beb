"""Sets in one file `<name>.npz`, in the layout of MedMNIST.

The file holds `train_images`, `train_labels`, `test_images`, `test_labels` and, optionally,
`val_images` and `val_labels`; images are uint8 (N, H, W) or (N, H, W, 3), labels whole numbers (N,)
or (N, 1). Optional too are `train_centre` (and `val_centre`, `test_centre`), the number of the
institution each image comes from, and `classes`, the names of the classes. Other arrays are left
alone.
"""

from __future__ import annotations

import contextlib
import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np

from core.data.arrays import as_images, as_labels, assemble
from core.data.dataset import Dataset, Split
from core.errors import InputError, brief, one_line
from core.files import BAD_HEADER, alone, write_whole

#: what bytes that are no npz file make NumPy raise
_BROKEN = (
    *BAD_HEADER,
    zipfile.BadZipFile,
    zlib.error,
    RuntimeError,
    OverflowError,
    OSError,
    KeyError,
    NotImplementedError,
)

#: an entry may grow to so many bytes, or to so many times what it takes in the file: images shrink
#: by much less
GROWN, MOST_GROWTH = 2**26, 100

NEEDED = ("train_images", "train_labels", "test_images", "test_labels")


@contextmanager
def open_npz(path: Path) -> Iterator[Mapping[str, np.ndarray]]:
    """The arrays of an npz file by name, read as they are asked for, without pickle.

    Raises InputError, naming the file, when it is not an npz file, is cut short, or holds Python
    objects.
    """
    try:
        if not path.is_file():
            raise InputError(f"{path} is not a plain file")
        with path.open("rb") as file:
            _bounded(file, path)
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise InputError(f"{path} is a single array, not an npz file")
            with archive:
                yield archive
    except InputError:
        raise
    except _BROKEN as error:
        raise InputError(
            f"{path} cannot be read as an npz file ({_reason(error)}); get it again"
        ) from None


def _bounded(file: BinaryIO, path: Path) -> None:
    """Look at what an archive announces before any of it is unpacked. Raises InputError for entries
    that are encrypted, that grow as no images do, or that hold less than their header says.
    """
    if not zipfile.is_zipfile(file):
        file.seek(0)
        return
    with zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            name = f"{path}: {brief(entry.filename)}"
            if entry.flag_bits & 1:
                raise InputError(f"{name} is encrypted")
            if entry.file_size > max(GROWN, MOST_GROWTH * entry.compress_size):
                raise InputError(f"{name} would grow to {entry.file_size:,} bytes, as no images do")
            if entry.filename.endswith(".npy"):
                with archive.open(entry) as opened:
                    announced = _announced(opened)
                if announced > entry.file_size:
                    raise InputError(
                        f"{name} announces {announced:,} bytes and holds {entry.file_size:,}"
                    )
    file.seek(0)


def _announced(opened: IO[bytes]) -> int:
    """Bytes of the array that the header of an npy file announces; 0 for one of Python objects,
    which is refused later.
    """
    version = np.lib.format.read_magic(opened)
    read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
    if version[0] not in read:
        return 0
    shape, _, dtype = read[version[0]](opened)
    return 0 if dtype.hasobject else math.prod(shape) * dtype.itemsize


def _reason(error: Exception) -> str:
    if "allow_pickle" in str(error) or "Object arrays" in str(error):
        return "it holds Python objects, which are not loaded, or is not an npz file at all"
    return one_line(error, 150)


def in_layout(path: Path) -> bool:
    """Whether `path` is an npz file that is meant to have the MedMNIST layout: with training images.
    Reading it says what else is missing.
    """
    try:
        if not path.is_file():
            return False
        with zipfile.ZipFile(path) as archive:
            return "train_images.npy" in archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return False


def _classes(arrays: Mapping[str, np.ndarray], path: Path) -> tuple[str, ...] | None:
    if "classes" not in arrays:
        return None
    names = arrays["classes"]
    if names.ndim != 1 or not len(names) or names.dtype.kind not in "US":
        raise InputError(
            f"{path}: classes must be a list of names, not {names.dtype} of shape {names.shape}"
        )
    if names.dtype.kind == "S":
        names = np.char.decode(names, "utf-8")
    told = tuple(str(name) for name in names)
    if len(set(told)) < max(len(told), 2):
        raise InputError(f"{path}: classes must be at least two different names, not {list(told)}")
    return told


def _split(
    arrays: Mapping[str, np.ndarray], word: str, path: Path, classes: int | None
) -> Split | None:
    has = [f"{word}_{what}" in arrays for what in ("images", "labels")]
    if not any(has):
        return None
    if not all(has):
        missing = f"{word}_{'labels' if has[0] else 'images'}"
        raise InputError(f"{path} has no array {missing!r}; it holds: {', '.join(arrays)}")
    images = as_images(arrays[f"{word}_images"], f"{path}: {word}_images")
    labels = as_labels(arrays[f"{word}_labels"], f"{path}: {word}_labels", len(images), classes)
    centre = None
    if f"{word}_centre" in arrays:
        centre = as_labels(arrays[f"{word}_centre"], f"{path}: {word}_centre", len(images))
    return Split(images, labels, centre)


def _numbered(splits: Sequence[Split], path: Path) -> tuple[str, ...]:
    """The numbers up to the largest label, where classes have no names; the first split is the one to
    train on.
    """
    tops = [int(split.labels.max()) for split in splits if len(split)]
    largest, samples = max(tops, default=0), len(splits[0])
    if largest >= samples > 0:
        raise InputError(
            f"{path}: labels go up to {largest} although there are {samples} training images"
        )
    if tops and not any((split.labels == 0).any() for split in splits):
        raise InputError(
            f"{path}: no image has the label 0; count labels from 0, or name the classes in an array "
            "'classes'"
        )
    if tops and not largest:
        raise InputError(f"{path}: all images are of one class; there is nothing to tell apart")
    return tuple(str(label) for label in range(largest + 1))


def save_npz(path: Path, data: Dataset) -> None:
    """Write a set of colour images with up to 256 classes to `path`, whole or not at all."""
    arrays = {"classes": np.array(data.classes)}
    for word, split in (("train", data.train), ("val", data.val), ("test", data.test)):
        if len(split):
            arrays[f"{word}_images"] = split.images.permute(0, 2, 3, 1).numpy()
            arrays[f"{word}_labels"] = split.labels.numpy().astype(np.uint8)[:, None]
    write_arrays(path, arrays)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an npz file, whole or not at all. Raises FileError where it cannot be written, Busy where
    another process writes it.
    """

    lock = path.with_name(f".{path.name}.lock")
    with alone(lock, f"the file {path}"):
        write_whole(path, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]
        with contextlib.suppress(OSError):
            lock.unlink()


def load_npz(
    path: Path,
    name: str,
    classes: tuple[str, ...] | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    size: int | None = None,
) -> Dataset:
    """The set in `path`, called `name`.

    Class names are `classes`, else the file's `classes` array, else the numbers up to the largest
    label. Mean and standard deviation default to 0.5. With `size`, images of another size are
    refused. Raises InputError that says what is wrong and in which file.
    """
    with open_npz(path) as arrays:
        for key in NEEDED:
            if key not in arrays:
                part = "test on" if key.startswith("test") else "train on"
                raise InputError(
                    f"{path} has no array {key!r}; it holds: {', '.join(arrays) or 'nothing'}; "
                    f"a part to {part} is required, images and labels"
                )
        names = classes or _classes(arrays, path)
        count = len(names) if names else None
        train, val, test = (_split(arrays, word, path, count) for word in ("train", "val", "test"))
    assert train is not None and test is not None  # NEEDED
    names = names or _numbered([split for split in (train, val, test) if split is not None], path)
    if size is not None and train.images.shape[2] != size:
        raise InputError(f"{path} holds images of {train.images.shape[2]} pixels, not {size}")
    return assemble(name, train, val, test, names, mean, std, path)
