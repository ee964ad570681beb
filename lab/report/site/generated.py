"""Pieces of pages that are computed while the book is built, so that no number is typed by hand."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from lab import datapack
from lab.report import notebooks
from lab.report.site.executing import note
from lab.report.texts import plain


def fragments(executed: list[Path]) -> dict[str, str]:
    """Markdown by file name; a page includes it from `_generated/`."""
    from lab.report import (
        claims,
        classroom,
        figures,
        findings,
        status,
        tallies,
    )

    counts = claims.claims_count()
    return {
        "coverage.md": markdown_table(tallies.by_paper().reset_index()),
        "claims.md": figures.to_html(claims.claims_figure(counts)) + "\n",
        "bottom_lines.md": findings.bottom_lines(),
        "findings.md": findings.folded(findings.findings(), findings.pictures()),
        "main_claims.md": markdown_table(claims.claims_count(main=True).reset_index()),
        "exercises.md": markdown_table(
            classroom.exercise_table(map(notebooks.find, notebooks.chapters()))
        ),
        "datapack.md": f"{', '.join(datapack.shareable())}; {datapack.LIMIT / 2**20:.0f} MB at most.\n",
        "times.md": markdown_table(_times(executed)),
        "versions.md": markdown_table(status.versions()),
    }


def markdown_table(frame: pd.DataFrame) -> str:
    """A data frame as a Markdown table; numbers to the right, missing values as an en dash."""
    numeric = [pd.api.types.is_numeric_dtype(frame[column]) for column in frame.columns]
    lines = [
        "| " + " | ".join(_cell(column) for column in frame.columns) + " |",
        "|" + "|".join("---:" if number else "---" for number in numeric) + "|",
    ]
    for row in frame.itertuples(index=False):
        cells = ["–" if pd.isna(value) else _cell(value) for value in row]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    return plain(value).replace("|", "\\|")


def _times(executed: list[Path]) -> pd.DataFrame:
    """How long each notebook took. Whole seconds: this table should not change with every build."""
    rows = [
        {
            "notebook": f"[{path.stem}](../notebooks/{path.stem}.ipynb)",
            "seconds": round(note(path)["seconds"]),
        }
        for path in executed
    ]
    return pd.DataFrame(rows, columns=["notebook", "seconds"])
