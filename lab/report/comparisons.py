"""Paired differences between rows of a table, seed by seed: what a claim that one leads others rests on."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from core.checks import is_number
from core.errors import InputError, unknown
from lab import Record, TableSpec
from lab.forms import as_list, as_mapping, check_keys
from lab.report.frames import best_cells
from lab.report.intervals import interval, probability
from lab.report.verdict import EXACT, FULL, budget, by_column, differences, values
from lab.table import Cell

#: of a claim: by how much to lead, whether in most columns only, and from which value on it counts
RULES = ("by", "most", "least")


@attrs.frozen(eq=False)
class Lead:
    """By how much one row leads others in a column, in the unit of print; above 0 is better. Where there
    are several, the one that comes nearest or is furthest ahead stands for them.
    """

    #: that of the leading row
    cell: Cell
    #: the differences to each rival, seed by seed
    gaps: Mapping[str, tuple[float, ...]]
    #: whether the row has in its column what the claim asks of it before it counts
    learned: bool = True

    @property
    def rival(self) -> str:
        """The best of the others; one with a single seed only where no other is there."""
        gaps = self.gaps
        return min(gaps, key=lambda one: (len(gaps[one]) < 2, statistics.fmean(gaps[one])))

    @property
    def seeds(self) -> int:
        """How many seeds both the row and this rival have."""
        return len(self.gaps[self.rival])

    @property
    def interval(self) -> tuple[float, float, float]:
        """The mean lead over this rival and the ends of its 90% interval over seeds."""
        return interval(self.gaps[self.rival], exact=self.exact)

    @property
    def mean(self) -> float:
        """The mean lead over this rival."""
        return self.interval[0]

    @property
    def exact(self) -> bool:
        """Whether what is compared has no noise, as bytes."""
        return self.cell.metric in EXACT

    @property
    def in_full(self) -> bool:
        """Whether it was run as the paper ran its own."""
        return budget(self.cell.profile, self.cell.stand_in) == FULL

    def above(self, by: float) -> bool:
        """Whether the 90% interval of the lead over each rival lies above `by`."""
        return all(interval(each, exact=self.exact)[1] > by for each in self.gaps.values())

    def below(self, by: float) -> bool:
        """Whether that of the lead over some rival lies below `by`."""
        return any(interval(each, exact=self.exact)[2] < by for each in self.gaps.values())


def lead_over(
    row: str, rivals: Iterable[str], cells: Mapping[str, Cell], measured: Mapping[str, Record]
) -> Lead | None:
    """The lead of a row over others of one column, whose `cells` are given by row, over the seeds that
    both sides have and at one profile; None where there are none.
    """
    own = cells[row]
    ours, sign = values(own, measured), -1 if own.better == "lower" else 1
    found = {
        rival: tuple(sign * gap for gap in gaps)
        for rival in rivals
        if rival != row and rival in cells and cells[rival].profile == own.profile
        if (gaps := differences(ours, values(cells[rival], measured)))
    }
    return Lead(own, found) if found else None


def refuted(found: Sequence[Lead], by: float = 0.0) -> bool:
    """Whether comparisons contradict that every lead is more than `by`.

    Simes (1986): of the chances of m leads as low as these, in rising order, the i-th is at most
    5% * i / m. One lead far below counts, or many that are a little below, and true claims are refuted
    in at most 5% of cases, also where comparisons share a side and so rise and fall together. Where a
    row is to lead several rivals, each of them is a comparison, so looking for the best costs nothing.
    One seed decides nothing, and so does the same lead in all, unless it is exact.
    """
    low = chances(found, by)
    return any(p <= 0.05 * i / len(low) for i, p in enumerate(low, 1))


def chances(found: Sequence[Lead], by: float) -> list[float]:
    """How likely leads as low are where they are `by` in truth, in rising order; of those that have
    more than one seed.
    """
    return sorted(
        probability(gaps, by, one.exact)
        for one in found
        for gaps in one.gaps.values()
        if len(gaps) > 1
    )


def asked_leads(
    paper: str, detail: Any, measured: Mapping[str, Record], where: str, ours: bool = False
) -> list[Lead]:
    """The comparisons that a claim of the kind "ahead" asks for, where both sides are measured.

    Args:
        detail: what stands below `ahead` in the claim's file; where: the claim, for messages.
        measured: complete records by experiment id.
        ours: whether the claim is this book's own, so that rows and columns count that the paper
            lacks.

    Leads over the same rivals that the same runs fill are one comparison for each measure. `columns`
    are those that the claim is about, else all that the paper prints, or, of a claim of this book, all.
    `metrics` are the measures, else it is the table's first. `beside` are other tables that have the
    same columns and rows of other names, which a claim may set beside each other. `least` has, by
    metric, a value of the leading row below which nothing follows in its column. Raises InputError for
    a name that the tables do not have.
    """
    asked = as_mapping(detail, where)
    known = ("tables", "beside", "metrics", "columns", "row", "against", "pairs", *RULES)
    check_keys(asked, known, where)
    _check_kinds(asked, where)
    found: dict[tuple[str, ...], Lead] = {}
    for table in as_list(asked.get("tables"), f"{where}, tables"):
        specs = [TableSpec.find(paper, one) for one in (table, *asked.get("beside", ()))]
        _check_names(asked, specs, where)
        metrics = asked.get("metrics", [specs[0].metric])
        printed = [one.name for one in specs[0].columns if one.printed or ours]
        columns = asked.get("columns", printed)
        shown = by_column(cell for spec in specs for cell in best_cells(spec, measured))
        for (column, metric), cells in shown.items():
            if column not in columns or metric not in metrics:
                continue
            for row, rivals in _sides(asked, cells, ours):
                lead = lead_over(row, rivals, cells, measured) if row in cells else None
                if lead:
                    beside = {of: shown[at, of].get(row) for at, of in shown if at == column}
                    learned = _has(asked.get("least", {}), beside, measured)
                    sides = lead.cell, *(cells[rival] for rival in lead.gaps)
                    runs = [run.id for cell in sides for run in cell.experiments]
                    what = (*(cell.record_metric for cell in sides), *runs)
                    found.setdefault(what, attrs.evolve(lead, learned=learned))
    return list(found.values())


def _has(
    least: Mapping[str, float], cells: Mapping[str, Cell | None], measured: Mapping[str, Record]
) -> bool:
    """Whether the means of a row, whose cells of one column are given by metric, are as large as is
    asked; what is not measured is not.
    """
    found = {name: values(cell, measured) if (cell := cells.get(name)) else {} for name in least}
    return all(
        bool(found[name]) and statistics.fmean(found[name].values()) >= value
        for name, value in least.items()
    )


def _sides(
    asked: Mapping[str, Any], cells: Mapping[str, Cell], ours: bool
) -> Iterator[tuple[str, Sequence[str]]]:
    """Who is to lead whom in a column: pairs as stated, or a row all others that the paper has."""
    for row, rival in asked.get("pairs", ()):
        yield row, [rival]
    if "row" in asked:
        others = [row for row, cell in cells.items() if cell.row_entry.printed or ours]
        yield asked["row"], asked.get("against", others)


def _check_kinds(asked: Mapping[str, Any], where: str) -> None:
    """Raise InputError for a part of a claim that is of the wrong kind."""
    for key in ("beside", "metrics", "columns", "against", "pairs"):
        if key in asked:
            as_list(asked[key], f"{where}, {key}")
    for pair in asked.get("pairs", ()):
        as_list(pair, f"{where}, each of its pairs")
    least = as_mapping(asked.get("least"), f"{where}, least")
    for key, value in {"by": asked.get("by", 0), **least}.items():
        if not is_number(value):
            raise InputError(f"{where}, {key} must be a number, not {value!r}")
    if not isinstance(asked.get("most", False), bool):
        raise InputError(f"{where}, most must be true or false, not {asked['most']!r}")


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
        "metric": (
            [*asked.get("metrics", ()), *asked.get("least", ())],
            [one for s in specs for one in s.metrics],
        ),
    }
    for kind, (names, known) in named.items():
        for name in names:
            if name not in known:
                tables = " and ".join(spec.table for spec in specs)
                raise unknown(f"{kind} of table {tables} ({where})", name, known)
