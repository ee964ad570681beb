"""The metric that a run is told by where there is room for one."""

from __future__ import annotations

from collections.abc import Mapping

#: of classification, segmentation and reconstruction
HEADLINES = ("accuracy", "dice", "ssim")


def headline(metrics: Mapping[str, float]) -> str | None:
    """Its name; None where there is none of them: a round that was not tested."""
    return next((name for name in HEADLINES if name in metrics), None)
