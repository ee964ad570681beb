"""Questions to the records behind a table: who leads, by how much, at which cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pandas as pd

from core.errors import InputError, listed
from lab import Record, TableSpec, records
from lab.experiment import PROFILES
from lab.published import Published
from lab.report.charts import curve_frame, curves
from lab.report.comparisons import lead_over
from lab.report.frames import metrics_frame, shown_cells, table_runs
from lab.report.intervals import interval
from lab.report.verdict import (
    DECIDING,
    EXACT,
    SEEDS,
    by_column,
    compare,
    differences,
    mean_and_std,
    measured_values,
    printed_values,
    values,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: methods that the code of FedGen tests after a round, and not before
TESTED_AFTER = ("fedensemble",)


def column_curves(runs: pd.DataFrame) -> Iterator[Figure]:
    """For every column and profile of `table_runs`, the learning curves of its rows."""
    for (column, profile), of in runs.groupby(["column", "profile"], sort=False):
        names = of.groupby("id")["row"].agg(" = ".join)  # one run may serve two rows
        yield curves(
            list(of.drop_duplicates("id")["record"]),
            by=lambda record, names=names: names[record.experiment.id],  # type: ignore[misc]
            title=f"{column}, profile {profile}",
        )


def by_seed(runs: pd.DataFrame, metric: str = "accuracy") -> pd.DataFrame:
    """A share that records hold, by default the accuracy, in percent, of the runs of `table_runs`: a
    row for each of theirs, a column for each seed.
    """
    named = runs.assign(
        seed=[record.experiment.seed for record in runs["record"]],
        score=[100 * record.metrics[metric] for record in runs["record"]],
    )
    scores = named.pivot(index="row", columns="seed", values="score")
    return scores.reindex(list(dict.fromkeys(runs["row"])))


def spreads(scores: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation over seeds, nan with one seed, of each row of `by_seed`: what `bars`
    draws.
    """
    return {str(row): (of.mean(), of.std()) for row, of in scores.iterrows()}


def core_hours(runs: pd.DataFrame) -> float:
    """Hours of one core that the runs of `table_runs` took, each counted once; those on a GPU are
    left out.
    """
    once = runs.drop_duplicates("id")["record"]
    return float(once.map(lambda one: one.core_seconds).sum()) / 3600  # pandas leaves nan out


def run_hours(runs: pd.DataFrame) -> float:
    """Hours of one core that one of the runs of `table_runs` took on a CPU, their mean; nan where none
    ran on one.
    """
    return float(runs["record"].map(lambda one: one.core_seconds).mean()) / 3600


def cost_in_words(paper: str, measured: Mapping[str, Record] | None = None) -> str:
    """How many runs the tables of a paper rest on, and the hours of one core that they took, by
    profile, in a sentence; in another the hours of a GPU. Raises InputError for an unknown paper.
    """
    known = records() if measured is None else measured
    parts, on_gpu, seen = [], list[float](), set[str]()
    for profile in PROFILES:
        of = [table_runs(paper, spec.table, [profile], known) for spec in TableSpec.of_paper(paper)]
        runs = pd.concat(of).drop_duplicates("id")
        runs = runs[~runs["id"].isin(seen)]
        seen |= set(runs["id"])
        on_cpu = runs["record"].map(lambda one: one.core_seconds).notna()
        on_gpu += [one.seconds for one in runs["record"][~on_cpu]]
        if on_cpu.any():
            parts.append(f"{profile} {core_hours(runs):.1f} ({on_cpu.sum()})")
    if not parts and not on_gpu:
        return "No run is behind these tables yet."
    said = (
        "Hours of one core that the runs behind all tables of this paper took, by profile, with "
        f"their number: {', '.join(parts) or 'none'}."
    )
    return said + (f" Hours of a GPU: {sum(on_gpu) / 3600:.1f} ({len(on_gpu)})." if on_gpu else "")


