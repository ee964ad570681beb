"""scikit-learn's embedded digits: 1,797 grey images of 8x8 pixels, at hand on every machine."""

from __future__ import annotations

import numpy as np

from core.data.arrays import as_images, as_labels, assemble
from core.data.dataset import Dataset, Split
from core.rng import Rng

#: share of each class, by split; the rest is for training
VAL_SHARE, TEST_SHARE = 0.1, 0.2


def load_digits() -> Dataset:
    """The digits with a fixed split, stratified by class: about 70% train, 10% val, 20% test.

    The grey values 0 to 16 of the source are scaled to 0 to 255 and rounded, so that they fit the
    8-bit images of the other sets.
    """
    from sklearn.datasets import load_digits as embedded

    bunch = embedded()
    pixels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    labels = bunch.target.astype(np.int64)
    where: dict[str, list[np.ndarray]] = {"train": [], "val": [], "test": []}
    for label in range(10):
        index = (
            Rng(0).at("digits", "split", label).numpy().permutation(np.flatnonzero(labels == label))
        )
        val, test = round(len(index) * VAL_SHARE), round(len(index) * TEST_SHARE)
        where["val"].append(index[:val])
        where["test"].append(index[val : val + test])
        where["train"].append(index[val + test :])
    splits = {}
    for name, parts in where.items():
        index = np.sort(np.concatenate(parts))
        splits[name] = Split(
            as_images(pixels[index], "digits"), as_labels(labels[index], "digits", len(index), 10)
        )
    names = tuple(str(digit) for digit in range(10))
    return assemble(
        "digits", splits["train"], splits["val"], splits["test"], names, None, None, "digits"
    )
