"""Slices through heads: tumours of BraTS 2018, and images to reconstruct of BraTS 2020, fastMRI and IXI, from
folders of images; and, as substitutes for both, 2D images of brain tumours (Cheng et al. 2015,
doi:10.6084/m9.figshare.1512427) in a checkout of marzun9620/QNN.

All is 8 bits a pixel. Where the paper is silent, this is our choice: a test case belongs to the node whose
tumours are of its size; every volume has a random mask of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from core.data.folders import image_files, image_pairs, some, visible
from core.data.images import read_image
from core.data.mri import MASKS, column_mask, zero_filled
from core.data.pixels import eight_bits
from core.errors import InputError
from core.rng import Rng

Arrays = dict[str, np.ndarray]
#: one volume or group of images: the part, the number of its site, slices (N, H, W) uint8
Slices = tuple[str, int, np.ndarray]

#: nodes of BraTS 2018 (FedIOD, appendix)
NODES = 10
#: sites of images to reconstruct
SITES = ("brats2020", "fastmri", "ixi")
ACCELERATION = 4
#: pixels of a side: of tumours, of images to reconstruct, of the substitute
TUMOUR, HEAD, SMALL = 224, 256, 128
#: of the substitute: every fourth image, for neighbours are much alike; of 24 of these, in order, the
#: first to train on, then public ones, then those of the test. Neighbours may be slices of one patient,
#: whom no file names: so some may be on both sides of a boundary
EVERY, BLOCK = 4, (12, 4, 8)


def tumours(folder: Path) -> Arrays:
    """BraTS 2018 in ten nodes by size of the tumour: slices `PART/CASE/images/N.png` with masks of the same
    names in `PART/CASE/masks`, where all above 0 is tumour; PART is `train` or `test`.
    """
    cases: list[tuple[np.ndarray, np.ndarray]] = []
    train = 0
    for part in ("train", "test"):
        train = len(cases)
        for case in visible(folder / part, "a folder for each case", None):
            files = image_pairs(case, "masks")
            images = stacked([image for image, _ in files], TUMOUR)
            masks = (stacked([mask for _, mask in files], TUMOUR) > 0).astype(np.uint8)
            if not masks.any():
                raise InputError(f"{case}: the masks mark no tumour")
            cases.append((images, masks))
    return by_size(cases, train, folder)


def stacked(paths: Sequence[Path], side: int) -> np.ndarray:
    """Grey squares (N, side, side) uint8. Raises InputError for other images."""
    images = [eight_bits(read_image(path), 255, str(path)) for path in paths]
    for path, image in zip(paths, images, strict=True):
        if image.shape != (side, side):
            raise InputError(f"{path} must be grey, {side} by {side} pixels, not {image.shape}")
    return np.stack(images)


def by_size(cases: Sequence[tuple[np.ndarray, np.ndarray]], train: int, folder: Path) -> Arrays:
    """Images and masks (N, S, S) of cases as arrays of `core.data.sites`: the first `train` cases by tumour
    size in ten nodes, the others in the nodes of their sizes. Raises InputError for too few.
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
    arrays: Arrays = {}
    for part, numbers in (("train", range(train)), ("test", range(train, len(cases)))):
        images, masks = (np.concatenate([cases[k][which] for k in numbers]) for which in (0, 1))
        site = np.concatenate([np.full(len(cases[k][0]), node[k]) for k in numbers])
        arrays |= {f"{part}_images": images, f"{part}_masks": masks, f"{part}_site": site}
    return arrays


def heads(folder: Path) -> Arrays:
    """BraTS 2020, fastMRI and IXI with a quarter of the measurements of each slice: slices
    `PART/SITE/VOLUME/N.png`, where PART is `train`, `test` or `val`, the public images.
    """

    def volumes() -> Iterator[Slices]:
        for part in ("train", "val", "test"):
            for number, site in enumerate(SITES):
                place = folder / part / site
                if part != "val" or place.is_dir():
                    for volume in visible(place, "a folder for each volume", None):
                        yield (
                            part,
                            number,
                            stacked(some(image_files(volume), volume, "image"), HEAD),
                        )

    return undersampled(volumes(), lambda site: "random")


def undersampled(groups: Iterator[Slices], kind: Callable[[int], str]) -> Arrays:
    """Groups of slices as arrays of `core.data.sites`: what a quarter of the measurements leaves of each,
    by one mask of the site's kind for a group, and the slices themselves.
    """
    parts: dict[str, list[tuple[np.ndarray, np.ndarray, int]]] = {}
    for number, (part, site, slices) in enumerate(groups):
        mask = column_mask(slices.shape[2], ACCELERATION, kind(site), Rng(0).at("mask", number))
        blurred = zero_filled(slices.astype(np.float64), mask).clip(0, 255).round()
        parts.setdefault(part, []).append((blurred.astype(np.uint8), slices, site))
    arrays: Arrays = {}
    for part, volumes in parts.items():
        arrays |= {
            f"{part}_images": np.concatenate([blurred for blurred, _, _ in volumes]),
            f"{part}_targets": np.concatenate([slices for _, slices, _ in volumes]),
            f"{part}_site": np.concatenate([np.full(len(of), site) for _, of, site in volumes]),
        }
    return arrays


def few_tumours(folder: Path) -> Arrays:
    """Substitute for BraTS 2018: `images/N.png` and `masks/N_mask.png`, in ten nodes by size of the
    tumour, 128 by 128 pixels, T1 with contrast, axial or not.
    """
    train, public, test = _flat_images(folder)
    cases = [(image[None], mask[None]) for image, mask in [*train, *public, *test]]
    return by_size(cases, len(train) + len(public), folder)


def few_heads(folder: Path) -> Arrays:
    """Substitute for images to reconstruct: the same images; three sites, each with its own kind of
    Fourier mask, and images of its own, block by block.
    """

    def groups() -> Iterator[Slices]:
        for part, images, size in zip(
            ("train", "val", "test"), _flat_images(folder), BLOCK, strict=True
        ):
            for number, (image, _) in enumerate(images):
                yield part, number // size % len(MASKS), image[None]

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
        part = int(np.searchsorted(ends, number % ends[-1], side="right"))
        parts[part].append((_small(path), mask.astype(np.uint8)))
    return parts


def _small(path: Path) -> np.ndarray:
    """An image in grey, (128, 128) uint8."""
    image = eight_bits(read_image(path), 255, str(path))
    from PIL import Image

    grey = Image.fromarray(image).convert("L")
    return np.asarray(grey.resize((SMALL, SMALL), Image.Resampling.BOX))
