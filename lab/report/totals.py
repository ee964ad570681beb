"""Totals over all tables: verdicts on reported numbers, and reported orders beside measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from lab import Record, TableSpec, records
from lab.report.claims import PAPERS
from lab.report.frames import best_cells
from lab.report.intervals import kendall
from lab.report.verdict import (
    COMPARED,
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
    unfair,
    values,
)
from lab.table import Cell

#: the columns of `numbers`
NUMBERS = ("paper", "table", "line", "own", "kind", "profile", "budget", "verdict", "difference")
#: what is said of a printed number that another line, measured by the same runs, has said already
REPEAT = "repeats another number"


def identity(cell: Cell) -> tuple[str, str, float | None]:
    """Key of cells that are one measurement of one number: runs, measure and printed value. The first run
    stands for all: one of the tables may have more seeds.
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
    """Cells, by address, that are compared with the paper at one of the `DECIDING` profiles, where a table
    may show another: there the baselines have more.
    """
    by_address: dict[str, tuple[Cell, Judgement]] = {}
    for profile in reversed(DECIDING):
        cells = spec.cells(profile)
        for cell, judged in zip(cells, judge(cells, known), strict=True):
            if judged.verdict in COMPARED:
                by_address[cell.address] = cell, judged
    return by_address


def numbers(measured: Mapping[str, Record] | None = None) -> pd.DataFrame:
    """One row for each number that a table of a paper prints; a word in the place of one (OOM) is none.

    Columns: `paper`, `table`; `line` of `published.csv`; `own`, whether it is of the paper's own method;
    `kind` ("results", "costs" or "settings"); `profile`; `budget` (`FULL` or `REDUCED` of
    `lab.report.verdict`); `verdict`; `difference`, measured minus printed. A cell that is compared with the
    paper counts as such, also where its table shows the column with less work. Methods that share a printed
    cell are one number, with the worst of their verdicts. A number that the same runs have measured for
    another line of the same value is a `REPEAT` of it.
    """
    known = records() if measured is None else measured
    lines: dict[tuple[str, int], list[tuple[Cell, Judgement]]] = {}
    for spec, cells in _tables(known):
        decided = _decided(spec, known)
        for cell, judgement in zip(cells, judge(cells, known), strict=True):
            if budget(cell.profile, cell.substitute) != FULL:
                cell, judgement = decided.get(cell.address, (cell, judgement))
            if cell.published and cell.published.value is not None:
                lines.setdefault((spec.paper, cell.published.line), []).append((cell, judgement))
    # lines that the same runs measure, at the first of them
    first, repeats = dict[tuple[str, str, float | None], tuple[str, int]](), set[tuple[str, int]]()
    for line, sharing in lines.items():
        seen = [identity(cell) for cell, judgement in sharing if judgement.seeds]
        before = next((first[number] for number in seen if number in first), line)
        first |= dict.fromkeys(seen, before)
        if before != line:
            lines[before] += [(cell, judgement) for cell, judgement in sharing if judgement.seeds]
            repeats.add(line)
    rows = []
    for line, sharing in lines.items():
        done = [pair for pair in sharing if pair[1].seeds]
        cell, judgement = max(done or sharing, key=lambda pair: VERDICTS.index(pair[1].verdict))
        own = any(other.experiments[0].algorithm == cell.paper for other, _ in sharing)
        level = budget(cell.profile, cell.substitute)
        kind, table = EXACT.get(cell.metric, "results"), sharing[0][0].table
        verdict = REPEAT if line in repeats else judgement.verdict
        place = (line[0], table, line[1], own, kind, cell.profile, level)
        rows.append((*place, verdict, judgement.difference))
    return pd.DataFrame(rows, columns=list(NUMBERS))


