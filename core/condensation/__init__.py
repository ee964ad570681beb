"""Condensation of data sets: matching losses, latent statistics, selection of real samples, siamese augmentation."""

from core.condensation.augment import Augmentation, augment, draw_augmentation, siamese_augment
from core.condensation.initial import initial_images
from core.condensation.latent import LatentEncoder, LatentStatistics
from core.condensation.matching import class_means, mmd
from core.condensation.selection import draw, importance, selection_probabilities, smoothed_error
from core.condensation.wire import from_wire, to_wire

__all__ = [
    "Augmentation",
    "LatentEncoder",
    "LatentStatistics",
    "augment",
    "class_means",
    "draw",
    "draw_augmentation",
    "from_wire",
    "importance",
    "initial_images",
    "mmd",
    "selection_probabilities",
    "siamese_augment",
    "smoothed_error",
    "to_wire",
]
