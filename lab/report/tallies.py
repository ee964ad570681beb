"""What all tables say together: verdicts by kind of number, and printed orders beside measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from lab import Record, TableSpec, records
from lab.report.claims import PAPERS
from lab.report.frames import best_cells
from lab.report.intervals import OUTCOMES, kendall
from lab.report.verdict import (
    DECIDING,
    EXACT,
    FULL,
    VERDICTS,
    Judgement,
    budget,
    by_column,
    differences,
    direction,
    judge,
    margin,
    measured_values,
    printed_values,
    values,
)
from lab.table import Cell

#: the columns of `numbers`
NUMBERS = ("paper", "own", "kind", "profile", "budget", "verdict", "difference")


def identity(cell: Cell) -> tuple[str, str, float | None]:
    """What makes two cells one printed number: the same runs, measure and value.

    The first run stands for all: one of the tables may have more seeds.
    """
    printed = cell.published.value if cell.published else None
    return cell.experiments[0].id, cell.record_metric, printed


def _tables(known: Mapping[str, Record]) -> Iterator[tuple[TableSpec, list[Cell]]]:
    """The papers' own tables, and their cells at the profile that tables show."""
    for paper in PAPERS:
        for spec in TableSpec.of_paper(paper):
            if spec.table.isdigit():
                yield spec, best_cells(spec, known)


def _decided(spec: TableSpec, known: Mapping[str, Record]) -> dict[str, tuple[Cell, Judgement]]:
    """By address, the cells that are compared with print at one of the `DECIDING` profiles, where a
    table may show another: there its rivals have more.
    """
    found: dict[str, tuple[Cell, Judgement]] = {}
    for profile in reversed(DECIDING):
        cells = spec.cells(profile)
        for cell, judged in zip(cells, judge(cells, known), strict=True):
            if judged.verdict in OUTCOMES:
                found[cell.address] = cell, judged
    return found


def numbers(measured: Mapping[str, Record] | None = None) -> pd.DataFrame:
    """One row for each printed number of a paper's tables that is measured by runs of its own.

    Cells that the same runs fill, for the same printed value of the same metric, count once: where
    they stand first. A cell that is compared with print counts as such, also where its table shows
    the column with less work. Columns: `paper`; `own`, whether it is of the paper's own method; `kind`
    ("results", "costs" or "settings"); `profile`; `budget` (`FULL` or `REDUCED` of `lab.report.verdict`);
    `verdict`; `difference`, measured minus printed. Tables with names are the book's own and do not
    count.
    """
    known = records() if measured is None else measured
    rows: dict[tuple[str, str, float | None], dict[str, object]] = {}
    for spec, cells in _tables(known):
        decided = _decided(spec, known)
        for cell, found in zip(cells, judge(cells, known), strict=True):
            if budget(cell.profile, cell.stand_in) != FULL:
                cell, found = decided.get(cell.address, (cell, found))
            if cell.published is None or not found.seeds:
                continue
            row = {
                "paper": spec.paper,
                "own": cell.experiments[0].algorithm == spec.paper,
                "kind": EXACT.get(cell.metric, "results"),
                "profile": cell.profile,
                "budget": budget(cell.profile, cell.stand_in),
                "verdict": found.verdict,
                "difference": found.difference,
            }
            rows.setdefault(identity(cell), row)
    return pd.DataFrame(rows.values(), columns=list(NUMBERS))


def directions(measured: Mapping[str, Record] | None = None) -> pd.DataFrame:
    """One row for each pair of rows of a paper's tables that is measured with less than the paper's
    budget, or on other data, and printed further apart than the margin: `paper`, whether the pair is
    `ordered` as printed (1), the other way round (-1), or neither for sure (0), and how many `seeds`
    both have.

    A pair counts once, wherever the same runs stand, and by the first measure of its table: others of
    the same runs go with it. Costs and settings have no order here.
    """
    known = records() if measured is None else measured
    found: dict[frozenset[tuple[str, str, float | None]], tuple[str, int, int]] = {}
    for spec, cells in _tables(known):
        for (_, metric), column in by_column(cells).items():
            if metric in EXACT or metric != spec.metrics[0]:
                continue
            printed, rows = printed_values(column), measured_values(column, known)
            for a, cell in column.items():
                if budget(cell.profile, cell.stand_in) == FULL:
                    continue
                for b in cell.rivals:
                    side = direction(printed, rows, a, b, cell.unit)
                    if side is not None:
                        pair = frozenset((identity(cell), identity(column[b])))
                        seeds = len(differences(rows[a], rows[b]))
                        found.setdefault(pair, (spec.paper, side, seeds))
    return pd.DataFrame(found.values(), columns=["paper", "ordered", "seeds"])


def tally(measured: Mapping[str, Record] | None = None) -> pd.DataFrame:
    """How many of `numbers` have each verdict, a row for each kind: results, costs, and settings."""
    rows = numbers(measured)
    counts = pd.crosstab(rows["kind"], rows["verdict"])
    always = [*OUTCOMES, *(name for name in VERDICTS if name.startswith("direction"))]
    seen = [name for name in VERDICTS if name in always or name in counts]
    return counts.reindex(index=["results", "costs", "settings"], columns=seen, fill_value=0)


def orders(measured: Mapping[str, Record] | None = None) -> pd.DataFrame:
    """Kendall's tau between printed and measured order of the methods, for every column with at
    least three of both: `paper`, `table`, `column`, `metric`, `profile`, `methods`, `seeds`, `tau`
    (mean over the seeds that all methods have) and the ends of its 95% interval, `low` and `high`.

    Pairs that are printed within the margin of each other do not count; costs and settings, which
    follow from shapes, have no order here, nor has a table whose rows are not compared.
    """
    known = records() if measured is None else measured
    rows = []
    for spec, cells in _tables(known):
        if spec.compare == "none":
            continue
        for (column, metric), of in by_column(cells).items():
            here = list(of.values())
            found = None if metric in EXACT else _order(here, known)
            if found:
                place = {"paper": spec.paper, "table": spec.table}
                place |= {"column": column, "metric": metric, "profile": here[0].profile}
                rows.append(place | found)
    names = ("paper", "table", "column", "metric", "profile", "methods", "seeds", "tau")
    return pd.DataFrame(rows, columns=[*names, "low", "high"]).dropna(subset="tau")


def _order(cells: Sequence[Cell], known: Mapping[str, Record]) -> dict[str, float] | None:
    """Printed against measured order of a column's cells; None where there is nothing to order."""
    rows = [
        (float(cell.published.value), found)
        for cell in cells
        if cell.published and cell.published.value is not None and (found := values(cell, known))
    ]
    if len(rows) < 3:
        return None
    seeds = sorted(set.intersection(*(set(found) for _, found in rows)))
    if not seeds:
        return None
    printed = [value for value, _ in rows]
    near = margin(statistics.fmean(printed), cells[0].unit, cells[0].metric in EXACT)
    scores = np.array([[found[seed] for _, found in rows] for seed in seeds])
    tau, low, high = kendall(printed, scores, near)
    return {"methods": len(rows), "seeds": len(seeds), "tau": tau, "low": low, "high": high}
