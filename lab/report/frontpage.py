"""The count of the first page: which printed numbers were met, accuracies, costs and settings apart.

A run that fills several cells counts once for each thing that is measured of it, and a cell without
a printed number does not count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pandas as pd

from lab.forms import TABLES
from lab.published import read_published
from lab.report.claims import PAPERS
from lab.report.figures import to_html
from lab.report.intervals import OUTCOMES
from lab.report.tallies import directions, numbers
from lab.report.verdict import FULL, REDUCED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: what no other line of the table counts
REST = "not measured or by too few seeds, repeats and settings"


def printed(paper: str) -> int:
    """How many numbers a paper prints."""
    return len(read_published(TABLES / paper / "published.csv"))


def folded(list_of_findings: str, pictures: Mapping[str, Figure] | None = None) -> str:
    """Findings, a Markdown list as `findings()` gives it, each as a headline that opens; a picture of
    the same name stands above its sentences.
    """
    made = []
    for item in re.split(r"^\* \*\*", list_of_findings, flags=re.MULTILINE)[1:]:
        title, text = item.rstrip().replace("\n\n  ", "\n\n").split("** ", 1)
        picture = (pictures or {}).get(title)
        drawn = f"{to_html(picture)}\n\n" if picture else ""
        made.append(f"```{{dropdown}} {title}\n:class-container: finding\n\n{drawn}{text}\n```\n")
    return "\n".join(made)


def headline(counted: pd.DataFrame | None = None, pairs: pd.DataFrame | None = None) -> str:
    """What was met so far, in a few sentences, computed from `numbers()` and `directions()`."""
    rows = numbers() if counted is None else counted
    pairs = directions() if pairs is None else pairs
    sides, decided = pairs["ordered"].value_counts(), (pairs["seeds"] > 1).sum()
    at_print = rows[rows["budget"] == FULL]
    costs = at_print[at_print["kind"] == "costs"]
    text = f"The four papers print {sum(map(printed, PAPERS)):,} numbers. "
    text += (
        "With the data, clients and rounds that a paper prints, or at the profile converged, not "
    )
    text += "counting readings of ours, "
    text += f"{_results(at_print[at_print['kind'] == 'results'])}. "
    text += f"Of {len(costs):,} costs {(costs['verdict'] == 'equivalent').sum():,} are equivalent. "
    text += "With less computing, or on other data, "
    if not len(sides):
        return text + "nothing is compared yet."
    by_paper = pairs.groupby(pairs["paper"].map(PAPERS), sort=False)["ordered"].value_counts()
    each = ", ".join(
        f"{name} {by_paper.get((name, 1), 0):,} and {by_paper.get((name, -1), 0):,}"
        for name in by_paper.index.unique(0)
    )
    return text + (
        f"{sides.sum():,} pairs of rows are compared: {sides.get(1, 0):,} are ordered as printed, "
        f"{sides.get(-1, 0):,} the other way round, by intervals of 90% ({each}); of "
        f"{sides.get(0, 0):,} that is not sure. If all methods were equal some {decided // 20:,} each "
        "way would be expected, and as pairs share runs it may well be more, or fewer."
    )


def _results(rows: pd.DataFrame) -> str:
    """How many accuracies and scores are compared, how many of each verdict, and whose they are."""
    said = rows["verdict"].value_counts()
    count = sum(said.get(name, 0) for name in OUTCOMES)
    if not count:
        return "no accuracies and scores are compared yet"
    parts = ", ".join(f"{said.get(name, 0):,} {name}" for name in OUTCOMES)
    apart = rows[rows["verdict"] == "different"]
    others = apart[~apart["own"].astype(bool)]
    text = f"{count:,} accuracies and scores are compared: {parts}"
    whose = rows[rows["verdict"].isin(OUTCOMES)]["paper"].map(PAPERS).value_counts()
    if len(whose) == 1:
        text += f". All are of {whose.index[0]}'s tables"
    else:
        text += f" ({', '.join(f'{n:,} of {name}' for name, n in whose.items())})"
    if len(apart):
        own = apart[apart["own"].astype(bool)]
        above, below = (others["difference"] > 0).sum(), (own["difference"] < 0).sum()
        text += (
            f". Of the {len(apart):,} that differ {len(others):,} are of other methods, "
            f"{_of(above, len(others))} above print; {len(own):,} are of the paper's own, "
            f"{_of(below, len(own))} below"
        )
    if scaled := (rows["verdict"].isin(OUTCOMES) & (rows["profile"] == "converged")).sum():
        text += (
            f". {scaled:,} of all are measured at the profile converged, where condensation and its server "
            "take fewer steps than the authors': those verdicts are about that work"
        )
    return text


def _of(count: int, all_of: int) -> str:
    """Some of so many, in a word where it is all of them."""
    return "all" if count == all_of and count > 1 else f"{count:,} of them"


def by_paper(counted: pd.DataFrame | None = None) -> pd.DataFrame:
    """The same as a table, a column for each paper: narrow enough for a phone. Below the numbers in
    print each column adds up to them.
    """
    rows = numbers() if counted is None else counted
    lines = {"numbers in print": {paper: printed(paper) for paper in PAPERS}}
    for kind in ("results", "costs"):
        chosen = rows[(rows["kind"] == kind) & (rows["budget"] == FULL)]
        counts = pd.crosstab(chosen["verdict"], chosen["paper"])
        for verdict in OUTCOMES:
            if verdict in counts.index:
                found = counts.loc[verdict]
                lines[f"{kind}: {verdict}"] = {paper: int(found[paper]) for paper in found.index}
    less = rows[(rows["kind"] != "settings") & (rows["budget"] == REDUCED)]["paper"].value_counts()
    lines["with less, or on other data"] = {paper: int(less[paper]) for paper in less.index}
    frame = pd.DataFrame(lines).T.reindex(columns=list(PAPERS)).fillna(0).astype(int)
    frame.loc[REST] = 2 * frame.iloc[0] - frame.sum()
    return frame.rename(columns=PAPERS).rename_axis("").reset_index()
