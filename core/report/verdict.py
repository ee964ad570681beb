"""The rule by which a measured number is compared with a printed one.

At the paper's own budget (profile `paper`, no stand-in) with at least three seeds a value is
**reproduced** when the printed number p lies within two sample standard deviations s of the
measured mean m or within a fixed margin,

    |p - m| <= max(2 s, margin),

and **not reproduced** otherwise. The margin is 2 points for percentages and 2 % of |p| for every
other unit (MB, dB, pixel, score, auc). A value that needs the deviations is reproduced for the
reason `WIDE`: seeds that differ very much are near everything. With fewer seeds it is **pending**.

At a reduced profile, and on a stand-in, a number may differ for a good reason, so only directions
count: of the pairs of rows that the table compares, how many differ in the printed direction? A
cell's **direction agrees** when more than half of the pairs that it belongs to do, and **direction
disagrees** otherwise. A pair counts when both rows are measured and printed with different numbers.
A cell that is measured but has no such pair, or no printed number, is **not compared**.

What is not measured is **not testable here**, for a reason that the table's specification gives, or
**pending**.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import attrs

from core.errors import InputError, unknown
from core.experiments import Record
from core.experiments.grid import Cell

VERDICTS = (
    "reproduced",
    "not reproduced",
    "direction agrees",
    "direction disagrees",
    "not compared",
    "pending",
    "not testable here",
)
#: seeds that a value needs before it is compared with print
SEEDS = 3
#: the margin for percentages, in points, and for other units, as a share of the printed value
POINTS, SHARE = 2.0, 0.02
#: why a value counts as reproduced that is farther from print than the margin
WIDE = "wide spread"
#: bytes of one MB: with 2^20 the papers' communication costs agree with the sizes of their models
MB = 2**20
#: kinds of content that are exchanged once, before training, and that a cost per round leaves out,
#: as FedVCK's Tables 5 and 9 do (column "Initialization" of its Table 10): averaged images and
#: anchors
ONCE = ("anchors", "averages")
#: what one unit of a record's value is in the unit of print
_SCALE = {"percent": 100.0, "MB": 1 / MB, "auc": 1.0, "score": 1.0, "pixel": 1.0, "dB": 1.0}
#: the last digits of a float must not decide
_SLACK = 1e-9


@attrs.frozen
class Judgement:
    """What was measured for a cell, in the unit of print, and the verdict with its reason."""

    #: one of `VERDICTS`
    verdict: str
    reason: str = ""
    #: over seeds; None when nothing is measured
    mean: float | None = None
    #: sample standard deviation; None below two seeds
    std: float | None = None
    #: how many are measured
    seeds: int = 0
    #: measured minus printed
    difference: float | None = None
    #: pairs of rows in the printed direction, and pairs that could be compared; None where
    #: directions do not count
    pairs: tuple[int, int] | None = None

    def __str__(self) -> str:
        if self.pairs and self.pairs[1]:
            return f"{self.verdict} ({self.pairs[0]}/{self.pairs[1]})"
        return f"{self.verdict}: {self.reason}" if self.reason else self.verdict


def in_printed_unit(value: float, unit: str) -> float:
    """A value of a record (fractions for percentages, bytes for MB) in the unit of print.

    Raises InputError for an unknown unit.
    """
    if unit not in _SCALE:
        raise unknown("unit", unit, _SCALE)
    return value * _SCALE[unit]


def measured(record: Record, cell: Cell) -> float | None:
    """A record's value for a cell, in the unit of print; None when the record does not hold it.

    Uploads come from the ledger, all clients and kinds of content together: `upload_mb_per_round`
    is their mean over the rounds, without what is exchanged once beforehand (`ONCE`), `upload_mb`
    that of the whole run. `condensation_ratio_percent` is the setting `share`. All else is a metric
    of the last round.
    """
    if cell.metric == "condensation_ratio_percent":
        share = record.settings.get("share")
        return None if share is None else in_printed_unit(share, "percent")
    if cell.metric in ("upload_mb", "upload_mb_per_round"):
        up = record.bytes["up"]
        if cell.metric == "upload_mb":
            return in_printed_unit(sum(up.values()), "MB")
        return in_printed_unit(
            sum(size for kind, size in up.items() if kind not in ONCE) / len(record.rounds), "MB"
        )
    value = record.metrics.get(cell.record_metric)
    return None if value is None else in_printed_unit(value, cell.unit)


def values(cell: Cell, records: Mapping[str, Record]) -> list[float]:
    """The measured values of a cell, one per seed that has a record, in the order of the seeds."""
    found = (measured(records[run.id], cell) for run in cell.experiments if run.id in records)
    return [value for value in found if value is not None]


def margin(printed: float, std: float, unit: str) -> float:
    """How far the printed value may lie from the measured mean."""
    return max(2 * std, POINTS if unit == "percent" else SHARE * abs(printed))


def agreement(
    printed: Mapping[str, float | None],
    means: Mapping[str, float],
    pairs: Iterable[tuple[str, str]],
) -> tuple[int, int]:
    """Of the pairs of rows, how many are ordered as printed, and how many could be compared.

    Left out are pairs with a row that is not measured or not printed, and pairs printed with equal
    numbers. A pair that is measured equal, or not as a number, does not agree.
    """
    agree = total = 0
    for a, b in pairs:
        p, q = printed.get(a), printed.get(b)
        if p is None or q is None or p == q or a not in means or b not in means:
            continue
        total += 1
        agree += (means[a] - means[b]) * (p - q) > 0
    return agree, total


def compare(printed: float, found: Sequence[float], unit: str) -> bool:
    """Whether the printed value is reproduced by at least two measured values, one per seed.

    Raises InputError for fewer than two: one value has no spread.
    """
    if len(found) < 2:
        raise InputError(f"a comparison needs at least two seeds, not {len(found)}")
    mean, std = statistics.fmean(found), _std(found)
    return abs(printed - mean) <= margin(printed, std, unit) + _SLACK


def _std(found: Sequence[float]) -> float:
    """Sample standard deviation; nan when a value is not a finite number."""
    return statistics.stdev(found) if all(map(math.isfinite, found)) else math.nan


def judge(cells: Sequence[Cell], records: Mapping[str, Record]) -> list[Judgement]:
    """The verdict on each of a table's cells, in their order.

    Args:
        cells: all cells of a table, those of a column at one profile; directions are compared among
            those of one column and metric.
        records: complete records by experiment id.
    """
    found = {id(cell): values(cell, records) for cell in cells}
    printed: dict[tuple[str, str], dict[str, float | None]] = {}
    means: dict[tuple[str, str], dict[str, float]] = {}
    for cell in cells:
        key = (cell.column, cell.metric)
        printed.setdefault(key, {})[cell.row] = cell.published.value if cell.published else None
        if found[id(cell)]:
            means.setdefault(key, {})[cell.row] = statistics.fmean(found[id(cell)])
    judgements = []
    for cell in cells:
        key = (cell.column, cell.metric)
        pairs = agreement(
            printed[key], means.get(key, {}), [(cell.row, rival) for rival in cell.rivals]
        )
        judgements.append(_judge(cell, found[id(cell)], pairs))
    return judgements


def _judge(cell: Cell, found: list[float], pairs: tuple[int, int]) -> Judgement:
    if not found:
        if cell.not_testable:
            return Judgement("not testable here", cell.not_testable)
        return Judgement("pending", f"needs {cell.needs}" if cell.needs else "")
    mean = statistics.fmean(found)
    printed = cell.published.value if cell.published else None
    held = Judgement(
        "pending",
        "",
        mean,
        _std(found) if len(found) > 1 else None,
        len(found),
        None if printed is None else mean - printed,
    )
    if printed is None:
        why = f"printed as {cell.published.text}" if cell.published else "no printed number"
        return attrs.evolve(held, verdict="not compared", reason=why)
    if cell.profile == "paper" and cell.stand_in is None:
        if len(found) < SEEDS:
            return attrs.evolve(held, reason=f"{len(found)} of {SEEDS} seeds")
        same, near = (compare(printed, each, cell.unit) for each in (found, [mean, mean]))
        return attrs.evolve(
            held,
            verdict="reproduced" if same else "not reproduced",
            reason=WIDE if same and not near else "",
        )
    agree, total = pairs
    if not total:
        return attrs.evolve(held, verdict="not compared", reason="one method only", pairs=pairs)
    return attrs.evolve(
        held,
        verdict="direction agrees" if 2 * agree > total else "direction disagrees",
        pairs=pairs,
        reason=f"{agree} of {total} pairs of rows are ordered as printed",
    )
