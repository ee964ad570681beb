"""Sets of several sites in one file `<name>.npz`, for tasks whose answers are pixels.

The file holds, for `train` and `test` (and, optionally, `val`, public images, whose answers no method
looks at): `<part>_images`, uint8 (N, S, S) or (N, S, S, 3); `<part>_site`, whole numbers from 0; and
either `<part>_masks`, uint8 (N, S, S), the class of a pixel, or `<part>_targets`, uint8 images like the
images. Nuclei have images of different sizes, whose pixels follow one another: images (P, 3),
`<part>_instances`, whole numbers (P,), 0 for background and another number for each object, and
`<part>_shape`, whole numbers (N, 2), height and width of each. Training images are cut into patches;
test images stay whole. `fedcon data convert` writes these files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from core.data.dataset import Dataset, Split, dataset_of
from core.data.dense import Picture, nuclei, planes, starts
from core.data.npz import read_npz
from core.data.pixels import as_labels
from core.errors import InputError

Arrays = Mapping[str, np.ndarray]


def load_sites(source: Any, path: Path, size: int) -> Dataset:
    """A set of the catalogue in patches of `size` pixels. InputError names file and part."""
    arrays, title = read_npz(path), source.title(size)
    read: Any = _pictures if source.answer == "instances" else _split
    parts: dict[str, Any] = {}
    for part in ("train", "val", "test"):
        if part == "val" and "val_images" not in arrays:
            continue
        keys = [f"{part}_{what}" for what in ("images", source.answer, "site")]
        if lacks := [key for key in keys if key not in arrays]:
            raise InputError(f"{path} has no array {lacks[0]}")
        try:
            images, answers, site = (arrays[key] for key in keys)
            centre = as_labels(site, "site", len(site), len(source.sites))
            more = arrays.get(f"{part}_shape"), len(source.classes)
            parts[part] = read(images, answers, centre, *more)
            if read is _split and part != "test":
                parts[part] = _cut(parts[part], size)
        except InputError as error:
            raise InputError(f"{path}, {part}: {error}") from None
    if source.answer == "instances":
        return nuclei(title, parts["train"], parts["test"], source.sites, size)
    return dataset_of(title, parts, source.classes, path, sites=source.sites)


def _split(
    images: np.ndarray, answers: np.ndarray, centre: torch.Tensor, shape: None, classes: int
) -> Split:
    """Images of one size with masks (N, S, S) or images to predict."""
    if images.ndim not in (3, 4) or images.shape[3:] not in ((), (3,)):
        raise InputError(f"images have the shape {images.shape}: is it a volume with other axes?")
    if classes > 1 and answers.max(initial=0) >= classes:
        raise InputError(f"masks hold the label {answers.max()}, the labels are 0 to {classes - 1}")
    targets = torch.from_numpy(answers.copy()) if classes > 1 else planes(answers)
    return Split(planes(images), centre, centre, targets)


def _pictures(
    images: np.ndarray,
    answers: np.ndarray,
    centre: torch.Tensor,
    shape: np.ndarray | None,
    classes: int,
) -> list[Picture]:
    """Images of different sizes with their objects."""
    if shape is None or shape.dtype.kind not in "iu" or shape.shape != (len(centre), 2):
        raise InputError("shapes must be heights and widths, one pair for each site of an image")
    ends = shape.astype(object).prod(1).cumsum()
    if shape.min() < 1 or not ends[-1] == len(images) == len(answers):
        raise InputError(
            f"shapes of {ends[-1]} pixels do not fit {len(images)} of images, {len(answers)} of masks"
        )
    each = (np.split(of, ends[:-1].astype(np.int64)) for of in (images, answers))
    return [
        Picture(image.reshape(*own, *image.shape[1:]), answer.reshape(own), site)
        for image, answer, own, site in zip(*each, shape.tolist(), centre.tolist(), strict=True)
    ]


def _cut(split: Split, size: int) -> Split:
    """The patches of all images. Raises InputError where these are smaller."""
    side = split.images.shape[2]
    if side < size:
        raise InputError(f"it holds images of {side} pixels, smaller than a patch of {size}")
    at = starts(side, size)
    places = [np.s_[..., top : top + size, left : left + size] for top in at for left in at]
    assert split.centre is not None and split.masks is not None  # of `_split`
    centre = split.centre.repeat(len(places))
    images, masks = (
        torch.cat([of[place] for place in places]) for of in (split.images, split.masks)
    )
    return Split(images, centre, centre, masks)
