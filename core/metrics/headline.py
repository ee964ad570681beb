"""The one metric that stands for a run where there is room for one."""

from __future__ import annotations

from collections.abc import Mapping

#: of classification, segmentation and reconstruction
HEADLINES = ("accuracy", "dice", "ssim")


def headline(metrics: Mapping[str, float]) -> str | None:
    """Return the name of the headline metric; None for a round that was not tested."""
    return next((name for name in HEADLINES if name in metrics), None)
