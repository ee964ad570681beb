"""The experiments that the options of `run` state."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from core.errors import InputError
from lab.cli.app import pairs, value_of

#: the options of one experiment
SINGLE = (
    *("algorithm", "dataset", "model", "alpha", "partition", "clients", "active", "rounds"),
    *("set_", "model_set", "variant"),
)


def option(name: str) -> str:
    """How an option of this name is written."""
    return "--" + name.strip("_").replace("_", "-")


def _partition(partition: str | None, alpha: float | None) -> dict[str, Any] | None:
    """The partition that the options name."""
    if partition is None and alpha is None:
        return None
    name, *rest = (partition or "dirichlet").split(",")
    if name.endswith(".json") and not rest:
        name, rest = "file", [f"file={name}"]
    options = pairs(rest) | ({} if alpha is None else {"alpha": alpha})
    file = options.get("file")
    if isinstance(file, str) and Path(file).is_file():  # else it is below the data folder
        options["file"] = str(Path(file).absolute())
    return {"name": name, **options}


def _settings(given: list[str]) -> list[dict[str, Any]]:
    """What `--set` states, with each combination of values that commas separate."""
    values = {
        name: [value_of(name, one.strip()) for one in value.split(",")]
        if isinstance(value, str)
        else [value]
        for name, value in pairs(given).items()
    }
    return [dict(zip(values, one, strict=True)) for one in itertools.product(*values.values())]


def stated_runs(profile: str, single: dict[str, Any], seeds: list[int] | None) -> list[Any]:
    """The experiments that the options state, for each setting and seed."""
    from core.data import load
    from core.data.partition import natural
    from lab.profiles import apply

    stated = {name: value for name, value in single.items() if value is not None}
    if not stated.get("algorithm"):
        raise InputError("say what to run: --algorithm and --dataset, or --cell, or --pending")
    sweep = _settings(stated.pop("set_", []))
    found = {
        "model_options": pairs(stated.pop("model_set", [])),
        "partition": _partition(stated.pop("partition", None), stated.pop("alpha", None)),
    }
    stated |= {name: value for name, value in found.items() if value}
    if found["partition"] == {"name": "natural"} and "dataset" in stated:
        # as many clients as there are institutions
        stated.setdefault("clients", len(natural(load(stated["dataset"]).train.centre)))
    runs = [
        apply(profile, stated | ({"settings": settings} if settings else {}) | {"seed": seed})
        for settings in sweep
        for seed in dict.fromkeys(seeds or [0])
    ]
    for run in runs:  # a value that is wrong is said before the first of them begins
        run.new_algorithm()
    return runs
