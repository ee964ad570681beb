"""The numbers that papers print: `book/tables/<paper>/published.csv`."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from core.errors import InputError, unknown
from lab.forms import read, short

#: the columns that a published.csv must have beside those that a `match` may name
PRINTED = ("table", "metric", "value", "std", "unit", "better", "note")
#: MB are 2^20 bytes
Unit = Literal["percent", "MB", "auc", "score", "pixel", "dB"]
Number = Annotated[float, Field(allow_inf_nan=False)]
#: a cell of the file, which may be empty
Deviation = Annotated[
    Annotated[Number, Field(ge=0)] | None,
    BeforeValidator(lambda text: None if text == "" else text),
]


class Published(BaseModel):
    """A number as the paper prints it."""

    model_config = ConfigDict(frozen=True)

    #: None where the word OOM (out of memory) is printed in its place
    value: Number | None
    text: str
    std: Deviation
    unit: Unit
    better: Literal["higher", "lower"]
    note: str
    #: the deviation of the same number in another table, where this one prints none
    std_elsewhere: Deviation = None
    #: its place in the file, which tells cells of a table that share one printed number
    line: int = 0

    @property
    def spread(self) -> float | None:
        """The deviation over the paper's runs, from whichever table has it."""
        return self.std_elsewhere if self.std is None else self.std


def read_published(path: Path) -> list[dict[str, str]]:
    """Rows of a published.csv; none without the file. InputError for a missing column."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        try:
            rows = list(reader)
        except (csv.Error, UnicodeDecodeError) as error:
            raise InputError(f"{short(path)}, line {reader.line_num}: {error}") from None
    for column in PRINTED:
        if column not in (reader.fieldnames or ()):
            raise InputError(f"{short(path)} has no column {column!r}")
    for number, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise InputError(f"{short(path)}, row {number}, has not as many values as the header")
        row["line"] = str(number)
    return rows


def of_table(rows: Sequence[dict[str, str]], table: str) -> list[dict[str, str]]:
    """The rows of one table, with `std_elsewhere`: the one deviation, if any, that another table prints
    with the same number for the same method, data and rounds.
    """

    def same_runs(row: Mapping[str, str]) -> tuple[str, ...]:
        apart = ("table", "setting", "std", "note", "line")
        return tuple(value for key, value in row.items() if key not in apart)

    spreads = dict[tuple[str, ...], set[str]]()
    for row in rows:
        if row["std"] and row["table"] != table:
            spreads.setdefault(same_runs(row), set()).add(row["std"])
    selected = []
    for row in rows:
        if row["table"] == table:
            known = spreads.get(same_runs(row), set())
            (std,) = known if len(known) == 1 else ("",)
            selected.append(row | {"std_elsewhere": std})
    return selected


def _matches(row: Mapping[str, str], key: str, wanted: Any) -> bool:
    printed = row[key]
    if key == "method":  # one printed cell may be shared by several methods
        return str(wanted) in printed.split()
    if key == "setting":
        return set(printed.split(",")) == set(str(wanted).split(","))
    if isinstance(wanted, (int, float)):
        try:
            return float(printed) == wanted
        except ValueError:
            return False
    return printed == str(wanted)


def join_match(row: Mapping[str, Any], column: Mapping[str, Any]) -> dict[str, Any]:
    """The `setting`s of a row and a column, merged; in other keys the column prevails."""
    parts = [str(match["setting"]) for match in (column, row) if "setting" in match]
    return {**row, **column, **({"setting": ",".join(parts)} if parts else {})}


def match_one(rows: list[dict[str, str]], match: Mapping[str, Any], where: str) -> Published:
    """The one printed number that fits; raises InputError when none or several do."""
    for key in match:
        if rows and key not in (known := set(rows[0]) - {*PRINTED, "std_elsewhere", "line"}):
            raise unknown(f"column to match in published.csv ({where})", key, known)
    fitting = [
        row for row in rows if all(_matches(row, key, wanted) for key, wanted in match.items())
    ]
    if len(fitting) != 1:
        raise InputError(
            f"{where}: match {dict(match)} fits {len(fitting)} rows of published.csv, not one; the `match` "
            "of the row and of the column together must tell them apart"
        )
    return as_published(fitting[0], where)


def as_published(row: Mapping[str, str], where: str) -> Published:
    """A row of published.csv as a number. InputError for a value that is neither that nor OOM."""
    text = row["value"]
    number = {"value": None if text == "OOM" else text, "text": text}
    return read(Published, {**row, **number}, f"{where}, published.csv")
