"""Slices through heads from the folders in which their makers give them out: BraTS 2018 and 2020, fastMRI
and IXI as volumes; and, in the place of what is not at hand, 2D images of brain tumours (Cheng et al.
2015, doi:10.6084/m9.figshare.1512427) in a checkout of marzun9620/QNN.

All is 8 bits a pixel. Where the paper is silent, this is our choice: cases are split in the order
of their names; a test case belongs to the node whose tumours are of its size; every volume has a random
mask of its own. Of a volume to reconstruct at most 16 slices are used, evenly spaced, so that a set fits
into memory; the paper has about 15 of fastMRI, 120 of BraTS 2020 and 130 to 150 of IXI, so its sites
differ more in size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from core.data.folders import some
from core.data.images import read_image
from core.data.mri import MASKS, column_mask, zero_filled
from core.data.pixels import eight_bits as in_eight_bits
from core.data.volumes import centred, eight_bits, hdf5, nifti
from core.errors import InputError
from core.rng import Rng

Arrays = dict[str, np.ndarray]
#: one volume or group of images: the split, the number of its site, slices (N, H, W) uint8
Slices = tuple[str, int, np.ndarray]

#: BraTS 2018: nodes, and cases to train on and to test on (FedIOD, appendix)
NODES, CASES = 10, (170, 40)
#: subjects of IXI for training, validation and testing (FedIOD, appendix)
SUBJECTS = (436, 55, 90)
#: pixels of a slice: of tumours, of images to reconstruct, of the substitute
TUMOUR, HEAD, SMALL = 224, 256, 128
#: slices of a volume that are used, and the share of a slice that must not be black
MOST, FILLED = 16, 0.05
ACCELERATION = 4
#: of the substitute: every fourth image, for neighbours are much alike; of 24 of these, in order, the
#: first to train on, then public ones, then those of the test. Neighbours may be slices of one patient,
#: whom no file names: so some may be on both sides of a boundary
EVERY, BLOCK = 4, (12, 4, 8)


def tumours(folder: Path) -> Arrays:
    """BraTS 2018: the slices of high-grade cases with tumour, T2, in ten nodes by size of the tumour.
    `folder` holds `HGG/CASE/CASE_t2.nii.gz` and `CASE_seg.nii.gz`.
    """
    cases = some(folder.glob("HGG/*_*"), folder, "case HGG/Brats18_*")
    train = round(len(cases) * CASES[0] / sum(CASES))
    return by_size([_tumour(case) for case in cases], train, folder)


def _tumour(case: Path) -> tuple[np.ndarray, np.ndarray]:
    """T2 slices with tumour of one case, and where it is: (N, 224, 224) uint8 each."""
    slices, labels = (nifti(_either(case, f"{case.name}_{kind}")) for kind in ("t2", "seg"))
    if slices.shape != labels.shape:
        raise InputError(f"{case}: the image has the axes {slices.shape}, the mask {labels.shape}")
    if unknown := sorted(set(np.unique(labels).tolist()) - {0, 1, 2, 4}):
        raise InputError(
            f"{case}: the mask holds the label {unknown[0]:g}; BraTS has 0, 1, 2 and 4"
        )
    whole = (labels > 0).astype(np.uint8)
    rows = whole.any((1, 2))
    if not rows.any():
        raise InputError(f"{case}: the mask marks no tumour")
    return centred(eight_bits(slices)[rows], TUMOUR), centred(whole[rows], TUMOUR)


def by_size(cases: Sequence[tuple[np.ndarray, np.ndarray]], train: int, folder: Path) -> Arrays:
    """Images and masks (N, S, S) of cases as arrays of `core.data.sites`: the first `train` cases, sorted
    by pixels of tumour, in ten nodes; the others go to the nodes of their sizes. Raises InputError for
    too few.
    """
    if train < NODES or train == len(cases):
        raise InputError(f"{folder} has {len(cases)} cases, too few for {NODES} nodes and a test")
    sizes = np.array([int(mask.sum()) for _, mask in cases])
    order = np.argsort(sizes[:train], kind="stable")
    node = np.empty(len(cases), np.int64)
    for number, rows in enumerate(np.array_split(order, NODES)):
        node[rows] = number
    largest = [sizes[:train][node[:train] == number].max() for number in range(NODES - 1)]
    node[train:] = np.searchsorted(largest, sizes[train:])
    found: Arrays = {}
    for split, own in (("train", range(train)), ("test", range(train, len(cases)))):
        images, masks = (np.concatenate([cases[row][part] for row in own]) for part in (0, 1))
        site = np.concatenate([np.full(len(cases[row][0]), node[row]) for row in own])
        found |= {f"{split}_images": images, f"{split}_masks": masks, f"{split}_site": site}
    return found


def heads(folder: Path, weighting: str) -> Arrays:
    """BraTS 2020, fastMRI and IXI, `weighting` "t1" or "t2", a quarter of the measurements of each slice.
    `folder` holds theirs: `MICCAI_BraTS2020_TrainingData` and `...ValidationData`, `multicoil_train` and
    `multicoil_val`, and `IXI-T1` or `IXI-T2`. IXI's validation subjects are the public images.
    """
    name = weighting.upper()

    def brats(folder: Path) -> Iterator[Slices]:
        for split, kind in (("train", "Training"), ("test", "Validation")):
            inside = folder / f"MICCAI_BraTS2020_{kind}Data"
            for case in some(inside.glob("BraTS20_*_*/"), inside, "case BraTS20_*"):
                yield split, 0, nifti(_either(case, f"{case.name}_{weighting}"))

    def fastmri(folder: Path) -> Iterator[Slices]:
        for split in ("train", "val"):
            inside = folder / f"multicoil_{split}"
            files = some(inside.glob(f"file_brain_AX{name}*.h5"), inside, f"AX{name} file")
            for path in files:
                yield {"val": "test"}.get(split, split), 1, hdf5(path)

    def ixi(folder: Path) -> Iterator[Slices]:
        inside = folder / f"IXI-{name}"
        files = some(inside.glob(f"IXI*-{name}.nii*"), inside, f"IXI*-{name}.nii.gz")
        ends = [round(len(files) * sum(SUBJECTS[:n]) / sum(SUBJECTS)) for n in (1, 2)]
        for number, path in enumerate(files):
            yield ("train", "val", "test")[sum(number >= end for end in ends)], 2, nifti(path)

    def all_of() -> Iterator[Slices]:
        for read in (brats, fastmri, ixi):
            for split, site, slices in read(folder):
                yield split, site, centred(_kept(eight_bits(slices)), HEAD)

    return undersampled(all_of(), lambda site: "random")


def _kept(slices: np.ndarray) -> np.ndarray:
    filled = slices[(slices > 0).mean((1, 2)) > FILLED]
    rows = np.linspace(0, len(filled) - 1, min(MOST, len(filled))).round().astype(int)
    return filled[rows]


def undersampled(groups: Iterator[Slices], kind: Callable[[int], str]) -> Arrays:
    """Groups of slices as arrays of `core.data.sites`: what a quarter of the measurements leaves of each,
    by one mask of the site's kind for a group, and the slices themselves.
    """
    parts: dict[str, list[tuple[np.ndarray, np.ndarray, int]]] = {}
    for number, (split, site, slices) in enumerate(groups):
        mask = column_mask(slices.shape[2], ACCELERATION, kind(site), Rng(0).at("mask", number))
        seen = zero_filled(slices.astype(np.float64), mask).clip(0, 255).round().astype(np.uint8)
        parts.setdefault(split, []).append((seen, slices, site))
    found: Arrays = {}
    for split, part in parts.items():
        found |= {
            f"{split}_images": np.concatenate([seen for seen, _, _ in part]),
            f"{split}_targets": np.concatenate([slices for _, slices, _ in part]),
            f"{split}_site": np.concatenate([np.full(len(one), site) for _, one, site in part]),
        }
    return found


def few_tumours(folder: Path) -> Arrays:
    """In the place of BraTS 2018: `images/N.png` and `masks/N_mask.png`, in ten nodes by size of the
    tumour, 128 by 128 pixels, T1 with contrast, axial or not.
    """
    train, public, test = _flat_images(folder)
    cases = [(image[None], mask[None]) for image, mask in [*train, *public, *test]]
    return by_size(cases, len(train) + len(public), folder)


def few_heads(folder: Path) -> Arrays:
    """In the place of images to reconstruct: the same images; three sites, each with its own kind of
    Fourier mask, and images of its own, block by block.
    """

    def groups() -> Iterator[Slices]:
        for split, part, size in zip(
            ("train", "val", "test"), _flat_images(folder), BLOCK, strict=True
        ):
            for number, (image, _) in enumerate(part):
                yield split, number // size % len(MASKS), image[None]

    return undersampled(groups(), lambda site: MASKS[site])


def _flat_images(folder: Path) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """Images and masks (128, 128) of the substitute by part: to train on, public, of the test."""
    paths = [path for path in folder.glob("images/*.png") if re.fullmatch(r"\d{1,6}", path.stem)]
    paths = sorted(some(paths, folder, "images/1.png"), key=lambda path: int(path.stem))
    parts: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in BLOCK]
    ends = np.cumsum(BLOCK)
    for number, path in enumerate(paths[::EVERY]):
        mask = _small(folder / "masks" / f"{path.stem}_mask.png") > 127
        if not mask.any():
            raise InputError(f"{folder}/masks/{path.stem}_mask.png marks no tumour")
        place = int(np.searchsorted(ends, number % ends[-1], side="right"))
        parts[place].append((_small(path), mask.astype(np.uint8)))
    return parts


def _small(path: Path) -> np.ndarray:
    """An image in grey, (128, 128) uint8."""
    image = in_eight_bits(read_image(path), 255, str(path))
    from PIL import Image

    grey = Image.fromarray(image).convert("L")
    return np.asarray(grey.resize((SMALL, SMALL), Image.Resampling.BOX))


def _either(case: Path, stem: str) -> Path:
    """The file of this name, compressed or not."""
    plain = case / f"{stem}.nii"
    return plain if plain.is_file() else case / f"{stem}.nii.gz"
