"""Data sets of everyday images in the layouts of torchvision: MNIST and its like, SVHN, CIFAR, STL10 and
Imagenette, as arrays in the layout of MedMNIST.

torchvision downloads them; its own readers serve SVHN alone, as that of CIFAR unpickles, that of STL10
wants 2.6 GB that nobody learns from, and an idx file takes four lines.
"""

from __future__ import annotations

import pickletools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch

from core.data.dataset import Dataset, dataset_of
from core.data.folders import from_folders
from core.data.pixels import resized
from core.errors import InputError
from core.files import check_plain, parsing, read_bounded

#: bytes of the largest file that is read; the test images of STL10 have 221 million
LARGEST = 2**28
KEYS = ("train_images", "train_labels", "test_images", "test_labels")
IMAGENETTE = [
    f"n0{number}"
    for number in (
        *(1440764, 2102040, 2979186, 3000684, 3028079),
        *(3394916, 3417042, 3425413, 3445777, 3888257),
    )
]
Arrays = dict[str, np.ndarray]


def download(root: Path, calls: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Call classes of torchvision.datasets with these arguments."""
    with parsing(root, "a place for a download"):
        from torchvision import datasets
    for name, each in calls.items():
        for arguments in each:
            getattr(datasets, name)(str(root), download=True, **arguments)


def idx(source: Any, files: Sequence[Path], size: int) -> Arrays:
    """MNIST (LeCun et al. 1998) and sets in its layout: images and labels to train on and to test on."""
    return dict(zip(KEYS, map(read_idx, files), strict=True))


def read_idx(path: Path) -> np.ndarray:
    """The uint8 array in an idx file. Raises InputError for another file, and another length."""
    content = read_bounded(path, LARGEST, "idx file")
    with parsing(path, "an idx file of bytes"):
        if content[:3] != b"\0\0\x08":
            raise ValueError("it begins with other bytes")
        shape = np.frombuffer(content, ">i4", content[3], 4)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(shape)


def svhn(source: Any, files: Sequence[Path], size: int) -> Arrays:
    """SVHN, 32x32, as torchvision reads it once the MD5 of a file is the official one; the 531,131 extra
    images are not used. FedMK counts them in, but does not say that it trains on them.
    """
    arrays: Arrays = {}
    for part, path in zip(("train", "test"), files, strict=True):
        check_plain(path, LARGEST, "file of images")
        with parsing(path, "a file of SVHN"):
            from torchvision.datasets import SVHN

            read = SVHN(str(path.parent), part)
        arrays |= {f"{part}_images": read.data.transpose(0, 2, 3, 1), f"{part}_labels": read.labels}
    return arrays


def cifar(source: Any, files: Sequence[Path], size: int) -> Arrays:
    """CIFAR-10, or CIFAR-100 with its 100 classes, from the official python batches in their order."""
    batches = [read_batch(path, "fine_labels" if source.groups else "labels") for path in files]
    train = [np.concatenate(each) for each in zip(*batches[:-1], strict=True)]
    return dict(zip(KEYS, (*train, *batches[-1]), strict=True))


def read_batch(path: Path, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (N, 32, 32, 3) and the labels `key` (N,) of one of CIFAR's python batches.

    A batch is a pickle, of which nothing is executed: its steps are listed, and the longest text is
    the pixels, the numbers behind the key are the labels. Raises InputError for another file.
    """
    content = read_bounded(path, LARGEST, "CIFAR batch")
    with parsing(path, "a CIFAR batch"):
        steps: list[tuple[str, Any]] = [
            (op.name, value) for op, value, _ in pickletools.genops(content)
        ]
        texts = [row for row, (_, value) in enumerate(steps) if isinstance(value, str | bytes)]
        first = next((row for row in texts if steps[row][1] in (key, key.encode())), None)
        if first is None:
            raise ValueError(f"it has no {key!r}")
        last = next((row for row in texts if row > first), len(steps))
        # the opcodes of whole numbers are BININT, BININT1, BININT2, INT and LONG1
        labels = [n for name, n in steps[first + 1 : last] if "INT" in name or name == "LONG1"]
        place = max(texts, key=lambda row: len(steps[row][1]))
        # NumPy writes before the pixels whether they are stored by columns
        if steps[place - 1] not in (("NEWFALSE", None), ("INT", False)):
            raise ValueError("its pixels are not stored row by row")
        text = steps[place][1]
        pixels = text.encode("latin-1") if isinstance(text, str) else text
        array = np.frombuffer(pixels, np.uint8).reshape(len(labels), 3, 32, 32)
    return array.transpose(0, 2, 3, 1), np.array(labels)


def coarse(data: Dataset, groups: Mapping[str, Sequence[str]]) -> Dataset:
    """The data set with groups of its classes for classes."""
    each = list(groups.values())
    group = torch.tensor([next(k for k, of in enumerate(each) if c in of) for c in data.classes])
    splits = {
        part: attrs.evolve(split, labels=group[split.labels])
        for part, split in (("train", data.train), ("val", data.val), ("test", data.test))
    }
    return dataset_of(data.name, splits, groups, data.name, data.mean, data.std)


def stl10(source: Any, files: Sequence[Path], size: int) -> Arrays:
    """STL10's labelled images, resized from 96x96 to `size`."""
    arrays = {}
    for key, path in zip(KEYS, files, strict=True):
        content = np.frombuffer(read_bounded(path, LARGEST, "file of STL10"), np.uint8)
        if key.endswith("_labels"):
            arrays[key] = content.astype(np.int64) - 1  # numbered from 1 in the file
            continue
        with parsing(path, "images of 96 by 96 pixels"):
            # each channel is stored column by column
            images = content.reshape(-1, 3, 96, 96).swapaxes(2, 3)
        small = resized(torch.from_numpy(images.copy()), 3, size)
        arrays[key] = small.permute(0, 2, 3, 1).numpy()
    return arrays


def imagenette(root: Path, size: int) -> Arrays:
    """Imagenette (Howard 2019), downloaded unless its folder is here, resized to squares, in the order of
    names, by which FedVCK's split files count; the source's `val` is the test split.
    """
    folders = [root / f"imagenette2{end}" for end in ("-160", "-320", "")]  # the smallest suffice
    if not any(folder.is_dir() for folder in folders):
        download(root, {"Imagenette": [{"split": "train", "size": "160px"}]})
    folder = next((folder for folder in folders if folder.is_dir()), folders[0])
    arrays = from_folders(folder, size, {"train": "train", "test": "val"})
    if arrays["classes"].tolist() != IMAGENETTE:
        raise InputError(f"{folder} should hold the classes {', '.join(IMAGENETTE)}")
    return arrays


def halved(images: np.ndarray) -> np.ndarray:
    """Images (N, H, W[, C]) at half their size: every pixel is the mean of 2x2 pixels, rounded."""
    four = [images[:, row::2, column::2].astype(np.uint16) for row in (0, 1) for column in (0, 1)]
    return np.rint(sum(four) / 4).astype(np.uint8)


#: by name in the catalogue; each takes the source, its files and a size
READERS = {"idx": idx, "svhn": svhn, "cifar": cifar, "stl10": stl10}
