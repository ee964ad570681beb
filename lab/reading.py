"""From the YAML of a table to the parts of a `TableSpec`, with one clear sentence for everything
that may be wrong in it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import attrs

from core.checks import check_number, check_whole
from core.errors import InputError, unknown
from lab.experiment import PROFILES
from lab.layers import Layer
from lab.lines import Absent, Line, StandIn, slug
from lab.profiles import Overrides
from lab.spec import FIELDS, as_list, as_mapping, check_keys, read_yaml, short

_TABLE_KEYS = (
    "paper",
    "table",
    "title",
    "metric",
    "metrics",
    "priority",
    "seeds",
    "defaults",
    "rows",
    "columns",
    "stand_ins",
    "profiles",
    "run_at",
    "absent",
    "compare",
    "at_rounds",
    "record_metrics",
    "sites",
    "note",
)
_LINE_KEYS = ("name", "match", "printed", "not_testable", "note", "suffix", "metrics")


def read_table(path: Path) -> dict[str, Any]:
    """The fields of a `TableSpec`; whether its matches fit published.csv is for that to check.

    Raises InputError, naming the file and the key.
    """
    data, where = _stated(path), short(path)
    metrics = _metrics(data, where)
    defaults = Layer.read(data.get("defaults"), f"{where}, defaults")
    check_keys(defaults.fields, FIELDS - {"algorithm"}, defaults.where)
    rows = _lines(data["rows"], f"{where}, rows", _row, metrics)
    columns = _lines(data["columns"], f"{where}, columns", _column, metrics)
    for column in columns:
        if "dataset" not in column.fields and "dataset" not in defaults.fields:
            raise InputError(f"{where}, columns: {column.name!r} has no 'dataset'")
    names = tuple(row.name for row in rows), tuple(column.name for column in columns)
    return {
        "paper": data["paper"],
        "table": str(data["table"]),
        "title": _text(data["title"], f"{where}, title"),
        "metrics": metrics,
        "rows": rows,
        "columns": columns,
        "seeds": _seeds(data.get("seeds", [0, 1, 2]), where),
        "defaults": defaults,
        "stand_ins": _each(data.get("stand_ins"), f"{where}, stand_ins", _stand_in),
        "profiles": _profiles(data.get("profiles"), f"{where}, profiles"),
        "run_at": _names(data.get("run_at", list(PROFILES)), PROFILES, f"{where}, run_at"),
        "absent": _absences(data, where, (*names, metrics)),
        "compare": _compare(data.get("compare", "all"), names[0], where),
        "at_rounds": _truth(data.get("at_rounds", False), f"{where}, at_rounds"),
        "record_metrics": _each(data.get("record_metrics"), f"{where}, record_metrics", _text),
        "sites": _each(
            data.get("sites"), f"{where}, sites", lambda value, at: _each(value, at, _text)
        ),
        "priority": _whole(data.get("priority", 100), f"{where}, priority"),
        "note": _text(data["note"], f"{where}, note") if "note" in data else None,
        "path": path,
    }


def _stated(path: Path) -> dict[str, Any]:
    """What a table's file states, with no key that is unknown or missing, and the name of the file."""
    data, where = read_yaml(path), short(path)
    check_keys(data, _TABLE_KEYS, where)
    for key in ("paper", "table", "title", "rows", "columns"):
        if key not in data:
            raise InputError(f"{where} has no {key!r}")
    if (data["paper"], str(data["table"])) != (path.parent.name, path.stem):
        raise InputError(
            f"{where} says it is table {data['table']} of {data['paper']}; file and text must agree"
        )
    return data


Part = TypeVar("Part")


def _each(value: Any, where: str, read: Callable[[Any, str], Part]) -> dict[str, Part]:
    """A mapping of names to what is read of each."""
    found = as_mapping(value, where)
    return {name: read(one, f"{where}, {name}") for name, one in found.items()}


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where} must be a text, not {value!r}")
    return value.strip()


def _whole(value: Any, where: str) -> int:
    check_whole(where, value, 0)
    return value


