"""The small experiments that tests of algorithms start from."""

from __future__ import annotations

from typing import Any

import attrs

from core.federation import Runtime
from lab import Experiment, make_task, rounds


def on_digits(
    algorithm: str, settings: Any = None, alpha: float = 0.5, **fields: Any
) -> Experiment:
    """Three clients, two rounds and a narrow network on digits; `fields` say what is different."""
    usual = {"clients": 3, "rounds": 2, "model_options": {"width": 8}}
    partition = {"name": "dirichlet", "alpha": alpha}
    given = {**usual, "settings": settings or {}, **fields}
    return Experiment(algorithm=algorithm, dataset="digits", partition=partition, **given)


def accuracy_after(experiment: Experiment, **changes: Any) -> float:
    """Test accuracy after the last round of an experiment with other fields."""
    experiment = attrs.evolve(experiment, **changes)
    *_, last = rounds(experiment, task=make_task(experiment, Runtime()))
    return last.metrics["accuracy"]
