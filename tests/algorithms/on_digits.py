"""The small experiments that tests of algorithms start from, and what they run of a round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch

from core.federation import Algorithm, Client, Ledger, Message, RoundResult, State, Task
from core.rng import Rng
from lab import Experiment, rounds

#: of methods that condense once, at random networks
ONE_SHOT = {
    "images_per_class": 1,
    "iterations": 3,
    "real_batch": 8,
    "encoder_width": 4,
    "encoder_depth": 2,
    "augmentation": "none",
}


def on_digits(
    algorithm: str, settings: Any = None, alpha: float = 0.5, **fields: Any
) -> Experiment:
    """Three clients, two rounds and a narrow network on digits; `fields` say what is different."""
    usual = {"clients": 3, "rounds": 2, "model_options": {"width": 8}}
    partition = {"name": "dirichlet", "alpha": alpha}
    given = {**usual, "settings": settings or {}, **fields}
    return Experiment(algorithm=algorithm, dataset="digits", partition=partition, **given)


def last_round(
    experiment: Experiment, task: Task, clients: list[Client] | None = None, **settings: Any
) -> RoundResult:
    """The result of the last round of an experiment, some of whose settings are others."""
    experiment = attrs.evolve(experiment, settings={**experiment.settings, **settings})
    *_, last = rounds(experiment, task=task, clients=clients)
    return last


def uploads_of(
    algorithm: Algorithm, state: State, clients: Sequence[Client], rng: Rng
) -> dict[int, Message]:
    """What clients answer to a state, each with a random stream of its own."""
    messages = {client.id: algorithm.broadcast(state, client.id) for client in clients}
    return algorithm.at_clients("client_update", clients, messages, rng.at("client"))


def after_rounds(
    algorithm: Algorithm, task: Task, clients: Sequence[Client], number: int = 1, seed: int = 0
) -> tuple[State, Ledger]:
    """The state after so many rounds of these clients, and what crossed the network."""
    state, ledger = algorithm.initialise(task, Rng(0)), Ledger()
    for t in range(seed, seed + number):
        ledger.open_round()
        state = algorithm.round(state, clients, ledger, Rng(t))
    return state, ledger


def first_images(algorithm: Algorithm, task: Task, clients: Sequence[Client]) -> torch.Tensor:
    """What the first of some clients sends in the first round, as whole numbers."""
    state = algorithm.initialise(task, Rng(0))
    return uploads_of(algorithm, state, clients[:1], Rng(3))[clients[0].id].tensors["images"].int()
