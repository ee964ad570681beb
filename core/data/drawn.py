"""Drawn images in the place of real ones: nuclei as ellipses in four colours, and slices of a head as
nested ellipses. They need no file, so that a lesson and a test run anywhere; nothing that is learned
from them says anything about patients.
"""

from __future__ import annotations

import numpy as np

from core.data.dataset import Dataset
from core.data.dense import Picture, nuclei
from core.data.monuseg import ORGANS
from core.rng import Rng

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


def load_nuclei(name: str, sites: tuple[str, ...] = ORGANS) -> Dataset:
    """Drawn nuclei: six images of each site to train on, in patches of 32, and one to test on."""

    def drawn(split: str, count: int) -> list[Picture]:
        return [
            draw_nuclei(site, Rng(0).at("drawn", split, site, number))
            for site in range(len(sites))
            for number in range(count)
        ]

    return nuclei(name, drawn("train", TRAIN), drawn("test", TEST), sites, PATCH)
