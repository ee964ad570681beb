"""The grid of runs behind each published table: `book/tables/<paper>/<table>.yaml` as objects.

A specification holds `paper`, `table`, `title`, `metric` or `metrics`, `priority` (lower first),
`seeds` (a column may state its own), `defaults` (fields of an `Experiment`), `rows` and `columns`.
The `match` of a row and that of a column together pick one printed number out of `published.csv`,
whose `method` is the row's algorithm unless the row says otherwise. A table of which that file holds
nothing is the book's own.
`fedcon explain CELL` shows which part sets a value. Where they are needed: `stand_ins` (a
data set at hand for one that is not), `profiles` (what a profile changes in this table), `run_at` (the
profiles at which the queue runs it: a choice of settings at one budget asks for no other), `absent`
(cells without a printed number), `sites` (by data set, which of its sites takes the place of which in
print), `compare` (which rows are compared), `at_rounds` (whether its
headings say after how many rounds), `record_metrics` (the name in a record of a metric in print)
and `note`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from core import algorithms
from core.data import partition
from core.errors import InputError, unknown
from core.models import check_options, every_name
from lab.cell import Cell, Place
from lab.experiment import PROFILES, Experiment
from lab.layers import Layer, Stack
from lab.lines import Absent, Line, StandIn, same_name, slug
from lab.profiles import Overrides, Profile
from lab.reading import read_table
from lab.spec import (
    TABLES,
    Published,
    join_match,
    match_one,
    of_table,
    read_published,
    short,
)


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
    defaults: Layer
    stand_ins: dict[str, StandIn]
    #: what each profile changes here beyond `profiles.yaml`
    profiles: dict[str, Overrides]
    #: the profiles at which the queue runs it
    run_at: tuple[str, ...]
    absent: tuple[Absent, ...]
    #: "all", "successive", "none", or the name of the row that every other row is compared with
    compare: str
    #: whether its headings say after how many rounds: a run that stops earlier does not stand there
    at_rounds: bool
    record_metrics: dict[str, str]
    sites: dict[str, dict[str, str]]
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
        spec = cls(**read_table(path))
        for place in spec.grid():
            spec.printed(place)
        return spec

    @classmethod
    def all(cls, root: Path | None = None, paper: str = "*") -> list[TableSpec]:
        """Every specification, or those of one paper, most urgent first. Raises InputError for one
        that is wrong, or is called `.yml`: it would be read by nothing.
        """
        for path in (root or TABLES).glob(f"{paper}/*.yml"):
            raise InputError(f"{short(path)} is not read: call it {path.stem}.yaml")
        paths = sorted((root or TABLES).glob(f"{paper}/*.yaml"))
        return sorted(
            (_cached(path, path.stat().st_mtime_ns) for path in paths),
            key=lambda spec: spec.priority,
        )

    @classmethod
    def of_paper(cls, paper: str, root: Path | None = None) -> list[TableSpec]:
        """A paper's tables in printed order, whatever is wrong with another's; raises InputError for
        an unknown paper.
        """
        papers = {path.parent.name for path in (root or TABLES).glob("*/*.yaml")}
        if paper not in papers:
            raise unknown("paper", paper, papers)
        return sorted(cls.all(root, paper), key=lambda spec: (len(spec.table), spec.table))

    @classmethod
    def find(cls, paper: str, table: str | int, root: Path | None = None) -> TableSpec:
        """One table; raises InputError for an unknown paper or table."""
        specs = {spec.table: spec for spec in cls.of_paper(paper, root)}
        if str(table) not in specs:
            raise unknown(f"table of {paper}", str(table), specs)
        return specs[str(table)]

    @classmethod
    def ids(cls, root: Path | None = None) -> set[str]:
        """The ids of all experiments that a cell of any table shows, at every profile."""
        return {
            run.id
            for spec in cls.all(root)
            for profile in PROFILES
            for cell in spec.cells(profile)
            for run in cell.experiments
        }

    @classmethod
    def find_cell(cls, text: str, profile: str, root: Path | None = None) -> Cell:
        """The cell that PAPER/TABLE/ROW/COLUMN names, or PAPER/TABLE/ROW/COLUMN/METRIC, with the
        names as a table shows them or as `slug` writes them; case does not matter.

        Without a metric it is the first of the cell: all metrics come from the same runs. Raises
        InputError, with the nearest name, for an unknown one.
        """
        parts = text.strip("/").split("/")
        if len(parts) < 4:
            raise InputError(f"a cell is PAPER/TABLE/ROW/COLUMN, not {text!r}")
        spec = cls.find(parts[0], parts[1], root)
        found = [
            ((place.row.name, place.column.name, place.metric), place) for place in spec.grid()
        ]
        rest, where = "/".join(parts[2:]), f"{parts[0]}/{parts[1]}"
        for names, place in found:  # as a whole: a name that a table shows may have a slash
            if any(same_name(rest, "/".join(names[:many])) for many in (2, 3)):
                return spec.at(profile, [place])[0]
        for i, part in enumerate(parts[2:5]):
            known = {slug(names[i]) for names, _ in found}
            found = [one for one in found if same_name(one[0][i], part)]
            if not found:
                raise unknown(f"{('row', 'column', 'metric')[i]} of {where}", part, known)
            where += f"/{part}"
        raise InputError(f"a cell is PAPER/TABLE/ROW/COLUMN, not {text!r}")

    def grid(self) -> list[Place]:
        """The place of every cell, row by row, without those that are not measured either."""
        places: list[Place] = []
        for row, column, metric in itertools.product(self.rows, self.columns, self.metrics):
            had = all(line.metrics is None or metric in line.metrics for line in (row, column))
            covering = (one for one in self.absent if one.covers(row.name, column.name, metric))
            absent = next(covering, None)
            if had and (absent is None or absent.run):
                places.append(Place(len(places), row, column, metric, absent))
        return places

    def printed(self, place: Place) -> Published | None:
        """The printed number; None where the paper has none, and in all of a table that it does not
        have. Raises InputError when `match` does not pick exactly one.
        """
        rows, row, column = self._published(), place.row, place.column
        if not rows or not row.printed or not column.printed or place.absent:
            return None
        where = (
            f"{short(self.path)}, row {row.name!r}, column {column.name!r}, metric {place.metric!r}"
        )
        return match_one(rows.get(place.metric, []), join_match(row.match, column.match), where)

    def unit(self, metric: str) -> str:
        """The unit in which a metric is printed, or would be."""
        if rows := self._published().get(metric):
            return rows[0]["unit"]
        if metric.startswith(("mia_auc", "mia_server_auc")):
            return "auc"
        return "MB" if metric.startswith("upload_mb") else "percent"

    def pairs(self) -> list[tuple[str, str]]:
        """Names of the rows that are compared with each other in every column, for the direction of
        a result: rows that a paper prints.
        """
        names = [row.name for row in self.rows if row.printed]
        if self.compare == "all":
            return [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
        if self.compare == "successive":
            return list(itertools.pairwise(names))
        if self.compare == "none":
            return []
        return [(name, self.compare) for name in names if name != self.compare]

    def cells(self, profile: str) -> list[Cell]:
        """Every cell with its runs at a profile, row by row. Raises InputError for an unknown
        profile or setting.
        """
        chosen = Profile.load(profile, self.path.parents[1])
        return list(_all_cells(self, chosen, self._stamp()))

    def at(self, profile: str, places: list[Place]) -> list[Cell]:
        """The cells at these places of the grid; `cells` gives all, and keeps them."""
        chosen = Profile.load(profile, self.path.parents[1])
        self._check_profile_settings(chosen)
        pairs = self.pairs()
        rivals = {
            row.name: tuple(b if a == row.name else a for a, b in pairs if row.name in (a, b))
            for row in self.rows
        }
        lines = dict.fromkeys((place.row, place.column) for place in places)
        runs = {pair: self._runs(*pair, chosen) for pair in lines}
        return [
            Cell(
                spec=self,
                place=place,
                profile=profile,
                published=self.printed(place),
                rivals=rivals[place.row.name],
                **runs[place.row, place.column],
            )
            for place in places
        ]

    def _runs(self, row: Line, column: Line, profile: Profile) -> dict[str, Any]:
        """What the cells of a row and a column have in common: `stack`, `experiments` and
        `stand_in`.
        """
        where = f"{short(self.path)}, row {row.name!r}, column {column.name!r}"
        algorithm = row.fields["algorithm"]
        own = column.settings_of.get(algorithm, Layer("", {}))
        stated = Stack(column.alpha)
        for layer in (self.defaults, column.layer, own, row.layer):
            stated = stated.put(layer)
        self._check_settings(stated.fields, algorithm, where)
        stack, asked = stated, stated.fields["dataset"]
        stand_in = self.stand_ins.get(asked)
        if stand_in and profile.name in stand_in.profiles:
            stack = stack.put(stand_in.layer.applicable(algorithm))
        stack = profile.overrides.over(stack)
        if profile.name in self.profiles:
            stack = self.profiles[profile.name].over(stack)
        if "settings" in row.fields:
            # a profile changes the budget, never what a row is about
            stack = stack.put(Layer(row.layer.where, {"settings": row.fields["settings"]}))
        try:
            experiments = tuple(
                Experiment.from_dict({**stack.fields, "seed": seed, "profile": profile.name})
                for seed in column.seeds or self.seeds
            )
            partition.stated(experiments[0].partition)
            check_options(experiments[0].model, experiments[0].model_options)
            if algorithm in algorithms.names():  # it says which value it cannot take
                experiments[0].new_algorithm()
        except InputError as error:
            raise InputError(f"{where}, profile {profile.name}: {error}") from None
        used = experiments[0].dataset
        replaced = None if used == asked else f"{used} in place of {asked}"
        if replaced and used in self.sites:
            pairs = [f"{mine} for {theirs}" for theirs, mine in self.sites[used].items()]
            replaced += f" ({', '.join(pairs)})"
        return {"stack": stack, "experiments": experiments, "stand_in": replaced}

    def _check_settings(self, fields: Mapping[str, Any], algorithm: str, where: str) -> None:
        """Raise InputError for a network that is not here, and for a setting that an algorithm does not
        have; one that is not written yet may have any.
        """
        known = algorithms.settings_fields(algorithm)
        for key in fields.get("settings", {}):
            if known is not None and key not in known:
                raise unknown(f"setting of {algorithm} ({where})", key, known)
        if fields.get("model") not in (None, *every_name()):
            raise unknown(f"model ({where})", fields["model"], every_name())

    def _check_profile_settings(self, profile: Profile) -> None:
        own = self.profiles[profile.name].settings() if profile.name in self.profiles else set()
        if extra := own - profile.overrides.settings():
            known: set[str] = set().union(
                *(algorithms.settings_fields(name) or set() for name in algorithms.names())
            )
            for key in sorted(extra - known):
                raise unknown(
                    f"setting of any algorithm ({short(self.path)}, profiles, {profile.name})",
                    key,
                    known,
                )

    def _published(self) -> dict[str, list[dict[str, str]]]:
        return _by_metric(self.path.with_name("published.csv"), self.table, self._stamp())

    def _stamp(self) -> int:
        """When the printed numbers were last written."""
        path = self.path.with_name("published.csv")
        return path.stat().st_mtime_ns if path.exists() else 0


@functools.lru_cache(maxsize=256)
def _cached(path: Path, _stamp: int) -> TableSpec:
    return TableSpec.load(path)


@functools.lru_cache(maxsize=1024)
def _all_cells(spec: TableSpec, profile: Profile, _stamp: int) -> tuple[Cell, ...]:
    return tuple(spec.at(profile.name, spec.grid()))


@functools.lru_cache(maxsize=256)
def _by_metric(path: Path, table: str, _stamp: int) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for row in of_table(read_published(path), table):
        found.setdefault(row["metric"], []).append(row)
    return found
