"""The round loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs
import torch

from core import data
from core.federation import checkpoint as checkpoints
from core.federation.algorithm import Algorithm, State
from core.federation.checkpoint import Checkpoint
from core.federation.client import Client
from core.federation.client import make_clients as hand_out
from core.federation.message import Ledger
from core.federation.runtime import Runtime
from core.federation.task import Task
from core.rng import Rng


class Plan(Protocol):
    """What the loop asks of an experiment (`core.experiments.Experiment` is one)."""

    @property
    def id(self) -> str: ...
    @property
    def dataset(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def model_options(self) -> dict[str, Any]: ...
    @property
    def partition(self) -> dict[str, Any]: ...
    @property
    def clients(self) -> int: ...
    @property
    def active(self) -> int | None: ...
    @property
    def rounds(self) -> int: ...
    @property
    def train_fraction(self) -> float: ...
    @property
    def evaluate_every(self) -> int: ...
    @property
    def evaluate_on(self) -> str: ...
    @property
    def seed(self) -> int: ...

    def new_algorithm(self) -> Algorithm: ...


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


def make_task(experiment: Plan, runtime: Runtime | None = None) -> Task:
    """Load the data and fix the model of an experiment."""
    dataset = data.load(experiment.dataset)
    if experiment.evaluate_on == "val":
        dataset = data.with_validation(dataset, Rng(0).at("validation"))
    return Task(dataset, experiment.model, experiment.model_options, runtime or Runtime.choose())


def make_clients(experiment: Plan, task: Task) -> list[Client]:
    """Hand the training data of an experiment out to its clients."""
    return hand_out(
        task, experiment.partition, experiment.clients, experiment.seed, experiment.train_fraction
    )


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
    experiment: Plan,
    *,
    task: Task | None = None,
    clients: Sequence[Client] | None = None,
    checkpoint: Path | None = None,
) -> Iterator[RoundResult]:
    """Run an experiment round by round.

    With a `checkpoint` file the run resumes after the last finished round; the results of the
    earlier rounds come from the file. `task` and `clients` may be given to look at them or to
    change them; by default they are made here.
    """
    task = task or make_task(experiment)
    clients = make_clients(experiment, task) if clients is None else clients
    algorithm, rng = experiment.new_algorithm(), Rng(experiment.seed)
    algorithm.rounds = experiment.rounds
    key = f"{experiment.id}/{task.dataset.fingerprint}"
    saved = checkpoints.restore(checkpoint, key, task, clients) if checkpoint else None
    saved = saved or Checkpoint(algorithm.initialise(task, rng.at("initialise")), Ledger(), [])
    state, ledger, history = saved.state, saved.ledger, saved.history
    yield from (RoundResult(**row, state=state, ledger=ledger) for row in list(history))

    for number in range(len(history) + 1, experiment.rounds + 1):
        here = rng.at("round", number)
        ledger.open_round()
        state = algorithm.round(
            state, select(clients, experiment.active, here.at("select")), ledger, here
        )
        metrics: dict[str, float] = {}
        if number % experiment.evaluate_every == 0 or number == experiment.rounds:
            with ledger.timed("evaluate"):
                metrics = task.evaluate(algorithm.model(state), experiment.evaluate_on)
                if number == experiment.rounds:
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
