"""The way from a number of a table to the records that it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lab import Record
from lab.explain import aligned
from lab.record import REPOSITORY, book_files
from lab.report.tables import formatted, with_spread
from lab.report.verdict import Judgement, judge, measured
from lab.table import Cell


def evidence(cell: Cell, known: Mapping[str, Record], also: Path | None = None) -> str:
    """A cell in the paper's unit: value and record of each seed, mean and deviation, printed value, verdict
    and reason. `known`: complete records by id, of the book and of the folder `also`.
    """
    found = judge(cell.spec.cells(cell.profile), known)[cell.number]
    lines = [
        (f"seed {one.seed}", *_held(cell, known.get(one.id), also)) for one in cell.experiments
    ]
    return "\n".join([f"{cell.metric} ({cell.unit})", *aligned(lines), _verdict(cell, found)])


def _held(cell: Cell, record: Record | None, also: Path | None) -> tuple[str, str]:
    """The value of a run, and where its record is."""
    if record is None:
        return "not run", ""
    value = None if cell.cut else measured(record, cell)
    why = "not counted" if cell.cut else "not in the record"
    name = f"{record.experiment.id}.json"
    # what the book has counts
    paths = book_files(name) or (sorted(also.rglob(name)) if also else [])
    return formatted(value, None, cell.unit) or why, ", ".join(map(_below, paths))


def _below(path: Path) -> str:
    """A path below the repository, else the path itself."""
    return str(path.relative_to(REPOSITORY) if path.is_relative_to(REPOSITORY) else path)


def _verdict(cell: Cell, found: Judgement) -> str:
    value = formatted(found.mean, found.std, cell.unit) or "nothing"
    seeds = f" over {found.seeds} seed{'s' * (found.seeds > 1)}" if found.seeds else ""
    known = cell.published
    printed = with_spread(known.text, known.std) if known else "nothing"
    reason = f": {found.reason}" if found.reason else ""
    return f"measured {value}{seeds}, printed {printed}; {found.verdict}{reason}"
