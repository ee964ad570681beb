"""The papers' tables as the book shows them: every printed value beside what was measured here."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import pandas as pd
from pandas.io.formats.style import Styler

from core.errors import unknown
from lab import Record
from lab.profiles import Changes, Profile
from lab.report import style
from lab.report.frames import AND, BEST_FIRST, table_frame, verdict_counts
from lab.table import TableSpec, slug

#: columns of a grid that fit a page
ACROSS = 4


class PaperTable(Styler):
    """A styled grid, with how to read it above and the long form folded below.

    A page shows a wide grid in parts below each other, and folds what has no number of ours: columns,
    or all of it.
    """

    note = details = summary = place = ""
    #: names of the columns without a number of ours
    waiting: frozenset[str] = frozenset()

    def _repr_html_(self) -> str | None:
        body = f"{self.note}{self._grids(rest=False)}{self._later()}{self.details}"
        if self.summary:
            body = _folded(self.summary, body)
        return f"<style>{style.DETAILS_CSS}</style>{body}"

    def _grids(self, rest: bool) -> str:
        return "".join(
            f'<div style="overflow-x:auto">{part.to_html()}</div>' for part in self.parts(rest)
        )

    def _later(self) -> str:
        """The columns that wait, folded."""
        if not self.waiting:
            return ""
        names = [name for name in dict.fromkeys(map(_first, self.columns)) if name in self.waiting]
        said = f"Columns without a number of ours: {escape(', '.join(names))}"
        return _folded(said, self._grids(rest=True))

    def parts(self, rest: bool = False) -> list[Styler]:
        """The grid in parts of at most `ACROSS` columns, without those that wait, or the `rest`, these
        alone; the measures of a column stay together.
        """
        keys = list(self.columns)
        mine = [key for key in keys if (_first(key) in self.waiting) == rest]
        names = list(dict.fromkeys(map(_first, mine)))
        if len(mine) == len(keys) <= ACROSS:
            return [self]
        each, found = max(1, ACROSS * len(names) // max(1, len(mine))), []
        for number, start in enumerate(range(0, len(names), each)):
            here = set(names[start : start + each])
            others = [key for key in keys if _first(key) not in here]
            part = copy.deepcopy(self).hide(others, axis="columns")
            part.set_uuid(f"{self.place}-{'rest-' * rest}{number}")
            first = number == 0 and not rest
            found.append(part if first else part.set_caption("The same, further columns"))
        return found


def _first(key: Any) -> str:
    """The column of a heading, which may have the measure, too."""
    return key[0] if isinstance(key, tuple) else key


def table(
    paper: str,
    table: str | int,
    profile: str | None = None,
    measured: Mapping[str, Record] | None = None,
    columns: Sequence[str] | None = None,
) -> PaperTable:
    """A table of a paper as the book shows it. Other arguments and errors as in `table_frame`.

    Methods are rows; where there are several metrics, they stand below their column's name. Each
    cell holds the printed value in bold, the measured mean and standard deviation below it and the
    verdict as a sign with words; the rest (number of seeds, difference, reason, command) stands in
    the cell's tooltip and in the list that is folded below the grid.

    Args:
        columns: the part of a wide table to show, in this order; rows without a cell there are left
            out. None: all.

    Raises InputError for an unknown column as well.
    """
    frame, spec = table_frame(paper, table, profile, measured), TableSpec.find(paper, str(table))
    several = frame.groupby(["row", "column"])["metric"].nunique().max() > 1
    title, place = heading(spec), f"{paper}-{table}-{profile or 'best'}"
    if columns is not None:
        frame, title = _part(frame, columns), f"{title} (in part)"
        place = f"{place}-{slug('-'.join(columns))}"
    frame["measure"] = frame["metric"].map(style.measure)
    frame["header"] = frame["column"] + (" · " + frame["measure"] if several else "")
    names = columns or [column.name for column in spec.columns]

    def grid(values: pd.Series) -> pd.DataFrame:
        return _grid(
            frame.assign(value=values), ["column", "measure"] if several else ["column"], names
        )

    styler = PaperTable(
        grid(frame.apply(_cell_html, axis=1)),
        uuid=place,
        table_attributes='class="dataframe core-table"',
        cell_ids=False,
    )
    styler.place, styler.details, styler.note = place, _details(frame), _note(frame, spec)
    if frame["measured"].isna().all():
        styler.summary = f"{escape(title)}. Nothing is measured yet ({verdict_counts(frame)})."
    else:
        had = frame["measured"].notna().groupby(frame["column"]).any()
        styler.waiting = frozenset(had.index[~had])
    borders = grid(frame["verdict"].map(_border))
    return _dressed(styler, title).apply(lambda _: borders, axis=None)  # type: ignore[return-value]


def _dressed(styler: Styler, title: str) -> Styler:
    """With the look of the book's tables, a caption, and names as they are, whatever is in them."""
    styler.set_caption(f"<span>{escape(title)}</span>").set_table_styles(style.TABLE_CSS)
    styler.format_index(lambda name: escape(str(name)).replace("-", "-<wbr>"), axis="columns")
    return styler.format_index(lambda name: escape(str(name)), axis="index")


