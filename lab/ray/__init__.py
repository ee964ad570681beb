"""Many runs: the queue in this process, on workers of this machine, or on those of a Ray cluster.

One job is one run to its record, the same program wherever it runs. A worker may be lost at any
moment; its run then goes on elsewhere from its last checkpoint, if the folder for records is one
that all workers see. Workers have a `capacity` (jobs that may run at once, now), `submit(job)`, which
begins one and returns its handle, `finished(handles, seconds)`, which waits for the first to end, at
most so long, and returns pairs of handles and outcomes, and `stop()`.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import attrs

from core.checks import check_number
from core.errors import InputError, one_line
from core.federation import Runtime
from core.files import Busy, FileError
from core.metrics import headline
from lab.queue import Pending, failed_before, measure
from lab.record import Record
from lab.source import check_code, code_version

#: how many lost workers a run survives
LOSSES = 3
STATES = ("queued", "running", "complete", "cut", "stuck", "failed")
#: seconds between two looks for workers
LOOK = 1.0


class Lost:
    """The outcome of a job whose worker went away."""


def perform(
    item: Pending,
    out: Path | None,
    device: str,
    precision: str,
    until: float | None,
    code: str,
    progress: bool = False,
) -> Record | FileError | str:
    """One run to its record, or until no round may begin (`until`, seconds since 1970); the error that ends
    the queue, or one line where it failed. `code`: the hash of the caller's source.
    """
    deadline = None if until is None else time.monotonic() + until - time.time()
    try:
        check_code(code)
        if failed_before(item.experiment, item.paper, out):
            return "it failed before with the same code"
        how: dict[str, Any] = {"out": out, "deadline": deadline, "progress": progress}
        how["runtime"] = Runtime.choose(device, precision)
        return measure(item.experiment, item.paper, **how)[0]
    except FileError as error:
        return error
    except Exception as error:  # whatever ends one run, the others have their turn
        return one_line(error)


@attrs.define(eq=False)
class Progress:
    """State of a run: "queued", "running", "complete", "cut" (by the clock, or as another process is
    at it), "stuck" (its files must change first) or "failed".
    """

    item: Pending
    state: str = "queued"
    record: Record | None = None
    reason: str = ""
    losses: int = 0

    def settle(self, outcome: Any) -> None:
        """Enter the outcome of the job."""
        if isinstance(outcome, Record):
            self.record = outcome
            self.state = "complete" if outcome.status == "complete" else "cut"
        elif isinstance(outcome, FileError):
            self.state = "cut" if isinstance(outcome, Busy) else "stuck"
            self.reason = str(outcome)
        elif isinstance(outcome, Lost) and self.losses < LOSSES:
            self.state, self.losses = "queued", self.losses + 1
        else:
            lost = f"its worker was lost {LOSSES + 1} times"
            self.state, self.reason = "failed", lost if isinstance(outcome, Lost) else outcome

    def __str__(self) -> str:
        run, rows = self.item.experiment, self.record.rounds if self.record else []
        metrics = self.record.metrics if self.record else {}
        name = headline(metrics)
        parts = [f"{self.state:8}", f"{self.item.cells[0]} seed {run.seed}"]
        parts += [f"round {len(rows)} of {run.rounds}"] * bool(rows)
        parts += [f"{name} {100 * metrics[name]:.2f}%"] if name else []
        parts += [f"(worker lost {self.losses} times)"] * bool(self.losses)
        return "  ".join([*parts, *filter(None, [self.reason])])


def sweep(
    items: Sequence[Pending],
    workers: Any,
    out: Path | None = None,
    device: str = "auto",
    precision: str = "auto",
    until: float | None = None,
    progress: bool = False,
) -> Generator[Progress]:
    """Run the items in their order; yields each one when it begins, when it ends and when its worker is
    lost.

    Every run leaves the record that it would leave alone, but for times and the machine. A run
    whose worker is lost is the next to begin. However this ends, the workers end with it.
    Raises InputError where there is no worker, and FileError, before a run begins, where the package
    has changed since this process began.
    """
    how = {"out": out, "device": device, "precision": precision, "until": until}
    job = functools.partial(perform, **how, code=code_version(), progress=progress)  # type: ignore[arg-type]
    waiting, running = deque(map(Progress, items)), dict[Any, Progress]()
    try:
        if waiting and workers.capacity < 1:
            raise InputError("no worker has what a run asks for; see --gpus-per-run")
        while waiting or running:
            if until is not None and time.time() > until:
                waiting.clear()
            while waiting and len(running) < workers.capacity:
                check_code()
                started = waiting.popleft()
                started.state = "running"
                yield started
                running[workers.submit(functools.partial(job, started.item))] = started
            if waiting and not running:  # no worker is there now; others may come
                time.sleep(LOOK)
            for handle, outcome in workers.finished(list(running), LOOK) if running else ():
                ended = running.pop(handle)
                ended.settle(outcome)
                if ended.state == "queued":
                    waiting.appendleft(ended)
                yield ended
    finally:
        workers.stop()


def workers(on: str | None, gpus_per_run: float | None = None) -> Any:
    """The workers that a text names: None (this process), `local:2`, `ray` (RAY_ADDRESS, or this machine) or
    `ray://host:10001`, with a share of a GPU (None: a whole one). InputError for what cannot be.
    """
    from lab.ray.local import LocalWorkers, ThisProcess

    check_number("--gpus-per-run", gpus_per_run or 0.0, 0)
    if on is None:
        return ThisProcess()
    kind, _, rest = on.partition(":")
    if kind == "local" and rest.isdecimal() and int(rest):
        return LocalWorkers(int(rest))
    if on == "ray" or on.startswith("ray://"):
        from lab.ray.cluster import RayWorkers

        return RayWorkers(None if on == "ray" else on, gpus_per_run)
    raise InputError(f"--on is local:2, ray or ray://HOST:PORT, not {on!r}")
