"""The round loop."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch

from core.checks import check_kind, check_whole, plain
from core.data.drawn import ALWAYS_HERE
from core.errors import Diverged, InputError
from core.federation import checkpoint as checkpoints
from core.federation.algorithm import Algorithm, State
from core.federation.checkpoint import Checkpoint
from core.federation.client import Client
from core.federation.message import Ledger
from core.federation.task import Task
from core.rng import Rng


@attrs.frozen(eq=False)
class RoundResult:
    """Result of a round, from 1: `metrics`, if tested; bytes of all clients `up` and `down`."""

    round: int
    metrics: dict[str, float]
    up: int
    down: int
    seconds: dict[str, float]
    #: after this round; of earlier rounds that come from a checkpoint, after the last one in it
    state: State = attrs.field(repr=False)
    ledger: Ledger = attrs.field(repr=False)
    #: reasons by client, of the uploads that were refused
    refused: dict[str, str] = attrs.field(factory=dict)
    #: whether it comes from a checkpoint, and whether the next result does, too
    restored: bool = False
    followed: bool = False
    #: the most bytes held at once so far, also before the run was resumed; see `Runtime.peak_memory`
    peak_memory: int = 0
    #: those of the run, with what they remember; a later round changes that
    clients: Sequence[Client] = attrs.field(default=(), repr=False)

    def row(self) -> dict[str, Any]:
        """The plain data that a record keeps."""
        return {
            "round": self.round,
            "metrics": self.metrics,
            "up": self.up,
            "down": self.down,
            "seconds": {phase: round(time, 4) for phase, time in self.seconds.items()},
            **({"refused": self.refused} if self.refused else {}),
        }


def select(clients: Sequence[Client], active: int | None, rng: Rng) -> list[Client]:
    """Clients of a round: all with data, or `active` random ones of these."""
    able = [client for client in clients if len(client)]
    if active is None or active >= len(able):
        return able
    chosen = torch.randperm(len(able), generator=rng.generator())[:active]
    return [able[i] for i in sorted(chosen.tolist())]


def check_serves(algorithm: Algorithm, task: Task) -> None:
    """Raise InputError where an algorithm does not serve the task or needs more of its network."""
    check_kind("algorithm", algorithm, Algorithm)
    check_kind("task", task, Task)
    if task.kind not in (served := algorithm.task_kinds):
        model = "" if "classification" in served else " with the model unet"
        raise InputError(
            f"{type(algorithm).__name__} is a method for {' and '.join(served)}, but "
            f"{task.dataset.name} is a data set for {task.kind}; it takes "
            f"{' or '.join(ALWAYS_HERE[kind] for kind in served)}{model}, for example"
        )
    if missing := task.lacks(algorithm.network_parts):
        raise InputError(
            f"{type(algorithm).__name__} matches features, but the network has no "
            f"{' and no '.join(missing)}: it needs embed(images), which gives features (N, D), and "
            "classifier, the linear layer that follows, under that name alone"
        )


def rounds(
    algorithm: Algorithm,
    task: Task,
    clients: Sequence[Client],
    seed: int,
    *,
    checkpoint: Path | None = None,
    key: Mapping[str, str] | None = None,
) -> Iterator[RoundResult]:
    """Run an algorithm round by round, as its schedule says. It works on copies of the clients, which go
    on with what these remember; the results have the copies.

    With a `checkpoint` file the run resumes after the last finished round; the results of the
    earlier rounds come from the file. `key` says what must be the same for the run to go on with it.

    Raises InputError for a task that the algorithm does not serve and after a round that leaves the
    state, or a test, with numbers that are not finite, and FileError for a checkpoint that cannot
    be written or has another key.
    """
    check_serves(algorithm, task)
    check_kind("clients", clients, Sequence)
    check_whole("seed", seed := plain(seed), 0)
    algorithm, clients = algorithm.among(clients), [client.copy() for client in clients]
    schedule, rng, key = algorithm.schedule, Rng(seed), dict(key or {})
    saved = checkpoints.restore(checkpoint, key, task, clients) if checkpoint else None
    if saved is None:
        state = algorithm.initialise(task, rng.at("initialise"))
        saved = Checkpoint(state, Ledger(device=task.runtime.device), [])
    state, ledger, history, peak = saved.state, saved.ledger, saved.history, saved.peak_memory
    for row in list(history):  # each with what had crossed the network by then
        then, more = Ledger(ledger.rounds[: row["round"]]), row is not history[-1]
        yield RoundResult(
            **row,
            state=state,
            ledger=then,
            restored=True,
            followed=more,
            peak_memory=peak,
            clients=clients,
        )

    for number in range(len(history) + 1, schedule.rounds + 1):
        draws = rng.at("round", number)
        ledger.open_round()
        chosen = select(clients, schedule.active, draws.at("select"))
        state = finite_state(algorithm.round(state, chosen, ledger, draws), number)
        metrics: dict[str, float] = {}
        if schedule.tests(number):
            with ledger.timed("evaluate"):
                metrics = tested(algorithm, task, state, number)
        peak = max(peak, task.runtime.peak_memory())
        result = RoundResult(
            round=number,
            metrics=metrics,
            up=ledger.nbytes("up"),
            down=ledger.nbytes("down"),
            seconds=ledger.rounds[-1]["seconds"],
            state=state,
            ledger=ledger,
            refused=ledger.rounds[-1].get("refused", {}),
            peak_memory=peak,
            clients=clients,
        )
        history.append(result.row())
        if checkpoint:
            checkpoints.save(checkpoint, key, Checkpoint(state, ledger, history, peak), clients)
        yield result


def tested(algorithm: Algorithm, task: Task, state: State, number: int) -> dict[str, float]:
    """Metrics after a round, after the last with the algorithm's measures. Raises Diverged where one is
    not finite, and ValueError where a measure has a metric's name.
    """
    metrics = task.evaluate(algorithm.model(state), algorithm.schedule.evaluate_on)
    if number == algorithm.schedule.rounds:
        measures = algorithm.measures(state)
        if both := metrics.keys() & measures.keys():
            raise ValueError(
                f"an algorithm measures {sorted(both)[0]!r}, which is a metric of the task"
            )
        metrics |= measures
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise Diverged(f"the test after round {number} gives {name!r} = {value}, no number")
    return metrics


def finite_state(state: State, number: int) -> State:
    """Return the state. Raises Diverged, naming a tensor, where one is not finite."""
    floats = {name: value for name, value in state.tensors.items() if value.is_floating_point()}
    place = state.task.runtime.device  # Adam counts its steps on the CPU
    sound = [torch.isfinite(value).all().to(place, non_blocking=True) for value in floats.values()]
    if sound and not bool(torch.stack(sound).all()):
        bad = next(name for name, fine in zip(floats, sound, strict=True) if not fine)
        raise Diverged(
            f"round {number} left {bad!r} with values that are not finite: training has diverged; "
            "a smaller learning rate may help"
        )
    return state
