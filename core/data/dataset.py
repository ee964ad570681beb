"""Data sets: three splits of 8-bit images with what is to be predicted of each, and how to normalise
them.
"""

from __future__ import annotations

import functools
import hashlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import torch

from core.checks import shown_briefly
from core.data.pixels import as_images, as_labels, as_names, column, composed, numbers_of
from core.errors import InputError, one_line
from core.rng import Rng

#: mean and standard deviation, of pixels in [0, 1], that map [0, 1] to [-1, 1]. FedVCK's released
#: settings use 0.5 for all sets but CIFAR-10; here it holds for all but CIFAR-10, CIFAR-100 and SVHN.
HALF = 0.5
#: the parts of a set; the first and the last are needed
PARTS = ("train", "val", "test")


@attrs.frozen(eq=False, field_transformer=shown_briefly)
class Split:
    """Images of a split, with what is known of each. InputError for dtypes or lengths that do not fit."""

    #: uint8, (N, C, H, W), H == W
    images: torch.Tensor
    #: int64, (N,), class numbers from 0
    labels: torch.Tensor
    #: int64, (N,), number of the institution an image comes from, where the set says so
    centre: torch.Tensor | None = None
    #: uint8, what is to be predicted of every pixel: class numbers (N, H, W), or another image
    #: (N, C, H, W); None where it is the label of the whole image
    masks: torch.Tensor | None = None
    #: int32, (N, H, W), which object each pixel belongs to, 0 for none; only where objects are told
    #: apart in a test. -1 to the right and below: the image is smaller than the largest
    instances: torch.Tensor | None = None
    #: int64, (N,), the place of an image in the official file, by which split files count; None where
    #: that is its place here
    index: torch.Tensor | None = None

    def __attrs_post_init__(self) -> None:
        """Check that dtypes and shapes fit together."""
        shape = tuple(self.images.shape)
        if self.images.dtype != torch.uint8 or len(shape) != 4 or shape[2] != shape[3]:
            raise InputError(
                f"images must be squares, uint8 of shape (N, C, S, S), not {self.images.dtype} of {shape}"
            )
        for name, dtype in (
            ("labels", torch.int64),
            ("centre", torch.int64),
            ("index", torch.int64),
        ):
            value = getattr(self, name)
            if value is not None and (value.dtype != dtype or value.shape != shape[:1]):
                raise InputError(
                    f"{name} must be {dtype}, one per image ({shape[0]}), not {value.dtype} of shape "
                    f"{tuple(value.shape)}"
                )
        for name, dtype in (("masks", torch.uint8), ("instances", torch.int32)):
            value = getattr(self, name)
            if value is not None and (
                value.dtype != dtype
                or value.ndim not in (3, 4)
                or (len(value), *value.shape[-2:]) != (shape[0], *shape[2:])
            ):
                raise InputError(
                    f"{name} must be {dtype}, one per pixel of {shape[0]} images of {shape[2]} by "
                    f"{shape[3]}, not {value.dtype} of shape {tuple(value.shape)}"
                )

    @property
    def targets(self) -> torch.Tensor:
        """Return what a network learns to predict: the masks where there are some, else the labels."""
        return self.labels if self.masks is None else self.masks

    def rows(self, rows: torch.Tensor) -> Split:
        """Return the images with these numbers, and all that is known of them."""
        more = ("centre", "masks", "instances", "index")
        known = {name: getattr(self, name) for name in more}
        given = {name: value[rows] for name, value in known.items() if value is not None}
        return Split(self.images[rows], self.labels[rows], **given)

    def __len__(self) -> int:
        return len(self.images)


