"""What a data set is: three splits of 8-bit images with what is to be predicted of each, and how to
normalise them.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import attrs
import numpy as np
import torch

from core.errors import InputError
from core.rng import Rng


def _images(instance: Any, attribute: attrs.Attribute, value: torch.Tensor) -> None:
    if value.dtype != torch.uint8 or value.ndim != 4:
        raise InputError(
            f"images must be uint8 of shape (N, C, H, W), not {value.dtype} of {tuple(value.shape)}"
        )
    if value.shape[2] != value.shape[3]:
        raise InputError(f"images must be square, not {value.shape[2]} by {value.shape[3]} pixels")


def _one_per_image(instance: Split, attribute: attrs.Attribute, value: torch.Tensor | None) -> None:
    if value is None:
        return
    if value.dtype != torch.int64 or value.shape != instance.images.shape[:1]:
        raise InputError(
            f"{attribute.name} must be int64, one per image ({len(instance.images)}), not {value.dtype} "
            f"of shape {tuple(value.shape)}"
        )


def _one_per_pixel(instance: Split, attribute: attrs.Attribute, value: torch.Tensor | None) -> None:
    if value is None:
        return
    wanted = torch.int32 if attribute.name == "instances" else torch.uint8
    images = instance.images.shape
    if len(value) != images[0]:
        raise InputError(f"there are {len(value)} {attribute.name} for {images[0]} images")
    if value.dtype != wanted or value.ndim not in (3, 4) or value.shape[-2:] != images[-2:]:
        raise InputError(
            f"{attribute.name} must be {wanted} of the images' {images[2]} by {images[3]} pixels, not "
            f"{value.dtype} of shape {tuple(value.shape)}"
        )


@attrs.frozen(eq=False)
class Split:
    """Images of one split with what is known of each.

    Raises InputError when dtypes or lengths do not fit together.
    """

    #: uint8, (N, C, H, W), H == W
    images: torch.Tensor = attrs.field(validator=_images)
    #: int64, (N,), class numbers from 0
    labels: torch.Tensor = attrs.field(validator=_one_per_image)
    #: int64, (N,), number of the institution an image comes from, where the set says so
    centre: torch.Tensor | None = attrs.field(default=None, validator=_one_per_image)
    #: uint8, what is to be predicted of every pixel: class numbers (N, H, W), or another image
    #: (N, C, H, W); None where it is the label of the whole image
    masks: torch.Tensor | None = attrs.field(default=None, validator=_one_per_pixel)
    #: int32, (N, H, W), which object each pixel belongs to, 0 for none; only where objects are told
    #: apart in a test. -1 to the right and below: the image is smaller than the largest
    instances: torch.Tensor | None = attrs.field(default=None, validator=_one_per_pixel)

    @property
    def targets(self) -> torch.Tensor:
        """What a network learns to predict: the masks where there are some, else the labels."""
        return self.labels if self.masks is None else self.masks

    def rows(self, rows: torch.Tensor) -> Split:
        """The images with these numbers, and all that is known of them."""
        more = {name: getattr(self, name) for name in ("centre", "masks", "instances")}
        kept = {name: None if one is None else one[rows] for name, one in more.items()}
        return Split(self.images[rows], self.labels[rows], **kept)

    def __len__(self) -> int:
        return len(self.images)


@attrs.frozen(eq=False)
class Dataset:
    """A data set in memory.

    `val` has length 0 where the source has no validation split. `fingerprint` is the SHA-256 of all
    arrays with their shapes and dtypes (`fingerprint_of`): equal fingerprints mean equal data in
    equal order.
    """

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

    @property
    def learns(self) -> str:
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
        """(x / 255 - mean) / std per channel.

        Takes uint8 (N, C, H, W) and returns float32 of the same shape on the same device. Raises
        InputError for another dtype or number of channels.
        """
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != self.channels:
            raise InputError(
                f"normalise takes uint8 images of shape (N, {self.channels}, H, W), not {images.dtype} "
                f"of {tuple(images.shape)}"
            )
        return self.standardise(images.float().div_(255))

    def standardise(self, images: torch.Tensor) -> torch.Tensor:
        """(x - mean) / std per channel, of floating-point images (N, C, H, W) in [0, 1]; gradients
        pass through.
        """
        mean, std = (_by_channel(values, images.device) for values in (self.mean, self.std))
        return (images - mean) / std


@functools.cache
def _by_channel(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """Values of channels as (1, C, 1, 1); kept, as a copy to a GPU for every batch would wait for it."""
    return torch.tensor(values, device=device).view(1, -1, 1, 1)


def with_validation(dataset: Dataset, rng: Rng) -> Dataset:
    """The data set with a validation split: its own, or a random tenth of the training set where it
    has none.

    The training set keeps its rows, because partitions count them; `held_out` says which must not
    be handed out. Raises InputError for images with masks: patches of one picture overlap, so those
    that are held out would be trained on.
    """
    if len(dataset.val):
        return dataset
    if dataset.learns != "classification":
        raise InputError(
            f"{dataset.name} has no validation split, and patches of the same pictures are none"
        )
    train = dataset.train
    rows = (
        torch.randperm(len(train), generator=rng.generator())[: -(-len(train) // 10)].sort().values
    )
    return attrs.evolve(dataset, val=train.rows(rows), held_out=rows)


def fingerprint_of(*splits: Split) -> str:
    """SHA-256, in hexadecimal, of the images, labels and centres of `splits` in order, with shapes
    and dtypes; and of masks and instances where there are some.
    """
    digest = hashlib.sha256()
    for split in splits:
        dense = [one for one in (split.masks, split.instances) if one is not None]
        for tensor in (split.images, split.labels, split.centre, *dense):
            if tensor is None:
                digest.update(b"none;")
                continue
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)};".encode())
            digest.update(
                np.ascontiguousarray(tensor.cpu().numpy()).data.cast("B") if tensor.numel() else b""
            )
    return digest.hexdigest()
