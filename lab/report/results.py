"""Questions to the records behind a table: who leads, by how much, by which rule, at which cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import pandas as pd

from lab import Record, TableSpec, records
from lab.experiment import PROFILES
from lab.profiles import budget_name
from lab.published import Published
from lab.report.charts import curve_frame, curves
from lab.report.claims import lead_over
from lab.report.frames import best_cells, table_runs
from lab.report.intervals import interval
from lab.report.verdict import (
    EXACT,
    SEEDS,
    by_column,
    compare,
    differences,
    mean_and_std,
    measured_values,
    planned,
    printed_values,
    values,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: methods that the code of FedGen tests after a round, and not before
TESTED_AFTER = ("fedensemble",)


def column_curves(runs: pd.DataFrame) -> Iterator[Figure]:
    """Draw the learning curves of the rows, for every column and profile of `table_runs`."""
    for (column, profile), of in runs.groupby(["column", "profile"], sort=False):
        names = of.groupby("id")["row"].agg(" = ".join)  # one run may serve two rows
        yield curves(
            list(of.drop_duplicates("id")["record"]),
            by=lambda record, names=names: names[record.experiment.id],  # type: ignore[misc]
            title=f"{column}, budget {budget_name(str(profile))}",
        )


def by_seed(runs: pd.DataFrame, metric: str = "accuracy") -> pd.DataFrame:
    """A share that records hold, in percent: a row for each of `table_runs`, a column for each seed."""
    scores = runs.assign(score=[100 * record.metrics[metric] for record in runs["record"]])
    table = scores.pivot(index="row", columns="seed", values="score")
    return table.reindex(list(dict.fromkeys(runs["row"])))


def cost(paper: str, measured: Mapping[str, Record] | None = None) -> pd.DataFrame:
    """Cost of the runs behind a paper's tables, each counted once: a row for each budget, with `runs on
    CPUs`, their `core hours`, `runs on GPUs` and their `GPU hours`. Raises InputError for an unknown paper.
    """
    known, rows = records() if measured is None else measured, {}
    for profile in PROFILES:
        of = [table_runs(paper, spec.table, [profile], known) for spec in TableSpec.of_paper(paper)]
        runs = pd.concat(of).drop_duplicates("id")["record"]
        core = runs.map(lambda record: record.core_seconds).astype(float)
        gpu = runs[core.isna()].map(lambda record: record.seconds)
        rows[profile] = core.count(), core.sum() / 3600, len(gpu), gpu.sum() / 3600
    columns = ["runs on CPUs", "core hours", "runs on GPUs", "GPU hours"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename(index=budget_name)


def by_rule(runs: pd.DataFrame) -> pd.DataFrame:
    """One accuracy in percent of each run of `table_runs`, by each rule that could report it, beside its
    `column`, `row` and `seed`.

    `last`, `mean of last five`, `five best`, `best`: of the tested rounds. `five best, tested before
    training`: a round's model is the one that it begins with, as in the code of FedGen, so that the last
    round's result is never seen; the first one, without training, is never among the best. That code tests
    FedEnsemble after training, so its last round counts.
    """
    rows = []
    for record in runs["record"]:
        scores = curve_frame(record)["value"]
        seen = scores if record.experiment.algorithm in TESTED_AFTER else scores.iloc[:-1]
        rows.append(
            {
                "last": scores.iloc[-1],
                "mean of last five": scores.tail(5).mean(),
                "five best": scores.nlargest(5).mean(),
                "best": scores.max(),
                "five best, tested before training": seen.nlargest(5).mean(),
                "seed": record.experiment.seed,
            }
        )
    return pd.DataFrame(rows).assign(column=runs["column"].to_list(), row=runs["row"].to_list())


def gains_by_rule(runs: pd.DataFrame, row: str, against: str) -> pd.DataFrame:
    """Lead of a row over another in points, by each of `by_rule`, over the seeds that both have: a row
    for each `column` and `rule`, with the mean `gain`, the ends of its 90% interval, `low` and `high`, and
    `seeds`.
    """
    ruled = by_rule(runs).set_index(["column", "seed"])
    ours, theirs = (ruled[ruled["row"] == name].drop(columns="row") for name in (row, against))
    rows = [
        (column, rule, *interval(of[rule].to_list()), len(of))
        for column, of in (ours - theirs).dropna().groupby(level="column", sort=False)
        for rule in of
    ]
    return pd.DataFrame(rows, columns=["column", "rule", "gain", "low", "high", "seeds"])


def verdicts_by_rule(
    runs: pd.DataFrame, printed: Mapping[tuple[str, str], Published]
) -> pd.DataFrame:
    """The verdict on the same runs by each of `by_rule`: for every column and row with a printed accuracy, by
    column and row in `printed`, and enough seeds, `column`, `row`, `rule`, the mean `difference` (measured
    minus printed, in points) and the `verdict`.
    """
    ruled, rows = by_rule(runs), []
    for (column, row), beside in printed.items():
        of = ruled[(ruled["column"] == column) & (ruled["row"] == row)]
        if beside.value is not None and len(of) >= SEEDS:
            for rule in of.columns.drop(["column", "row", "seed"]):
                by = compare(beside.value, of[rule].to_list(), "percent", beside.std)
                rows.append((column, row, rule, by.mean - beside.value, str(by.outcome)))
    return pd.DataFrame(rows, columns=["column", "row", "rule", "difference", "verdict"])


def gains(
    paper: str,
    table: str | int,
    metric: str,
    against: str,
    profile: str | None = None,
    measured: Mapping[str, Record] | None = None,
) -> pd.DataFrame:
    """Difference of every row of a table from one of them, over the seeds that both have: a row for
    each `column` and `row` with such a seed, the mean `gain` in the paper's unit, `low` and `high`, the ends
    of its 90% interval (infinite where nothing is known of the spread), and `seeds`. Raises InputError as
    `table_frame` does.
    """
    spec = TableSpec.find(paper, str(table))
    known = records() if measured is None else measured
    rows = []
    for (column, measure), cells in by_column(best_cells(spec, known, profile)).items():
        by_row = measured_values(cells, known) if measure == metric else {}
        for row, ours in by_row.items():
            gaps = differences(ours, by_row.get(against, {}))
            if row != against and gaps:
                rows.append((column, row, *interval(gaps, exact=metric in EXACT), len(gaps)))
    return pd.DataFrame(rows, columns=["column", "row", "gain", "low", "high", "seeds"])


def leads(
    paper: str,
    table: str | int,
    method: str,
    baselines: Callable[[str], bool] = lambda row: True,
    profile: str | None = None,
    measured: Mapping[str, Record] | None = None,
) -> pd.DataFrame:
    """Lead of a method's accuracy over that of the best other, in points, a row for each column
    of the table, as `charts.dots` draws it: its `name`, the measured lead (`value`) over the best `baseline`
    on the paired `seeds`, the ends of its 90% interval, `low` and `high`, and the lead in the `paper`.

    Args:
        method: the name of its row; baselines: which of the other rows count.

    Raises InputError as `table_frame` does.
    """
    spec, rows = TableSpec.find(paper, str(table)), {}
    known = records() if measured is None else measured
    for (column, metric), cells in by_column(best_cells(spec, known, profile)).items():
        if metric != "accuracy":
            continue
        others = [row for row in cells if row != method and baselines(row)]
        printed = {row: value for row, value in printed_values(cells).items() if value is not None}
        beside = [printed[row] for row in others if row in printed]
        lead = lead_over(method, others, cells, known)
        mean, low, high = lead.interval if lead else (math.nan,) * 3
        rows[column] = {
            "value": mean,
            "low": low,
            "high": high,
            "paper": printed[method] - max(beside) if beside and method in printed else math.nan,
            "baseline": lead.baseline if lead else "",
            "seeds": lead.seeds if lead else 0,
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("name").reset_index()


def interpretations_beside(
    paper: str,
    table: str | int,
    profile: str,
    printed: Mapping[str, Published],
    measured: Mapping[str, Record] | None = None,
    column: str | None = None,
) -> pd.DataFrame:
    """The interpretations of methods that a table tries, beside what the paper prints for the method: a row
    for each that is measured, with `measured`, `std`, `seeds`, `printed` and the `verdict`, with too few
    seeds "too few seeds".

    Args:
        profile: one at which values are compared with the paper.
        printed: what is printed, by the beginning of a row's name; the longest that fits counts.
        column: the one that is meant, of a table with several.

    Raises InputError as `table_frame` does.
    """
    known = records() if measured is None else measured
    spec, rows = TableSpec.find(paper, str(table)), {}
    for cell in spec.cells(profile):
        ours = list(values(cell, known).values())
        names = sorted((name for name in printed if cell.row.startswith(name)), key=len)
        beside = printed[names[-1]] if names else None
        if not ours or beside is None or beside.value is None or column not in (None, cell.column):
            continue
        said = "too few seeds"
        if len(ours) >= planned(cell):
            exact = cell.metric in EXACT
            by = compare(beside.value, ours, cell.unit, beside.std, exact, cell.looks)
            said = str(by.outcome)
        rows[cell.row] = (*mean_and_std(ours), len(ours), beside.value, said)
    columns = ["measured", "std", "seeds", "printed", "verdict"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)
