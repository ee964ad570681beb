"""The grid of runs behind each published table: `book/tables/<paper>/<table>.yaml` as objects.

A specification holds `paper`, `table`, `title`, `metric` or `metrics`, `priority` (lower first),
`seeds`, `defaults` (fields of an `Experiment`), `rows` and `columns`. Every row and column has a
`match`; the two together pick one printed number out of `published.csv`. Where they are needed:
`stand_ins` (a data set at hand for one that is not), `profiles` (what a profile changes in this
table), `absent` (cells without a printed number), `compare` (which rows are compared),
`record_metrics` (the name in a record of a metric in print) and `note`.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from core.errors import InputError, unknown
from core.experiments.experiment import Experiment
from core.experiments.profiles import Overrides, Profile
from core.experiments.spec import (
    TABLES,
    Published,
    applicable,
    join_match,
    match_one,
    merged,
    read_published,
    replaced,
    short,
)


def slug(text: str) -> str:
    """A name as it stands in a command: letters, digits, dots, underscores and hyphens only.

    >>> slug("w.o. L_rc + P_w")
    'w.o.-L_rc-P_w'
    """
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-")


@attrs.frozen(eq=False)
class Line:
    """A row or a column of a table: a name, the fields of an experiment that it states, and what is
    said about it.
    """

    name: str
    fields: dict[str, Any]
    #: columns of published.csv and their values
    match: dict[str, Any]
    #: False where the paper has no such row or column and the book adds it
    printed: bool = True
    #: why it cannot be run here: data that cannot be had
    not_testable: str | None = None
    #: what must be written before it can be run
    needs: str | None = None
    note: str | None = None
    #: added to a metric's name to find it in a record, for example "@tnbc" for one of several test
    #: sets
    suffix: str = ""
    #: the metrics that this row or column has; None: all
    metrics: tuple[str, ...] | None = None
    #: columns only: the Dirichlet concentration, which stand-ins and the quick profile keep
    alpha: float | None = None
    #: columns only: settings by algorithm, for what a method does differently on one data set
    settings_of: dict[str, dict[str, Any]] = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class StandIn:
    """A data set at hand in the place of one that is not, and what changes with it."""

    fields: dict[str, Any]
    profiles: tuple[str, ...]


@attrs.frozen(eq=False)
class Absent:
    """Cells of the grid for which the paper prints no number; None stands for all rows, columns or
    metrics.
    """

    rows: tuple[str, ...] | None
    columns: tuple[str, ...] | None
    metrics: tuple[str, ...] | None
    reason: str
    #: whether the cell is measured all the same
    run: bool

    def covers(self, row: str, column: str, metric: str) -> bool:
        """Whether the cell is one of these."""
        return all(
            names is None or name in names
            for names, name in ((self.rows, row), (self.columns, column), (self.metrics, metric))
        )


@attrs.frozen(eq=False)
class Cell:
    """One number of a table: what is printed, and the runs that measure it at one profile."""

    paper: str
    table: str
    row: str
    column: str
    metric: str
    #: the metric's name in a record
    record_metric: str
    #: None where the paper prints nothing
    published: Published | None
    unit: str
    profile: str
    #: one per seed
    experiments: tuple[Experiment, ...]
    #: lower is more urgent
    priority: int
    #: why this cannot be run here
    not_testable: str | None
    #: which data set is measured in the place of which
    stand_in: str | None
    #: what must be written before it can be run
    needs: str | None
    note: str | None
    #: the rows that this one is compared with in its column
    rivals: tuple[str, ...]
    several_metrics: bool

    @property
    def implemented(self) -> bool:
        """Whether the algorithm is in the registry and all else that the cell needs is there."""
        from core.algorithms import names

        return self.needs is None and self.experiments[0].algorithm in names()

    @property
    def address(self) -> str:
        """PAPER/TABLE/ROW/COLUMN, and /METRIC in a table with several metrics; safe in a shell."""
        parts = [
            self.paper,
            self.table,
            self.row,
            self.column,
            *([self.metric] if self.several_metrics else []),
        ]
        return "/".join(slug(part) for part in parts)

    def command(self) -> str:
        """The command that runs this cell, all seeds."""
        return f"python -m core run --cell {self.address} --profile {self.profile}"


@attrs.frozen(eq=False)
class TableSpec:
    """A published table as a grid of experiments."""

    paper: str
    table: str
    title: str
    metrics: tuple[str, ...]
    rows: tuple[Line, ...]
    columns: tuple[Line, ...]
    seeds: tuple[int, ...]
    defaults: dict[str, Any]
    stand_ins: dict[str, StandIn]
    #: what each profile changes here beyond `profiles.yaml`
    profiles: dict[str, Overrides]
    absent: tuple[Absent, ...]
    #: "all", "successive", or the name of the row that every other row is compared with
    compare: str
    record_metrics: dict[str, str]
    priority: int
    note: str | None
    path: Path

    @property
    def metric(self) -> str:
        """The first metric, of most tables the only one."""
        return self.metrics[0]

    @classmethod
    def load(cls, path: Path) -> TableSpec:
        """Read a specification. Raises InputError, naming file and key, for anything that is wrong
        in it.
        """
        from core.experiments.checks import parse

        spec = parse(path)
        for row, column, metric in spec.grid():
            spec.printed(row, column, metric)
        return spec

    @classmethod
    def all(cls, root: Path | None = None) -> list[TableSpec]:
        """Every specification, most urgent first."""
        paths = sorted((root or TABLES).glob("*/*.yaml"))
        return sorted(
            (_cached(path, path.stat().st_mtime_ns) for path in paths),
            key=lambda spec: spec.priority,
        )

    @classmethod
    def of_paper(cls, paper: str, root: Path | None = None) -> list[TableSpec]:
        """A paper's tables in printed order; raises InputError for an unknown paper."""
        specs = cls.all(root)
        if paper not in {spec.paper for spec in specs}:
            raise unknown("paper", paper, {spec.paper for spec in specs})
        return sorted(
            (spec for spec in specs if spec.paper == paper),
            key=lambda spec: (len(spec.table), spec.table),
        )

    @classmethod
    def find(cls, paper: str, table: str | int, root: Path | None = None) -> TableSpec:
        """One table; raises InputError for an unknown paper or table."""
        specs = {spec.table: spec for spec in cls.of_paper(paper, root)}
        if str(table) not in specs:
            raise unknown(f"table of {paper}", str(table), specs)
        return specs[str(table)]

    @classmethod
    def find_cell(cls, text: str, profile: str, root: Path | None = None) -> Cell:
        """The cell that PAPER/TABLE/ROW/COLUMN names, or PAPER/TABLE/ROW/COLUMN/METRIC; case does
        not matter.

        Without a metric it is the first of the cell: all metrics come from the same runs. Raises
        InputError, with the nearest name, for an unknown one.
        """
        parts = text.strip("/").split("/")
        if len(parts) not in (4, 5):
            raise InputError(f"a cell is PAPER/TABLE/ROW/COLUMN, not {text!r}")
        spec = cls.find(parts[0], parts[1], root)
        found = [
            ((row.name, column.name, metric), place)
            for place, (row, column, metric) in enumerate(spec.grid())
        ]
        where = f"{parts[0]}/{parts[1]}"
        for i, part in enumerate(parts[2:]):
            known = {slug(names[i]) for names, _ in found}
            found = [one for one in found if slug(one[0][i]).lower() == part.lower()]
            if not found:
                raise unknown(f"{('row', 'column', 'metric')[i]} of {where}", part, known)
            where += f"/{part}"
        return spec._cells(profile, {found[0][1]})[0]

    def grid(self) -> Iterator[tuple[Line, Line, str]]:
        """Row, column and metric of every cell, row by row, without those that are not measured
        either.
        """
        for row in self.rows:
            for column in self.columns:
                for metric in self.metrics:
                    had = all(
                        line.metrics is None or metric in line.metrics for line in (row, column)
                    )
                    absent = self._absent(row, column, metric)
                    if had and (absent is None or absent.run):
                        yield row, column, metric

    def printed(self, row: Line, column: Line, metric: str) -> Published | None:
        """The printed number; raises InputError when `match` does not pick exactly one."""
        if not row.printed or not column.printed or self._absent(row, column, metric):
            return None
        where = f"{short(self.path)}, row {row.name!r}, column {column.name!r}, metric {metric!r}"
        return match_one(
            self._published().get(metric, []), join_match(row.match, column.match), where
        )

    def pairs(self) -> list[tuple[str, str]]:
        """Names of the rows that are compared with each other in every column, for the direction of
        a result.
        """
        names = [row.name for row in self.rows]
        if self.compare == "all":
            return [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
        if self.compare == "successive":
            return list(itertools.pairwise(names))
        return [(name, self.compare) for name in names if name != self.compare]

    def cells(self, profile: str) -> list[Cell]:
        """Every cell with its runs at a profile, row by row. Raises InputError for an unknown
        profile or setting.
        """
        return self._cells(profile, None)

    def _cells(self, profile: str, places: set[int] | None) -> list[Cell]:
        """The cells at these places of the grid; None: all."""
        chosen = Profile.load(profile, self.path.parents[1])
        self._check_profile_settings(chosen)
        found: list[Cell] = []
        runs: dict[tuple[str, str], tuple[Experiment, ...]] = {}
        pairs = self.pairs()
        rivals = {
            row.name: tuple(b if a == row.name else a for a, b in pairs if row.name in (a, b))
            for row in self.rows
        }
        for place, (row, column, metric) in enumerate(self.grid()):
            if places is not None and place not in places:
                continue
            key = (row.name, column.name)
            if key not in runs:
                runs[key] = self._experiments(row, column, chosen)
            absent = self._absent(row, column, metric)
            notes = [
                text for text in (row.note, column.note, absent.reason if absent else None) if text
            ]
            found.append(
                Cell(
                    self.paper,
                    self.table,
                    row.name,
                    column.name,
                    metric,
                    self.record_metrics.get(metric, metric) + row.suffix + column.suffix,
                    self.printed(row, column, metric),
                    self._unit(metric),
                    profile,
                    runs[key],
                    1000 * self.priority + place,
                    row.not_testable or column.not_testable,
                    self._stand_in(row, column, runs[key][0]),
                    row.needs or column.needs,
                    "; ".join(notes) or None,
                    rivals[row.name],
                    len(self.metrics) > 1,
                )
            )
        return found

    def _experiments(self, row: Line, column: Line, profile: Profile) -> tuple[Experiment, ...]:
        where = f"{short(self.path)}, row {row.name!r}, column {column.name!r}"
        fields = self._stated(row, column)
        algorithm = fields["algorithm"]
        self._check_settings(fields, algorithm, where)
        stand_in = self.stand_ins.get(fields["dataset"])
        if stand_in and profile.name in stand_in.profiles:
            fields = replaced(fields, applicable(stand_in.fields, algorithm), column.alpha)
        fields = profile.overrides.over(fields, column.alpha)
        if profile.name in self.profiles:
            fields = self.profiles[profile.name].over(fields, column.alpha)
        # a profile changes the budget, never what a row is about
        fields = merged(fields, {"settings": row.fields.get("settings", {})})
        try:
            return tuple(
                Experiment.from_dict({**fields, "seed": seed, "profile": profile.name})
                for seed in self.seeds
            )
        except InputError as error:
            raise InputError(f"{where}, profile {profile.name}: {error}") from None

    def _stated(self, row: Line, column: Line) -> dict[str, Any]:
        """The fields at the paper's own budget: defaults < column < row."""
        algorithm = row.fields["algorithm"]
        own = {"settings": column.settings_of[algorithm]} if algorithm in column.settings_of else {}
        return merged(self.defaults, column.fields, own, row.fields)

    def _check_settings(self, fields: Mapping[str, Any], algorithm: str, where: str) -> None:
        from core.algorithms import settings_fields

        known = settings_fields(algorithm)
        for key in fields.get("settings", {}):
            if known is not None and key not in known:
                raise unknown(f"setting of {algorithm} ({where})", key, known)

    def _check_profile_settings(self, profile: Profile) -> None:
        from core.algorithms import names, settings_fields

        own = self.profiles[profile.name].settings() if profile.name in self.profiles else set()
        extra = own - profile.overrides.settings()
        if extra:
            known: set[str] = set().union(*(settings_fields(name) or set() for name in names()))
            for key in sorted(extra - known):
                raise unknown(
                    f"setting of any algorithm ({short(self.path)}, profiles, {profile.name})",
                    key,
                    known,
                )

    def _stand_in(self, row: Line, column: Line, run: Experiment) -> str | None:
        asked = self._stated(row, column)["dataset"]
        return None if run.dataset == asked else f"{run.dataset} in place of {asked}"

    def _absent(self, row: Line, column: Line, metric: str) -> Absent | None:
        return next((one for one in self.absent if one.covers(row.name, column.name, metric)), None)

    def _published(self) -> dict[str, list[dict[str, str]]]:
        path = self.path.with_name("published.csv")
        return _by_metric(path, self.table, path.stat().st_mtime_ns if path.exists() else 0)

    def _unit(self, metric: str) -> str:
        rows = self._published().get(metric)
        return rows[0]["unit"] if rows else "percent"


@functools.lru_cache(maxsize=256)
def _cached(path: Path, _stamp: int) -> TableSpec:
    return TableSpec.load(path)


@functools.lru_cache(maxsize=256)
def _by_metric(path: Path, table: str, _stamp: int) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for row in read_published(path):
        if row["table"] == table:
            found.setdefault(row["metric"], []).append(row)
    return found
