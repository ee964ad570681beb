"""Do records hold that older versions of the program wrote? Of each kind of run on record the one that
took least, run once more by the program as it is.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Any

from tqdm.auto import tqdm

from core import data
from core.algorithms import find
from core.errors import InputError
from core.experiments import queue
from core.experiments.record import ADHOC, REPOSITORY, Record, records
from core.families.one_shot import OneShot
from core.federation import Runtime
from core.metrics import headline

#: the most that a run on record may have taken, in seconds of one core
LONGEST = 120.0
#: where the new records lie, so that a bench which was cut goes on
AGAIN = REPOSITORY / ".checkpoints" / "again"


def chosen(known: Mapping[str, Record], precision: str) -> dict[str, Record]:
    """Of each algorithm, variant, data set and profile the run on a CPU, in this precision, that took
    least, by name; the least of them first. Left out: runs at `quick`, of data that is not here, that
    took more than `LONGEST`, and the first round alone of a method that has several.
    """
    here, found = data.present_names(), dict[str, Record]()
    # the seconds of a run on a GPU are not a number, and no comparison with it holds
    short = [one for one in known.values() if one.core_seconds <= LONGEST]
    for record in sorted(short, key=lambda one: one.core_seconds):
        run = record.experiment
        whole = len(record.rounds) > 1 or issubclass(find(run.algorithm), OneShot)
        suits = run.dataset in here and record.environment.get("precision") == precision
        if whole and suits and run.profile != "quick":
            variant = "" if run.variant == "printed" else f", {run.variant}"
            found.setdefault(f"{run.algorithm}{variant}, {run.dataset}, {run.profile}", record)
    return found


def measure(runtime: Runtime) -> dict[str, Any]:
    """For each of the `chosen` what it had in percent ("theirs") and has now ("ours"), by the measure
    that heads its tables, the deviation of its other seeds on record, and whether it sent the same
    bytes. Raises InputError where nothing on record was computed in this precision.
    """
    known = records()
    runs = chosen(known, runtime.precision)
    if not runs:
        raise InputError(f"no run on record in {runtime.precision} took less than {LONGEST:g} s")
    seeds: dict[str, list[float]] = {}
    for record in known.values():
        seeds.setdefault(queue.seedless(record.experiment), []).append(_percent(record))
    found = {}
    for name, old in tqdm(runs.items(), unit="run", leave=False):
        start = time.perf_counter()
        new, *_ = queue.measure_anew(old.experiment, ADHOC, AGAIN, runtime, progress=False)
        others = seeds[queue.seedless(old.experiment)]
        found[name] = {
            "beside": old.code,
            "rate": 3600 / (time.perf_counter() - start),
            "accuracy": {"theirs": [_percent(old)], "ours": [_percent(new)]},
            "std": statistics.stdev(others) if len(others) > 2 else None,
            "same_bytes": old.bytes == new.bytes,
        }
    return {
        "what": f"records of older versions beside runs of today's: {len(found)} kinds of runs of at most "
        f"{LONGEST:g} s of a core, one seed each",
        "unit": "runs/hour",
        "contestants": found,
    }


def _percent(record: Record) -> float:
    """What heads the tables of a run, after its last round."""
    return 100 * record.metrics[headline(record.metrics) or "accuracy"]