@attrs.frozen(eq=False, field_transformer=shown_briefly)
class Dataset:
    """A data set in memory, `val` perhaps empty. Equal `fingerprint`s: equal data in equal order."""

    name: str
    train: Split
    val: Split
    test: Split
    #: class names, by class number
    classes: tuple[str, ...]
    #: per channel, of pixels scaled to [0, 1]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fingerprint: str
    #: int64, rows of `train` that are in `val` too, and that no client gets
    held_out: torch.Tensor | None = None
    #: names of the institutions, by the number in `centre`; empty where they have none
    sites: tuple[str, ...] = ()
    #: weights of the classes of pixels in the cross-entropy; empty: all 1, and a Dice loss beside it
    weights: tuple[float, ...] = ()
    #: pixels of the border class that touching objects are told apart by; 0: there is none
    border: int = 0

    @classmethod
    def from_arrays(
        cls,
        train: Any,
        test: Any,
        val: Any = None,
        classes: Sequence[str] | None = None,
        clients: Any = None,
        name: str = "own",
    ) -> Dataset:
        """Return a data set of one's own, with the mean and deviation of its training pixels.

        Args:
            train, test, val: images and labels each, or a torch `Dataset` of such pairs. Images are
                arrays (N, H, W) or (N, H, W, 1 or 3), or tensors (N, C, H, W): whole numbers, or
                floating point from 0 to 1; other shapes than squares are resized to squares. Labels
                are numbers from 0 or names, (N,) or (N, 1).
            classes: names by number; by default the names, or the numbers up to the largest.
            clients: the institution, number or name, of each training image, or of the images of
                several parts by the names of these: {"train": ..., "test": ...}.

        Raises InputError, which names the part, for what does not fit together.
        """
        centres = clients if isinstance(clients, Mapping) else {"train": clients}
        arrays = {} if classes is None else {"classes": np.array(classes)}
        for part, given in (("train", train), ("val", val), ("test", test)):
            if given is not None:
                arrays[f"{part}_images"], arrays[f"{part}_labels"] = _pair(given, part)
            if centres.get(part) is not None:
                arrays[f"{part}_centre"] = np.asarray(centres[part])
        data = assembled(arrays, name, name)
        each = data.train.images.transpose(0, 1).flatten(1).numpy()
        share = np.stack([np.bincount(of, minlength=256) for of in each]) / each.shape[1]
        levels = np.arange(256) / 255
        mean = share @ levels
        std = np.sqrt(np.maximum(share @ levels**2 - mean**2, 1 / 255**2))
        return attrs.evolve(data, mean=tuple(mean.tolist()), std=tuple(std.tolist()))

    @property
    def task_kind(self) -> str:
        """The kind of task: "classification", "segmentation" or "reconstruction"."""
        masks = self.train.masks
        if masks is None:
            return "classification"
        return "segmentation" if masks.ndim == 3 else "reconstruction"

    @property
    def channels(self) -> int:
        """C: 1 for grey images, 3 for colour."""
        return self.train.images.shape[1]

    @property
    def size(self) -> int:
        """H = W, in pixels."""
        return self.train.images.shape[2]

    @property
    def num_classes(self) -> int:
        """Number of classes, whether or not each occurs in every split."""
        return len(self.classes)

    def normalise(self, images: torch.Tensor) -> torch.Tensor:
        """(x / 255 - mean) / std per channel: uint8 (N, C, H, W) to float32, on the same device. InputError
        for another dtype or number of channels.
        """
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != self.channels:
            raise InputError(
                f"normalise takes uint8 images of shape (N, {self.channels}, H, W), not {images.dtype} "
                f"of {tuple(images.shape)}"
            )
        return self.standardise(images.float().div_(255))

    def standardise(self, images: torch.Tensor) -> torch.Tensor:
        """(x - mean) / std per channel, of floats (N, C, H, W) in [0, 1]; gradients pass through."""
        mean, std = (_by_channel(values, images.device) for values in (self.mean, self.std))
        return (images - mean) / std


