"""How good predictions are, and how far sets of points lie apart."""

from core.metrics.classification import classification, mean_and_std
from core.metrics.transport import earth_movers_distance

__all__ = ["classification", "earth_movers_distance", "mean_and_std"]
