"""SVHN in the cropped 32x32 .mat files, as torchvision lays them out (Netzer et al. 2011)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from core.data.arrays import as_images, as_labels, assemble
from core.data.dataset import Dataset, Split
from core.errors import InputError

FILES = {"train": "train_32x32.mat", "test": "test_32x32.mat"}
#: channel statistics of the training images, as the dataset condensation papers use them (Zhao et
#: al. 2021)
MEAN, STD = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)


def _split(path: Path) -> Split:
    try:
        from scipy.io import loadmat
    except ImportError:
        raise InputError(
            "reading SVHN needs the package scipy; install it with: pip install scipy"
        ) from None
    try:
        table = loadmat(path)
    except Exception as error:  # scipy raises many kinds on damaged files
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path} cannot be read as a .mat file ({reason}); get it again") from None
    for key in ("X", "y"):
        if key not in table:
            raise InputError(f"{path} has no array {key!r}")
    pixels, labels = np.asarray(table["X"]), np.asarray(table["y"])
    if pixels.ndim != 4:
        raise InputError(f"{path}: X must have shape (32, 32, 3, N), not {pixels.shape}")
    images = as_images(pixels.transpose(3, 0, 1, 2), f"{path}: X")
    digits = as_labels(labels, f"{path}: y", len(images), 11)
    return Split(images, digits % 10)  # the digit 0 has label 10 in the file


def load_svhn(root: Path) -> Dataset:
    """73,257 and 26,032 colour images of 32x32 pixels, 10 digits (the 531,131 extra images are not
    used).
    """
    train, test = (_split(root / name) for name in FILES.values())
    return assemble(
        "svhn", train, None, test, tuple(str(digit) for digit in range(10)), MEAN, STD, root
    )
