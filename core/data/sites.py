"""Sets of several sites in one file `<name>.npz`, for tasks whose answers are pixels.

The file holds, for `train` and `test` (and, optionally, `val`, images without answers that count as
public): `<split>_images`, uint8 (N, S, S) or (N, S, S, 3); `<split>_site`, whole numbers from 0; and
either `<split>_instances`, whole numbers (N, S, S), 0 for background and another number for each object,
or `<split>_masks`, uint8 (N, S, S), the class of a pixel, or `<split>_targets`, uint8 images like the
images. All images of a split have one size; training images are cut into patches.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs
import numpy as np
import torch

from core.data.dataset import Dataset, Split
from core.data.dense import Picture, checked, dense_dataset, nuclei, starts
from core.data.npz import open_npz
from core.errors import InputError

#: what is known of a pixel: of nuclei, of tumours, of images
ANSWERS = ("instances", "masks", "targets")


@attrs.frozen
class Sites:
    """A set of this layout."""

    name: str
    sites: tuple[str, ...]
    #: one of `ANSWERS`
    answer: str
    classes: tuple[str, ...]
    sizes: tuple[int, ...]
    origin: str

    def how(self) -> str:
        """What a person does to have it."""
        return f"get {self.origin} and pack it into {self.name}.npz, as the module core.data.sites describes"

    def load(self, root: Path, size: int) -> Dataset:
        """The set, in patches of `size` pixels. Raises InputError, naming file and array, for what
        does not fit together.
        """
        path = root / f"{self.name}.npz"
        with open_npz(path) as arrays:
            parts = {
                split: self._split(arrays, split, path)
                for split in ("train", "test", "val")
                if split != "val" or "val_images" in arrays
            }
        title = self.name if size == self.sizes[0] else f"{self.name}_{size}"
        if self.answer == "instances":
            train, test = (self._pictures(*parts[split], path) for split in ("train", "test"))
            return nuclei(title, train, test, self.sites, size)
        made = {split: self._patches(*part, size) for split, part in parts.items()}
        return dense_dataset(
            title, made["train"], made.get("val"), made["test"], self.classes, self.sites
        )

    def _split(
        self, arrays: Mapping[str, np.ndarray], split: str, path: Path
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Images (N, S, S[, 3]), answers and sites (N,) of a split."""
        found = []
        for what in ("images", self.answer, "site"):
            if f"{split}_{what}" not in arrays:
                raise InputError(f"{path} has no array {split}_{what}")
            found.append(arrays[f"{split}_{what}"])
        images, answers, site = found
        where = f"{path}, {split}"
        if (
            images.dtype != np.uint8
            or images.ndim not in (3, 4)
            or images.shape[3:] not in ((), (3,))
        ):
            raise InputError(
                f"{where}: images must be uint8 (N, S, S) or (N, S, S, 3), not {images.dtype} "
                f"{images.shape}: is it a volume with other axes?"
            )
        if len(answers) != len(images) or len(site) != len(images):
            raise InputError(
                f"{where}: {len(images)} images, {len(answers)} {self.answer} and {len(site)} sites"
            )
        if answers.shape[1:3] != images.shape[1:3]:
            raise InputError(
                f"{where}: images have {images.shape[1]} by {images.shape[2]} pixels and their "
                f"{self.answer} {answers.shape[1:]}"
            )
        if site.dtype.kind not in "iu" or site.ndim != 1 or not len(site):
            raise InputError(f"{where}: sites must be whole numbers, one for each image")
        _known(site, len(self.sites), f"{where}: site", "sites")
        if self.answer == "masks":
            if answers.dtype.kind not in "iu":
                raise InputError(f"{where}: masks must hold whole numbers, not {answers.dtype}")
            _known(answers, len(self.classes), f"{where}: masks hold the label", "labels")
        return images, answers, site

    def _pictures(
        self, images: np.ndarray, answers: np.ndarray, site: np.ndarray, path: Path
    ) -> list[Picture]:
        """Images with their objects."""
        return [
            checked(Picture(image, answer, int(where), f"{path}, image {number}"))
            for number, (image, answer, where) in enumerate(zip(images, answers, site, strict=True))
        ]

    def _patches(
        self, images: np.ndarray, answers: np.ndarray, site: np.ndarray, size: int
    ) -> Split:
        """All patches of a split; masks (N, size, size), or images (N, C, size, size)."""
        tops, lefts = (starts(images.shape[axis], size) for axis in (1, 2))
        cut = [
            (one[:, top : top + size, left : left + size])
            for top in tops
            for left in lefts
            for one in (images, answers)
        ]
        shown, wanted = (np.concatenate(cut[k::2]) for k in (0, 1))
        centre = torch.from_numpy(np.tile(site, len(cut) // 2).astype(np.int64))
        target = torch.from_numpy(np.ascontiguousarray(wanted.astype(np.uint8)))
        if self.answer == "targets":
            target = _planes(wanted)
        return Split(_planes(shown), centre, centre, target)


def _known(values: np.ndarray, count: int, what: str, kinds: str) -> None:
    """Raises InputError, with the first of them, where values are not from 0 to `count` - 1."""
    unknown = values[(values < 0) | (values >= count)]
    if len(unknown):
        raise InputError(f"{what} {unknown[0]}, but the {kinds} are 0 to {count - 1}")


def _planes(images: np.ndarray) -> torch.Tensor:
    planes = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(planes))


NUCLEI = Sites(
    "nuclei_cross_site",
    ("cell17", "tcga", "tnbc"),
    "instances",
    (),
    (256, 64),
    "Cell17 (MICCAI 2017 digital pathology challenge), MoNuSeg and TNBC (doi:10.5281/zenodo.1175282)",
)
TUMOURS = Sites(
    "brats2018",
    tuple(f"node{number}" for number in range(10)),
    "masks",
    ("background", "tumour"),
    (224, 64),
    "BraTS 2018 (T2 slices of high-grade cases, in ten nodes by tumour size; www.med.upenn.edu/sbia)",
)
HEADS = tuple(
    Sites(
        f"mri_cross_domain_{weighting}",
        ("brats2020", "fastmri", "ixi"),
        "targets",
        ("intensity",),
        (256, 64),
        f"{weighting.upper()} slices of BraTS 2020, fastMRI and IXI (core.data.mri undersamples them)",
    )
    for weighting in ("t1", "t2")
)
ALL = (NUCLEI, TUMOURS, *HEADS)
