"""Reading the files below `book/tables`: mappings in YAML, and the printed numbers."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from core.errors import InputError, one_line, unknown
from core.files import read_text
from lab.experiment import Experiment

#: where the specifications are kept: `<paper>/<table>.yaml`, `<paper>/published.csv` and
#: `profiles.yaml`
TABLES = Path(__file__).resolve().parents[1] / "book" / "tables"
#: the fields of an experiment that a specification may state; seed and profile come from elsewhere
FIELDS = frozenset(attrs.fields_dict(Experiment)) - {"seed", "profile"}
#: what a row of published.csv must hold beside the columns that a `match` may name
PRINTED = ("table", "metric", "value", "std", "unit", "better", "note")
#: what may stand in two of them; MB are 2^20 bytes
UNITS, BETTER = ("percent", "MB", "auc", "score", "pixel", "dB"), ("higher", "lower")
#: bytes of the largest specification that is read, and nodes of it when all aliases are filled in
LARGEST, MOST_NODES = 2**20, 100_000


if TYPE_CHECKING or not yaml.__with_libyaml__:
    _Parser = yaml.SafeLoader
else:
    from yaml.cyaml import CParser

    class _Parser(Composer, CParser, SafeConstructor, Resolver):
        """A safe loader that parses in C, five times as fast, and composes in Python."""

        def __init__(self, stream: str) -> None:
            CParser.__init__(self, stream)
            for base in (Composer, SafeConstructor, Resolver):
                base.__init__(self)


class _Loader(_Parser):
    """YAML without the silence about a key that stands twice, and without aliases that grow without
    bound.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        #: nodes so far, those that an alias stands for included, and how many each anchor has
        self.nodes = 0
        self.sizes: dict[str, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        """A node, as ever; raises MarkedYAMLError for more than `MOST_NODES`."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        alias, before = isinstance(event, yaml.AliasEvent), self.nodes
        # an alias to something that is not closed yet would stand for itself
        self.nodes += self.sizes.get(event.anchor, MOST_NODES) if alias else 1
        if self.nodes > MOST_NODES:
            raise yaml.MarkedYAMLError(
                problem=f"it has more than {MOST_NODES} parts when its aliases are filled in",
                problem_mark=event.start_mark,
            )
        node = super().compose_node(parent, index)
        if not alias and event.anchor:
            self.sizes[event.anchor] = self.nodes - before
        return node


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.MarkedYAMLError(
                problem="a key is not a plain name", problem_mark=key.start_mark
            )
    keys = [
        loader.construct_object(key)
        for key, _ in node.value
        if key.tag != "tag:yaml.org,2002:merge"
    ]
    twice = next((key for key, count in Counter(keys).items() if count > 1), None)
    if twice is not None:
        raise yaml.MarkedYAMLError(
            problem=f"the key {twice!r} stands twice", problem_mark=node.start_mark
        )
    loader.flatten_mapping(node)
    return {
        loader.construct_object(key, deep=True): loader.construct_object(value, deep=True)
        for key, value in node.value
    }


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
# 5e-2 is a number to everybody but YAML 1.1, which wants a point and a sign: 5.0e-2
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def short(path: Path) -> str:
    """The last two parts of a path: how a message names a specification."""
    return "/".join(path.parts[-2:])


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping. Raises InputError, naming the file, when it is missing or
    is not one.
    """
    try:
        data = yaml.load(read_text(path, LARGEST, "specification"), Loader=_Loader)
    except (RecursionError, OverflowError):
        raise InputError(f"{short(path)} is nested too deeply") from None
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(f"{short(path)}{line} is not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, KeyError, AttributeError) as error:
        # a value that is not of the type that it seems or claims to be, such as a 13th month
        raise InputError(f"{short(path)} is not valid YAML: {one_line(error, 150)}") from None
    if not isinstance(data, dict):
        raise InputError(f"{short(path)} must hold a mapping of names to values")
    return data


def as_mapping(value: Any, where: str) -> dict[str, Any]:
    """`value` as a mapping with names as keys; None is an empty one. Raises InputError
    otherwise.
    """
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise InputError(f"{where} must map names to values, not {value!r}")
    return value


def as_list(value: Any, where: str) -> list[Any]:
    """`value` as a list that is not empty. Raises InputError otherwise."""
    if not isinstance(value, list) or not value:
        raise InputError(f"{where} must be a list with at least one entry, not {value!r}")
    return value


def check_keys(data: Mapping[str, Any], allowed: Collection[str], where: str) -> None:
    """Raise InputError, with the nearest right name, for a key of `data` that is not allowed."""
    for key in data:
        if key not in allowed:
            raise unknown(f"key of {where}", key, allowed)


@attrs.frozen
class Published:
    """A number as the paper prints it."""

    #: None where a word is printed in its place, such as OOM (out of memory)
    value: float | None
    text: str
    std: float | None
    #: one of `UNITS`
    unit: str
    #: one of `BETTER`
    better: str
    note: str
    #: the deviation of the same number in another table, where this one prints none
    std_elsewhere: float | None = None

    @property
    def spread(self) -> float | None:
        """The deviation over the paper's runs, from whichever table has it."""
        return self.std_elsewhere if self.std is None else self.std


def read_published(path: Path) -> list[dict[str, str]]:
    """The rows of a published.csv; none when there is no such file. Raises InputError when a column
    is missing.
    """
    if not path.exists():
        return []
    reader = csv.DictReader(io.StringIO(read_text(path, LARGEST, "list of printed numbers")))
    try:
        rows = list(reader)
    except csv.Error as error:
        raise InputError(f"{short(path)}, line {reader.line_num}: {error}") from None
    for column in PRINTED:
        if column not in (reader.fieldnames or ()):
            raise InputError(f"{short(path)} has no column {column!r}")
    for number, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise InputError(f"{short(path)}, row {number}, has not as many values as the header")
    return rows


def of_table(rows: Sequence[dict[str, str]], table: str) -> list[dict[str, str]]:
    """The rows of one table, with another entry: `std_elsewhere`, the deviation that another table
    prints with the same number for the same method, data and rounds; empty where none does, or
    several differ.
    """
    spreads = dict[tuple[str, ...], set[str]]()
    for row in rows:
        if row["std"] and row["table"] != table:
            spreads.setdefault(_identity(row), set()).add(row["std"])
    found = []
    for row in rows:
        if row["table"] == table:
            known = spreads.get(_identity(row), set())
            (std,) = known if len(known) == 1 else ("",)
            found.append(row | {"std_elsewhere": std})
    return found


def _identity(row: Mapping[str, str]) -> tuple[str, ...]:
    """What two rows have in common that print one number of the same runs."""
    return tuple(
        value for key, value in row.items() if key not in ("table", "setting", "std", "note")
    )


def _same(printed: str, wanted: Any) -> bool:
    if isinstance(wanted, (int, float)):
        try:
            return float(printed) == float(wanted)
        except ValueError:
            return False
    return printed == str(wanted)


def _matches(row: Mapping[str, str], key: str, wanted: Any) -> bool:
    if key == "method":  # one printed cell may be shared by several methods
        return str(wanted) in row["method"].split()
    if key == "setting":
        return set(row["setting"].split(",")) == set(str(wanted).split(","))
    return _same(row[key], wanted)


def join_match(row: Mapping[str, Any], column: Mapping[str, Any]) -> dict[str, Any]:
    """What a row and a column ask for together: the parts of `setting` add up, in other keys the
    column prevails.
    """
    parts = [str(match["setting"]) for match in (column, row) if "setting" in match]
    return {**row, **column, **({"setting": ",".join(parts)} if parts else {})}


def match_one(rows: list[dict[str, str]], match: Mapping[str, Any], where: str) -> Published:
    """The one printed number that fits; raises InputError when none or several do."""
    for key in match:
        if rows and key not in (known := set(rows[0]) - {*PRINTED, "std_elsewhere"}):
            raise unknown(f"column to match in published.csv ({where})", key, known)
    found = [
        row for row in rows if all(_matches(row, key, wanted) for key, wanted in match.items())
    ]
    if len(found) != 1:
        raise InputError(
            f"{where}: match {dict(match)} fits {len(found)} rows of published.csv, not one; the `match` of "
            "the row and of the column together must tell them apart"
        )
    return as_published(found[0], where)


def as_published(row: Mapping[str, str], where: str) -> Published:
    """A row of published.csv as a number. Raises InputError for a value that is neither a number
    nor OOM.
    """
    text = row["value"]
    try:
        value = None if text == "OOM" else float(text)
        std, elsewhere = (
            float(text) if text else None for text in (row["std"], row.get("std_elsewhere"))
        )
        if not all(math.isfinite(one) for one in (value, std, elsewhere) if one is not None):
            raise ValueError
        if any(one is not None and one < 0 for one in (std, elsewhere)):
            raise ValueError
    except ValueError:
        raise InputError(
            f"{where}: published.csv holds {text!r} ± {row['std']!r}, which is no number"
        ) from None
    for key, known in (("unit", UNITS), ("better", BETTER)):
        if row[key] not in known:
            raise unknown(f"{key} in published.csv ({where})", row[key], known)
    return Published(value, text, std, row["unit"], row["better"], row["note"], elsewhere)