@functools.cache
def _by_channel(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """Values of channels as (1, C, 1, 1); cached, as a copy to a GPU for every batch would wait for it."""
    return torch.tensor(values, device=device).view(1, -1, 1, 1)


def _pair(given: Any, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, H, W[, C]) and labels of a part of one's own."""
    try:
        if not (isinstance(given, tuple | list) and len(given) == 2):
            each, labels = zip(*(given[row] for row in range(len(given))), strict=True)
            if isinstance(each[0], torch.Tensor):
                given = torch.stack(each), labels
            else:
                given = np.stack([np.asarray(image) for image in each]), labels
        images, labels = given
        if isinstance(images, torch.Tensor):
            images = (images if images.ndim == 3 else images.permute(0, 2, 3, 1)).cpu()
        return np.asarray(images), np.asarray(labels)
    except Exception as error:  # a Dataset of others can raise anything
        raise InputError(
            f"{part} must be images and labels, or a torch Dataset of such pairs with images of one "
            f"shape: {one_line(error, 120)}"
        ) from None


def assembled(
    arrays: Mapping[str, np.ndarray],
    name: str,
    source: object,
    classes: tuple[str, ...] | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
) -> Dataset:
    """Return the data set, called `name`, of arrays in the layout of MedMNIST: `train_images`,
    `train_labels`, `test_...`, perhaps `val_...`; `classes` (names), `*_centre` (institutions) and `*_index`
    (places in the official file). Labels are numbers or names; mean and deviation default to 0.5.
    InputError, naming `source`, for what is missing or does not fit.
    """
    parts = [
        part for part in PARTS if part != "val" or arrays.keys() & {"val_images", "val_labels"}
    ]
    for key in (f"{part}_{what}" for part in parts for what in ("images", "labels")):
        if key not in arrays:
            raise InputError(
                f"{source} has no array {key!r}; it holds: {', '.join(arrays) or 'nothing'}; a part to "
                "train on and one to test on are required, images and labels"
            )
    images = as_images({f"{source}: {part}_images": arrays[f"{part}_images"] for part in parts})
    sizes = dict(zip(parts, map(len, images.values()), strict=True))
    if empty := [part for part in parts if part != "val" and not sizes[part]]:
        raise InputError(f"{source}: the {empty[0]} split is empty")
    if classes is None and "classes" in arrays:
        if arrays["classes"].ndim != 1 or arrays["classes"].dtype.kind not in "US":
            raise InputError(
                f"{source}: classes must be a list of names, not {arrays['classes']!r}"
            )
        names = column(arrays["classes"], f"{source}: classes", arrays["classes"].size)
        classes = as_names(names, f"{source}: classes")
    known: dict[str, dict[str, torch.Tensor]] = {}
    known["labels"], classes = _numbers(arrays, "labels", sizes, source, classes)
    known["centre"], sites = _numbers(arrays, "centre", sizes, source)
    known["index"], _ = _numbers(arrays, "index", sizes, source)
    splits = {
        part: Split(of_part, **{what: of.get(part) for what, of in known.items()})  # type: ignore[arg-type]
        for part, of_part in zip(parts, images.values(), strict=True)
    }
    classes = classes or _counted(splits, source)
    return dataset_of(name, splits, classes, source, mean, std, sites=sites or ())


def _numbers(
    arrays: Mapping[str, np.ndarray],
    what: str,
    sizes: Mapping[str, int],
    source: object,
    names: tuple[str, ...] | None = None,
) -> tuple[dict[str, torch.Tensor], tuple[str, ...] | None]:
    """Return the numbers that `what` gives the images of each part that has it, and the names that
    they stand for: those given, or, where there are names in the place of numbers, these in order.
    """
    keys = {part: f"{part}_{what}" for part in sizes if f"{part}_{what}" in arrays}
    values = {p: column(arrays[key], f"{source}: {key}", sizes[p]) for p, key in keys.items()}
    if any(array.dtype.kind == "U" for array in values.values()):
        if names is None and what == "labels":
            named = set(values["train"].tolist())
            names = tuple(sorted(as_names(named, f"{source}: the names of {keys['train']}")))
        elif names is None:
            each = (name for array in values.values() for name in array.tolist())
            names = tuple(sorted(set(map(composed, each))))
        for part, key in keys.items():
            values[part] = numbers_of(values[part], names, f"{source}: {key}")
    count = None if names is None else len(names)
    return {
        part: as_labels(values[part], f"{source}: {key}", sizes[part], count)
        for part, key in keys.items()
    }, names


def _counted(splits: Mapping[str, Split], source: object) -> tuple[str, ...]:
    """Return the numbers up to the largest label, where classes have no names. Raises InputError for
    labels that do not count classes from 0; warns where most numbers have no image.
    """
    present = torch.cat([split.labels for split in splits.values()]).unique().tolist()
    largest, samples = present[-1], len(splits["train"])
    if largest >= samples:
        raise InputError(
            f"{source}: labels go up to {largest} although there are {samples} training images"
        )
    if present[0]:
        raise InputError(
            f"{source}: no image has the label 0; count labels from 0, or name the classes in an array "
            "'classes'"
        )
    if not largest:
        raise InputError(f"{source}: all images are of one class; there is nothing to tell apart")
    if 2 * len(present) <= largest:
        warnings.warn(
            f"{source}: labels go up to {largest}, but only {len(present)} of these numbers have an image",
            stacklevel=2,
        )
    return tuple(map(str, range(largest + 1)))


def dataset_of(
    name: str,
    splits: Mapping[str, Split],
    classes: Iterable[str],
    source: object,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    **more: Any,
) -> Dataset:
    """Return the data set of splits "train", "test" and perhaps "val"; `mean` and `std` default to 0.5,
    `more` are further fields. InputError, naming `source`, for image shapes that differ.
    """
    train, test = splits["train"], splits["test"]
    val = splits.get("val")
    val = val if val is not None and len(val) else train.rows(torch.empty(0, dtype=torch.int64))
    shape = tuple(train.images.shape[1:])
    for word, split in (("val", val), ("test", test)):
        if split.masks is None and split.images.shape[1:] != shape:
            raise InputError(
                f"{source}: {word} images are {tuple(split.images.shape[1:])} (channels, height, width) "
                f"but train images are {shape}"
            )
    half = (HALF,) * shape[0]
    digest = fingerprint_of(train, val, test)
    return Dataset(
        name, train, val, test, tuple(classes), mean or half, std or half, digest, **more
    )


def with_validation(dataset: Dataset, rng: Rng) -> Dataset:
    """Return the data set with a validation split: its own, or a random tenth of the training set, whose
    rows are `held_out`. InputError for images with masks: patches of one picture overlap.
    """
    if len(dataset.val):
        return dataset
    if dataset.task_kind != "classification":
        raise InputError(
            f"{dataset.name} has no validation split, and patches of the same pictures are none"
        )
    train, draws = dataset.train, rng.generator()
    rows = torch.randperm(len(train), generator=draws)[: -(-len(train) // 10)].sort().values
    return attrs.evolve(dataset, val=train.rows(rows), held_out=rows)


def fingerprint_of(*splits: Split) -> str:
    """SHA-256, in hexadecimal, of the images, labels and centres of `splits` in order, with shapes
    and dtypes; and of masks, instances and places in the official file where there are some.
    """
    digest = hashlib.sha256()
    for split in splits:
        more = [of for of in (split.masks, split.instances, split.index) if of is not None]
        for tensor in (split.images, split.labels, split.centre, *more):
            if tensor is None:
                digest.update(b"none;")
                continue
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)};".encode())
            digest.update(
                np.ascontiguousarray(tensor.cpu().numpy()).data.cast("B") if tensor.numel() else b""
            )
    return digest.hexdigest()