def reporting_rules(runs: pd.DataFrame) -> pd.DataFrame:
    """What one accuracy stands for, by the rule that reports it: means over seeds in percent, for
    every column and row of `table_runs`.

    `last`, `mean of last five`, `five best`, `best`: of the tested rounds. `five best, tested
    before training`: a round's model is the one that it begins with, as in the code of FedGen, so
    that the last round's result is never seen and, after r rounds, r - 1 models count; the first
    one, without training, is never among the best. That code tests FedEnsemble after training, so its
    last round counts. `runs`: seeds. Raises InputError for runs of
    several profiles: their mean would say nothing.
    """
    by = _ruled(runs).groupby(["column", "row"], sort=False)
    return by.mean().assign(runs=by.size())


def gains_by_rule(runs: pd.DataFrame, row: str, against: str) -> pd.DataFrame:
    """By how many points a row is above another by each rule of `reporting_rules`, over the seeds that
    both have: a row for each `column` and `rule`, with the mean `gain`, the ends of its 90% interval,
    `low` and `high`, and `seeds`. Raises InputError as there.
    """
    seeds = [record.experiment.seed for record in runs["record"]]
    ruled = _ruled(runs).assign(seed=seeds).set_index(["column", "seed"])
    ours, theirs = (ruled[ruled["row"] == one].drop(columns="row") for one in (row, against))
    found = [
        (column, rule, *interval(of[rule].to_list()), len(of))
        for column, of in (ours - theirs).dropna().groupby(level="column", sort=False)
        for rule in of
    ]
    return pd.DataFrame(found, columns=["column", "rule", "gain", "low", "high", "seeds"])


def verdicts_by_rule(
    runs: pd.DataFrame, printed: Mapping[tuple[str, str], Published]
) -> pd.DataFrame:
    """What print would be beside the same runs by each rule of `reporting_rules`: for every column and
    row with a printed number and enough seeds, and every rule, a row of `column`, `row`, `rule`, the
    mean `difference` (measured minus printed, in points) and the `verdict`.

    Args:
        runs: those of `table_runs` at a profile at which values are compared with print.
        printed: accuracies in percent, by column and row.

    Raises InputError as `reporting_rules`, and for runs of another profile.
    """
    _check_deciding(runs["profile"].unique())
    ruled, found = _ruled(runs), []
    for (column, row), beside in printed.items():
        of = ruled[(ruled["column"] == column) & (ruled["row"] == row)]
        if beside.value is None or len(of) < SEEDS:
            continue
        for rule in of.columns.drop(["column", "row"]):
            by = compare(beside.value, of[rule].to_list(), "percent", beside.std)
            found.append((column, row, rule, by.mean - beside.value, str(by.outcome)))
    return pd.DataFrame(found, columns=["column", "row", "rule", "difference", "verdict"])


def _check_deciding(profiles: Iterable[str]) -> None:
    """Raise InputError for a profile at which values are not compared with print."""
    for profile in profiles:
        if profile not in DECIDING:
            raise InputError(
                f"values are compared with print at {listed(list(DECIDING))}, not at {profile!r}"
            )


def _ruled(runs: pd.DataFrame) -> pd.DataFrame:
    """What a run of `table_runs` gives by each rule, with its column and row."""
    if runs["profile"].nunique() > 1:
        raise InputError(f"rules are compared at one profile, not at {set(runs['profile'])}")
    frame = pd.DataFrame([_rules(record) for record in runs["record"]])
    return frame.assign(**{name: runs[name].to_list() for name in ("column", "row")})


def _rules(record: Record) -> dict[str, float]:
    """What the rounds of a run give by each rule, in percent."""
    scores = curve_frame(record)["value"]
    after = record.experiment.algorithm in TESTED_AFTER
    return {
        "last": scores.iloc[-1],
        "mean of last five": scores.tail(5).mean(),
        "five best": scores.nlargest(5).mean(),
        "best": scores.max(),
        "five best, tested before training": (scores if after else scores.iloc[:-1])
        .nlargest(5)
        .mean(),
    }


