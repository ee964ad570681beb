"""The small experiments on drawn images that tests of dense tasks start from."""

from __future__ import annotations

from typing import Any

from lab import Experiment


def on_nuclei(algorithm: str, settings: dict[str, Any], **fields: Any) -> Experiment:
    """Four clients segment drawn nuclei, in one round; `fields` say what is different."""
    return _drawn(algorithm, "nuclei_drawn", 4, settings, fields)


def on_heads(algorithm: str, settings: dict[str, Any], **fields: Any) -> Experiment:
    """Three clients reconstruct drawn heads, in one round; `fields` say what is different."""
    return _drawn(algorithm, "mri_drawn", 3, settings, fields)


def _drawn(
    algorithm: str, dataset: str, clients: int, settings: dict[str, Any], fields: dict[str, Any]
) -> Experiment:
    return Experiment(
        algorithm=algorithm,
        dataset=dataset,
        model="unet",
        model_options={"width": 2},
        partition={"name": "natural"},
        clients=clients,
        settings=settings,
        **({"rounds": 1} | fields),
    )
