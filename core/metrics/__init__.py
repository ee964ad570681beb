"""How good predictions are."""

from core.metrics.classification import classification, mean_and_std

__all__ = ["classification", "mean_and_std"]
