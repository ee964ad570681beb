"""Condensation of data sets: matching losses, latent statistics, selection of real samples, siamese
augmentation, and bi-level condensation.
"""

from core.condensation.augment import Augmentation, augment, draw_augmentation, siamese_augment
from core.condensation.bilevel import (
    Extraction,
    ExtractionProblem,
    KnowledgeNetwork,
    bilevel_step,
    class_balanced_weights,
    descend,
    dynamic_weights,
    extract,
    network_losses,
)
from core.condensation.latent import LatentEncoder, LatentStatistics
from core.condensation.matching import mmd
from core.condensation.selection import (
    draw,
    importance,
    initial_images,
    selection_probabilities,
    smoothed_error,
)
from core.condensation.shift import uncertain_shift

__all__ = [
    "Augmentation",
    "Extraction",
    "ExtractionProblem",
    "KnowledgeNetwork",
    "LatentEncoder",
    "LatentStatistics",
    "augment",
    "bilevel_step",
    "class_balanced_weights",
    "descend",
    "draw",
    "draw_augmentation",
    "dynamic_weights",
    "extract",
    "importance",
    "initial_images",
    "mmd",
    "network_losses",
    "selection_probabilities",
    "siamese_augment",
    "smoothed_error",
    "uncertain_shift",
]
