"""Tuning of hyper-parameters: the same number of tries for every method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from lab import Record, TableSpec, records
from lab.report.charts import method_name
from lab.report.summary import in_text, split_in_words

#: the table that holds the tries of the laptop profile, and this profile
TABLE, PROFILE = ("reference", "tuning"), "laptop"


def tuning_frame(
    measured: Mapping[str, Record] | None = None,
    table: tuple[str, str] = TABLE,
    profile: str = PROFILE,
) -> pd.DataFrame:
    """Every try: `algorithm`, `settings` (a dictionary), one column of accuracies in percent for
    each data set, their geometric `mean`, and `chosen`.

    The try with the highest mean is chosen, the first one where two are equal; none is chosen for
    an algorithm until all its tries are measured on all data sets. The mean is geometric, so that ratios
    count: a data set on which tries differ by more points does not decide almost alone.

    Args:
        measured: complete records by experiment id; by default the book's.
        table: paper and name of the table that holds the tries; profile: what they are run at.
    """
    known = records() if measured is None else measured
    spec = TableSpec.find(*table)
    tries: dict[str, dict[str, Any]] = {}
    for cell in spec.cells(profile):
        (experiment,) = cell.experiments
        row = next(row for row in spec.rows if row.name == cell.row)
        entry = tries.setdefault(
            cell.row, {"algorithm": experiment.algorithm, "settings": row.fields["settings"]}
        )
        record = known.get(experiment.id)
        entry[experiment.dataset] = 100 * record.metrics["accuracy"] if record else None
    frame = pd.DataFrame(list(tries.values()))
    sets = [str(name) for name in frame if name not in ("algorithm", "settings")]
    frame[sets] = frame[sets].astype(float)
    frame["mean"] = frame[sets].prod(axis=1, skipna=False) ** (1 / len(sets))
    finished = frame.groupby("algorithm")["mean"].transform(lambda means: means.notna().all())
    best = frame.loc[finished].groupby("algorithm")["mean"].idxmax()
    return frame.assign(chosen=frame.index.isin(best))


def tuning_table(*where: Any) -> pd.DataFrame:
    """`tuning_frame` of these arguments for a page: a line per try, settings as text, chosen ones marked."""
    frame = tuning_frame(*where)
    frame["settings"] = frame["settings"].map(
        lambda own: ", ".join(f"{name} {in_text(value)}" for name, value in own.items())
    )
    frame["method"] = frame.pop("algorithm").map(method_name)
    frame["chosen"] = frame["chosen"].map({True: "✓", False: ""})
    return frame.set_index(["method", "settings"]).round(2)


def settings_seen(dataset: str, alpha: float) -> pd.DataFrame:
    """Count settings of each method that were run with test images of a column in view, from which the best
    could be chosen: `method`, `settings`, and how many of them `at the paper's size` (profile `converged`,
    ten rounds). Runs under attack are left out.
    """
    rows = []
    for record in records().values():
        run = record.experiment
        split = split_in_words(run.partition).replace(" ", "")
        column = run.dataset == dataset and split.endswith(f"alpha{alpha:g}")
        if column and run.evaluate_on == "test" and not run.attack:
            settings = repr((run.variant, sorted(record.settings.items()), run.model_options))
            large = run.profile == "converged" and run.rounds == 10
            rows.append((method_name(run.algorithm), settings, large))
    frame = pd.DataFrame(rows, columns=["method", "settings", "at the paper's size"])
    by = frame.groupby(["method", "settings"])["at the paper's size"].any().groupby("method")
    seen = pd.DataFrame({"settings": by.size(), "at the paper's size": by.sum()})
    return seen.sort_values("settings", ascending=False, kind="stable").reset_index()
