"""The papers' tables as the book shows them: every printed value beside what was measured here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import pandas as pd

from lab import Record, TableSpec, records
from lab.importing import records_below
from lab.profiles import Profile, budget_name
from lab.report import style
from lab.report.frames import AND, BEST_FIRST, evidence_frame, left_out, table_frame
from lab.report.summary import summary_frame
from lab.report.verdict import VERDICTS

#: columns of a grid that fit a page
ACROSS = 4


def table(
    paper: str,
    table: str | int | None = None,
    profile: str | None = None,
    measured: Mapping[str, Record] | None = None,
    columns: Sequence[str] | None = None,
) -> style.Html:
    """A table of a paper: methods down; in each cell the printed value in bold, below it the measured mean
    and standard deviation, then number of seeds and verdict. Unless a profile is given, each cell is at the
    best budget that is measured, and further rows have other interpretations (`choices`). Folded are rows and
    columns that the paper does not have, columns without a number of ours, and the list of all cells, also at
    other budgets, with difference, reason and command.

    Without `table`, `paper` is a folder that `run --out` filled: a row for each setting of its runs.

    Args:
        columns: the part of a wide table to show, in this order; rows without a cell there are left out.

    Other arguments and errors as in `table_frame`.
    """
    if table is None:
        runs = [record for record in records_below(paper) if record.status == "complete"]
        return style.sentences(summary_frame(runs))
    spec = TableSpec.find(paper, str(table))
    frame = evidence_frame(paper, table, profile, measured)
    title, names = heading(spec), columns or [column.name for column in spec.columns]
    if columns is not None:
        title += " (in part)"
        frame = frame[frame["column"].isin(columns)]
    others = frame[:0] if profile else left_out(frame, spec, measured)
    mixed = frame["profile"].where(frame["measured"].notna()).groupby(frame["column"])
    frame = frame.assign(several=mixed.transform("nunique") > 1)
    frame = frame.assign(
        measure=frame["metric"].map(style.measure), html=[_cell(row) for _, row in frame.iterrows()]
    )
    note, details = _note(frame, spec), _details(pd.concat([frame, others]))
    had = frame["measured"].notna().groupby(frame["column"]).any()
    if not had.any():
        body = note + _grids(frame, names, title) + details
        return style.Html(style.folded(f"{title}. Nothing is measured yet.", body))
    own, shown = _own(frame), [name for name in names if had.get(name)]
    body = note + _grids(frame[~own], shown, title)
    if own.any():
        summary = "Rows and columns that the paper does not have"
        body += style.folded(summary, _grids(frame[own], shown, title))
    if waiting := [name for name in names if not had.get(name, True)]:
        summary = f"Columns without a number of ours: {', '.join(waiting)}"
        body += style.folded(summary, _grids(frame, waiting, title))
    return style.Html(body + details)


def _own(frame: pd.DataFrame) -> pd.Series:
    """Mark cells of a row or column without a number of the paper; none where it has no number."""
    reported = frame["printed_text"].ne("")
    row, column = (reported.groupby(frame[side]).transform("any") for side in ("row", "column"))
    return ~(row & column) if reported.any() else reported


def heading(spec: TableSpec) -> str:
    """The title of a table after its number in the paper; the book's own tables have none."""
    name = str(spec.table)
    if name.startswith("figure"):
        number = f"Figure {name.removeprefix('figure')}"
        return f"{number}: {spec.title.replace(f' ({number})', '')}"
    return f"Table {name}: {spec.title}" if name.isdigit() else spec.title


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


