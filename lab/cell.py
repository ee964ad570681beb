"""A cell of a published table: what is printed there, and the runs that measure it."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import attrs

from core import algorithms
from core.errors import InputError
from lab.experiment import Experiment
from lab.layers import Stack
from lab.lines import Absent, Line, slug
from lab.spec import Published

if TYPE_CHECKING:
    from lab.grid import TableSpec


@attrs.frozen(eq=False)
class Place:
    """Where a cell stands in the grid of its table."""

    number: int
    row: Line
    column: Line
    metric: str
    #: why the paper has no number here, if so
    absent: Absent | None

    def said(self, kind: str) -> list[str]:
        """What row, column and absence say as `note` or `not_testable`."""
        texts = [getattr(line, kind) for line in (self.row, self.column)]
        texts += [self.absent.reason] if self.absent and kind == "note" else []
        return [text for text in texts if text]


#: how the names of metrics begin of which less is better
LESS = ("condensation_ratio", "emd", "hd95", "mia_auc", "mia_server_auc", "mia_tpr", "upload")


@attrs.frozen(eq=False, kw_only=True)
class Cell:
    """One number of a table: what is printed, and the runs that measure it at one profile."""

    spec: TableSpec = attrs.field(repr=False)
    place: Place
    profile: str
    #: what its experiments are merged from; they differ in the seed only
    stack: Stack
    experiments: tuple[Experiment, ...]
    #: None where the paper prints nothing
    published: Published | None
    #: which data set is measured in the place of which
    stand_in: str | None
    #: the rows that this one is compared with in its column
    rivals: tuple[str, ...]

    @property
    def paper(self) -> str:
        """The key of the paper."""
        return self.spec.paper

    @property
    def table(self) -> str:
        """The number or the name of the table."""
        return self.spec.table

    @property
    def row(self) -> str:
        """The name of the row."""
        return self.place.row.name

    @property
    def column(self) -> str:
        """The name of the column."""
        return self.place.column.name

    @property
    def metric(self) -> str:
        """What is measured, as the table names it."""
        return self.place.metric

    @property
    def better(self) -> str:
        """Which values are better, "higher" or "lower": as print has it, else by what is measured."""
        if self.published:
            return self.published.better
        return "lower" if self.metric.startswith(LESS) else "higher"

    @property
    def record_metric(self) -> str:
        """The metric's name in a record: what is measured, where, and for whose model."""
        name = self.spec.record_metrics.get(self.metric, self.metric)
        sites = self.spec.sites.get(self.experiments[0].dataset, {})
        where = [line.suffix for line in (self.place.column, self.place.row) if line.suffix]
        return name + "".join(one[0] + sites.get(one[1:], one[1:]) for one in where)

    @property
    def unit(self) -> str:
        """The unit of print."""
        return self.spec.unit(self.metric)

    @property
    def priority(self) -> int:
        """Lower is more urgent."""
        return 1000 * self.spec.priority + self.place.number

    @property
    def not_testable(self) -> str | None:
        """Why this cannot be run here."""
        return next(iter(self.place.said("not_testable")), None)

    @property
    def cut(self) -> str | None:
        """Why its runs do not stand under its heading: they stop before the rounds that it says."""
        stated = {**self.spec.defaults.fields, **self.place.column.fields}.get("rounds", 0)
        run = self.experiments[0].rounds
        if not self.spec.at_rounds or run >= stated:
            return None
        return f"the {self.profile} profile stops after {run} of {stated} rounds"

    @property
    def note(self) -> str | None:
        """What the specification remarks."""
        return "; ".join(self.place.said("note")) or None

    @property
    def implemented(self) -> bool:
        """Whether the algorithm is in the registry."""
        return self.experiments[0].algorithm in algorithms.names()

    @property
    def address(self) -> str:
        """PAPER/TABLE/ROW/COLUMN, and /METRIC in a table with several metrics; safe in a shell."""
        metric = [self.metric] if len(self.spec.metrics) > 1 else []
        parts = [self.paper, self.table, self.row, self.column, *metric]
        return "/".join(slug(part) for part in parts)

    def chosen(self, seeds: Collection[int] | None, free: bool = False) -> list[Experiment]:
        """The experiments of these seeds; None: all. Raises InputError for a seed that the table does
        not have, unless any seed is `free` to be taken.
        """
        if seeds is None:
            return list(self.experiments)
        known = {run.seed: run for run in self.experiments}
        for seed in seeds:
            if seed not in known and not free:
                raise InputError(
                    f"{self.address} has the seeds {', '.join(map(str, known))}, not {seed}; `check`, "
                    "and `run` with --out, take any"
                )
        one = self.experiments[0]
        return [known.get(seed) or attrs.evolve(one, seed=seed) for seed in dict.fromkeys(seeds)]

    def siblings(self) -> list[Cell]:
        """The cells of the same runs, this one among them: one for each metric."""
        here = self.place.row, self.place.column
        places = [one for one in self.spec.grid() if (one.row, one.column) == here]
        return self.spec.at(self.profile, places)

    def command(self) -> str:
        """The command that runs this cell, all seeds."""
        return f"fedcon run --cell {self.address} --profile {self.profile}"
