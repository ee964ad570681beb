"""What the specification of a table is made of: rows and columns, stand-ins, and cells without a
printed number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs

from lab.layers import Layer


def slug(text: str) -> str:
    """A name as it stands in a command: letters, digits, dots, underscores and hyphens only.

    >>> slug("w.o. L_rc + P_w")
    'w.o.-L_rc-P_w'
    """
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-")


def same_name(one: str, other: str) -> bool:
    """Whether two names are one: as a table shows it or as in a command, in any case.

    >>> same_name("FedMK/2/w/o iteration", "fedmk/2/w-o-iteration")
    True
    """
    return slug(one).casefold() == slug(other).casefold()


@attrs.frozen(eq=False)
class Line:
    """A row or a column of a table: a name, the fields of an experiment that it states, and what is
    said about it.
    """

    name: str
    layer: Layer
    #: columns of published.csv and their values; a row's method is its algorithm unless it says
    #: otherwise
    match: dict[str, Any]
    #: False where the paper has no such row or column and the book adds it
    printed: bool = True
    #: why it cannot be run here: data that cannot be had
    not_testable: str | None = None
    note: str | None = None
    #: added to a metric's name to find it in a record, for example "@tnbc" for one of several test
    #: sets
    suffix: str = ""
    #: the metrics that this row or column has; None: all
    metrics: tuple[str, ...] | None = None
    #: columns only: the Dirichlet concentration, which stand-ins and the quick profile keep
    alpha: float | None = None
    #: columns only: settings by algorithm, for what a method does differently on one data set
    settings_of: dict[str, Layer] = attrs.field(factory=dict)
    #: columns only: seeds in place of the table's; None: those of the table
    seeds: tuple[int, ...] | None = None

    @property
    def fields(self) -> Mapping[str, Any]:
        """The fields of an experiment that it states."""
        return self.layer.fields


@attrs.frozen(eq=False)
class StandIn:
    """A data set at hand in the place of one that is not, and what changes with it."""

    layer: Layer
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
