"""How far the reproduction has come, computed from specifications and records."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping
from typing import Any

import pandas as pd

from lab import Record, TableSpec, records
from lab.report import style
from lab.report.charts import method_name
from lab.report.frames import table_frame
from lab.report.verdict import MB, VERDICTS

#: what a run needs, and what the book is built with
PACKAGES = (
    "torch",
    "torchvision",
    "medmnist",
    "numpy",
    "pandas",
    "scikit-learn",
    "attrs",
    "PyYAML",
    "typer",
    "tqdm",
    "safetensors",
    "matplotlib",
    "jupyter-book",
    "jupytext",
    "papermill",
)


def coverage(
    paper: str | None = None, measured: Mapping[str, Record] | None = None
) -> pd.DataFrame:
    """One row per table: `paper`, `table`, `title`, `profile` (the one that is shown, of
    each column), `cells`, `printed` (cells with a printed number), `measured`, and how many cells
    have each verdict (a column for each of `VERDICTS`).

    Args:
        paper: one paper only; None: all.
        measured: complete records by experiment id; by default the book's.

    Raises InputError for an unknown paper.
    """
    known = records() if measured is None else measured
    rows = []
    for name in [paper] if paper else dict.fromkeys(spec.paper for spec in TableSpec.all()):
        for spec in TableSpec.of_paper(name):
            frame = table_frame(name, spec.table, measured=known)
            found = frame["verdict"].value_counts()
            rows.append(
                {
                    "paper": name,
                    "table": spec.table,
                    "title": spec.title,
                    "profile": ", ".join(frame["profile"].unique()),
                    "cells": len(frame),
                    "printed": int(frame["printed_text"].ne("").sum()),
                    "measured": int(frame["measured"].notna().sum()),
                    **{name: int(found.get(name, 0)) for name in VERDICTS},
                }
            )
    return pd.DataFrame(rows)


def progress(paper: str | None = None, measured: Mapping[str, Record] | None = None) -> Any:
    """`coverage` as a page shows it: the verdicts that a table has, in one column of words.
    Arguments and errors as there.
    """
    covered = coverage(paper, measured)
    verdicts = [
        ", ".join(f"{row[name]} {name}" for name in VERDICTS if row[name])
        for row in covered.to_dict("records")
    ]
    # the title says the number, so that all columns fit a page
    titles = [
        f"Table {table}: {title}" if table.isdigit() else title
        for table, title in zip(covered["table"].astype(str), covered["title"], strict=True)
    ]
    known = ["table", *(["paper"] if paper else [])]
    frame = covered.assign(title=titles, verdicts=verdicts).drop(columns=[*VERDICTS, *known])
    return style.sentences(frame)


def versions() -> pd.DataFrame:
    """`package` and `version` of what the numbers and pages depend on, Python and the machine
    first.
    """
    rows = [
        ("Python", platform.python_version()),
        ("machine", f"{platform.system()} {platform.machine()}"),
    ]
    for name in PACKAGES:
        try:
            rows.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            rows.append((name, "not installed"))
    return pd.DataFrame(rows, columns=["package", "version"])


def records_apart(measured: Mapping[str, Record] | None = None) -> dict[str, Record]:
    """The complete records that no table shows: tries that gave way to others, and runs of what a
    table once was. They stay, and count in no total.

    Args:
        measured: complete records by experiment id; by default the book's.
    """
    known, shown = records() if measured is None else measured, TableSpec.ids()
    return {name: record for name, record in known.items() if name not in shown}


def records_summary(measured: Mapping[str, Record] | None = None) -> pd.DataFrame:
    """The records by method, data set and profile: `runs`, mean `minutes` and `MB sent` (2^20
    bytes) of one run, and the `device`s they were measured on.

    Args:
        measured: complete records by experiment id; by default those of the book that a table
            shows.
    """
    known = measured
    if known is None:
        book = records()
        apart = records_apart(book)
        known = {name: record for name, record in book.items() if name not in apart}
    rows = pd.DataFrame(
        [
            {
                "method": method_name(record.experiment.algorithm),
                "dataset": record.experiment.dataset,
                "profile": record.experiment.profile,
                "minutes": record.seconds / 60,
                "MB sent": record.sent() / MB,
                "device": str(record.environment.get("device", "")),
            }
            for record in known.values()
        ],
        columns=["method", "dataset", "profile", "minutes", "MB sent", "device"],
    )
    groups = rows.groupby(["method", "dataset", "profile"], sort=True)
    return (
        groups.agg(
            runs=("minutes", "size"),
            minutes=("minutes", "mean"),
            sent=("MB sent", "mean"),
            device=("device", lambda values: ", ".join(sorted(set(values)))),
        )
        .rename(columns={"sent": "MB sent"})
        .reset_index()
    )