def heading(spec: TableSpec) -> str:
    """The title of a table after its number in the paper; the book's own tables have none."""
    name = str(spec.table)
    if name.startswith("figure"):
        number = f"Figure {name.removeprefix('figure')}"
        return f"{number}: {spec.title.replace(f' ({number})', '')}"
    return f"Table {name}: {spec.title}" if name.isdigit() else spec.title


def _grid(frame: pd.DataFrame, heading: list[str], names: Sequence[str]) -> pd.DataFrame:
    """`value` of every cell: rows in their order, columns in that of `names`, the measures of a
    column together.
    """
    headings = frame[heading].drop_duplicates()
    place = {name: number for number, name in enumerate(names)}
    headings = headings.sort_values("column", key=lambda column: column.map(place), kind="stable")
    keys = pd.MultiIndex.from_frame(headings) if len(heading) > 1 else pd.Index(headings["column"])
    wide = frame.pivot(index="row", columns=heading, values="value")
    wide = wide.reindex(index=frame["row"].unique(), columns=keys).fillna("")
    wide.index.name = None
    wide.columns.names = [None] * len(heading)
    return wide


def _part(frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """The cells of some columns."""
    for name in columns:
        if name not in set(frame["column"]):
            raise unknown("column of the table", name, set(frame["column"]))
    return frame[frame["column"].isin(columns)].copy()


def _border(verdict: str) -> str:
    colour = style.SIGNS[verdict][1]
    return f"border-left: 3px solid {colour}" if colour else ""


def formatted(value: Any, std: Any = None, unit: str = "percent", sign: str = "") -> str:
    """A value and its spread with the decimals of its unit, one more than in a sentence; "" for a
    missing value. With the sign "+" a difference, which always has one.
    """
    if value is None or pd.isna(value):
        return ""
    digits = style.digits(unit) + 1
    spread = "" if std is None or pd.isna(std) else f" ± {std:.{digits}f}"
    return f"{value:{sign}.{digits}f}{spread}"


def _printed(row: pd.Series) -> str:
    """The number as it was printed, its trailing zeros included; "" where nothing is printed."""
    if pd.isna(row["printed"]):
        return row["printed_text"]
    return with_spread(row["printed_text"], row["printed_std"])


def with_spread(text: str, std: float | None) -> str:
    """A printed number with its printed deviation, to as many decimals; alone where there is none."""
    if std is None or pd.isna(std):
        return text
    return f"{text} ± {std:.{len(text.partition('.')[2])}f}"


def _cell_html(row: pd.Series) -> str:
    sign, _ = style.SIGNS[row["verdict"]]
    lines = []
    if row["printed_text"]:
        lines.append(
            f'<span class="sr">printed </span><span class="printed">{escape(_printed(row))}</span>'
        )
    if not pd.isna(row["measured"]):
        mark = "†" if row["stand_in"] else ""
        value = formatted(row["measured"], row["std"], row["unit"])
        lines.append(
            f'<span class="sr">measured </span><span class="measured">{value}{mark}</span>'
        )
    if row["printed_text"] or pd.isna(
        row["measured"]
    ):  # where nothing is printed there is nothing to compare with
        lines.append(f'<small><span aria-hidden="true">{sign}</span> {row["verdict"]}</small>')
    return f'<div title="{_tooltip(row)}">{"<br>".join(lines)}</div>'


def _tooltip(row: pd.Series) -> str:
    """All that is known of a cell, as one line of text."""
    parts = [
        f"{row['row']}, {row['header']}",
        f"printed {_printed(row)}" if row["printed_text"] else "",
        row["note"],
    ]
    if not pd.isna(row["measured"]):
        value = formatted(row["measured"], row["std"], row["unit"])
        parts.append(
            f"measured {value}, {row['seeds']} of {row['wanted']} seeds, profile {row['profile']}"
        )
    parts += [_ran_with(row)]
    if not pd.isna(row["difference"]):
        parts.append(f"difference {formatted(row['difference'], None, row['unit'], '+')}")
    parts += [f"{row['verdict']}: {row['reason']}" if row["reason"] else row["verdict"]]
    parts += [f"stand-in: {row['stand_in']}"] if row["stand_in"] else []
    parts += [row["command"]] if row["verdict"] == "pending" else []
    return escape("; ".join(part for part in parts if part), quote=True)


def _ran_with(row: pd.Series) -> str:
    """What is said where seeds ran with different versions of the program, or in different precisions."""
    versions = f"{row['codes']} versions of the program" if row["codes"] > 1 else ""
    return "; ".join(filter(None, (versions, row["reckoned"] if AND in row["reckoned"] else "")))


def _remark(frame: pd.DataFrame) -> str:
    """What the means of a table mix; "" where they mix nothing."""
    codes, mixed = frame["codes"].gt(1).sum(), frame["reckoned"].str.contains(AND).sum()
    ways = sorted({way for one in frame["reckoned"] for way in one.split(AND) if way})
    said = [f"Means over runs of several versions of the program: {codes}."] if codes else []
    if len(ways) > 1:
        means = f", {mixed} of the means in more than one" if mixed else ""
        said.append(
            f"The runs were computed in {AND.join(ways)}{means}; differences of rows may mix these."
        )
    return " ".join(said)


def _note(frame: pd.DataFrame, spec: TableSpec) -> str:
    """How to read a cell, which stand-ins were used and, folded, what is to be known of the table and
    what the profile reduced.
    """
    seen = frame[frame["measured"].notna()]
    columns = (frame if seen.empty else seen).groupby("profile", sort=False)["column"].unique()
    places = [
        f"<i>{name}</i>" + (f" ({escape(', '.join(columns[name]))})" if len(columns) > 1 else "")
        for name in BEST_FIRST
        if name in columns
    ]
    spread = f"mean ± standard deviation over seeds, measured at the profile {' or '.join(places)}"
    compared = bool(frame["printed_text"].any())
    lines = [
        f"In bold: as printed. Below it: {spread}, and the verdict."
        if compared
        else f"Shown: {spread}."
    ]
    reduced = [Profile.load(name) for name in BEST_FIRST[1:] if (seen["profile"] == name).any()]
    for profile in reduced:
        said = profile.meaning if compared else f"{profile.budget}."
        lines.append(f"<i>{profile.name}</i>: {escape(said)}")
    stand_ins = sorted(set(seen["stand_in"]) - {""})
    if stand_ins:
        lines.append(
            f"† measured on a stand-in for the paper's data: {escape('; '.join(stand_ins))}."
        )
    folded = {"About this table": re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(spec.note or ""))}
    for profile in reduced:
        own = _in_words(spec.profiles[profile.name]) if profile.name in spec.profiles else ""
        folded[f"What the profile <i>{profile.name}</i> reduces"] = escape(
            f"{profile.description} In this table alone: {own}." if own else profile.description
        )
    return f"<p>{'<br>'.join(lines)}</p>" + "".join(
        _folded(summary, body) for summary, body in folded.items() if body
    )


