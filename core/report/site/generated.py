"""Pieces of pages that are computed while the book is built, so that no number is typed by hand."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from core.report import notebooks
from core.report.claims import PAPERS


def fragments(executed: list[Path]) -> dict[str, str]:
    """Markdown by file name; a page includes it from `_generated/`."""
    from core.report import status

    covered = status.coverage()
    return {
        "headline.md": status.headline(covered) + "\n",
        "coverage.md": markdown_table(_by_paper(covered)),
        "times.md": markdown_table(_times(executed)),
        "versions.md": markdown_table(status.versions()),
    }


def _by_paper(covered: pd.DataFrame) -> pd.DataFrame:
    """`status.coverage()` summed over the tables of each paper, one column each: narrow enough for
    a phone.
    """
    counts = [
        name for name in covered.columns if name not in ("paper", "table", "title", "profile")
    ]
    grouped = covered[covered["paper"].isin(PAPERS)].groupby("paper")
    summed = grouped[counts].sum().astype(int)
    summed.insert(0, "tables", grouped.size())
    return summed.reindex(list(PAPERS)).rename(index=PAPERS).T.rename_axis("").reset_index()


def markdown_table(frame: pd.DataFrame) -> str:
    """A data frame as a Markdown table; numbers to the right, missing values as an en dash."""
    numeric = [pd.api.types.is_numeric_dtype(frame[column]) for column in frame.columns]
    lines = [
        "| " + " | ".join(str(column) for column in frame.columns) + " |",
        "|" + "|".join("---:" if number else "---" for number in numeric) + "|",
    ]
    for row in frame.itertuples(index=False):
        cells = ["–" if pd.isna(value) else str(value).replace("|", "\\|") for value in row]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _times(executed: list[Path]) -> pd.DataFrame:
    """How long each notebook took. Whole seconds: this table should not change with every build."""
    rows = [
        {
            "notebook": f"[{path.stem}](../notebooks/{path.stem}.ipynb)",
            "seconds": round(notebooks.seconds(path)),
        }
        for path in executed
    ]
    return pd.DataFrame(rows, columns=["notebook", "seconds"])
