"""A cell measured anew: what is printed, what the book has, and what came out here."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import numpy as np
from scipy.special import stdtrit

from lab import Record
from lab.record import reckoning
from lab.report.tables import formatted, with_spread
from lab.report.verdict import REDUCED, budget, judge, measured, planned
from lab.table import Cell


def comparison(cell: Cell, book: Sequence[Record], yours: Sequence[Record]) -> str:
    """Three lines of numbers in the paper's unit with verdicts, and per seed whether the bits are the
    book's; `book` and `yours` are complete records of the cell, in part.
    """
    known = cell.published
    printed = with_spread(known.text, known.std) if known else "nothing"
    lines = [f"{cell.address}: {cell.metric} ({cell.unit}), profile {cell.profile}"]
    if cell.stand_in or cell.cut:
        rounds = f"{cell.experiments[0].rounds} rounds"
        lines += [f"not what the paper ran: {', '.join(filter(None, (cell.stand_in, rounds)))}"]
    lines += [f"printed  {printed}"]
    for name, records in (("book", book), ("yours", yours)):
        runs = tuple(one.experiment for one in records) or cell.experiments
        of = attrs.evolve(cell, experiments=runs)
        (found,) = judge([of], {one.experiment.id: one for one in records})
        value = formatted(found.mean, found.std, cell.unit) or "not measured"
        seeds = f" over {found.seeds} seed{'s' * (found.seeds > 1)}" if found.seeds else ""
        few = found.verdict == "pending" and found.seeds
        verdict = f"no verdict below {planned(of)} seeds" if few else str(found)
        if budget(cell.profile, cell.stand_in) == REDUCED:
            verdict = "no verdict: with less, or on other data, only the table's rows are compared"
        lines.append(f"{name:7}  {value}{seeds}" + (f"  {verdict}" if found.seeds else ""))
    before = {one.experiment.id: one for one in book}
    lines += [_seed(cell, before.get(one.experiment.id), one) for one in yours]
    return "\n".join(lines + _usual(cell, book, yours))


def _usual(cell: Cell, book: Sequence[Record], yours: Sequence[Record]) -> list[str]:
    """A line that says between which values one more seed of the cell would lie (95% prediction interval of
    the book's seeds, at least three), and which of yours do not.
    """
    held = [value for one in book if (value := measured(one, cell)) is not None]
    if len(held) < 3 or not yours:
        return []
    half = stdtrit(len(held) - 1, 0.975) * np.std(held, ddof=1) * math.sqrt(1 + 1 / len(held))
    low, high = np.mean(held) - half, np.mean(held) + half
    away = [
        str(one.experiment.seed)
        for one in yours
        if (value := measured(one, cell)) is None or not low <= value <= high
    ]
    ends = " to ".join(formatted(float(end), None, cell.unit) for end in (low, high))
    said = f"outside: your seed {', '.join(away)}" if away else "yours lie within"
    return [f"another seed of this cell is expected from {ends} (95%); {said}"]


def _known(value: object) -> str:
    """A fact of a machine; older records lack some."""
    return "not recorded" if value in (None, "None") else str(value)


def _metrics(record: Record, book: Record) -> list[dict[str, float | None]]:
    """The metrics of each round that the book's record has: a later version may measure more."""
    names = set().union(*(row["metrics"] for row in book.rounds))
    return [{name: row["metrics"].get(name) for name in names} for row in record.rounds]


def _seed(cell: Cell, book: Record | None, yours: Record) -> str:
    """How one run compares with the book's."""
    where = f"seed {yours.experiment.seed}:"
    if book is None:
        return f"{where} the book has no record of it"
    if _metrics(book, book) == _metrics(yours, book):
        return f"{where} all rounds equal the book's to the last bit"
    theirs, mine = (
        {"data": one.fingerprint[:12], "code": one.code}
        | reckoning(one.environment)
        | {"device_name": one.environment.get("device_name")}
        for one in (book, yours)
    )
    reason = ", ".join(
        f"{name} {_known(theirs.get(name))} there, {_known(mine.get(name))} here"
        for name in dict.fromkeys((*theirs, *mine))
        if theirs.get(name) != mine.get(name)
    )
    values = " there, ".join(
        formatted(measured(one, cell), None, cell.unit) for one in (book, yours)
    )
    if not reason:
        cuda = yours.environment.get("device") == "cuda"
        reason = "data, code and machine are the same" + (
            "; a GPU adds some numbers in another order each time" if cuda else ""
        )
    return f"{where} {values} here; not the same bits ({reason})"
