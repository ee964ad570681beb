"""Paired differences between rows of a table, seed by seed: what a claim that one leads others rests on."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from core.errors import InputError, unknown
from core.experiments import Record, TableSpec
from core.experiments.cell import Cell
from core.experiments.spec import as_list, as_mapping, check_keys
from core.report.frames import best_cells
from core.report.intervals import paired, probability
from core.report.verdict import values


@attrs.frozen
class Lead:
    """By how much one row leads another in a column, in the unit of print; above 0 is better. Where it
    is to lead several rivals, the other is the one that comes nearest or is furthest ahead.
    """

    table: str
    column: str
    profile: str
    row: str
    rival: str
    mean: float
    #: the ends of its 90% interval over seeds
    low: float
    high: float
    seeds: int
    metric: str
    unit: str
    #: which data stand in for those of the paper, if any
    stand_in: str | None = None
    #: the differences, seed by seed, to each rival
    gaps: tuple[tuple[float, ...], ...] = ()

    def above(self, by: float) -> bool:
        """Whether the 90% interval of the lead over each rival lies above `by`."""
        return all(low > by for _, low, _ in map(_interval, self.gaps))

    def below(self, by: float) -> bool:
        """Whether that of the lead over some rival lies below `by`."""
        return any(high < by for _, _, high in map(_interval, self.gaps))


def refuted(found: Sequence[Lead], by: float = 0.0) -> bool:
    """Whether comparisons contradict that every lead is more than `by`.

    Simes (1986): of the chances of m leads as low as these, in rising order, the i-th is at most
    5% * i / m. One lead far below counts, or many that are a little below, and true claims are refuted
    in at most 5% of cases, also where comparisons share a side and so rise and fall together. Where a
    row is to lead several rivals, each of them is a comparison, so looking for the best costs nothing.
    One seed decides nothing.
    """
    low = chances(found, by)
    return any(p <= 0.05 * i / len(low) for i, p in enumerate(low, 1))


def chances(found: Sequence[Lead], by: float) -> list[float]:
    """How likely leads as low are where they are `by` in truth, in rising order; of those that have
    more than one seed.
    """
    known = [gaps for one in found for gaps in one.gaps if len(gaps) > 1]
    return sorted(probability(gaps, by) for gaps in known)


def leads(
    paper: str, detail: Any, measured: Mapping[str, Record], where: str, ours: bool = False
) -> list[Lead]:
    """The comparisons that a claim of the kind "ahead" asks for, where both sides are measured.

    Args:
        detail: what stands below `ahead` in the claim's file; where: the claim, for messages.
        measured: complete records by experiment id.
        ours: whether the claim is this book's own, so that columns count that the paper lacks.

    Two cells that the same runs fill are one comparison for each measure. `columns` are those that the
    claim is about, else all that the paper prints, or, of a claim of this book, all. `metrics` are the
    measures, else it is the table's first. `beside` are other tables that have the
    same columns and rows of other names, which a claim may set beside each other. Raises InputError
    for a name that the tables do not have.
    """
    asked = as_mapping(detail, where)
    check_keys(
        asked,
        ("tables", "beside", "metrics", "columns", "row", "against", "pairs", "by", "most"),
        where,
    )
    found: dict[tuple[str, ...], Lead] = {}
    for table in as_list(asked.get("tables"), f"{where}, tables"):
        specs = [TableSpec.find(paper, one) for one in (table, *asked.get("beside", ()))]
        _check_names(asked, specs, where)
        metrics = asked.get("metrics", [specs[0].metric])
        columns: dict[tuple[str, str], dict[str, Cell]] = {}
        printed = [one.name for one in specs[0].columns if one.printed or ours]
        for cell in (cell for spec in specs for cell in best_cells(spec, measured)):
            if cell.metric in metrics and cell.column in asked.get("columns", printed):
                columns.setdefault((cell.column, cell.metric), {})[cell.row] = cell
        for cells in columns.values():
            for lead in _in_column(asked, cells, measured):
                sides = cells[lead.row], cells[lead.rival]
                runs = [run.id for cell in sides for run in cell.experiments]
                found.setdefault((*(cell.record_metric for cell in sides), *runs), lead)
    return list(found.values())


def _check_names(asked: Mapping[str, Any], specs: Sequence[TableSpec], where: str) -> None:
    """Raise InputError, with the nearest right name, for a row, column or metric of a claim that its
    tables do not have, and for a claim that compares nothing.
    """
    pairs = asked.get("pairs", ())
    if not ("row" in asked or pairs) or any(len(pair) != 2 for pair in pairs):
        raise InputError(f"{where} needs a 'row' that leads, or 'pairs' of two rows")
    rows = [*([asked["row"]] if "row" in asked else ()), *asked.get("against", ())]
    named = {
        "row": ([*rows, *itertools.chain(*pairs)], [row.name for s in specs for row in s.rows]),
        "column": (asked.get("columns", ()), [one.name for s in specs for one in s.columns]),
        "metric": (asked.get("metrics", ()), [one for s in specs for one in s.metrics]),
    }
    for kind, (names, known) in named.items():
        for name in names:
            if name not in known:
                tables = " and ".join(spec.table for spec in specs)
                raise unknown(f"{kind} of table {tables} ({where})", name, known)


def _in_column(
    asked: Mapping[str, Any], cells: Mapping[str, Cell], measured: Mapping[str, Record]
) -> list[Lead]:
    """The comparisons of one column: pairs as stated, or a row with all others, of which the best on
    the seeds that both have stands for them; one with a single seed only where no other is there.
    """
    known = {row: of for row, cell in cells.items() if (of := values(cell, measured))}
    better = -1 if _lower_is_better(cells) else 1

    def gaps(row: str, rival: str) -> tuple[float, ...]:
        a, b = known.get(row, {}), known.get(rival, {})
        return tuple(better * (a[seed] - b[seed]) for seed in sorted(a.keys() & b.keys()))

    sides = [(row, (rival,)) for row, rival in asked.get("pairs", ())]
    if "row" in asked:
        others = tuple(one for one in asked.get("against", known) if one != asked["row"])
        sides.append((asked["row"], others))
    compared = []
    for row, rivals in sides:
        found = {rival: each for rival in rivals if (each := gaps(row, rival))}
        if found:
            best = min(
                found, key=lambda rival: (len(found[rival]) < 2, statistics.fmean(found[rival]))
            )
            cell, seen = cells[row], found[best]
            where = (cell.table, cell.column, cell.profile, row, best)
            what = (len(seen), cell.metric, cell.unit, cell.stand_in)
            mean, low, high = _interval(seen)
            compared.append(Lead(*where, mean, low, high, *what, tuple(found.values())))
    return compared


def _interval(gaps: Sequence[float]) -> tuple[float, ...]:
    """The mean of differences over seeds and the ends of its 90% interval."""
    return paired(gaps, [0.0] * len(gaps))


def _lower_is_better(cells: Mapping[str, Cell]) -> bool:
    printed = [cell for cell in cells.values() if cell.published]
    return (printed or list(cells.values()))[0].better == "lower"
