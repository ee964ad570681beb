"""How the hyper-parameters of the laptop profile were chosen: the same number of tries for every method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from core.experiments import Record, records
from core.experiments.tables import TableSpec
from core.report.figures import method_name

#: the table that holds the tries, and the profile they are made at and for
TABLE, PROFILE = ("reference", "tuning"), "laptop"


def tuning_frame(measured: Mapping[str, Record] | None = None) -> pd.DataFrame:
    """Every try: `algorithm`, `settings` (a dictionary), one column of accuracies in percent for each data set, their
    `mean`, and `chosen`.

    The try with the highest mean is chosen, the first one where two are equal; none is chosen for an algorithm until
    all its tries are measured on all data sets.

    Args:
        measured: complete records by experiment id; by default the book's.
    """
    known = records() if measured is None else measured
    spec = TableSpec.find(*TABLE)
    tries: dict[str, dict[str, Any]] = {}
    for cell in spec.cells(PROFILE):
        (experiment,) = cell.experiments
        row = next(row for row in spec.rows if row.name == cell.row)
        entry = tries.setdefault(cell.row, {"algorithm": experiment.algorithm, "settings": row.fields["settings"]})
        record = known.get(experiment.id)
        entry[experiment.dataset] = 100 * record.metrics["accuracy"] if record else None
    frame = pd.DataFrame(list(tries.values()))
    sets = [str(name) for name in frame if name not in ("algorithm", "settings")]
    frame[sets] = frame[sets].astype(float)
    frame["mean"] = frame[sets].mean(axis=1, skipna=False)
    finished = frame.groupby("algorithm")["mean"].transform(lambda means: means.notna().all())
    best = frame.loc[finished].groupby("algorithm")["mean"].idxmax()
    return frame.assign(chosen=frame.index.isin(best))


def tuning_table(measured: Mapping[str, Record] | None = None) -> pd.DataFrame:
    """`tuning_frame` as a page shows it: a line per try, settings as text, the chosen ones marked."""
    frame = tuning_frame(measured)
    frame["settings"] = [", ".join(f"{name} {value:g}" for name, value in row.items()) for row in frame["settings"]]
    frame["method"] = frame.pop("algorithm").map(method_name)
    frame["chosen"] = frame["chosen"].map({True: "✓", False: ""})
    return frame.set_index(["method", "settings"]).round(2)
