"""Running an experiment to its record."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Protocol

from tqdm.auto import tqdm

from core.errors import InputError
from core.federation.interrupts import kept_interrupts
from core.federation.loop import Plan, RoundResult, make_task, rounds
from core.federation.runtime import Runtime
from core.federation.task import Task


class Keeper(Protocol):
    """What `run` asks of a record (`core.experiments.Record` is one)."""

    status: str
    notes: list[str]
    peak_memory: int

    def add(self, result: RoundResult) -> None: ...

    def save(self, path: Path) -> None: ...


class Recorded(Plan, Protocol):
    """An experiment that can open a record of itself."""

    def new_record(self, task: Task) -> Any: ...


def run(
    experiment: Recorded,
    *,
    runtime: Runtime | None = None,
    record: Path | None = None,
    checkpoint: Path | None = None,
    progress: bool = False,
    deadline: float | None = None,
) -> Any:
    """Run an experiment and return its `Record`.

    Args:
        record: the file that keeps the record; it is written after every round, atomically.
        checkpoint: the file to resume from; it is removed when the run is complete.
        progress: show a bar with round, accuracy, traffic and time left.
        deadline: a `time.monotonic()` value; the run stops cleanly before a round that would
            probably end later, and its record keeps the status "running".

    Raises InputError for bad input and for a run that diverges (its record then has the status
    "failed").
    """
    task = make_task(experiment, runtime)
    kept = experiment.new_record(task)
    with (
        tqdm(
            total=experiment.rounds, disable=not progress, unit="round", dynamic_ncols=True
        ) as bar,
        kept_interrupts() as interrupt_again,
    ):
        try:
            started = longest = 0.0
            for result in rounds(experiment, task=task, checkpoint=checkpoint):
                kept.add(result)
                kept.peak_memory = task.runtime.peak_memory()
                if record:
                    kept.save(record)
                _show(bar, result)
                interrupt_again()
                now = time.monotonic()
                longest, started = max(longest, now - started if started else 0.0), now
                if deadline and result.round < experiment.rounds and now + 1.2 * longest > deadline:
                    return kept
        except InputError as error:
            kept.status, kept.notes = "failed", [*kept.notes, str(error)]
            if record:
                kept.save(record)
            raise
    kept.status = "complete"
    if record:
        kept.save(record)
    if checkpoint:
        checkpoint.unlink(missing_ok=True)
    return kept


def _show(bar: tqdm, result: RoundResult) -> None:
    tested = {"accuracy": f"{100 * result.metrics['accuracy']:.1f}%"} if result.metrics else {}
    bar.set_postfix(
        tested | {"up": f"{result.up / 2**20:.1f}MB", "down": f"{result.down / 2**20:.1f}MB"}
    )
    bar.update()
