"""Condensation of data sets: matching losses, latent statistics, selection of real samples, siamese augmentation."""

from core.condensation.latent import LatentEncoder, LatentStatistics
from core.condensation.matching import class_means, mmd
from core.condensation.selection import draw, importance, selection_probabilities, smoothed_error

__all__ = [
    "LatentEncoder",
    "LatentStatistics",
    "class_means",
    "draw",
    "importance",
    "mmd",
    "selection_probabilities",
    "smoothed_error",
]
