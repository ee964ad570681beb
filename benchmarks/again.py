"""Do records hold that older versions of the program wrote? Of each kind of run on record the one that
took least, run once more by the program as it is.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from tqdm.auto import tqdm

from core import data
from core.algorithms import find
from core.errors import InputError
from core.families.one_shot import OneShot
from core.federation import Runtime
from core.metrics import headline
from lab import queue
from lab.record import ADHOC, REPOSITORY, Record, records

#: the most that a run on record may have taken, in seconds of one core
LONGEST = 120.0
#: so many seeds are run where the first lies farther than so many points from its record
SEEDS, APART = 3, 2.0
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
    that heads its tables, the deviation over the seeds on record where there are three, and whether it
    sent the same bytes. Raises InputError where nothing on record was computed in this precision.
    """
    known = records()
    runs = chosen(known, runtime.precision)
    if not runs:
        raise InputError(f"no run on record in {runtime.precision} took less than {LONGEST:g} s")
    seeds: dict[str, list[Record]] = {}
    for record in known.values():
        seeds.setdefault(queue.seedless(record.experiment), []).append(record)
    found = {}
    for name, first in tqdm(runs.items(), unit="run", leave=False):
        alike = seeds[queue.seedless(first.experiment)]
        others = [
            one
            for one in alike
            if one is not first
            and one.environment.get("precision") == runtime.precision
            and one.core_seconds <= 2 * LONGEST
        ]
        found[name] = _beside([first, *others], runtime)
        values = [_percent(one) for one in alike]
        found[name]["std"] = statistics.stdev(values) if len(values) > 2 else None
    return {
        "what": f"records of older versions beside runs of today's: {len(found)} kinds of runs of at most "
        f"{LONGEST:g} s of a core, one seed each, or {SEEDS} where the first lies more than {APART:g} points "
        "apart",
        "unit": "runs/hour",
        "contestants": found,
    }


def _beside(seeds: list[Record], runtime: Runtime) -> dict[str, Any]:
    """The first of some records that differ in their seed, and where it does not hold the next, beside
    the same runs of today.
    """
    old, new, seconds, same = list[float](), list[float](), 0.0, True
    for record in seeds[:SEEDS]:
        if len(old) == 1 and abs(new[0] - old[0]) <= APART:
            break
        again, *_ = queue.measure_anew(record.experiment, ADHOC, AGAIN, runtime, progress=False)
        old.append(_percent(record))
        new.append(_percent(again))
        seconds += again.seconds  # it may be from a bench that was cut
        same = same and again.bytes == record.bytes
    return {
        "beside": "its record",
        "rate": 3600 * len(new) / seconds,
        "accuracy": {"theirs": old, "ours": new},
        "same_bytes": same,
    }


def _percent(record: Record) -> float:
    """What heads the tables of a run, after its last round."""
    return 100 * record.metrics[headline(record.metrics) or "accuracy"]
