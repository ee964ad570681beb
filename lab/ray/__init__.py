"""Many runs at once: the queue on workers of this machine, or on those of a Ray cluster.

One task is one run to its record, the same program that runs it alone. A worker may be lost at any
moment; its run then goes on elsewhere from its last checkpoint, if the folder for records is one
that all workers see.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs

from core.checks import check_number
from core.errors import InputError, one_line
from core.federation import Runtime
from core.files import Busy
from core.metrics import headline
from lab.queue import Pending, failed_before, measure, places
from lab.record import Record
from lab.source import check_code, code_version

#: how many lost workers a run survives
LOSSES = 3
#: seconds between two looks at the records of running runs
LOOK = 1.0


class Lost:
    """What came of a task whose worker went away."""


@attrs.frozen
class Task:
    """What a worker needs to know: plain data."""

    item: Pending
    out: Path | None
    device: str
    precision: str
    #: seconds since 1970 after which no round begins
    until: float | None
    #: the hash of the caller's source: a worker may have begun with another one
    code: str = attrs.field(factory=code_version)


def perform(task: Task) -> Record | Busy | str:
    """One run to its record, or as far as the time goes; Busy where another process is at it, and one
    line where it failed.
    """
    experiment, paper = task.item.experiment, task.item.paper
    deadline = None if task.until is None else time.monotonic() + task.until - time.time()
    try:
        check_code(task.code)
        if failed_before(experiment, paper, task.out):
            return "it failed before with the same code"
        runtime = Runtime.choose(task.device, task.precision)
        return measure(experiment, paper, out=task.out, runtime=runtime, deadline=deadline)[0]
    except Busy as error:
        return error
    except Exception as error:  # whatever ends one run, the others have their turn
        return one_line(error)


class Workers(Protocol):
    """A place where tasks run."""

    @property
    def capacity(self) -> int:
        """Tasks that may run at once, now."""

    def submit(self, function: Callable[[Task], Record | Busy | str], task: Task) -> Any:
        """Begin a task; hands out what it is called from now on."""

    def finished(self, handles: Sequence[Any], seconds: float) -> list[tuple[Any, Any]]:
        """Wait for the first to end, at most so long; tasks that ended, and what came of them."""

    def stop(self) -> None:
        """End all workers at once; what they have written stays whole."""


@attrs.define(eq=False)
class Progress:
    """How a run stands: "queued", "running", "complete", "cut" (by the clock, or as another process is
    at it) or "failed".
    """

    item: Pending
    state: str = "queued"
    rounds: int = 0
    #: name and value of the last test's first measure
    score: tuple[str, float] | None = None
    reason: str = ""
    losses: int = 0

    def look(self, record: Record) -> None:
        """Take round and score from a record."""
        self.rounds = len(record.rounds)
        tested = [row["metrics"] for row in record.rounds if row["metrics"]]
        name = headline(tested[-1]) if tested else None
        self.score = (name, tested[-1][name]) if name else None

    def settle(self, outcome: Any) -> None:
        """Enter what came of the task."""
        if isinstance(outcome, Record):
            self.state = "complete" if outcome.status == "complete" else "cut"
            self.look(outcome)
        elif isinstance(outcome, Busy):
            self.state, self.reason = "cut", str(outcome)
        elif isinstance(outcome, Lost) and self.losses < LOSSES:
            self.state, self.losses = "queued", self.losses + 1
        else:
            lost = f"its worker was lost {LOSSES + 1} times"
            self.state, self.reason = "failed", lost if isinstance(outcome, Lost) else outcome


def sweep(
    items: Sequence[Pending],
    workers: Workers,
    out: Path | None = None,
    device: str = "auto",
    precision: str = "auto",
    until: float | None = None,
) -> Generator[list[Progress]]:
    """Run the items in their order; yields how all of them stand, about once a second.

    Every run leaves the record that it would leave alone, but for times and the machine. A run
    whose worker is lost is the next to begin. However this ends, the workers end with it.
    Raises InputError where there is no worker, and FileError, before a run begins, where the package
    has changed since this process began.
    """
    table = [Progress(item) for item in items]
    waiting, running = deque(table), dict[Any, Progress]()
    try:
        if table and workers.capacity < 1:
            raise InputError("no worker has what a run asks for; see --gpus-per-run")
        while waiting or running:
            if until is not None and time.time() > until:
                waiting.clear()
            while waiting and len(running) < workers.capacity:
                check_code()
                one = waiting.popleft()
                one.state = "running"
                task = Task(one.item, out, device, precision, until)
                running[workers.submit(perform, task)] = one
            if waiting and not running:  # no worker is there now; others may come
                time.sleep(LOOK)
            for handle, outcome in workers.finished(list(running), LOOK) if running else ():
                one = running.pop(handle)
                one.settle(outcome)
                if one.state == "queued":
                    waiting.appendleft(one)
            for one in running.values():
                path, _ = places(one.item.experiment, one.item.paper, out)
                # a damaged record is named when the run that finds it ends
                with contextlib.suppress(InputError):
                    if path.exists():
                        one.look(Record.load(path))
            yield table
    finally:
        workers.stop()


def workers(on: str, gpus_per_run: float | None = None) -> Workers:
    """The workers that a text names: `local:2`, `ray` (the cluster of RAY_ADDRESS, or the one that
    runs on this machine) or `ray://host:10001`. A run on a cluster asks for this share of a GPU; None:
    for a whole one where there are any.

    Raises InputError for another text, for what is no share of a GPU, and where Ray is not installed
    or does not answer.
    """
    check_number("--gpus-per-run", gpus_per_run or 0.0, 0)
    if gpus_per_run and gpus_per_run > 1 and gpus_per_run % 1:  # Ray's own rule
        raise InputError(f"--gpus-per-run above 1 must be a whole number, not {gpus_per_run:g}")
    kind, _, rest = on.partition(":")
    if kind == "local" and rest.isdecimal() and int(rest):
        from lab.ray.local import LocalWorkers

        return LocalWorkers(int(rest))
    if on == "ray" or on.startswith("ray://"):
        from lab.ray.cluster import RayWorkers

        return RayWorkers(None if on == "ray" else on, gpus_per_run)
    raise InputError(f"--on is local:2, ray or ray://HOST:PORT, not {on!r}")
