"""How far the reproduction has come, computed from specifications and records."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from lab import Record, TableSpec, records
from lab.report import style
from lab.report.frames import table_frame
from lab.report.tables import heading
from lab.report.verdict import VERDICTS


def progress(paper: str | None = None, measured: Mapping[str, Record] | None = None) -> style.Html:
    """A row per table of a paper or of all: its profile shown, its cells, how many are printed and measured,
    and how many have each verdict. InputError for an unknown paper.
    """
    known, rows = records() if measured is None else measured, []
    for spec in TableSpec.of_paper(paper) if paper else TableSpec.all():
        frame = table_frame(spec.paper, spec.table, measured=known)
        counts = frame["verdict"].value_counts().reindex(VERDICTS).dropna().astype(int)
        row = {
            "title": heading(spec),
            "profile": ", ".join(frame["profile"].unique()),
            "cells": len(frame),
            "printed": frame["printed_text"].ne("").sum(),
            "measured": frame["measured"].notna().sum(),
            "verdicts": ", ".join(f"{count} {name}" for name, count in counts.items()),
        }
        rows.append(row if paper else {"paper": spec.paper} | row)
    return style.sentences(pd.DataFrame(rows))
