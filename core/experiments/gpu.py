"""A look at a GPU in a few minutes: does every algorithm run there, how fast, and does it wait."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from core import algorithms
from core.errors import InputError
from core.experiments import bench, profiles, queue
from core.experiments.running import run
from core.federation import Runtime
from core.metrics import headline

#: share of the time after which no algorithm, and no bench, is begun any more
ALGORITHMS, BENCHES = 0.4, 0.7
#: what methods learn from that are not for classification
PIXELS: dict[str, dict[str, Any]] = {
    learns: {
        "dataset": dataset,
        "model": "unet",
        "model_options": {"width": 4},
        "partition": {"name": "natural"},
        "clients": clients,
    }
    for learns, dataset, clients in (
        ("segmentation", "nuclei_drawn", 4),
        ("reconstruction", "mri_drawn", 3),
    )
}
MEASURED = ("local-training", "condensation", "bilevel")


def check(runtime: Runtime, minutes: float = 3.0) -> dict[str, Any]:
    """Run a small round of every algorithm, benches and the beginning of one run at the paper's
    budget.

    What fails is told under its name and stops nothing else. Returns plain data: the machine, and
    for each algorithm its seconds, accuracy and, on a GPU, how often the host waited for it.
    """
    start = time.monotonic()

    def before(share: float) -> bool:
        return time.monotonic() - start < share * 60 * minutes

    found: dict[str, Any] = {"environment": runtime.describe(), "algorithms": {}, "benches": {}}
    for name in algorithms.names():
        if before(ALGORITHMS):
            found["algorithms"][name] = _told(lambda: _small(name, runtime))  # noqa: B023
    for what in MEASURED:
        if before(BENCHES):
            found["benches"][what] = _told(lambda: bench.BENCHES[what](runtime))  # noqa: B023
    found["paper"] = _told(lambda: _paper(runtime, start + 60 * minutes))
    found["seconds"] = time.monotonic() - start
    return found


def _told(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `work` gives, or how it failed: whatever goes wrong on a new machine is a finding."""
    try:
        return work()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _small(name: str, runtime: Runtime) -> dict[str, Any]:
    """One round of an algorithm at the quick profile."""
    began = time.monotonic()
    fields = {"algorithm": name, "rounds": 1} | PIXELS.get(algorithms.find(name).serves()[0], {})
    with _waits(runtime) as waits:
        record = run(profiles.apply("quick", fields), runtime=runtime)
    name = headline(record.metrics) or "accuracy"
    found = {"seconds": time.monotonic() - began, name: record.metrics[name]}
    return found | ({"waits": len(waits)} if runtime.device.type == "cuda" else {})


@contextlib.contextmanager
def _waits(runtime: Runtime) -> Iterator[list[Any]]:
    """Gather a warning for every time that the host waits for the GPU."""
    on_gpu = runtime.device.type == "cuda"
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        if on_gpu:
            torch.cuda.set_sync_debug_mode("warn")
        waits: list[Any] = []
        try:
            yield waits
        finally:
            if on_gpu:
                torch.cuda.set_sync_debug_mode("default")
            waits += [one for one in seen if "synchroniz" in str(one.message)]


def _paper(runtime: Runtime, deadline: float) -> dict[str, Any]:
    """The most urgent run at the paper's budget whose data are here: one round of it at least, more
    until the deadline.
    """
    items = [item for item in queue.pending("paper") if not item.missing]
    if not items:
        raise InputError("no run at the paper's budget can be begun here: data are missing")
    record = run(items[0].experiment, runtime=runtime, deadline=deadline)
    return {
        "cell": items[0].cells[0],
        "rounds": len(record.rounds),
        "of": items[0].experiment.rounds,
        "seconds": record.seconds,
        "peak_memory": record.peak_memory,
    }
