"""Pieces of pages that are computed while the book is built, so that no number is typed by hand."""

from __future__ import annotations

from html import escape
from typing import Any

import pandas as pd

from lab import TableSpec, datapack, records
from lab.forms import read_yaml
from lab.report import notebooks

#: what the first page says of each paper, and the numbers that it draws
FRONT = notebooks.ROOT / "book" / "front.yaml"


def fragments() -> dict[str, str]:
    """Markdown by file name; a page includes it from `_generated/`."""
    from lab.report import charts, classroom, figures

    chapters = map(notebooks.find, notebooks.chapters())
    drawn = charts.dots(evidence(), "test accuracy (%)")
    return {
        "overview.md": markdown_table(overview()),
        "evidence.md": figures.to_html(drawn) + "\n",
        "exercises.md": markdown_table(classroom.exercise_table(chapters)),
        "datapack.md": f"{', '.join(datapack.shareable())}; {datapack.LIMIT / 2**20:.0f} MB at most.\n",
    }


def overview() -> pd.DataFrame:
    """A row for each paper: what its clients send, which of its main claims hold here, where to read on."""
    from lab.report.claims import PAPERS, claims_frame

    rows = []
    for paper, about in read_yaml(FRONT)["papers"].items():
        verdicts = claims_frame(paper, main=True).query("not ours")["verdict"]
        holds, fails = (verdicts.str.match(word).sum() for word in ("holds", "does not hold"))
        rows.append(
            {
                "results": f"[{PAPERS[paper]}](../notebooks/{about['page']})",
                "clients send": about["send"],
                "claims": f"{holds}, {fails}, {len(verdicts) - holds - fails}",
                "read": about["read"],
            }
        )
    return pd.DataFrame(rows)


def evidence() -> pd.DataFrame:
    """The best evidence for `charts.dots`: mean, 90% interval and the paper's number, in the paper's unit."""
    from lab.report.intervals import interval
    from lab.report.verdict import values

    rows, known = [], records()
    for entry in read_yaml(FRONT)["evidence"]:
        address, profile = entry["cell"].split(" at ")
        cell = TableSpec.find_cell(address, profile)
        paper = TableSpec.find_cell(entry.get("paper", address), profile).published
        mean, low, high = interval(list(values(cell, known).values()))
        rows.append((entry["name"], mean, low, high, paper.value if paper else None))
    return pd.DataFrame(rows, columns=["name", "value", "low", "high", "paper"])


def markdown_table(frame: pd.DataFrame) -> str:
    """A data frame as a Markdown table, in which no letter of a text begins HTML."""
    rows: list[Any] = [frame.columns, ["---"] * len(frame.columns), *frame.itertuples(index=False)]
    cells = [[escape(str(value), quote=False).replace("|", "\\|") for value in row] for row in rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)