def ended(
    paper: str,
    table: str | int,
    names: Mapping[str, str],
    profile: str | None = None,
    measured: Mapping[str, Record] | None = None,
) -> pd.DataFrame:
    """How the runs behind a table ended, for every `column` and `row` that is measured: medians over
    seeds, for a single run can run away.

    Args:
        names: metrics of `metrics_frame`, and what a page calls them; with "(%)" in that name a
            fraction comes back in percent. One that no run has is missing everywhere.

    Other arguments and errors are those of `metrics_frame`.
    """
    frame = metrics_frame(paper, table, profile, measured).set_index(["column", "row"])
    found = frame.reindex(columns=list(names)).astype(float).rename(columns=names)
    found.loc[:, found.columns.str.contains("(%)", regex=False)] *= 100
    return found.groupby(level=[0, 1], sort=False).median()


def megabytes_to(record: Record, target: float) -> float:
    """MB (2^20 bytes) that all clients sent and were sent until the first test at which the
    accuracy, in percent, is a target or more; not a number where it never is.
    """
    tested = curve_frame(record)
    return float(tested.loc[tested["value"] >= target, "megabytes"].min())


def gains(
    paper: str,
    table: str | int,
    metric: str,
    against: str,
    profile: str | None = None,
    measured: Mapping[str, Record] | None = None,
) -> pd.DataFrame:
    """By how much every row of a table differs from one of them, over the seeds that both have: a
    row for each `column` and `row` with such a seed, the mean `gain` in the unit of print, `low` and
    `high`, the ends of its 90% interval, and `seeds`.

    Seeds that one side lacks do not count, so that runs which are still missing shift nothing. The
    ends are infinite where nothing is known of the spread (see `interval`). A
    profile of None is the one that the table shows. Raises InputError as `table_frame` does.
    """
    spec = TableSpec.find(paper, str(table))
    known = records() if measured is None else measured
    rows = []
    for (column, measure), cells in by_column(shown_cells(spec, known, profile)).items():
        found = measured_values(cells, known) if measure == metric else {}
        for row, ours in found.items():
            gaps = differences(ours, found.get(against, {}))
            if row != against and gaps:
                rows.append((column, row, *interval(gaps, exact=metric in EXACT), len(gaps)))
    return pd.DataFrame(rows, columns=["column", "row", "gain", "low", "high", "seeds"])


def gains_by_round(runs: pd.DataFrame, row: str, against: str) -> pd.DataFrame:
    """By how many points a row's accuracy is above another's after each tested round: a row for each
    round, a column for each seed that both have.

    Args:
        runs: of `table_runs`, one column of a table.
    """
    tested = {
        (name, record.experiment.seed): curve_frame(record).set_index("round")["value"]
        for name, record in zip(runs["row"], runs["record"], strict=True)
    }
    seeds = sorted(seed for name, seed in tested if name == row and (against, seed) in tested)
    return pd.DataFrame(
        {seed: tested[row, seed] - tested[against, seed] for seed in seeds}
    ).dropna()


