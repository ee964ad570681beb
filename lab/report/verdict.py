"""The rule by which a measured number is compared with a printed one.

At the paper's own budget (where it prints none, ours), or at the profile `converged` (`DECIDING`, no
substitute), with all seeds that the table asks for (at least three) the mean is compared with the paper, with
intervals over the seeds (`lab.report.intervals`):

* **equivalent**: the 90% interval of measured minus printed lies within a margin, `MARGINS`;
* **different**: the paper is beyond the margin, and the 95% interval of measured minus printed leaves out 0;
* **inconclusive**: neither, and a difference of two and a half margins could have been missed. The
  reason says how large a difference would be found, and how many seeds would decide;
* **consistent**: the rest.

What is different is called **depends on our choice** where another choice that the paper leaves open
(`choices` in the table) is measured, and is not different, or the other way round. At `converged` with
fewer steps than the paper's it is **not enough budget**.

Both intervals have the noise of both sides: the paper's number is a mean of three runs, which spread as ours
do where it has no deviation. Where a column was looked at with fewer seeds before its plan grew (`looked_at`
in the table), each look takes its share of the 5%. With fewer seeds than planned a value is **pending**.

At a reduced profile, and on a substitute, a number may differ for a good reason, so only directions
count, by paired differences: a pair of rows is in the printed direction, or against it, when the
90% interval of its differences, seed by seed, is on one side of 0 (the same difference in all seeds
decides nothing, but for what is exact, as bytes: see `EXACT`). A cell's **direction agrees**
when more than half of its pairs are in the printed direction, **direction disagrees** when more
than half are against it, and is **direction unsure** otherwise. A pair counts when both rows are
measured, and printed further apart than the margin. A cell that is measured but has no such pair, or no
printed number, or is in a table that describes only (`compare: none`) or is no fair comparison (`unfair`),
is **not compared**.

What is not measured is **not testable here**, for a reason that the table's specification gives, or
**pending**.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import attrs

from lab import Record
from lab.report.intervals import MOST_SEEDS, Comparison, interval
from lab.table import Cell

#: profiles at which values are compared with the paper
DECIDING = ("paper", "converged")
#: what the budget of a number is called; what a paper does not report of its own is the book's
FULL, REDUCED = "paper or reduced", "laptop, or other data"
#: the fewest seeds with which a value is compared with the paper
SEEDS = 3
#: every verdict, in a few words
MEANINGS = {
    "equivalent": "measured minus printed lies within the margin (2 points, 0.02 of an area, else 2%)",
    "consistent": "a repetition may well give the paper's number, and a large difference would be seen",
    "depends on our choice": "different or not, by what we chose where the paper does not say",
    "different": "the paper's number is beyond the margin, and where a repetition would hardly fall",
    "not enough budget": "different, with fewer steps than the paper",
    "inconclusive": "seeds are too few, or differ too much, to tell",
    "direction agrees": "less work or other data: most pairs of rows are ordered as reported",
    "direction disagrees": "less work or other data: most pairs of rows are ordered the other way round",
    "direction unsure": "less work or other data: seeds do not say how most pairs are ordered",
    "not compared": "nothing is printed, the table only describes or is unfair, or no row is beside it",
    "pending": "not run yet, or, where it is compared, with fewer seeds than its table asks for",
    "not testable here": "the paper lacks what is needed, or its data cannot be had",
}
VERDICTS = tuple(MEANINGS)
#: those of a number that is compared with the paper
COMPARED = VERDICTS[: VERDICTS.index("inconclusive") + 1]
#: the margin of a unit where it is not `SHARE` of the printed value: points, and areas under curves
MARGINS = {"percent": 2.0, "auc": 0.02}
SHARE = 0.02
#: bytes of one MB: with 2^20 the papers' communication costs agree with the sizes of their models
MB = 2**20
#: measures without noise, and what they are: settings are read back from the record, costs follow from
#: shapes and counts
EXACT = {
    "condensation_ratio_percent": "settings",
    "upload_mb": "costs",
    "upload_mb_per_round": "costs",
}
#: kinds of content that are exchanged once, before training, and that a cost per round leaves out,
#: as FedVCK's Tables 5 and 9 do (column "Initialization" of its Table 10): averaged images and
#: anchors
ONCE = ("anchors", "averages")
#: what one unit of a record's value is in the paper's unit
SCALE = {"percent": 100.0, "MB": 1 / MB, "auc": 1.0, "score": 1.0, "pixel": 1.0, "dB": 1.0}


@attrs.frozen
class Judgement:
    """Results of a cell in the paper's unit, and the verdict with its reason."""

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

    def __str__(self) -> str:
        return f"{self.verdict}: {self.reason}" if self.reason else self.verdict


