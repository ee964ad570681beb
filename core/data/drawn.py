"""Drawn images in the place of real ones: nuclei as ellipses in four colours, and slices of a head as
nested ellipses. They need no file, so that a lesson and a test run anywhere; nothing that is learned
from them says anything about patients.
"""

from __future__ import annotations

import numpy as np
import torch

from core.data.dataset import Dataset, Split, dataset_of
from core.data.dense import Picture, nuclei
from core.data.monuseg import ORGANS
from core.data.mri import column_mask, zero_filled
from core.rng import Rng

#: of each kind of task a data set that is always here
ALWAYS_HERE = {
    "classification": "digits",
    "reconstruction": "mri_drawn",
    "segmentation": "nuclei_drawn",
}
#: pixels of a drawn image: a test image is two patches wide
SIDE, PATCH = 64, 32
#: images of a site to train on, and to test on
TRAIN, TEST = 6, 1
#: by site: colour of tissue, colour of nuclei, radius, number of nuclei
STAINS = (
    ((230, 190, 210), (110, 60, 140), 6.0, 14),
    ((215, 170, 190), (80, 50, 110), 5.0, 18),
    ((240, 205, 225), (140, 90, 160), 4.5, 22),
    ((205, 175, 215), (95, 75, 150), 7.0, 10),
)


def draw_nuclei(site: int, rng: Rng) -> Picture:
    """Ellipses in the colours of a site, (64, 64, 3)."""
    tissue, stain, radius, count = STAINS[site]
    draws = rng.numpy()
    y, x = np.mgrid[:SIDE, :SIDE]
    instances = np.zeros((SIDE, SIDE), np.int32)
    for number in range(1, count + 1):
        (cy, cx), turn = draws.uniform(0, SIDE, 2), draws.uniform(0, np.pi)
        long, flat = radius * draws.uniform(0.8, 1.3), radius * draws.uniform(0.6, 0.9)
        along = (y - cy) * np.cos(turn) + (x - cx) * np.sin(turn)
        across = (x - cx) * np.cos(turn) - (y - cy) * np.sin(turn)
        inside = (along / long) ** 2 + (across / flat) ** 2 < 1
        instances[inside & (instances == 0)] = number
    image = np.where(instances[..., None] > 0, stain, tissue) + draws.normal(0, 12, (SIDE, SIDE, 3))
    return Picture(image.clip(0, 255).astype(np.uint8), instances, site, f"drawing {rng.path}")


def load_nuclei() -> Dataset:
    """Drawn nuclei: six images of each site to train on, in patches of 32, and one to test on."""

    def drawn(split: str, count: int) -> list[Picture]:
        return [
            draw_nuclei(site, Rng(0).at("drawn", split, site, number))
            for site in range(len(ORGANS))
            for number in range(count)
        ]

    return nuclei("nuclei_drawn", drawn("train", TRAIN), drawn("test", TEST), ORGANS, PATCH)


#: by site of heads: brightness of bone, brain and ventricles, and the kind of Fourier mask
HEADS = {
    "brats2020": ((90, 150, 60), "random"),
    "fastmri": ((180, 110, 220), "equispaced"),
    "ixi": ((120, 200, 40), "random"),
}
#: slices of a site to train on, public ones without answers, slices to test on
SLICES = (16, 4, 2)
ACCELERATION = 4


def draw_head(levels: tuple[int, int, int], rng: Rng) -> np.ndarray:
    """A slice through a head, (32, 32) in [0, 1]: bone, brain and ventricles as nested ellipses."""
    draws = rng.numpy()
    y, x = np.mgrid[:PATCH, :PATCH] - (PATCH - 1) / 2
    turn, size = draws.uniform(-0.4, 0.4), draws.uniform(0.8, 1.0, 2) * PATCH / 2
    along, across = y * np.cos(turn) + x * np.sin(turn), x * np.cos(turn) - y * np.sin(turn)
    image = np.zeros((PATCH, PATCH))
    for level, share in zip(levels, (0.95, 0.8, draws.uniform(0.2, 0.4)), strict=True):
        inside = (along / (share * size[0])) ** 2 + (across / (share * size[1])) ** 2 < 1
        image[inside] = level + draws.normal(0, 6, inside.sum())
    return image.clip(0, 255) / 255


def load_heads() -> Dataset:
    """Drawn slices of heads at three sites, and what is left of them at an acceleration of four."""
    parts = []
    for split, count in zip(("train", "public", "test"), SLICES, strict=True):
        images, targets, sites = [], [], []
        for number, (site, (levels, kind)) in enumerate(HEADS.items()):
            draws = Rng(0).at("heads", split, site)
            slices = np.stack([draw_head(levels, draws.at(i)) for i in range(count)])
            mask = column_mask(PATCH, ACCELERATION, kind, Rng(0).at("mask", site))
            images.append(zero_filled(slices, mask))
            targets.append(slices)
            sites += [number] * count
        given, wanted = (
            torch.from_numpy(
                (np.concatenate(each)[:, None].clip(0, 1) * 255).round().astype(np.uint8)
            )
            for each in (images, targets)
        )
        centre = torch.tensor(sites)
        parts.append(Split(given, centre, centre, wanted))
    splits = dict(zip(("train", "val", "test"), parts, strict=True))
    return dataset_of("mri_drawn", splits, ("intensity",), "mri_drawn", sites=tuple(HEADS))
