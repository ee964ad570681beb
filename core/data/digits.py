"""scikit-learn's embedded digits: 1,797 grey images of 8x8 pixels, at hand on every machine."""

from __future__ import annotations

import numpy as np

from core.rng import Rng

#: share of each class, by split; the rest is for training
VAL_SHARE, TEST_SHARE = 0.1, 0.2


def digits() -> dict[str, np.ndarray]:
    """The digits in the layout of MedMNIST, split by class: about 70% train, 10% val, 20% test. The grey
    values 0 to 16 are scaled to 0 to 255 and rounded.
    """
    from sklearn.datasets import load_digits as embedded

    bunch = embedded()
    pixels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    rows: dict[str, list[np.ndarray]] = {"train": [], "val": [], "test": []}
    for label in range(10):
        draws = Rng(0).at("digits", "split", label).numpy()
        index = draws.permutation(np.flatnonzero(bunch.target == label))
        val, test = round(len(index) * VAL_SHARE), round(len(index) * TEST_SHARE)
        rows["val"].append(index[:val])
        rows["test"].append(index[val : val + test])
        rows["train"].append(index[val + test :])
    arrays: dict[str, np.ndarray] = {}
    for part, each in rows.items():
        index = np.sort(np.concatenate(each))
        arrays |= {f"{part}_images": pixels[index], f"{part}_labels": bunch.target[index]}
    return arrays
