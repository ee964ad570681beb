"""The way from a number of a table to records: the book's own, and runs of a reader beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import numpy as np
from scipy.special import stdtrit

from lab import Record
from lab.explain import aligned
from lab.profiles import budget_name
from lab.record import REPOSITORY, book_files, numerics
from lab.report.tables import formatted, with_spread
from lab.report.verdict import REDUCED, Judgement, budget, judge, measured, planned
from lab.table import Cell


def evidence(cell: Cell, known: Mapping[str, Record], also: Path | None = None) -> str:
    """A cell in the paper's unit: value and record of each seed, mean and deviation, printed value, verdict
    and reason. `known`: complete records by id, of the book and of the folder `also`.
    """
    judgement = judge(cell.spec.cells(cell.profile), known)[cell.number]
    lines = [
        (f"seed {run.seed}", *_value_and_file(cell, known.get(run.id), also))
        for run in cell.experiments
    ]
    value = _mean(cell, judgement) or "nothing"
    reason = f": {judgement.reason}" if judgement.reason else ""
    verdict = f"measured {value}, printed {_printed(cell)}; {judgement.verdict}{reason}"
    return "\n".join([f"{cell.metric} ({cell.unit})", *aligned(lines), verdict])


def _value_and_file(cell: Cell, record: Record | None, also: Path | None) -> tuple[str, str]:
    """The value of a run, and where its record is."""
    if record is None:
        return "not run", ""
    value = None if cell.cut else measured(record, cell)
    why = "not counted" if cell.cut else "not in the record"
    name = f"{record.experiment.id}.json"
    # what the book has counts
    paths = book_files(name) or (sorted(also.rglob(name)) if also else [])
    shown = [str(path).removeprefix(f"{REPOSITORY}/") for path in paths]
    return formatted(value, None, cell.unit) or why, ", ".join(shown)


def _mean(cell: Cell, judgement: Judgement) -> str:
    """Mean and deviation over how many seeds; "" where nothing is measured."""
    seeds = f" over {judgement.seeds} seed{'s' * (judgement.seeds > 1)}" if judgement.seeds else ""
    return formatted(judgement.mean, judgement.std, cell.unit) + seeds


def _printed(cell: Cell) -> str:
    return with_spread(cell.published.text, cell.published.std) if cell.published else "nothing"


def comparison(cell: Cell, book: Sequence[Record], yours: Sequence[Record]) -> str:
    """Three lines of numbers in the paper's unit with verdicts, and per seed whether the bits are the
    book's; `book` and `yours` are complete records of the cell, in part.
    """
    lines = [f"{cell.address}: {cell.metric} ({cell.unit}), budget {budget_name(cell.profile)}"]
    if cell.substitute or cell.cut:
        rounds = f"{cell.experiments[0].rounds} rounds"
        lines += [f"not what the paper ran: {', '.join(filter(None, (cell.substitute, rounds)))}"]
    lines += [f"printed  {_printed(cell)}"]
    for name, records in (("book", book), ("yours", yours)):
        runs = tuple(record.experiment for record in records) or cell.experiments
        of = attrs.evolve(cell, experiments=runs)
        (judgement,) = judge([of], {record.experiment.id: record for record in records})
        few = judgement.verdict == "pending" and judgement.seeds
        verdict = f"no verdict below {planned(of)} seeds" if few else str(judgement)
        if budget(cell.profile, cell.substitute) == REDUCED:
            verdict = "no verdict: with less, or on other data, only the table's rows are compared"
        value = _mean(cell, judgement) or "not measured"
        lines.append(f"{name:7}  {value}" + (f"  {verdict}" if judgement.seeds else ""))
    before = {record.experiment.id: record for record in book}
    lines += [_bits(cell, before.get(record.experiment.id), record) for record in yours]
    return "\n".join(lines + _expected(cell, book, yours))


def _expected(cell: Cell, book: Sequence[Record], yours: Sequence[Record]) -> list[str]:
    """A line that says between which values one more seed of the cell would lie (95% prediction interval of
    the book's seeds, at least three), and which of yours do not.
    """
    known = [value for record in book if (value := measured(record, cell)) is not None]
    if len(known) < 3 or not yours:
        return []
    half = stdtrit(len(known) - 1, 0.975) * np.std(known, ddof=1) * math.sqrt(1 + 1 / len(known))
    low, high = np.mean(known) - half, np.mean(known) + half
    away = [
        str(record.experiment.seed)
        for record in yours
        if (value := measured(record, cell)) is None or not low <= value <= high
    ]
    ends = " to ".join(formatted(float(end), None, cell.unit) for end in (low, high))
    said = f"outside: your seed {', '.join(away)}" if away else "yours lie within"
    return [f"another seed of this cell is expected from {ends} (95%); {said}"]


def _bits(cell: Cell, book: Record | None, yours: Record) -> str:
    """Say whether a run equals the book's bit for bit in the metrics of both; if not, why."""
    where = f"seed {yours.experiment.seed}:"
    if book is None:
        return f"{where} the book has no record of it"
    rounds = [[row["metrics"] for row in record.rounds] for record in (book, yours)]
    if len(book.rounds) == len(yours.rounds) and all(
        book_row.items() <= row.items() for book_row, row in zip(*rounds, strict=True)
    ):
        return f"{where} all rounds equal the book's to the last bit"
    theirs, own = (
        {"data": record.fingerprint[:12], "code": record.code}
        | numerics(record.environment)
        | {"device_name": record.environment.get("device_name")}
        for record in (book, yours)
    )
    cuda = yours.environment.get("device") == "cuda"
    same = "data, code and machine are the same" + "; a GPU adds in another order each time" * cuda
    changed = [key for key in dict.fromkeys((*theirs, *own)) if theirs.get(key) != own.get(key)]
    reasons = [f"{k} {theirs.get(k) or 'unknown'} there, {own.get(k)} here" for k in changed]
    values = " there, ".join(
        formatted(measured(record, cell), None, cell.unit) for record in (book, yours)
    )
    return f"{where} {values} here; not the same bits ({', '.join(reasons) or same})"