def measured(record: Record, cell: Cell) -> float | None:
    """A record's value for a cell, in the paper's unit; None when the record does not hold it.

    Uploads come from the ledger, all clients and kinds of content together: `upload_mb_per_round`
    is their mean over the rounds, without what is exchanged once beforehand (`ONCE`), `upload_mb`
    that of the whole run. `condensation_ratio_percent` is the setting `share`. All else is a metric
    of the last round.
    """
    value: float | None
    if cell.metric == "condensation_ratio_percent":
        value = record.settings.get("share")
    elif cell.metric == "upload_mb":
        value = record.sent("up")
    elif cell.metric == "upload_mb_per_round":
        up = record.bytes["up"].items()
        value = sum(size for kind, size in up if kind not in ONCE) / len(record.rounds)
    else:
        value = record.metrics.get(cell.record_metric)
    return None if value is None else value * SCALE[cell.unit]


def budget(profile: str, substitute: str | None) -> str:
    """`FULL` where it ran as in the paper or until it changed no more, on its data; else `REDUCED`."""
    return FULL if profile in DECIDING and not substitute else REDUCED


def unfair(cell: Cell) -> str | None:
    """Reason why a cell measured with less, or on other data, counts for nothing; None where it counts."""
    return cell.spec.unfair if budget(cell.profile, cell.substitute) == REDUCED else None


def values(cell: Cell, records: Mapping[str, Record]) -> dict[int, float]:
    """Measured values of a cell by seed, in order; none for runs short of its rounds."""
    if cell.cut:
        return {}
    by_seed = {run.experiment.seed: measured(run, cell) for run in cell.records(records)}
    return {seed: value for seed, value in by_seed.items() if value is not None}


def differences(ours: Mapping[int, float], theirs: Mapping[int, float]) -> tuple[float, ...]:
    """Ours minus theirs, of values by seed, over the seeds that both have."""
    return tuple(ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys()))


def by_column(cells: Iterable[Cell]) -> dict[tuple[str, str], dict[str, Cell]]:
    """Cells of a table by column and metric, those of each by row."""
    columns: dict[tuple[str, str], dict[str, Cell]] = {}
    for cell in cells:
        columns.setdefault((cell.column, cell.metric), {})[cell.row] = cell
    return columns


def margin(printed: float, unit: str, exact: bool = False) -> float:
    """Largest difference of printed value and measured mean that does not matter: `MARGINS` of its unit,
    else `SHARE` of it, as of every measure that is `exact` (one of `EXACT`).
    """
    share = SHARE * abs(printed)
    return share if exact else MARGINS.get(unit, share)


def direction(
    printed: Mapping[str, float | None],
    results: Mapping[str, Mapping[int, float]],
    a: str,
    b: str,
    unit: str,
    exact: bool = False,
) -> int | None:
    """1 for two rows that are ordered as reported, -1 the other way round, 0 undecided, None where they
    cannot be compared: without a common seed or a reported number, or reported within the `margin`. Values
    are by seed, `unit` is the paper's. Equal differences of all seeds decide nothing unless they are `exact`.
    """
    p, q = printed.get(a), printed.get(b)
    gaps = differences(results.get(a, {}), results.get(b, {}))
    if p is None or q is None or not gaps or abs(p - q) <= margin((p + q) / 2, unit, exact):
        return None
    _, low, high = interval(gaps, exact=exact)
    if not (low > 0 or high < 0):
        return 0
    return 1 if (low > 0) == (p > q) else -1


def compare(
    printed: float,
    results: Sequence[float],
    unit: str,
    printed_std: float | None = None,
    exact: bool = False,
    looks: int = 1,
) -> Comparison:
    """Compare at least two measured values, one per seed, with the printed one; `exact` is that of `margin`,
    `looks` that of `Comparison`. Raises InputError for fewer.
    """
    mean, std = mean_and_std(results)
    near = margin(printed, unit, exact)
    return Comparison(mean, std or 0.0, len(results), printed, printed_std, near, looks=looks)


def planned(cell: Cell) -> int:
    """Number of seeds that a cell needs before it is compared with the paper: all of its table."""
    return max(SEEDS, len(cell.column_entry.seeds or cell.spec.seeds))


def mean_and_std(results: Sequence[float]) -> tuple[float, float | None]:
    """Mean and deviation over seeds; None for one seed, nan where a value is not finite."""
    mean = statistics.fmean(results)
    if len(results) < 2:
        return mean, None
    return mean, statistics.stdev(results) if all(map(math.isfinite, results)) else math.nan


