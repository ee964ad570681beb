"""The papers' tables in long form: every printed value beside what was measured here."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import pandas as pd

from lab import PROFILES, Record, records
from lab.record import numerics
from lab.report.verdict import Judgement, judge
from lab.table import Cell, TableSpec

#: from the fullest budget to the smallest: the order in which a table looks for something to show
BEST_FIRST = PROFILES[::-1]
#: between several precisions of one mean
AND = " and "


def table_frame(
    paper: str,
    table: str | int,
    profile: str | None = None,
    measured: Mapping[str, Record] | None = None,
) -> pd.DataFrame:
    """A table of a paper in long form, one row for each printed (or merely measured) number.

    Columns: `paper`, `table`, `row`, `column`, `metric`, `unit`, `better`; `printed`,
    `printed_std`, `printed_text` and `note` as published; `profile`; `measured` (mean over seeds),
    `std` (between seeds; missing for one seed), `seeds` (how many are measured) of `wanted`;
    `codes` (versions of the program that they ran with, 1 where all ran with the same); `reckoned`
    (the precisions that they were computed in, joined by `AND`, with the device if not the CPU);
    `difference` (measured minus printed); `verdict` and its `reason`; `substitute` (which data set is
    in place of which, or ""); `command` (what runs the cell). Values are in the paper's unit.

    Args:
        paper: "fedvck", "fediod", "gddfl", "fedmk" or "reference".
        table: number of the table.
        profile: one of `lab.PROFILES`; None: for each column the one at which most of it
            is measured.
        measured: complete records by experiment id; by default the book's.

    Raises InputError for an unknown paper, table or profile.
    """
    known = records() if measured is None else measured
    return _frame(best_cells(TableSpec.find(paper, str(table)), known, profile), known)


def evidence_frame(
    paper: str,
    table: str | int,
    profile: str | None = None,
    measured: Mapping[str, Record] | None = None,
) -> pd.DataFrame:
    """`table_frame`, without a profile with each cell at the best budget at which it is measured
    (`best_evidence`).
    """
    known = records() if measured is None else measured
    spec = TableSpec.find(paper, str(table))
    frame = _frame(spec.cells(profile) if profile else best_evidence(spec, known), known)
    elsewhere = " (table " + frame["table"] + ")"
    frame["row"] += elsewhere.where(frame["table"] != str(table), "")
    return frame


def left_out(
    frame: pd.DataFrame, spec: TableSpec, measured: Mapping[str, Record] | None = None
) -> pd.DataFrame:
    """Rows like those of `evidence_frame` for its measured cells at other budgets, "quick" apart."""
    known = records() if measured is None else measured
    shown = frame.set_index(["row", "column", "metric"])["profile"]
    cells = [
        cell
        for profile in BEST_FIRST[:-1]
        for cell in spec.cells(profile)
        if shown.get(cell.names, profile) != profile and not cell.cut and cell.records(known)
    ]
    return _frame(cells, known)


def _frame(cells: Sequence[Cell], known: Mapping[str, Record]) -> pd.DataFrame:
    """The rows of `table_frame` for some cells."""
    rows = [
        _row(cell, judgement, cell.records(known))
        for cell, judgement in zip(cells, judge(cells, known), strict=True)
    ]
    numbers = ("printed", "printed_std", "measured", "std", "difference")
    return pd.DataFrame(rows).astype(dict.fromkeys(numbers, float) if rows else {})


def table_runs(
    paper: str,
    table: str | int,
    profiles: Sequence[str] | None = ("laptop", "converged", "paper"),
    measured: Mapping[str, Record] | None = None,
) -> pd.DataFrame:
    """The measured runs behind a table, one row for each cell that a run serves: `column`, `row`,
    `profile`, `seed`, `id` and `record`. Runs that stop before the rounds of a heading do not serve
    it.

    Args:
        profiles: None: for each column the one that its table shows (see `best_cells`).
        measured: complete records by experiment id; by default the book's.

    Raises InputError for an unknown paper, table or profile.
    """
    known = records() if measured is None else measured
    spec = TableSpec.find(paper, str(table))
    shown = itertools.chain(*map(spec.cells, profiles or ()))
    rows = [
        (cell.column, cell.row, cell.profile, run.experiment.seed, run.experiment.id, run)
        for cell in (best_cells(spec, known) if profiles is None else shown)
        if not cell.cut
        for run in cell.records(known)
    ]
    frame = pd.DataFrame(rows, columns=["column", "row", "profile", "seed", "id", "record"])
    # a cell for each metric that is printed, but one run
    return frame.drop_duplicates(["column", "row", "profile", "id"]).reset_index(drop=True)


def metrics_frame(
    paper: str,
    table: str | int,
    profile: str | None = None,
    measured: Mapping[str, Record] | None = None,
) -> pd.DataFrame:
    """All metrics of a table's runs after the last round, a row per run: `column`, `row`, `profile`, `seed`,
    then metrics as in records. Arguments and errors as of `table_frame`.
    """
    runs = table_runs(paper, table, [profile] if profile else None, measured)
    columns = [column.name for column in TableSpec.find(paper, str(table)).columns]
    runs = runs.sort_values("column", key=lambda of: of.map(columns.index), kind="stable")
    metrics = [record.metrics for record in runs["record"]]
    values = pd.DataFrame(metrics, columns=sorted(set().union(*metrics)))
    return runs[["column", "row", "profile", "seed"]].reset_index(drop=True).join(values)


def best_cells(
    spec: TableSpec, measured: Mapping[str, Record], profile: str | None = None
) -> list[Cell]:
    """Every cell at a profile; None: at the one at which most cells of its column are measured, the fullest
    of several; "quick" only where there is nothing else, and an unmeasured column with the table's fullest.
    """
    if profile:
        return spec.cells(profile)
    grids = [spec.cells(profile) for profile in BEST_FIRST]
    chosen: dict[str, str] = {}
    most: Counter[str] = Counter()
    for profile, cells in zip(BEST_FIRST, grids, strict=True):
        counts = Counter(cell.column for cell in cells if not cell.cut and cell.records(measured))
        chosen |= {
            column: profile
            for column, count in counts.items()
            if count > most[column] and not (profile == "quick" and most[column])
        }
        most |= counts
    rest = min(chosen.values() or spec.run_at, key=BEST_FIRST.index)
    return [
        cell
        for cells in zip(*grids, strict=True)
        for cell in cells
        if cell.profile == chosen.get(cell.column, rest)
    ]


def best_evidence(spec: TableSpec, measured: Mapping[str, Record]) -> list[Cell]:
    """Every cell at the fullest profile at which it is measured, else as in `best_cells`; below them the
    measured rows of the table's `choices`, beside the same printed number.
    """
    grids = [spec.cells(profile) for profile in BEST_FIRST[:-1]]
    shown, beside = [], {}
    for usual, *of in zip(best_cells(spec, measured), *grids, strict=True):
        known = [cell for cell in of if not cell.cut and cell.records(measured)]
        shown.append(known[0] if known else usual)
        for cell in of:
            for _, other in cell.alternatives():
                new = other.row != cell.row and (other.table, *other.names) not in beside
                if new and other.records(measured):
                    beside[other.table, *other.names] = attrs.evolve(
                        other, published=cell.published, baselines=()
                    )
    return [*shown, *beside.values()]


def _row(cell: Cell, judgement: Judgement, runs: Sequence[Record]) -> dict[str, Any]:
    printed, runs = cell.published, runs if judgement.seeds else []
    notes = [text for text in (printed.note if printed else "", cell.note) if text]
    names = ("paper", "table", "row", "column", "metric", "unit", "better")
    return {
        **{name: getattr(cell, name) for name in names},
        "printed": printed.value if printed else None,
        "printed_std": printed.std if printed else None,
        "printed_text": printed.text if printed else "",
        "note": "; ".join(notes),
        "profile": cell.profile,
        "measured": judgement.mean,
        "std": judgement.std,
        "seeds": judgement.seeds,
        "wanted": len(cell.experiments),
        "codes": len({run.code for run in runs}),
        "reckoned": AND.join(sorted({_reckoned(run) for run in runs})),
        **{name: getattr(judgement, name) for name in ("difference", "verdict", "reason")},
        "substitute": cell.substitute or "",
        "command": "" if cell.not_testable else cell.command(),
    }


def _reckoned(run: Record) -> str:
    """Precision of a run, and its device if not the CPU; the rest moves the last digits only."""
    by = numerics(run.environment)
    return by["precision"] + f" on {by['device']}" * (by["device"] != "cpu")
