"""Conclusions on results (`book/conclusions.yaml`): differences with intervals that records must support."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import pandas as pd
from pydantic import Field
from scipy.special import stdtrit

from core.errors import InputError
from lab import Record, TableSpec, records
from lab.forms import TABLES, Part, Text, read_yaml
from lab.report.intervals import interval
from lab.report.verdict import EXACT, compare, differences, judge, values
from lab.table import Cell

CONCLUSIONS = TABLES.parent / "conclusions.yaml"


class Conclusion(Part):
    """A sentence of a summary on a cell: that it leads `over` another, or its `verdict` beside the paper."""

    says: Text
    #: as PAPER/TABLE/ROW/COLUMN at PROFILE
    cell: Text
    over: Text | None = None
    verdict: Text | None = None
    #: what the paper reports: a cell, or two whose difference counts
    paper: Annotated[list[Text], Field(max_length=2)] = Field([])


def conclusions(paper: str) -> pd.DataFrame:
    """The conclusions on a paper's results, a row each: `name`, the difference in the paper's unit (`value`),
    the ends of its 90% interval (`low`, `high`), what the `paper` reports for it, and how many `seeds`.

    Raises InputError where records do not support a conclusion.
    """
    known, stated = records(), read_yaml(CONCLUSIONS)[paper]
    rows = [(entry["says"], *supported(Conclusion(**entry), known)) for entry in stated]
    return pd.DataFrame(rows, columns=["name", "value", "low", "high", "paper", "seeds"])


def supported(
    conclusion: Conclusion, measured: Mapping[str, Record]
) -> tuple[float, float, float, float | None, int]:
    """The difference of a conclusion, the ends of its 90% interval, the paper's, and how many seeds.

    Raises InputError where its lead has an interval that is not above 0, or its verdict is another.
    """
    cell, ours = _values(conclusion.cell, measured)
    reported = [_reported(name) for name in conclusion.paper]
    if conclusion.over:
        gaps = differences(ours, _values(conclusion.over, measured)[1])
        mean, low, high = interval(gaps, exact=cell.metric in EXACT)
        if low <= 0:
            raise InputError(
                f"{conclusion.says!r} is {mean:.3g}, from {low:.3g} to {high:.3g}: write it anew"
            )
        lead = reported[0] - reported[1] if len(reported) == 2 else None
        return mean, low, high, lead, len(gaps)
    beside = TableSpec.find_cell(conclusion.paper[0], cell.profile).published
    spread = beside.spread if beside else None
    by = compare(reported[0], [*ours.values()], cell.unit, spread, looks=cell.looks)
    own = conclusion.cell.startswith(f"{conclusion.paper[0]} at ")  # then its table weighs more
    verdict = judge([cell], measured)[0].verdict if own else str(by.outcome)
    if verdict != conclusion.verdict:
        raise InputError(f"{conclusion.says!r} is {verdict} by now: write it anew")
    error, freedom = by.error
    half = float(stdtrit(freedom, 0.95) * error)
    gap = float(by.mean) - reported[0]
    return gap, gap - half, gap + half, 0.0, len(ours)


def _reported(name: str) -> float:
    """The number that the paper has for a cell."""
    published = TableSpec.find_cell(name, "paper").published
    if published is None or published.value is None:
        raise InputError(f"the paper reports no number for {name}")
    return published.value


def _values(name: str, measured: Mapping[str, Record]) -> tuple[Cell, dict[int, float]]:
    """A cell named as in `Conclusion`, and its values by seed."""
    address, _, profile = name.partition(" at ")
    cell = TableSpec.find_cell(address, profile)
    return cell, values(cell, measured)