def leads(
    paper: str,
    table: str | int,
    method: str,
    rivals: Callable[[str], bool] = lambda row: True,
    profile: str | None = None,
    measured: Mapping[str, Record] | None = None,
) -> pd.DataFrame:
    """By how much the accuracy of a method is above that of the best other one, column by column.

    Args:
        method: the name of its row; rivals: which of the other rows count.

    Returns: a row for every column of the table, with `printed` and `measured` in points, and
        `printed rivals` and `measured rivals`, how many others there are to beat. A measured lead is
        the mean difference to the best `rival` over the seeds that both have, `low` and `high` the
        ends of its 90% interval, and `seeds` their number, 0 where there is none; `ahead`, whether the
        interval over every rival is above 0, and `behind`, whether that over some rival is below (see
        `lab.report.comparisons.Lead`). Raises InputError as `table_frame` does.
    """
    spec, rows = TableSpec.find(paper, str(table)), {}
    known = records() if measured is None else measured
    for (column, metric), cells in by_column(shown_cells(spec, known, profile)).items():
        if metric != "accuracy":
            continue
        others = [row for row in cells if row != method and rivals(row)]
        printed = {row: value for row, value in printed_values(cells).items() if value is not None}
        beside = [printed[row] for row in others if row in printed]
        lead = lead_over(method, others, cells, known) if method in cells else None
        measured_, low, high = lead.interval if lead else (math.nan,) * 3
        rows[column] = {
            "printed": printed[method] - max(beside) if beside and method in printed else math.nan,
            "measured": measured_,
            "low": low,
            "high": high,
            "ahead": bool(lead and lead.above(0)),
            "behind": bool(lead and lead.below(0)),
            "rival": lead.rival if lead else "",
            "printed rivals": len(beside),
            "measured rivals": len(lead.gaps) if lead else 0,
            "seeds": lead.seeds if lead else 0,
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("column")


def readings_beside(
    paper: str,
    table: str | int,
    profile: str,
    printed: Mapping[str, Published],
    measured: Mapping[str, Record] | None = None,
    column: str | None = None,
) -> pd.DataFrame:
    """The readings of methods that a table tries, beside what the paper prints for the method: a row
    for each that is measured, with `measured`, `std`, `seeds`, `printed` and the `verdict`.

    Args:
        profile: one at which values are compared with print, for the verdict means nothing at
            another; with fewer seeds than a verdict needs it is "too few seeds".
        printed: what is printed, by the beginning of a row's name; the longest that fits counts.
        column: the one that is meant, of a table with several.

    Raises InputError as `table_frame` does, for a profile that decides nothing, and where it is not
    said which of several columns is meant.
    """
    _check_deciding([profile])
    known = records() if measured is None else measured
    spec, rows = TableSpec.find(paper, str(table)), {}
    if column is None and len(spec.columns) > 1:
        raise InputError(
            f"say which column of {paper}/{table} is meant: it has {len(spec.columns)}"
        )
    for cell in spec.cells(profile):
        found = list(values(cell, known).values())
        names = sorted((name for name in printed if cell.row.startswith(name)), key=len)
        beside = printed[names[-1]] if names else None
        if not found or beside is None or beside.value is None:
            continue
        if column not in (None, cell.column):
            continue
        said = "too few seeds"
        if len(found) >= SEEDS:
            exact = cell.metric in EXACT
            said = str(compare(beside.value, found, cell.unit, beside.std, exact).outcome)
        rows[cell.row] = (*mean_and_std(found), len(found), beside.value, said)
    columns = ["measured", "std", "seeds", "printed", "verdict"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)


def beside_chance(scores: pd.Series, classes: int) -> str:
    """The accuracies (%) of arms, beside that of a guess among so many classes, in a sentence.

    Where no arm is twice as good as a guess it says that they have no order.
    """
    scores = scores.dropna()
    low, high, guess = scores.min(), scores.max(), 100 / classes
    if len(scores) < 2:
        return f"One arm is measured: {low:.1f}%; a guess has {guess:.1f}%." if len(scores) else ""
    said = (
        f"{'Both' if len(scores) == 2 else f'All {len(scores)}'} arms have an accuracy of {low:.1f}%"
        if f"{low:.1f}" == f"{high:.1f}"
        else f"The accuracies of these {len(scores)} arms lie between {low:.1f} and {high:.1f}%"
    )
    said += f"; a guess has {guess:.1f}%."
    return said + (" Nothing follows about their order." if high < 2 * guess else "")


def filled(frame: pd.DataFrame, form: str = "{:.2f}", missing: str = "pending") -> pd.DataFrame:
    """Numbers as a page shows them, with a word where there is none."""
    return frame.map(lambda value: missing if pd.isna(value) else form.format(value))


def bytes_by_kind(runs: Mapping[str, Record], each_round: bool = True) -> pd.DataFrame:
    """Bytes by direction and kind of content (rows), over all clients, for named records (columns):
    of a round, the mean over rounds, or of the whole run.
    """
    sent = {
        name: pd.Series(
            {
                (way, kind): size / (len(record.rounds) if each_round else 1)
                for way, kinds in record.bytes.items()
                for kind, size in kinds.items()
            }
        )
        for name, record in runs.items()
    }
    return pd.DataFrame(sent).fillna(0).round().astype(int).rename_axis(["direction", "kind"])