def _truth(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{where} must be true or false, not {value!r}")
    return value


def _names(value: Any, known: tuple[str, ...], where: str) -> tuple[str, ...]:
    """A list of names that are known."""
    for name in as_list(value, where):
        if name not in known:
            raise unknown(f"name for {where}", name, known)
    return tuple(value)


def _metrics(data: dict[str, Any], where: str) -> tuple[str, ...]:
    if ("metric" in data) == ("metrics" in data):
        raise InputError(f"{where} must have either 'metric' or 'metrics'")
    given = [data["metric"]] if "metric" in data else as_list(data["metrics"], f"{where}, metrics")
    return _unique([_text(metric, f"{where}, metrics") for metric in given], f"{where}, metrics")


def _unique(names: list[str], where: str) -> tuple[str, ...]:
    """The names, which must differ even as parts of a command."""
    seen: dict[str, str] = {}
    for name in names:
        key = slug(name).lower()
        if not key:
            raise InputError(f"{where}: the name {name!r} has no letter or digit")
        if key in seen:
            raise InputError(
                f"{where}: the names {seen[key]!r} and {name!r} are the same in a command"
            )
        seen[key] = name
    return tuple(names)


def _seeds(value: Any, where: str) -> tuple[int, ...]:
    seeds = [
        _whole(seed, f"{where}, seeds: each seed") for seed in as_list(value, f"{where}, seeds")
    ]
    if len(set(seeds)) < len(seeds):
        raise InputError(f"{where}, seeds: a seed stands twice in {seeds}")
    return tuple(seeds)


def _lines(
    value: Any,
    where: str,
    read: Callable[[dict[str, Any], str, tuple[str, ...]], Line],
    metrics: tuple[str, ...],
) -> tuple[Line, ...]:
    lines = tuple(
        read(as_mapping(entry, f"{where}, each entry"), where, metrics)
        for entry in as_list(value, where)
    )
    _unique([line.name for line in lines], where)
    return lines


def _remarks(
    data: dict[str, Any], name: str, where: str, metrics: tuple[str, ...]
) -> dict[str, Any]:
    """What rows and columns have in common."""
    where = f"{where}, {name}"
    return {
        "name": name,
        "printed": _truth(data.get("printed", True), f"{where}, printed"),
        "match": as_mapping(data.get("match"), f"{where}, match"),
        "layer": Layer.read({key: value for key, value in data.items() if key in FIELDS}, where),
        "metrics": _names(data["metrics"], metrics, f"metrics of {where}")
        if "metrics" in data
        else None,
        **{
            key: _text(data[key], f"{where}, {key}")
            for key in ("not_testable", "note", "suffix")
            if key in data
        },
    }


def _row(data: dict[str, Any], where: str, metrics: tuple[str, ...]) -> Line:
    check_keys(data, FIELDS | set(_LINE_KEYS), f"a row in {where}")
    if "name" not in data:
        raise InputError(f"{where}: a row has no 'name': {data!r}")
    name = _text(data["name"], f"{where}, name")
    if "algorithm" not in data:
        raise InputError(f"{where}: the row {name!r} has no 'algorithm'")
    line = Line(**_remarks(data, name, where, metrics))
    return attrs.evolve(line, match={"method": data["algorithm"], **line.match})


def _column(data: dict[str, Any], where: str, metrics: tuple[str, ...]) -> Line:
    allowed = (FIELDS - {"algorithm"}) | {*_LINE_KEYS, "alpha", "beta", "settings_of", "seeds"}
    check_keys(data, allowed, f"a column in {where}")
    alpha = _alpha(data, where)
    if "name" not in data and "dataset" not in data:
        raise InputError(f"{where}: a column needs a 'name' or a 'dataset': {data!r}")
    if "dataset" in data:
        _text(data["dataset"], f"{where}: a column's dataset")
    name = data.get("name") or data["dataset"] + ("" if alpha is None else f"-{alpha:g}")
    if alpha is not None and "partition" not in data:
        data = {**data, "partition": {"name": "dirichlet", "alpha": alpha}}
    inside = f"{where}, {name}, settings_of"
    settings_of = _each(
        data.get("settings_of"), inside, lambda value, at: Layer.read({"settings": value}, at)
    )
    return Line(
        **_remarks(data, _text(name, f"{where}, name"), where, metrics),
        alpha=alpha,
        settings_of=settings_of,
        seeds=_seeds(data["seeds"], f"{where}, {name}") if "seeds" in data else None,
    )


def _alpha(data: dict[str, Any], where: str) -> float | None:
    """The concentration that a column states as `alpha`, as `beta` (FedVCK's name) or in its
    partition.
    """
    if "alpha" in data and "beta" in data:
        raise InputError(f"{where}: a column has 'alpha' and 'beta', which mean the same: {data!r}")
    alpha = data.get(
        "alpha",
        data.get("beta", as_mapping(data.get("partition"), f"{where}, partition").get("alpha")),
    )
    if alpha is None:
        return None
    check_number(f"{where}: alpha", alpha, 0, above=True)
    return float(alpha)


def _stand_in(value: Any, where: str) -> StandIn:
    data = {"dataset": value} if isinstance(value, str) else as_mapping(value, where)
    check_keys(data, (FIELDS - {"algorithm"}) | {"profiles"}, where)
    if "dataset" not in data:
        raise InputError(f"{where} has no 'dataset'")
    profiles = _names(data.get("profiles", ["laptop"]), PROFILES, f"profiles of {where}")
    fields = {key: value for key, value in data.items() if key != "profiles"}
    return StandIn(Layer.read(fields, where), profiles)


def _profiles(value: Any, where: str) -> dict[str, Overrides]:
    """What a table changes in each profile."""
    for name in as_mapping(value, where):
        if name not in PROFILES:
            raise unknown(f"profile ({where})", name, PROFILES)
    return _each(value, where, _profile)


def _profile(value: Any, where: str) -> Overrides:
    data = as_mapping(value, where)
    apart = ("models", "algorithms", "limits")
    check_keys(data, (FIELDS - {"algorithm"}) | set(apart), where)
    fields = {key: value for key, value in data.items() if key not in apart}
    return Overrides.read(Layer.read(fields, where), data, where)


def _absences(
    data: dict[str, Any], where: str, known: tuple[tuple[str, ...], ...]
) -> tuple[Absent, ...]:
    where = f"{where}, absent"
    given = as_list(data["absent"], where) if "absent" in data else ()
    return tuple(_absent(one, where, known) for one in given)


def _absent(value: Any, where: str, known: tuple[tuple[str, ...], ...]) -> Absent:
    data = as_mapping(value, where)
    check_keys(data, ("rows", "columns", "metrics", "reason", "run"), where)
    rows, columns, metrics = (
        _names(data[key], names, f"{key} of {where}") if key in data else None
        for key, names in zip(("rows", "columns", "metrics"), known, strict=True)
    )
    reason = _text(data.get("reason"), f"{where}, reason")
    return Absent(rows, columns, metrics, reason, _truth(data.get("run", True), f"{where}, run"))


def _compare(value: Any, rows: tuple[str, ...], where: str) -> str:
    known = ("all", "successive", "none", *rows)
    if value not in known:
        raise unknown(f"way to compare rows ({where}, compare)", value, known)
    return value
