"""The grid of runs behind each published table: `book/tables/<paper>/<table>.yaml` as objects.

A specification holds `paper`, `table`, `title`, `metric` or `metrics`, `priority` (lower first),
`seeds` (a column may state its own; `looked_at` is how many there were when verdicts were seen and more
were asked for), `defaults` (fields of an `Experiment`), `rows` and `columns`.
The `match` of a row and that of a column together pick one printed number out of `published.csv`,
whose `method` is the row's algorithm unless the row says otherwise. A table of which that file holds
nothing is the book's own.
`fedcon explain CELL` shows which part sets a value. Where they are needed: `substitutes` (a
data set at hand for one that is not), `profiles` (what a profile changes in this table), `run_at` (the
profiles at which the queue runs it: a choice of settings at one budget asks for no other), `absent`
(cells without a printed number), `sites` (by data set, which of its sites takes the place of which in
print), `compare` (which rows are compared), `at_rounds` (whether its headings say after how many
rounds), `unfair` (why it counts for no total and no claim), `choices` (other tables with another choice
of what the paper leaves open), `record_metrics` (the name in a record of a reported metric) and `note`.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import attrs
from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from core import algorithms
from core.checks import is_number
from core.data import partition
from core.errors import InputError, unknown
from core.models import check_options
from lab.experiment import PROFILES, Experiment
from lab.forms import (
    TABLES,
    Fields,
    Part,
    ProfileName,
    RowFields,
    Text,
    Whole,
    read,
    read_yaml,
    short,
)
from lab.overrides import Merged, Override, merge
from lab.profiles import Changes, Profile, budget_name
from lab.published import Published, join_match, match_one, of_table, read_published
from lab.record import Record, find


def slug(text: str) -> str:
    """A name as it stands in a command: letters, digits, dots, underscores and hyphens only.

    >>> slug("w.o. L_rc + P_w")
    'w.o.-L_rc-P_w'
    """
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-")


def same_name(name: str, other: str) -> bool:
    """Return whether two names are one: as in a table or in a command, in any case.

    >>> same_name("FedMK/2/w/o iteration", "fedmk/2/w-o-iteration")
    True
    """
    return slug(name).casefold() == slug(other).casefold()


def _unique(what: Callable[[Any], Any]) -> AfterValidator:
    """A validator of lists: entries differ, names even as parts of a command."""

    def check(entries: list) -> list:
        seen: dict[Any, Any] = {}
        for entry in map(what, entries):
            key = slug(entry).casefold() if isinstance(entry, str) else entry
            if key == "":
                raise InputError(f"the name {entry!r} has no letter or digit")
            if key in seen:
                raise InputError(f"{seen[key]!r} and {entry!r} are the same")
            seen[key] = entry
        return entries

    return AfterValidator(check)


Seeds = Annotated[list[Whole], Field(min_length=1), _unique(lambda seed: seed)]
Names = Annotated[list[Text], Field(min_length=1), _unique(lambda name: name)]


class Entry(Part):
    """A row or a column: a name, the fields of an experiment that it states, and what is said of it."""

    name: Text
    #: columns of published.csv and their values
    match: dict[str, Any] = Field({})
    #: False where the paper has no such row or column and the book adds it
    printed: bool = True
    #: why it cannot be run here: data that cannot be had
    not_testable: Text | None = None
    note: Text | None = None
    #: added to a metric's name to find it in a record, for example "@tnbc" for one of several test
    #: sets
    suffix: Text | None = None
    #: the metrics that this row or column has; None: all
    metrics: list[str] | None = None


class Row(Entry):
    """A method of a table, with the settings that the row is about."""

    fields: RowFields

    @model_validator(mode="after")
    def _match_method(self) -> Row:
        if "algorithm" not in self.fields:
            raise InputError("has no 'algorithm'")
        self.match = {"method": self.fields["algorithm"], **self.match}
        return self


class Column(Entry):
    """A data set and its partition, and what else a column of a table states."""

    fields: Fields = Field({})
    #: the Dirichlet concentration, which substitutes and the quick profile keep
    alpha: Annotated[float, Field(gt=0)] | None = None
    #: settings by algorithm, for what a method does differently on one data set
    settings_of: dict[str, dict[str, Any]] = Field({})
    #: seeds in place of the table's; None: those of the table
    seeds: Seeds | None = None
    #: numbers of seeds at which its verdicts were seen before more were asked for; None: those of the table
    looked_at: list[Whole] | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        """`alpha` may be `beta` (FedVCK) or stand in the partition, with or without its name."""
        if not isinstance(data, dict):
            return data
        if {"alpha", "beta"} <= set(data):
            raise InputError("alpha and beta mean the same")
        data = {("alpha" if key == "beta" else key): value for key, value in data.items()}
        stated = data.get("partition")
        if isinstance(stated, dict) and "alpha" in stated:
            data.setdefault("alpha", stated["alpha"])
        if not is_number(data.get("alpha")):
            return {"name": data.get("dataset"), **data} if "dataset" in data else data
        alpha = data["alpha"] = float(data["alpha"])
        name = {"name": f"{data['dataset']}-{alpha:g}"} if "dataset" in data else {}
        return {**name, "partition": {"name": "dirichlet", "alpha": alpha}, **data}


class Substitute(Part):
    """A data set at hand in the place of one that is not, and what changes with it."""

    fields: Fields
    profiles: Annotated[list[ProfileName], Field(min_length=1)] = Field(["laptop"])

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        return {"dataset": data} if isinstance(data, str) else data


class Choice(Part):
    """A choice of the book where the paper is silent, and the table that measures the other choice in columns
    of the same name; `rows` names a row there that is called otherwise.
    """

    of: Text
    table: int | str
    rows: dict[str, Text] = Field({})


class Absent(Part):
    """Cells without a printed number; None stands for all rows, columns or metrics."""

    rows: list[str] | None = None
    columns: list[str] | None = None
    metrics: list[str] | None = None
    reason: Text
    #: whether the cell is measured all the same
    run: bool = True

    def covers(self, row: str, column: str, metric: str) -> bool:
        """Return whether the cell is one of these."""
        return all(
            names is None or name in names
            for names, name in ((self.rows, row), (self.columns, column), (self.metrics, metric))
        )


class TableSpec(Part):
    """A published table as a grid of experiments."""

    path: Path
    paper: str
    table: str
    title: Text
    metrics: Names
    rows: Annotated[list[Row], Field(min_length=1), _unique(lambda row: row.name)]
    columns: Annotated[list[Column], Field(min_length=1), _unique(lambda column: column.name)]
    seeds: Seeds = Field([0, 1, 2])
    looked_at: list[Whole] = Field([])
    defaults: Fields = Field({})
    substitutes: dict[str, Substitute] = Field({})
    #: what each profile changes here beyond `profiles.yaml`
    profiles: dict[ProfileName, Changes] = Field({})
    #: the profiles at which the queue runs it
    run_at: Annotated[list[ProfileName], Field(min_length=1)] = Field(list(PROFILES))
    absent: list[Absent] = Field([])
    choices: list[Choice] = Field([])
    #: "all", "successive", "none", or the name of the row that every other row is compared with
    compare: str = "all"
    #: whether its headings say after how many rounds: a run that stops earlier does not stand there
    at_rounds: bool = False
    record_metrics: dict[str, Text] = Field({})
    sites: dict[str, dict[str, Text]] = Field({})
    priority: Whole = 100
    #: why, with less than the paper's budget or on other data, its rows are no fair comparison: then it
    #: counts for no total and no claim
    unfair: Text | None = None
    note: Text | None = None
    #: the numbers that the paper prints, by metric
    _published: dict[str, list[dict[str, str]]] = PrivateAttr(default_factory=dict)
    _cells: dict[str, tuple[Profile, list[Cell]]] = PrivateAttr(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        if ("metric" in data) == ("metrics" in data):
            raise InputError("give either 'metric' or 'metrics'")
        named = {"metrics": [data["metric"]]} if "metric" in data else {}
        rest = {key: value for key, value in data.items() if key != "metric"}
        return {**rest, **named, "paper": data["path"].parent.name, "table": data["path"].stem}

    @model_validator(mode="after")
    def _hangs_together(self) -> TableSpec:
        """Raise InputError for a name that is used and not there."""
        rows, columns = ([entry.name for entry in part] for part in (self.rows, self.columns))
        used: list[tuple[str, Sequence[str] | None, Collection[str]]]
        used = [("metric", entry.metrics, self.metrics) for entry in (*self.rows, *self.columns)]
        used += [("row", absent.rows, rows) for absent in self.absent]
        used += [("column", absent.columns, columns) for absent in self.absent]
        used += [("metric", absent.metrics, self.metrics) for absent in self.absent]
        used += [("way to compare rows", [self.compare], ["all", "successive", "none", *rows])]
        had = [algorithms.settings_fields(row.fields["algorithm"]) or () for row in self.rows]
        changed = [list(changes.fields.get("settings", ())) for changes in self.profiles.values()]
        used += [("setting of any row", names, set[str]().union(*had)) for names in changed]
        for kind, names, known in used:
            for name in names or ():
                if name not in known:
                    raise unknown(kind, name, known)
        for column in self.columns:
            if "dataset" not in {**self.defaults, **column.fields}:
                raise InputError(f"the column {column.name!r} has no 'dataset'")
        return self

    @property
    def metric(self) -> str:
        """The first metric, of most tables the only one."""
        return self.metrics[0]

    @classmethod
    def load(cls, path: Path) -> TableSpec:
        """Read a specification. InputError, naming file and key, for what is wrong in it."""
        spec = read(cls, {**read_yaml(path), "path": path}, short(path))
        for row in of_table(read_published(path.with_name("published.csv")), spec.table):
            spec._published.setdefault(row["metric"], []).append(row)
        for place in spec._places():
            spec._printed(*place)
        return spec

    @classmethod
    def all(cls, root: Path | None = None, paper: str = "*") -> list[TableSpec]:
        """Every specification, or those of one paper, most urgent first. InputError for one that is wrong."""
        specs = [_loaded(path) for path in sorted((root or TABLES).glob(f"{paper}/*.yaml"))]
        return sorted(specs, key=lambda spec: spec.priority)

    @classmethod
    def of_paper(cls, paper: str, root: Path | None = None) -> list[TableSpec]:
        """A paper's tables in printed order. InputError for an unknown paper."""
        papers = {path.parent.name for path in (root or TABLES).glob("*/*.yaml")}
        if paper not in papers:
            raise unknown("paper", paper, papers)
        return sorted(cls.all(root, paper), key=lambda spec: (len(spec.table), spec.table))

    @classmethod
    def find(cls, paper: str, table: str | int, root: Path | None = None) -> TableSpec:
        """One table; raises InputError for an unknown paper or table."""
        path = (root or TABLES) / paper / f"{table}.yaml"
        if not path.is_file():
            known = {spec.table for spec in cls.of_paper(paper, root)}
            raise unknown(f"table of {paper}", str(table), known)
        return _loaded(path)

    @classmethod
    def find_cell(cls, text: str, profile: str, root: Path | None = None) -> Cell:
        """The cell that PAPER/TABLE/ROW/COLUMN names, or PAPER/TABLE/ROW/COLUMN/METRIC, with the
        names as a table shows them or as `slug` writes them; case does not matter.

        Without a metric it is the first of the cell: all metrics come from the same runs. Raises
        InputError, with the nearest name, for an unknown one.
        """
        paper, table, rest = [*text.strip("/").split("/", 2), "", ""][:3]
        if "/" not in rest:
            raise InputError(f"a cell is PAPER/TABLE/ROW/COLUMN, see `fedcon table`, not {text!r}")
        cells = cls.find(paper, table, root).cells(profile)
        for cell in cells:  # as a whole: a name that a table shows may have a slash
            if any(same_name(rest, "/".join(cell.names[:many])) for many in (2, 3)):
                return cell
        known = {cell.address.split("/", 2)[2] for cell in cells}
        raise unknown(f"cell of {paper}/{table}", rest, known)

    def _places(self) -> Iterable[tuple[Row, Column, str, Absent | None]]:
        """Row, column and metric of every cell, row by row, without those that are not measured
        either, and why the paper has no number there, if so.
        """
        for row, column, metric in itertools.product(self.rows, self.columns, self.metrics):
            had = all(entry.metrics is None or metric in entry.metrics for entry in (row, column))
            covering = (
                cells for cells in self.absent if cells.covers(row.name, column.name, metric)
            )
            absent = next(covering, None)
            if had and (absent is None or absent.run):
                yield row, column, metric, absent

    def _printed(
        self, row: Row, column: Column, metric: str, absent: Absent | None
    ) -> Published | None:
        """The printed number; None where the paper has none, and in all of a table that it does not
        have. Raises InputError when `match` does not pick exactly one.
        """
        if not self._published or not row.printed or not column.printed or absent:
            return None
        where = f"{short(self.path)}, row {row.name!r}, column {column.name!r}, metric {metric!r}"
        return match_one(
            self._published.get(metric, []), join_match(row.match, column.match), where
        )

    def unit(self, metric: str) -> str:
        """The unit in which a metric is printed, or would be."""
        if rows := self._published.get(metric):
            return rows[0]["unit"]
        if metric.startswith("mia_") and "auc" in metric:
            return "auc"
        return "MB" if metric.startswith("upload_mb") else "percent"

    def pairs(self) -> list[tuple[str, str]]:
        """Names of the printed rows that a result's direction compares in every column."""
        names = [row.name for row in self.rows if row.printed]
        if self.compare == "all":
            return list(itertools.combinations(names, 2))
        if self.compare == "successive":
            return list(itertools.pairwise(names))
        if self.compare == "none":
            return []
        return [(name, self.compare) for name in names if name != self.compare]

    def cells(self, profile: str) -> list[Cell]:
        """Every cell with its runs at a profile, row by row. InputError for unknown profile or setting."""
        chosen = Profile.load(profile, self.path.parents[1])
        known = self._cells.get(profile)
        if known is None or known[0] is not chosen:
            known = self._cells[profile] = chosen, self._made(chosen)
        return list(known[1])

    def _made(self, profile: Profile) -> list[Cell]:
        pairs, cells = self.pairs(), list[Cell]()
        baselines = {
            row.name: tuple(b if a == row.name else a for a, b in pairs if row.name in (a, b))
            for row in self.rows
        }
        runs: dict[tuple[str, str], dict[str, Any]] = {}
        for row, column, metric, absent in self._places():
            if (line := (row.name, column.name)) not in runs:
                runs[line] = self._runs(row, column, profile)
            cells.append(
                Cell(
                    spec=self,
                    paper=self.paper,
                    table=self.table,
                    number=len(cells),
                    row=row.name,
                    row_entry=row,
                    column=column.name,
                    column_entry=column,
                    metric=metric,
                    unit=self.unit(metric),
                    absent=absent,
                    profile=profile.name,
                    published=self._printed(row, column, metric, absent),
                    baselines=baselines[row.name],
                    **runs[line],
                )
            )
        return cells

    def _runs(self, row: Row, column: Column, profile: Profile) -> dict[str, Any]:
        """Common parts of the cells of a row and a column: `merged`, `experiments`, `substitute`."""
        at, algorithm = short(self.path), row.fields["algorithm"]
        in_row, in_column = f"{at}, rows, {row.name}", f"{at}, columns, {column.name}"
        parts = [Override(f"{at}, defaults", self.defaults), Override(in_column, column.fields)]
        if own := column.settings_of.get(algorithm):
            parts.append(Override(f"{in_column}, settings_of, {algorithm}", {"settings": own}))
        parts.append(Override(in_row, row.fields))
        asked = {**self.defaults, **column.fields, **row.fields}["dataset"]
        substitute = self.substitutes.get(asked)
        if substitute and profile.name in substitute.profiles:
            parts.append(Override(f"{at}, substitutes, {asked}", substitute.fields, fitting=True))
        parts += profile.overrides(algorithm, profile.where)
        if changes := self.profiles.get(profile.name):
            parts += changes.overrides(algorithm, f"{at}, profiles, {profile.name}")
        if "settings" in row.fields:  # a profile changes the budget, never what a row is about
            parts.append(Override(in_row, {"settings": row.fields["settings"]}))
        try:
            merged = merge(parts, column.alpha)
            runs = tuple(
                Experiment.from_dict({**merged.fields, "seed": seed, "profile": profile.name})
                for seed in column.seeds or self.seeds
            )
            partition.parse(runs[0].partition)
            check_options(runs[0].model, runs[0].model_options)
            runs[0].new_algorithm()  # it says which value it cannot take
        except InputError as error:
            where = f"{at}, row {row.name!r}, column {column.name!r}"
            raise InputError(f"{where}, profile {profile.name}: {error}") from None
        used, replaced = runs[0].dataset, None
        if used != asked:
            sites = ", ".join(f"{m} for {t}" for t, m in self.sites.get(used, {}).items())
            replaced = f"{used} in place of {asked}" + (f" ({sites})" if sites else "")
        return {"merged": merged, "experiments": runs, "substitute": replaced}


