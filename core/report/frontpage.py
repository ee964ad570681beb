"""The count of the first page: which printed numbers were met, accuracies, costs and settings apart.

A run that fills several cells counts once for each thing that is measured of it, and a cell without
a printed number does not count.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from core.experiments import Record, TableSpec, records
from core.experiments.spec import TABLES, read_published
from core.report.claims import PAPERS
from core.report.frames import best_cells
from core.report.intervals import OUTCOMES
from core.report.tallies import identity
from core.report.verdict import DECIDING, judge

#: what a metric tells; all that is not named here is a result
KINDS = {
    "upload_mb": "cost",
    "upload_mb_per_round": "cost",
    "condensation_ratio_percent": "setting",
}
FULL, REDUCED = "the paper's", "smaller, or other data"
DIRECTIONS = ("direction agrees", "direction disagrees", "inconclusive")


def numbers(measured: Mapping[str, Record] | None = None) -> pd.DataFrame:
    """One row for each printed number of a paper's tables that is measured by runs of its own.

    Columns: `paper`; `kind` ("result", "cost" or "setting"); `budget` (`FULL` or `REDUCED`);
    `verdict`. Tables with names are the book's own and do not count.
    """
    known = records() if measured is None else measured
    rows: dict[tuple[str, str, float | None], dict[str, str]] = {}
    for paper in PAPERS:
        for spec in TableSpec.of_paper(paper):
            if not spec.table.isdigit():
                continue
            cells = best_cells(spec, known)
            for cell, found in zip(cells, judge(cells, known), strict=True):
                if cell.published is None or not found.seeds:
                    continue
                full = cell.profile in DECIDING and cell.stand_in is None
                rows.setdefault(
                    identity(cell),
                    {
                        "paper": paper,
                        "kind": KINDS.get(cell.metric, "result"),
                        "budget": FULL if full else REDUCED,
                        "verdict": found.verdict,
                    },
                )
    return pd.DataFrame(rows.values(), columns=["paper", "kind", "budget", "verdict"])


def printed(paper: str) -> int:
    """How many numbers a paper prints."""
    return len(read_published(TABLES / paper / "published.csv"))


def headline(counted: pd.DataFrame | None = None) -> str:
    """What was met so far, in a few sentences, computed from `numbers()`."""
    rows = numbers() if counted is None else counted
    results = rows[rows["kind"] == "result"]
    full, less = (results[results["budget"] == budget] for budget in (FULL, REDUCED))
    costs = rows[(rows["kind"] == "cost") & (rows["budget"] == FULL)]
    text = f"The four papers print {sum(map(printed, PAPERS)):,} numbers. "
    text += "At a paper's own budget, or one that has converged, and on its data "
    text += f"{_counts(full, OUTCOMES, 'accuracies and scores')}. "
    text += f"Of {len(costs):,} costs {(costs['verdict'] == 'equivalent').sum():,} are equivalent. "
    text += f"With less computing, or on other data, {_counts(less, DIRECTIONS, 'results')}."
    return text


def _counts(rows: pd.DataFrame, verdicts: tuple[str, ...], what: str) -> str:
    """How many there are, and how many of each verdict."""
    if not len(rows):
        return f"no {what} are compared yet"
    said = rows["verdict"].value_counts()
    parts = ", ".join(f"{said.get(name, 0):,} {name}" for name in verdicts)
    return f"{sum(said.get(name, 0) for name in verdicts):,} {what} are compared: {parts}"


def by_paper(counted: pd.DataFrame | None = None) -> pd.DataFrame:
    """The same as a table, a column for each paper: narrow enough for a phone."""
    rows = numbers() if counted is None else counted
    lines = {"numbers in print": {paper: printed(paper) for paper in PAPERS}}
    for label, kind, budget, verdicts in (
        ("own budget", "result", FULL, OUTCOMES),
        ("costs", "cost", FULL, OUTCOMES),
        ("smaller budget", "result", REDUCED, DIRECTIONS),
    ):
        chosen = rows[(rows["kind"] == kind) & (rows["budget"] == budget)]
        counts = pd.crosstab(chosen["verdict"], chosen["paper"])
        for verdict in verdicts:
            if verdict in counts.index:
                found = counts.loc[verdict]
                lines[f"{label}: {verdict}"] = {paper: int(found[paper]) for paper in found.index}
    frame = pd.DataFrame(lines).T.reindex(columns=list(PAPERS)).fillna(0).astype(int)
    return frame.rename(columns=PAPERS).rename_axis("").reset_index()
