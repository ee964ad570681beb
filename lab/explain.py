"""Origins of each value of a cell's runs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import attrs

from core import algorithms
from lab.experiment import Experiment
from lab.forms import OPEN, short
from lab.overrides import Override, merge
from lab.profiles import budget_name
from lab.table import Cell


def origins(cell: Cell) -> dict[str, list[tuple[Any, str]]]:
    """The values that every field and hyper-parameter (`settings.lr`, `model_options.width`) of a cell's
    experiments had, with the places that set them, the last one in force.
    """
    run, path = cell.experiments[0], short(cell.spec.path)
    bare = Experiment(algorithm=run.algorithm, dataset=run.dataset).to_dict()
    stated = ("algorithm", "dataset", "seed", "profile", *OPEN)
    fields = {key: value for key, value in bare.items() if key not in stated}
    parts = [Override("default of an experiment", fields)]
    printed = attrs.asdict(algorithms.create(run.algorithm).settings)
    parts.append(Override(f"default of {run.algorithm}", {"settings": printed}))
    if run.variant == "released":
        other = {key: pair[1] for key, pair in algorithms.switches(run.algorithm).items()}
        parts.append(Override(f"released value of {run.algorithm}", {"settings": other}))
    parts += [Override(where, changed) for where, changed in cell.merged.steps]
    history = merge(parts).history()
    history["seed"] = [([run.seed for run in cell.experiments], f"{path}, seeds")]
    history["profile"] = [(cell.profile, "the profile asked for")]
    order = list(attrs.fields_dict(Experiment))
    return dict(sorted(history.items(), key=lambda item: order.index(item[0].partition(".")[0])))


def explanation(cell: Cell) -> str:
    """`origins` as a table in plain text; what restates the value that is there is left out."""
    rows = [("name", "value", "set by")]
    for name, steps in origins(cell).items():
        changes = [old for old, new in itertools.pairwise(steps) if old[0] != new[0]]
        for place, (value, where) in enumerate(reversed([*changes, steps[-1]])):
            rows.append(("  in place of" if place else name, as_set(value), where))
    where = f"{cell.address} at the budget {budget_name(cell.profile)}"
    return "\n".join([where, "", *aligned(rows)])


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of texts as lines with columns, for a terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{text:{width}}" for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def as_set(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, dict):
        name, *options = (
            f"{'' if key == 'name' else f'{key}='}{as_set(v)}" for key, v in value.items()
        )
        return ",".join([name, *options])
    return value if isinstance(value, str) else json.dumps(value)