def _grids(frame: pd.DataFrame, names: Sequence[str], title: str) -> str:
    """The cells of some columns as HTML tables of at most `ACROSS` columns; measures of a column together."""
    names = [name for name in names if name in set(frame["column"])]
    of = frame[frame["column"].isin(names)]
    of = of.assign(column=of["column"].map(_wrapped))
    several = of.groupby(["row", "column"])["metric"].nunique().max() > 1
    heads = ["column", "measure"] if several else ["column"]
    order = {_wrapped(name): place for place, name in enumerate(names)}
    keys = of[heads].drop_duplicates()
    keys = keys.sort_values("column", key=lambda column: column.map(order), kind="stable")
    wide = of.pivot(index="row", columns=heads, values="html")
    rows = list(dict.fromkeys(of["row"]))
    wide = wide.reindex(
        index=rows, columns=pd.MultiIndex.from_frame(keys) if several else keys["column"]
    )
    wide = wide.rename(index=escape).rename_axis(index=None, columns=lambda _: "").fillna("")
    each = max(1, ACROSS * len(names) // max(1, len(keys)))
    parts = [list(order)[start : start + each] for start in range(0, len(order), each)]
    grids = []
    for part in parts:
        caption = f"<caption><span>{escape(title)}</span></caption><thead>"
        of_part = wide[part][(wide[part] != "").any(axis=1)]
        html = style.html_table(of_part, escape=False).replace("<thead>", caption, 1)
        grids.append(f'<div style="overflow-x:auto">{html}</div>')
        title = "The same, further columns"
    return "".join(grids)


def _wrapped(name: str) -> str:
    """The name of a column, which may break at its hyphens."""
    return escape(name).replace("-", "-<wbr>")


def formatted(value: Any, std: Any = None, unit: str = "percent", sign: str = "") -> str:
    """A value and its spread with the decimals of its unit, one more than in a sentence; "" for a missing
    value. With the sign "+" a difference, which always has one.
    """
    if value is None or pd.isna(value):
        return ""
    digits = style.digits(unit) + 1
    spread = "" if std is None or pd.isna(std) else f" ± {std:.{digits}f}"
    return f"{value:{sign}.{digits}f}{spread}"


def with_spread(text: str, std: float | None) -> str:
    """A printed number with its printed deviation, to as many decimals; alone where there is none."""
    if std is None or pd.isna(std):
        return text
    return f"{text} ± {std:.{len(text.partition('.')[2])}f}"


def _printed(row: pd.Series) -> str:
    """The number as it was printed, its trailing zeros included; "" where nothing is printed."""
    text: str = row["printed_text"]
    return text if pd.isna(row["printed"]) else with_spread(text, row["printed_std"])


def _cell(row: pd.Series) -> str:
    """A cell of the grid as HTML."""
    (sign, colour), lines = style.SIGNS[row["verdict"]], []
    if row["printed_text"]:
        lines.append(
            f'<span class="sr">printed </span><span class="printed">{escape(_printed(row))}</span>'
        )
    said = [f"n = {row['seeds']}"] * bool(row["seeds"])
    said += [budget_name(row["profile"])] * bool(row["several"] and row["seeds"])
    if not pd.isna(row["measured"]):
        value = formatted(row["measured"], row["std"], row["unit"]) + "†" * bool(row["substitute"])
        value += "‡" * (AND in row["reckoned"])
        lines.append(f'<span class="sr">measured </span>{value}')
    if row["printed_text"] or pd.isna(row["measured"]):  # else there is nothing to compare with
        said.append(f'<span aria-hidden="true">{sign}</span> {row["verdict"]}')
    lines.append(f"<small>{', '.join(said)}</small>")
    return f'<div class="cell" style="border-color:{colour}">{"<br>".join(lines)}</div>'


def _note(frame: pd.DataFrame, spec: TableSpec) -> str:
    """Legend of a cell and its data and, folded, remarks on table and budgets."""
    seen = frame[frame["measured"].notna()]
    columns = (frame if seen.empty else seen).groupby("profile", sort=False)["column"].unique()
    places = [
        f"<i>{budget_name(name)}</i>"
        + f" ({escape(', '.join(columns[name]))})" * (len(columns) > 1)
        for name in BEST_FIRST
        if name in columns
    ]
    spread = f"mean ± standard deviation over n seeds, measured at the budget {' or '.join(places)}"
    compared = bool(frame["printed_text"].any())
    lines = [f"In bold: the paper. Below it: {spread}." if compared else f"Shown: {spread}."]
    if (seen["several"]).any():
        lines.append(
            "Each cell is at the best budget that is measured. Where those of a column differ, it is named; "
            "directions are judged between rows of one budget."
        )
    reduced = [Profile.load(name) for name in BEST_FIRST[1:] if (seen["profile"] == name).any()]
    for level in reduced:
        said = level.meaning if compared else level.budget
        lines.append(f"<i>{budget_name(level.name)}</i>: {escape(said)}")
    if substitutes := sorted(set(seen["substitute"]) - {""}):
        lines.append(
            f"† measured on other data than the paper's: {escape('; '.join(substitutes))}."
        )
    if seen["reckoned"].str.contains(AND).any():
        lines.append("‡ seeds computed in several precisions or on several devices.")
    about = [re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(spec.note or ""))]
    if spec.unfair and reduced:
        lines.append(f"No fair comparison; counts for no total, no claim: {escape(spec.unfair)}.")
    about += [f"<i>{budget_name(level.name)}</i>: {escape(level.description)}" for level in reduced]
    return f"<p>{'<br>'.join(lines)}</p>" + style.folded(
        "About this table and its budget", "".join(f"<p>{text}</p>" for text in about if text)
    )


def _details(frame: pd.DataFrame) -> str:
    """All cells with what a grid has no room for, folded, and what the means of the table mix."""
    units, versions = frame["unit"], frame["codes"].gt(1)
    shown = pd.DataFrame(
        {
            "method": frame["row"],
            "column": frame["column"],
            "measure": frame["metric"].map(style.measure),
            "paper": [_printed(row) for _, row in frame.iterrows()],
            "measured": list(map(formatted, frame["measured"], frame["std"], units)),
            "seeds": frame["seeds"].astype(str) + " of " + frame["wanted"].astype(str),
            "versions of the program": frame["codes"].astype(str).where(versions, ""),
            "computed in": frame["reckoned"].where(frame["reckoned"].str.contains(AND), ""),
            "budget": frame["profile"].map(budget_name),
            "difference": [
                formatted(value, None, unit, "+")
                for value, unit in zip(frame["difference"], units, strict=True)
            ],
            "verdict": frame["verdict"],
            "why": frame["reason"],
            "other data": frame["substitute"],
            "note": frame["note"],
            "command": frame["command"],
        }
    )
    shown = shown[[name for name in shown if shown[name].astype(bool).any()]]
    remark = ""
    if versions.any():
        remark = f"Means over runs of several versions of the program: {versions.sum()}."
    ways = sorted({way for reckoned in frame["reckoned"] for way in reckoned.split(AND) if way})
    if len(ways) > 1:
        remark += f" The runs were computed in {AND.join(ways)}; differences of rows may mix these."
    return style.folded(
        f"All {len(frame)} cells of this table: seeds, differences, reasons and commands",
        style.html_table(shown, "sentences", index=False) + f"<p>{escape(remark)}</p>",
    )