def _loaded(path: Path) -> TableSpec:
    """A specification, which is read again only when it, or the printed numbers, have changed."""
    both = (path, path.with_name("published.csv"))
    return _read(path, tuple(file.stat().st_mtime_ns for file in both if file.exists()))


@functools.lru_cache(maxsize=256)
def _read(path: Path, _stamps: tuple[int, ...]) -> TableSpec:
    return TableSpec.load(path)


#: how the names of metrics begin of which less is better
LESS = (
    *("condensation_ratio", "emd", "hd95", "upload"),
    *("mia_auc", "mia_nearest", "mia_server_auc", "mia_tpr"),
)


@attrs.frozen(eq=False, kw_only=True)
class Cell:
    """One number of a table: what is printed, and the runs that measure it at one profile."""

    spec: TableSpec = attrs.field(repr=False)
    paper: str
    table: str
    #: its place among the table's cells
    number: int
    row: str
    row_entry: Row
    column: str
    column_entry: Column
    #: what is measured, as the table names it, and the paper's unit
    metric: str
    unit: str
    #: why the paper has no number here, if so
    absent: Absent | None
    profile: str
    #: what its experiments are merged from; they differ in the seed only
    merged: Merged
    experiments: tuple[Experiment, ...]
    #: None where the paper prints nothing
    published: Published | None
    #: which data set is measured in the place of which
    substitute: str | None
    #: the rows that this one is compared with in its column
    baselines: tuple[str, ...]

    @property
    def names(self) -> tuple[str, str, str]:
        """Row, column and metric."""
        return self.row, self.column, self.metric

    @property
    def better(self) -> str:
        """The better values, "higher" or "lower": as the paper has it, else by what is measured."""
        if self.published:
            return self.published.better
        return "lower" if self.metric.startswith(LESS) else "higher"

    @property
    def record_metric(self) -> str:
        """The metric's name in a record: what is measured, where, and for whose model."""
        name = self.spec.record_metrics.get(self.metric, self.metric)
        sites = self.spec.sites.get(self.experiments[0].dataset, {})
        where = [entry.suffix for entry in (self.column_entry, self.row_entry) if entry.suffix]
        return name + "".join(suffix[0] + sites.get(suffix[1:], suffix[1:]) for suffix in where)

    @property
    def priority(self) -> int:
        """Lower is more urgent."""
        return 1000 * self.spec.priority + self.number

    @property
    def looks(self) -> int:
        """Number of times that its values are compared with the paper, at last with all seeds."""
        before = self.column_entry.looked_at
        return 1 + len(self.spec.looked_at if before is None else before)

    def alternatives(self) -> list[tuple[str, Cell]]:
        """Choices of the book, with the cell that measures another choice at the same profile."""
        others, root = [], self.spec.path.parents[1]
        for choice in self.spec.choices:
            place = (choice.rows.get(self.row, self.row), self.column, self.metric)
            cells = TableSpec.find(self.paper, choice.table, root).cells(self.profile)
            others += [(choice.of, cell) for cell in cells if cell.names == place]
        return others

    @property
    def scaled(self) -> bool:
        """True where its runs differ from those at the profile `paper` in more than its name."""
        full = self.spec.cells("paper")[self.number].experiments[0]
        return attrs.evolve(self.experiments[0], profile="paper") != full

    @property
    def not_testable(self) -> str | None:
        """Reason why this cannot be run here."""
        return self.row_entry.not_testable or self.column_entry.not_testable

    @property
    def cut(self) -> str | None:
        """Reason why its runs do not count: they stop before the rounds of its heading."""
        stated = {**self.spec.defaults, **self.column_entry.fields}.get("rounds", 0)
        run = self.experiments[0].rounds
        if not self.spec.at_rounds or run >= stated:
            return None
        return f"the {self.profile} profile stops after {run} of {stated} rounds"

    @property
    def note(self) -> str | None:
        """Remarks of the specification."""
        said = [self.row_entry.note, self.column_entry.note]
        said += [self.absent.reason] if self.absent else []
        return "; ".join(filter(None, said)) or None

    @property
    def address(self) -> str:
        """PAPER/TABLE/ROW/COLUMN, and /METRIC in a table with several metrics; safe in a shell."""
        metric = [self.metric] if len(self.spec.metrics) > 1 else []
        parts = [self.paper, self.table, self.row, self.column, *metric]
        return "/".join(slug(part) for part in parts)

    def experiments_of(
        self, seeds: Collection[int] | None, any_seed: bool = False
    ) -> list[Experiment]:
        """The experiments of these seeds; None: all. Raises InputError for a seed that the table does
        not have, unless `any_seed` may be taken.
        """
        known = {run.seed: run for run in self.experiments}
        for seed in seeds or ():
            if seed not in known and not any_seed:
                raise InputError(
                    f"{self.address} has the seeds {', '.join(map(str, known))}, not {seed}; `check`, "
                    "and `run` with --out, take any"
                )
        first, wanted = self.experiments[0], known if seeds is None else dict.fromkeys(seeds)
        return [known.get(seed) or attrs.evolve(first, seed=seed) for seed in wanted]

    def records(self, known: Mapping[str, Record]) -> list[Record]:
        """Records of it among complete ones by id, in the order of the seeds."""
        return [record for run in self.experiments if (record := find(known, run))]

    def siblings(self) -> list[Cell]:
        """The cells of the same runs, this one among them: one for each metric."""
        cells = self.spec.cells(self.profile)
        return [cell for cell in cells if cell.names[:2] == self.names[:2]]

    def command(self) -> str:
        """The command that runs this cell, all seeds."""
        return f"fedcon run --cell {self.address} --profile {budget_name(self.profile)}"
