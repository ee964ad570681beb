"""Similarity of reconstructed images to the true ones, by scikit-image."""

from __future__ import annotations

import numpy as np

from core.errors import InputError


def reconstruction(truth: np.ndarray, restored: np.ndarray) -> dict[str, float]:
    """SSIM (Gaussian window of Wang et al. 2004) and PSNR (dB, cut at 100) of two images (H, W) in [0, 1].
    InputError for shapes that differ.
    """
    from skimage.metrics import mean_squared_error, peak_signal_noise_ratio, structural_similarity

    if truth.shape != restored.shape or truth.ndim != 2:
        raise InputError(
            f"the images to compare have shapes {truth.shape} and {restored.shape}; both must be (H, W)"
        )
    similar = structural_similarity(
        truth,
        restored,
        data_range=1.0,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
    )
    if mean_squared_error(truth, restored) < 1e-10:
        return {"ssim": float(similar), "psnr": 100.0}
    return {
        "ssim": float(similar),
        "psnr": float(peak_signal_noise_ratio(truth, restored, data_range=1.0)),
    }
