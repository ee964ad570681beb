"""Volumes of magnetic resonance: NIfTI files (nibabel) and fastMRI's HDF5 files (h5py), each imported
where it is read. A header is looked at before any of the data.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from core.errors import InputError, one_line

#: values of the largest volume that is read; those of BraTS have 9 million, of IXI 10 million
MOST = 2**27


def nifti(path: Path) -> np.ndarray:
    """The axial slices (N, H, W) of a NIfTI file, from the neck up, in the file's own numbers.

    Raises InputError, naming the file, where nibabel is absent, and for a file that is missing, no
    NIfTI file, cut short, too large, or of other than three axes.
    """
    try:
        import nibabel
    except ImportError:
        raise _absent(path, "nibabel") from None
    _there(path)
    try:
        image = nibabel.load(path)
        _three(image.shape, path)
        # axes from left to right, back to front, bottom to top, whatever the scanner's were
        upright = nibabel.as_closest_canonical(image)
        return _finite(np.rot90(np.asanyarray(upright.dataobj)).transpose(2, 0, 1), path)
    except InputError:
        raise
    except Exception as error:  # nibabel, gzip and zlib each raise their own kinds
        raise _damaged(path, error) from None


#: the name of fastMRI's reference images in its files
REFERENCE = "reconstruction_rss"


def hdf5(path: Path) -> np.ndarray:
    """The slices (N, H, W) of fastMRI's reference images in an HDF5 file.

    Raises InputError as `nifti` does, and for a file without them.
    """
    try:
        import h5py
    except ImportError:
        raise _absent(path, "h5py") from None
    _there(path)
    try:
        with h5py.File(path, "r") as file:
            if not isinstance(file.get(REFERENCE), h5py.Dataset):
                raise InputError(
                    f"{path} has no {REFERENCE!r}; it holds: {', '.join(file) or 'nothing'}"
                )
            _three(file[REFERENCE].shape, path)
            return _finite(file[REFERENCE][()], path)
    except InputError:
        raise
    except Exception as error:
        raise _damaged(path, error) from None


def eight_bits(slices: np.ndarray) -> np.ndarray:
    """A volume (N, H, W) as uint8: 0 stays 0, its 99.9th percentile is white."""
    white = max(float(np.percentile(slices, 99.9)), 1e-12)
    return (slices.clip(0, white) / white * 255).round().astype(np.uint8)


def centred(slices: np.ndarray, size: int) -> np.ndarray:
    """The middle `size` by `size` pixels of slices (N, H, W); what lies outside of them is 0."""
    found = np.zeros((len(slices), size, size), slices.dtype)
    take, put = [slice(None)], [slice(None)]
    for length in slices.shape[1:]:
        kept = min(length, size)
        take.append(slice((length - kept) // 2, (length - kept) // 2 + kept))
        put.append(slice((size - kept) // 2, (size - kept) // 2 + kept))
    found[tuple(put)] = slices[tuple(take)]
    return found


def _there(path: Path) -> None:
    if not path.is_file():
        raise InputError(f"there is no volume {path}")


def _finite(values: np.ndarray, path: Path) -> np.ndarray:
    if not np.isfinite(values).all():
        raise InputError(f"{path} holds numbers that are not finite")
    return values


def _three(shape: tuple[int, ...], path: Path) -> None:
    if len(shape) != 3 or not math.prod(shape) or math.prod(shape) > MOST:
        raise InputError(
            f"{path} has the axes {shape}; a volume has three and at most {MOST:,} values"
        )


def _absent(path: Path, package: str) -> InputError:
    return InputError(
        f"reading {path} needs the package {package}; install it with: pip install {package}"
    )


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(f"{path} cannot be read as a volume ({one_line(error, 100)}); get it again")
