"""Measures of predictions and of images, and distances of sets of points."""

from core.metrics.classification import classification, mean_and_std
from core.metrics.headline import headline
from core.metrics.reconstruction import reconstruction
from core.metrics.segmentation import objects, regions, separated
from core.metrics.transport import earth_movers_distance

__all__ = [
    "classification",
    "earth_movers_distance",
    "headline",
    "mean_and_std",
    "objects",
    "reconstruction",
    "regions",
    "separated",
]
