"""How far the reproduction has come, computed from specifications and records."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping

import pandas as pd

from lab import Record, TableSpec, records
from lab.report import style
from lab.report.frames import table_frame
from lab.report.tables import heading
from lab.report.verdict import VERDICTS

#: what a run needs, and what the book is built with
PACKAGES = (
    *("torch", "torchvision", "medmnist", "numpy", "pandas", "scikit-learn", "scipy", "attrs"),
    *("safetensors", "matplotlib", "seaborn", "jupyter-book", "jupytext", "papermill"),
)


def coverage(
    paper: str | None = None, measured: Mapping[str, Record] | None = None
) -> pd.DataFrame:
    """A row per table of a paper or of all: `paper`, `table`, `title`, `profile` shown, `cells`, `printed`,
    `measured`, and cells with each of `VERDICTS`. InputError for an unknown paper.
    """
    known, rows = records() if measured is None else measured, []
    for name in [paper] if paper else dict.fromkeys(spec.paper for spec in TableSpec.all()):
        for spec in TableSpec.of_paper(name):
            frame = table_frame(name, spec.table, measured=known)
            rows.append(
                {
                    "paper": name,
                    "table": spec.table,
                    "title": heading(spec),
                    "profile": ", ".join(frame["profile"].unique()),
                    "cells": len(frame),
                    "printed": int(frame["printed_text"].ne("").sum()),
                    "measured": int(frame["measured"].notna().sum()),
                    **{verdict: int((frame["verdict"] == verdict).sum()) for verdict in VERDICTS},
                }
            )
    return pd.DataFrame(rows)


def progress(paper: str | None = None, measured: Mapping[str, Record] | None = None) -> style.Html:
    """`coverage` as a page shows it: the verdicts that a table has, in one column of words."""
    covered = coverage(paper, measured)
    verdicts = [
        ", ".join(f"{count} {name}" for name, count in row.items() if count)
        for _, row in covered[list(VERDICTS)].iterrows()
    ]
    known = ["table", *(["paper"] if paper else [])]
    return style.sentences(covered.assign(verdicts=verdicts).drop(columns=[*VERDICTS, *known]))


def versions() -> pd.DataFrame:
    """`package` and `version` of what the numbers and pages depend on, Python and the machine first."""
    rows = [
        ("Python", platform.python_version()),
        ("machine", f"{platform.system()} {platform.machine()}"),
    ]
    found = {one.name.lower(): one.version for one in importlib.metadata.distributions()}
    rows += [(name, found.get(name.lower(), "not installed")) for name in PACKAGES]
    return pd.DataFrame(rows, columns=["package", "version"])
