"""Does the program give what is on record? The least costly record of each kind, run once more.

python benchmarks/records.py
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from tqdm.auto import tqdm

from core import data
from core.algorithms import find
from core.families.one_shot import OneShot
from core.federation import Runtime
from core.metrics import headline
from lab import queue
from lab.record import ADHOC, REPOSITORY, Record, records
from timing import keep, options

#: where the new records lie, so that a call which was cut goes on
AGAIN = REPOSITORY / ".checkpoints" / "again"


def chosen(known: Iterable[Record], precision: str, longest: float) -> dict[str, Record]:
    """Of each algorithm, variant, data set and profile the run on a CPU, in this precision, that took
    least, by name. Left out: runs at `quick`, of data that is not here, of more than so many seconds of
    a core, and the first round alone of a method that has several.
    """
    here, found = data.present_names(), dict[str, Record]()
    # the seconds of a run on a GPU are not a number, and no comparison with it holds
    short = [one for one in known if one.core_seconds <= longest]
    for record in sorted(short, key=lambda one: one.core_seconds):
        run = record.experiment
        whole = len(record.rounds) > 1 or issubclass(find(run.algorithm), OneShot)
        suits = run.dataset in here and record.environment.get("precision") == precision
        if whole and suits and run.profile != "quick":
            variant = "" if run.variant == "printed" else f", {run.variant}"
            found.setdefault(f"{run.algorithm}{variant}, {run.dataset}, {run.profile}", record)
    return found


def percent(record: Record) -> float:
    """What heads the tables of a run, after its last round."""
    return 100 * record.metrics[headline(record.metrics) or "accuracy"]


def again(known: list[Record], runtime: Runtime, longest: float) -> dict[str, Any]:
    """Of each kind the percentage on record ("theirs") and by this program ("ours"), the deviation over
    the seeds on record, and whether both sent the same bytes.
    """
    found = {}
    for name, old in tqdm(chosen(known, runtime.precision, longest).items(), unit="run"):
        new, *_ = queue.measure_anew(old.experiment, ADHOC, AGAIN, runtime, progress=False)
        key = queue.seedless(old.experiment)
        alike = [percent(one) for one in known if queue.seedless(one.experiment) == key]
        found[name] = {
            "beside": "its record",
            "rate": 3600 / new.seconds,
            "accuracy": {"theirs": [percent(old)], "ours": [percent(new)]},
            "std": statistics.stdev(alike) if len(alike) > 2 else None,
            "same_bytes": new.bytes == old.bytes,
        }
    return found


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--longest", type=float, default=120.0, help="seconds of one core")
    given = parser.parse_args()
    here = Runtime.choose(given.device, given.precision)
    found = again(list(records().values()), here, given.longest)
    what = f"records beside the same runs by this program: {len(found)} kinds, one seed each"
    keep("records", what, found, here)
    for name, one in found.items():
        old, new = one["accuracy"]["theirs"][0], one["accuracy"]["ours"][0]
        print(f"{name}: {old:.2f} on record, {new:.2f} again")