def judge(cells: Sequence[Cell], records: Mapping[str, Record]) -> list[Judgement]:
    """The verdict on each of a table's cells, in their order.

    Args:
        cells: cells of a table; directions are compared among those of one column, metric and profile,
            those that are not given included.
        records: complete records by experiment id.
    """
    judgements: dict[int, Judgement] = {}
    groups: dict[tuple[str, str, str, str], dict[str, Cell]] = {}
    for cell in cells:
        place = (cell.table, cell.profile, cell.column, cell.metric)
        groups.setdefault(place, {})[cell.row] = cell
    for (_, profile, name, metric), given in groups.items():
        column, spec = dict(given), next(iter(given.values())).spec
        if {baseline for cell in given.values() for baseline in cell.baselines} - column.keys():
            column = by_column(spec.cells(profile)).get((name, metric), {}) | given
        printed, rows = printed_values(column), measured_values(column, records)
        for row, cell in given.items():
            exact = metric in EXACT
            sides = [direction(printed, rows, row, of, cell.unit, exact) for of in cell.baselines]
            judgements[id(cell)] = _judge(cell, list(rows[row].values()), sides, records)
    return [judgements[id(cell)] for cell in cells]


def printed_values(column: Mapping[str, Cell]) -> dict[str, float | None]:
    """Printed values of each row of a column."""
    return {row: cell.published.value if cell.published else None for row, cell in column.items()}


def measured_values(
    column: Mapping[str, Cell], records: Mapping[str, Record]
) -> dict[str, dict[int, float]]:
    """The values of each row of a column, by seed."""
    return {row: values(cell, records) for row, cell in column.items()}


def _judge(
    cell: Cell, results: list[float], sides: Sequence[int | None], records: Mapping[str, Record]
) -> Judgement:
    """The verdict on a cell with these values, whose baselines are on these sides of it (`direction`)."""
    if not results:
        if cell.not_testable:
            return Judgement("not testable here", cell.not_testable)
        lacks = f"its records have no {cell.metric!r}" if cell.records(records) else ""
        return Judgement("pending", cell.cut or lacks)
    mean, std = mean_and_std(results)
    printed = cell.published.value if cell.published else None
    difference = None if printed is None else mean - printed
    if printed is None:
        why = f"printed as {cell.published.text}" if cell.published else "no printed number"
        said = "not compared", why
    elif cell.spec.compare == "none" or unfair(cell):
        said = "not compared", unfair(cell) or "the table is a description"
    elif budget(cell.profile, cell.substitute) == REDUCED:
        said = _by_directions([side for side in sides if side is not None])
    elif len(results) < planned(cell):
        said = "pending", f"{len(results)} of {planned(cell)} seeds"
    else:
        said = _by_value(cell, printed, results, records)
    return Judgement(*said, mean, std, len(results), difference)


def _by_directions(sides: list[int]) -> tuple[str, str]:
    """Verdict and reason where only the order of rows counts."""
    total, agree, against = len(sides), sides.count(1), sides.count(-1)
    if not total:
        return "not compared", "no rows to compare"
    verdict = "direction agrees" if 2 * agree > total else "direction unsure"
    return (
        "direction disagrees" if 2 * against > total else verdict,
        f"{total} pair{'s' * (total != 1)} of rows compared: {agree} ordered as reported, "
        f"{against} the other way round",
    )


def _by_value(
    cell: Cell, printed: float, results: list[float], records: Mapping[str, Record]
) -> tuple[str, str]:
    """Verdict and reason where the value counts, beside those of other choices with all their seeds."""
    spread = cell.published.spread if cell.published else None
    exact = cell.metric in EXACT
    comparison = compare(printed, results, cell.unit, spread, exact, cell.looks)
    outcome, reason = str(comparison.outcome), ""
    if outcome == "inconclusive":
        reason = _what_would_decide(comparison)
    elif outcome == "different" and cell.scaled:
        outcome = "not enough budget"
        reason = "fewer steps than the paper's; other budgets of this row would decide"
    for chosen, other in cell.alternatives():
        scores = list(values(other, records).values())
        if len(scores) >= planned(other):
            by = str(compare(printed, scores, cell.unit, spread, exact, other.looks).outcome)
            if "different" in (outcome, by) and outcome != by:
                reason = f"{chosen}: {outcome} with ours, {by} with the other"
                return "depends on our choice", reason
    return outcome, reason


def _what_would_decide(comparison: Comparison) -> str:
    seeds = comparison.seeds_to_decide()
    enough = f"{seeds} seeds" if seeds else f"not even {MOST_SEEDS} seeds"
    return (
        f"a difference of {float(comparison.detectable):.2g} would be found in about three of four "
        f"tries; with this mean and spread {enough} would decide"
    )
