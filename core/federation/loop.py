"""The round loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch

from core.federation import checkpoint as checkpoints
from core.federation.algorithm import Algorithm, State
from core.federation.checkpoint import Checkpoint
from core.federation.client import Client
from core.federation.message import Ledger
from core.federation.task import Task
from core.rng import Rng


@attrs.frozen(eq=False)
class RoundResult:
    """What one round gave.

    `round` counts from 1. `metrics` is empty in a round that was not tested. `up` and `down` are
    bytes over all clients.
    """

    round: int
    metrics: dict[str, float]
    up: int
    down: int
    seconds: dict[str, float]
    state: State
    ledger: Ledger

    def row(self) -> dict[str, Any]:
        """The plain data that a record keeps."""
        return {
            "round": self.round,
            "metrics": self.metrics,
            "up": self.up,
            "down": self.down,
            "seconds": {phase: round(time, 4) for phase, time in self.seconds.items()},
        }


def select(clients: Sequence[Client], active: int | None, rng: Rng) -> list[Client]:
    """The clients of a round: those with data, or a random `active` of them (all, if there are no
    more).
    """
    able = [client for client in clients if len(client)]
    if active is None or active >= len(able):
        return able
    chosen = torch.randperm(len(able), generator=rng.generator())[:active]
    return [able[i] for i in sorted(chosen.tolist())]


def rounds(
    algorithm: Algorithm,
    task: Task,
    clients: Sequence[Client],
    seed: int,
    *,
    checkpoint: Path | None = None,
    key: str = "",
) -> Iterator[RoundResult]:
    """Run an algorithm round by round, as its schedule says.

    With a `checkpoint` file the run resumes after the last finished round; the results of the
    earlier rounds come from the file. `key` names the run, so that no other one goes on with it.
    """
    schedule, rng = algorithm.schedule, Rng(seed)
    saved = checkpoints.restore(checkpoint, key, task, clients) if checkpoint else None
    saved = saved or Checkpoint(algorithm.initialise(task, rng.at("initialise")), Ledger(), [])
    state, ledger, history = saved.state, saved.ledger, saved.history
    yield from (RoundResult(**row, state=state, ledger=ledger) for row in list(history))

    for number in range(len(history) + 1, schedule.rounds + 1):
        here = rng.at("round", number)
        ledger.open_round()
        chosen = select(clients, schedule.active, here.at("select"))
        state = algorithm.round(state, chosen, ledger, here)
        metrics: dict[str, float] = {}
        if schedule.tests(number):
            with ledger.timed("evaluate"):
                metrics = task.evaluate(algorithm.model(state), schedule.evaluate_on)
                if number == schedule.rounds:
                    metrics = _joined(metrics, algorithm.measures(state))
        result = RoundResult(
            number,
            metrics,
            ledger.nbytes("up"),
            ledger.nbytes("down"),
            ledger.rounds[-1]["seconds"],
            state,
            ledger,
        )
        history.append(result.row())
        if checkpoint:
            checkpoints.save(checkpoint, key, Checkpoint(state, ledger, history), clients)
        yield result


def _joined(metrics: dict[str, float], measures: dict[str, float]) -> dict[str, float]:
    """The task's metrics and the algorithm's own. Raises ValueError where both have the same
    name.
    """
    if both := metrics.keys() & measures.keys():
        raise ValueError(
            f"an algorithm measures {sorted(both)[0]!r}, which is a metric of the task"
        )
    return metrics | measures
