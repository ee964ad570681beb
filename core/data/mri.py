"""Magnetic resonance images from a quarter of their measurements: Fourier masks, and what an image looks
like when the rest is taken for zero.
"""

from __future__ import annotations

import numpy as np

from core.errors import InputError
from core.rng import Rng

#: share of the lowest frequencies, along a row, that every mask keeps (fastMRI, Zbontar et al. 2018)
CENTRE = 0.08
MASKS = ("random", "equispaced", "centre")


def column_mask(size: int, acceleration: int, kind: str, rng: Rng) -> np.ndarray:
    """Return which columns of a centred spectrum are measured, (size,) bool, one of `acceleration`: the
    lowest, and others by `kind`. Raises InputError for an unknown kind or an acceleration below 1.
    """
    if kind not in MASKS or acceleration < 1:
        kinds = f"{', '.join(MASKS[:-1])} or {MASKS[-1]}"
        raise InputError(f"a mask is {kinds}, with an acceleration of 1 or more")
    wanted, middle = round(size / acceleration), max(round(CENTRE * size), 1)
    if kind == "centre":
        middle = max(wanted, middle)
    mask = np.zeros(size, bool)
    first = (size - middle + 1) // 2
    mask[first : first + middle] = True
    free, more = np.flatnonzero(~mask), max(wanted - middle, 0)
    if kind == "random":
        mask[rng.numpy().choice(free, more, replace=False)] = True
    else:
        mask[free[np.linspace(0, len(free) - 1, more).round().astype(int)]] = True
    return mask


def zero_filled(images: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Magnitudes of images (N, H, W) of which only the masked columns of the spectrum are known. Raises
    InputError for images of another width or with further axes.
    """
    if images.ndim != 3 or images.shape[2] != len(mask):
        raise InputError(
            f"slices must have shape (N, H, {len(mask)}), not {images.shape}: is it a volume with other axes?"
        )
    spectrum = np.fft.fftshift(np.fft.fft2(images, norm="ortho"), axes=(1, 2))
    return np.abs(np.fft.ifft2(np.fft.ifftshift(spectrum * mask, axes=(1, 2)), norm="ortho"))