def by_paper() -> pd.DataFrame:
    """Count the verdicts of `numbers`, by kind: a column for each paper, whose lines add up to the
    numbers that it prints. Settings are counted in one line.
    """
    rows = numbers()
    said = (rows["kind"] + ": " + rows["verdict"]).mask(rows["kind"] == "settings", "settings")
    counts = pd.crosstab(said.mask(rows["verdict"] == REPEAT, REPEAT), rows["paper"])
    order = [f"{kind}: {verdict}" for kind in ("results", "costs") for verdict in VERDICTS]
    named = [name for name in [*order, "settings", REPEAT] if name in counts.index]
    counts = counts.reindex(index=named, columns=list(PAPERS), fill_value=0)
    counts.loc["numbers reported"] = counts.sum()
    return counts.rename(columns=PAPERS).rename_axis(index="", columns=None)


def directions(measured: Mapping[str, Record] | None = None) -> pd.DataFrame:
    """One row for each pair of rows of a paper's tables that is measured with less than the paper's budget,
    or on other data, and printed further apart than the margin: `paper`, whether the pair is `ordered` as
    printed (1), the other way round (-1), or neither for sure (0), and how many `seeds` both have.

    A pair counts once, wherever the same runs stand, and by the first measure of its table: others of the
    same runs go with it. Costs and settings have no order here.
    """
    known = records() if measured is None else measured
    pairs: dict[frozenset[tuple[str, str, float | None]], tuple[str, int, int]] = {}
    for spec, cells in _tables(known):
        for (_, metric), column in by_column(cells).items():
            if metric in EXACT or metric != spec.metrics[0]:
                continue
            printed, rows = printed_values(column), measured_values(column, known)
            for a, cell in column.items():
                if budget(cell.profile, cell.substitute) == FULL or unfair(cell):
                    continue
                for b in cell.baselines:
                    side = direction(printed, rows, a, b, cell.unit)
                    if side is not None:
                        pair = frozenset((identity(cell), identity(column[b])))
                        seeds = len(differences(rows[a], rows[b]))
                        pairs.setdefault(pair, (spec.paper, side, seeds))
    return pd.DataFrame(pairs.values(), columns=["paper", "ordered", "seeds"])


def orders(measured: Mapping[str, Record] | None = None) -> pd.DataFrame:
    """Kendall's tau between printed and measured order of the methods, for every column with at least three
    of both: `paper`, `table`, `column`, `metric`, `profile`, `methods`, `seeds`, `tau` (mean over the seeds
    that all methods have) and the ends of its 95% interval, `low` and `high`.

    Pairs that are printed within the margin of each other do not count; costs and settings, which follow from
    shapes, have no order here, nor has a table whose rows are not compared, or not fairly.
    """
    known = records() if measured is None else measured
    rows = []
    for spec, cells in _tables(known):
        if spec.compare == "none":
            continue
        for (column, metric), of in by_column(cells).items():
            methods = list(of.values())
            order = None if metric in EXACT or unfair(methods[0]) else _order(methods, known)
            if order:
                rows.append((spec.paper, spec.table, column, metric, methods[0].profile, *order))
    names = ("paper", "table", "column", "metric", "profile", "methods", "seeds", "tau")
    return pd.DataFrame(rows, columns=[*names, "low", "high"]).dropna(subset="tau")


def _order(cells: Sequence[Cell], known: Mapping[str, Record]) -> tuple[float, ...] | None:
    """Number of methods and of seeds, and tau with interval, of a column; None without an order."""
    rows = [
        (float(cell.published.value), by_seed)
        for cell in cells
        if cell.published and cell.published.value is not None and (by_seed := values(cell, known))
    ]
    seeds = sorted(set.intersection(*(set(by_seed) for _, by_seed in rows))) if rows else []
    if len(rows) < 3 or not seeds:
        return None
    printed = [value for value, _ in rows]
    near = margin(statistics.fmean(printed), cells[0].unit, cells[0].metric in EXACT)
    scores = np.array([[by_seed[seed] for _, by_seed in rows] for seed in seeds])
    return (len(rows), len(seeds), *kendall(printed, scores, near))
