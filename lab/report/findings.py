"""Sentences on results: their numbers come from records, and their leads are checked by intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs
import pandas as pd

from core.errors import InputError, unknown
from core.privacy.membership import defence_by_chance
from lab import Record, TableSpec, records
from lab.forms import TABLES, check_keys, read_yaml
from lab.report import style
from lab.report.intervals import interval
from lab.report.verdict import (
    EXACT,
    compare,
    differences,
    in_printed_unit,
    mean_and_std,
    values,
)
from lab.table import Cell

BOTTOM_LINES = TABLES.parent / "bottom_lines.yaml"
#: between a cell and the one whose printed number its verdict is about
_BESIDE = " beside "
_KEYS = ("text", "profile", "cells", "ahead")


@attrs.frozen
class Measured:
    """A cell in a sentence: its mean over seeds with the deviation, in the unit of print; fewer than
    three seeds are said.
    """

    mean: float
    std: float | None
    seeds: int
    unit: str
    #: what the paper prints, as text
    printed: str

    def __str__(self) -> str:
        digits, sign = style.digits(self.unit), style.suffix(self.unit)
        if self.std is None:
            return f"{self.mean:.{digits}f}{sign} (one run)"
        few = " (two seeds)" if self.seeds == 2 else ""
        return f"{self.mean:.{digits}f} ± {self.std:.{digits}f}{sign}{few}"


@attrs.frozen
class Difference:
    """A cell minus another in a sentence, in the unit of print: the mean over the seeds that both have,
    with its 90% interval.
    """

    mean: float
    low: float
    high: float
    seeds: int
    unit: str
    #: the difference of what the paper prints for both, as text
    printed: str

    def __str__(self) -> str:
        digits, sign = style.digits(self.unit), style.difference(self.unit)
        if self.seeds == 1:
            return f"{self.mean:.{digits}f}{sign} (one seed)"
        if math.isinf(self.high):
            return f"{self.mean:.{digits}f}{sign} (the same in all {self.seeds} seeds)"
        low, high = f"{self.low:.{digits}f}", f"{self.high:.{digits}f}"
        return f"{self.mean:.{digits}f}{sign} (90% interval {low} to {high}, {self.seeds} seeds)"


def bottom_line(name: str) -> str:
    """What came out for a paper, or for `privacy`, in some sentences. Raises InputError for another name, and
    as `stated` does.
    """
    lines = read_yaml(BOTTOM_LINES)
    if name not in lines:
        raise unknown("paper", name, lines)
    return stated(name, lines[name], records())


def stated(name: str, entry: Mapping[str, Any], known: Mapping[str, Record]) -> str:
    """The sentences of an entry with their numbers, none of which is of a single run.

    Raises InputError where the 90% interval of a difference that is shown, or of a pair that the entry says
    is `ahead`, is not above 0: then the sentence has to be written anew.
    """
    check_keys(entry, _KEYS, name)
    for key in _KEYS:
        if key not in entry:
            raise InputError(f"{name!r} has no {key!r}")
    found = {key: _of(cell, entry["profile"], known) for key, cell in entry["cells"].items()}
    for key, lead in _leads(entry, known).items():
        if lead.low <= 0:
            raise InputError(
                f"{name!r}: {key} is {lead}, and the sentence says who is ahead: write it anew"
            )
    # what is named only for its reported value may be measured otherwise
    shown = {key: one for key, one in found.items() if f"{{{key}}}" in entry["text"]}
    for key, one in shown.items():
        if not isinstance(one, str) and one.seeds == 1:
            raise InputError(f"{name!r}: {key} is a single run, {one}: no sentence rests on that")
    # an empty line in the file, which the file's syntax makes one break of a line, ends a paragraph
    return str(entry["text"]).format_map(found).replace("\n", "\n\n")


def _leads(entry: Mapping[str, Any], known: Mapping[str, Record]) -> dict[str, Difference]:
    """The differences that an entry rests on: those in its text, and its pairs `ahead`."""
    cells = entry["cells"]
    pairs = {f"{a} minus {b}": [cells[a], cells[b]] for a, b in entry["ahead"]}
    pairs |= {key: cell for key, cell in cells.items() if f"{{{key}}}" in entry["text"]}
    found = {key: _of(cell, entry["profile"], known) for key, cell in pairs.items()}
    return {key: one for key, one in found.items() if isinstance(one, Difference)}


def guards() -> pd.DataFrame:
    """What guards the sentences, a row for each `guard`: by how much one cell is ahead of another (`mean`,
    `low` and `high` of its 90% interval, `seeds`). The book is not built when one ends at 0.
    """
    known = records()
    rows = [
        (name, guard, one.mean, one.low, one.high, one.seeds)
        for name, entry in read_yaml(BOTTOM_LINES).items()
        for guard, one in _leads(entry, known).items()
    ]
    return pd.DataFrame(rows, columns=["about", "guard", "mean", "low", "high", "seeds"])


def _of(
    name: str | list[str], profile: str, known: Mapping[str, Record]
) -> Measured | Difference | str:
    """A cell at the profile of its entry, or at one of its own: "ADDRESS at PROFILE"; another share
    that its runs have measured: "ADDRESS of METRIC"; of two of these the difference; or the verdict on
    one beside what is printed at another: "ADDRESS beside ADDRESS".
    """
    if isinstance(name, list):
        (cell, ours), (other, theirs) = (_values(one, profile, known) for one in name)
        gaps = differences(ours, theirs)
        a, b = (one.published.value if one.published else None for one in (cell, other))
        printed = "–" if a is None or b is None else f"{a - b:.{style.digits(cell.unit)}f}"
        ends = interval(gaps, exact=cell.metric in EXACT)
        return Difference(*ends, len(gaps), cell.unit, printed)
    name, _, in_print = name.partition(_BESIDE)
    cell, by_seed = _values(name, profile, known)
    if in_print:
        beside = TableSpec.find_cell(in_print, profile).published
        if beside is None or beside.value is None:
            raise InputError(f"a sentence asks for print's number of {in_print}, which has none")
        exact, found = cell.metric in EXACT, [*by_seed.values()]
        by = compare(beside.value, found, cell.unit, beside.spread, exact, cell.looks)
        return str(by.outcome)
    printed = cell.published.text if cell.published else "–"
    return Measured(*mean_and_std([*by_seed.values()]), len(by_seed), cell.unit, printed)


def _other(run: Record, metric: str) -> float:
    """Another metric of a run, or `chance`: the mean AUC of an attack that knows nothing of its members."""
    if metric != "chance":
        return run.metrics[metric]
    members = [int(run.metrics[name]) for name in run.metrics if name.startswith("mia_members/")]
    return defence_by_chance(members)["mia_auc_mean"]


def _values(name: str, profile: str, known: Mapping[str, Record]) -> tuple[Cell, dict[int, float]]:
    """A cell as `_of` names it, and its values by seed."""
    name, _, own = name.partition(" at ")
    name, _, metric = name.partition(" of ")
    cell = TableSpec.find_cell(name, own or profile)
    found = values(cell, known)
    if metric:
        runs = cell.records(known)
        found = {
            run.experiment.seed: in_printed_unit(_other(run, metric), cell.unit) for run in runs
        }
    if not found:
        raise InputError(f"a sentence has no record of {name} at the profile {own or profile}")
    return cell, found
