"""The count of the first page: which printed numbers were met, accuracies, costs and settings apart.

A run that fills several cells counts once for each thing that is measured of it, and a cell without
a printed number does not count.
"""

from __future__ import annotations

import re

import pandas as pd

from core.experiments.spec import TABLES, read_published
from core.report.claims import PAPERS
from core.report.intervals import OUTCOMES
from core.report.tallies import numbers
from core.report.verdict import FULL, REDUCED

#: what no other line of the table counts
REST = "pending, not testable, not compared, repeats and settings"
DIRECTIONS = ("direction agrees", "direction disagrees", "inconclusive")


def printed(paper: str) -> int:
    """How many numbers a paper prints."""
    return len(read_published(TABLES / paper / "published.csv"))


def folded(list_of_findings: str) -> str:
    """Findings, a Markdown list as `findings()` gives it, each as a headline that opens."""
    made = []
    for line in list_of_findings.splitlines():
        title, text = re.fullmatch(r"\* \*\*(.+?)\*\* (.+)", line).groups()  # type: ignore[union-attr]
        made.append(f"```{{dropdown}} {title}\n:class-container: finding\n\n{text}\n```\n")
    return "\n".join(made)


def headline(counted: pd.DataFrame | None = None) -> str:
    """What was met so far, in a few sentences, computed from `numbers()`."""
    rows = numbers() if counted is None else counted
    results = rows[rows["kind"] == "results"]
    full, less = (results[results["budget"] == budget] for budget in (FULL, REDUCED))
    costs = rows[(rows["kind"] == "costs") & (rows["budget"] == FULL)]
    text = f"The four papers print {sum(map(printed, PAPERS)):,} numbers. "
    text += "At a paper's own budget, or the profile converged, and on its data "
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
    """The same as a table, a column for each paper: narrow enough for a phone. Below the numbers in
    print each column adds up to them.
    """
    rows = numbers() if counted is None else counted
    lines = {"numbers in print": {paper: printed(paper) for paper in PAPERS}}
    for label, kind, budget, verdicts in (
        ("own budget", "results", FULL, OUTCOMES),
        ("costs", "costs", FULL, OUTCOMES),
        ("smaller budget", "results", REDUCED, DIRECTIONS),
    ):
        chosen = rows[(rows["kind"] == kind) & (rows["budget"] == budget)]
        counts = pd.crosstab(chosen["verdict"], chosen["paper"])
        for verdict in verdicts:
            if verdict in counts.index:
                found = counts.loc[verdict]
                lines[f"{label}: {verdict}"] = {paper: int(found[paper]) for paper in found.index}
    frame = pd.DataFrame(lines).T.reindex(columns=list(PAPERS)).fillna(0).astype(int)
    frame.loc[REST] = 2 * frame.iloc[0] - frame.sum()
    return frame.rename(columns=PAPERS).rename_axis("").reset_index()
