"""Volumes of magnetic resonance: NIfTI files (nibabel) and fastMRI's HDF5 files (h5py), each imported
where it is read. A header is looked at before any of the data.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from core.errors import InputError
from core.files import parsing

#: values of the largest volume that is read; those of BraTS have 9 million, of IXI 10 million
MOST = 2**27
#: the name of fastMRI's reference images in its files
REFERENCE = "reconstruction_rss"


def nifti(path: Path) -> np.ndarray:
    """The axial slices (N, H, W) of a NIfTI file, from the neck up, in the file's own numbers.

    Raises InputError, naming the file, where nibabel is absent, and for a file that is missing, no
    NIfTI file, cut short, too large, or of other than three axes.
    """
    with parsing(path, "a volume"):
        import nibabel

        _check(path)
        image: Any = nibabel.load(path)
        _check(path, image.shape)
        # axes from left to right, back to front, bottom to top, whatever the scanner's were
        upright = nibabel.as_closest_canonical(image)
        return _finite(np.rot90(np.asanyarray(upright.dataobj)).transpose(2, 0, 1))


def hdf5(path: Path) -> np.ndarray:
    """The slices (N, H, W) of fastMRI's reference images in an HDF5 file. Raises InputError as
    `nifti`, and for a file without them.
    """
    with parsing(path, "a volume"):
        import h5py

        _check(path)
        with h5py.File(path, "r") as file:
            if not isinstance(file.get(REFERENCE), h5py.Dataset):
                raise ValueError(f"it has no {REFERENCE!r}")
            _check(path, file[REFERENCE].shape)
            return _finite(file[REFERENCE][()])


def eight_bits(slices: np.ndarray) -> np.ndarray:
    """A volume (N, H, W) as uint8: 0 stays 0, its 99.9th percentile is white."""
    white = max(float(np.percentile(slices, 99.9)), 1e-12)
    return (slices.clip(0, white) / white * 255).round().astype(np.uint8)


def centred(slices: np.ndarray, size: int) -> np.ndarray:
    """The middle `size` by `size` pixels of slices (N, H, W); what lies outside of them is 0."""
    for axis in (1, 2):
        length = slices.shape[axis]
        first = max(length - size, 0) // 2
        slices = slices.take(range(first, first + min(length, size)), axis)
        before = (size - slices.shape[axis]) // 2
        pad = [(0, 0)] * 3
        pad[axis] = (before, size - slices.shape[axis] - before)
        slices = np.pad(slices, pad)
    return slices


def _check(path: Path, shape: tuple[int, ...] = (1, 1, 1)) -> None:
    if not path.is_file():
        raise InputError(f"there is no volume {path}")
    if len(shape) != 3 or not 0 < math.prod(shape) <= MOST:
        raise ValueError(f"it has the axes {shape}; three are read, and at most {MOST:,} values")


def _finite(values: np.ndarray) -> np.ndarray:
    if not np.isfinite(values).all():
        raise ValueError("it holds numbers that are not finite")
    return values