def _in_words(changes: Changes) -> str:
    """What a table changes in a profile: for all runs, then by network or algorithm, then limits."""
    parts = {"": changes.fields, **changes.models, **changes.algorithms}
    parts["at most"] = changes.limits
    changed = {name: ", ".join(_leaves(fields)) for name, fields in parts.items()}
    return "; ".join(f"{name} {text}".strip() for name, text in changed.items() if text)


def _leaves(fields: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for name, value in fields.items():
        path = above if name == "settings" else f"{above} {name}".strip()
        if isinstance(value, Mapping):
            yield from _leaves(value, path)
        else:
            yield f"{path} {'none' if value is None else value}"


def _folded(summary: str, body: str) -> str:
    return f'<details class="core-details"><summary>{summary}</summary><div>{body}</div></details>'


def _details(frame: pd.DataFrame) -> str:
    """The long form as a folded HTML table."""
    shown = pd.DataFrame(
        {
            "method": frame["row"],
            "column": frame["header"],
            "printed": frame.apply(_printed, axis=1),
            "measured": [
                formatted(m, s, u)
                for m, s, u in zip(frame["measured"], frame["std"], frame["unit"], strict=True)
            ],
            "seeds": [
                f"{seeds} of {wanted}"
                for seeds, wanted in zip(frame["seeds"], frame["wanted"], strict=True)
            ],
            "ran with": frame.apply(_ran_with, axis=1),
            "profile": frame["profile"],
            "difference": [
                formatted(value, None, unit, "+")
                for value, unit in zip(frame["difference"], frame["unit"], strict=True)
            ],
            "verdict": frame["verdict"],
            "why": frame["reason"],
            "stand-in": frame["stand_in"],
            "note": frame["note"],
        }
    ).map(lambda value: escape(str(value)))
    shown["command"] = [
        f"<code>{escape(command)}</code>" if command else "" for command in frame["command"]
    ]
    kept = [name for name in shown if shown[name].ne("").any()]
    body = shown[kept].to_html(index=False, escape=False, border=0)
    remark = _remark(frame)
    return _folded(
        f"All {len(frame)} cells of this table: seeds, differences, reasons and commands",
        f"{body}<p>{escape(remark)}</p>" if remark else body,
    )
