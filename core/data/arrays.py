"""From arrays as they lie in files to checked splits."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import attrs
import numpy as np
import torch
from torch.nn.functional import avg_pool2d, interpolate

from core.data.dataset import Dataset, Split, fingerprint_of
from core.errors import InputError

#: mean and standard deviation, of pixels in [0, 1], that map [0, 1] to [-1, 1]. FedVCK's released
#: settings use 0.5 for all sets but CIFAR-10; here it holds for all but CIFAR-10 and CIFAR-100.
HALF = 0.5
#: weights of red, green and blue in a grey image (ITU-R BT.601)
LUMA = (0.299, 0.587, 0.114)
#: images that are resized at once
AT_ONCE = 2_000
#: bytes of training images from which on they lie in a file
MAPPED = 2**26


def as_images(array: np.ndarray, source: str) -> torch.Tensor:
    """uint8 (N, H, W) or (N, H, W, C) with C 1 or 3, as uint8 (N, C, H, W).

    `source` names the file and the array in messages. Raises InputError for another dtype or shape.
    """
    if array.dtype != np.uint8:
        raise InputError(f"{source} must hold uint8 pixels, not {array.dtype}: {_to_bytes(array)}")
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim != 4 or array.shape[3] not in (1, 3):
        raise InputError(
            f"{source} must have shape (N, H, W) or (N, H, W, 1 or 3), not {array.shape}"
        )
    if array.shape[1] != array.shape[2] or array.shape[1] == 0:
        raise InputError(
            f"{source} must hold square images, not {array.shape[1]} by {array.shape[2]} pixels: "
            "pad or crop them"
        )
    return torch.from_numpy(
        np.array(array.transpose(0, 3, 1, 2), order="C")
    )  # a copy: the source may be read-only


def _to_bytes(array: np.ndarray) -> str:
    """How pixels of another dtype become bytes."""
    ways = {"f": "multiply by 255 if they lie from 0 to 1", "u2": "divide by 257"}
    kind = array.dtype.kind
    way = ways.get(kind) or ways.get(f"{kind}{array.dtype.itemsize}")
    example = f", for example {way}" if way else ""
    return f"scale them to 0-255{example}, and store them as uint8"


def as_labels(
    array: np.ndarray, source: str, count: int, classes: int | None = None
) -> torch.Tensor:
    """Whole numbers (N,) or (N, 1), as int64 (N,).

    Raises InputError when they are not whole numbers, not one per image (`count`), negative, or,
    with `classes` given, not below it.
    """
    array = np.asarray(array)
    if array.ndim == 2 and array.shape[1] != 1:
        raise InputError(
            f"{source} holds {array.shape[1]} labels per image; only one class per image is supported"
        )
    if array.ndim == 2:
        array = array[:, 0]
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(
            f"{source} must hold whole numbers, one per image, not {array.dtype} of shape {array.shape}"
        )
    if len(array) != count:
        raise InputError(f"{source} holds {len(array)} values for {count} images")
    if count and array.min() < 0:
        raise InputError(f"{source} holds the negative number {array.min()}")
    if count and array.max() >= 2**31:
        raise InputError(f"{source} holds the number {array.max()}, which is no class")
    if count and classes is not None and array.max() >= classes:
        raise InputError(
            f"{source} holds class {array.max()}, but the classes are numbered 0 to {classes - 1}"
        )
    return torch.from_numpy(array.astype(np.int64))


def resized(images: torch.Tensor, channels: int, size: int) -> torch.Tensor:
    """uint8 images (N, C, H, H) with another side and number of channels (1 or 3): uint8 (N,
    channels, size, size). What PIL's and torchvision's bilinear resize do, to within one grey level.
    """
    parts = [shaped(part.float(), channels, (size, size)) for part in images.split(AT_ONCE)]
    return torch.cat(parts)


def shaped(images: torch.Tensor, channels: int, shape: tuple[int, int]) -> torch.Tensor:
    """Images (N, C, H, W) of floats from 0 to 255 as uint8 (N, channels, *shape): bilinear,
    antialiased when made smaller, rounded.
    """
    if channels == 1 and images.shape[1] == 3:
        images = (images * torch.tensor(LUMA).view(1, 3, 1, 1)).sum(1, keepdim=True)
    if images.shape[-2:] != shape:
        images = interpolate(images, shape, mode="bilinear", antialias=True)
    return images.round().clamp(0, 255).to(torch.uint8).expand(-1, channels, -1, -1).contiguous()


def empty_like(split: Split) -> Split:
    """A split of length 0 with the image shape of `split`, for sets without a validation split."""
    return Split(split.images[:0].clone(), split.labels[:0].clone())


def assemble(
    name: str,
    train: Split,
    val: Split | None,
    test: Split,
    classes: Iterable[str],
    mean: tuple[float, ...] | None,
    std: tuple[float, ...] | None,
    source: Path | str,
) -> Dataset:
    """Put splits together; `mean` and `std` default to 0.5 in each channel.

    Raises InputError, naming `source`, when a needed split is empty or image shapes differ between
    splits.
    """
    val = empty_like(train) if val is None else val
    for word, split in (("train", train), ("test", test)):
        if not len(split):
            raise InputError(f"{source}: the {word} split is empty")
    for word, split in (("val", val), ("test", test)):
        if split.images.shape[1:] != train.images.shape[1:]:
            raise InputError(
                f"{source}: {word} images are {tuple(split.images.shape[1:])} (channels, height, width) "
                f"but train images are {tuple(train.images.shape[1:])}"
            )
    half = (HALF,) * train.images.shape[1]
    return Dataset(
        name=name,
        train=train,
        val=val,
        test=test,
        classes=tuple(classes),
        mean=half if mean is None else mean,
        std=half if std is None else std,
        fingerprint=fingerprint_of(train, val, test),
    )


def halved(dataset: Dataset, name: str) -> Dataset:
    """The data set at half its size: every pixel is the mean of 2x2 pixels, rounded. `name` is its
    new name.

    Raises InputError where the size is odd.
    """
    if dataset.size % 2:
        raise InputError(f"{dataset.name} has {dataset.size} pixels a side, which cannot be halved")

    def half(split: Split) -> Split:
        # blocks, because float32 takes four times the memory
        blocks = [avg_pool2d(block.float(), 2).round().byte() for block in split.images.split(4096)]
        return attrs.evolve(split, images=torch.cat(blocks))

    train, val, test = half(dataset.train), half(dataset.val), half(dataset.test)
    return attrs.evolve(
        dataset,
        name=name,
        train=train,
        val=val,
        test=test,
        fingerprint=fingerprint_of(train, val, test),
    )


def on_disk(dataset: Dataset) -> Dataset:
    """The data set with its training images in a file that the system maps into memory, where they
    take at least `MAPPED` bytes.

    All clients index this one array, and its pages may leave memory when others need it. The file
    is in the folder for temporary files (TMPDIR), has no name, and goes with the process; where
    there is no room for it, the images stay where they are.
    """
    images = dataset.train.images
    if images.nbytes < MAPPED:
        return dataset
    try:
        with tempfile.TemporaryFile() as file:
            if hasattr(os, "posix_fallocate"):  # without room, now and not at some later write
                os.posix_fallocate(file.fileno(), 0, images.nbytes)
            array = np.memmap(file, np.uint8, "w+", shape=tuple(images.shape))
    except (OSError, ValueError):
        return dataset
    array[:] = images.numpy()
    return attrs.evolve(dataset, train=attrs.evolve(dataset.train, images=torch.from_numpy(array)))
