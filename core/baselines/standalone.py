"""Standalone training: every client alone. The floor that federated methods are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
from torch import nn

from core.families.own_models import OWN, OwnModels
from core.federation import (
    EVERY_TASK,
    Client,
    Ledger,
    Message,
    State,
    SupervisedTraining,
    Task,
    pack,
    supervised,
    train,
)
from core.federation.tensors import take
from core.rng import Rng


@attrs.frozen(kw_only=True)
class Settings(SupervisedTraining):
    """The hyper-parameters of training."""


class Standalone(OwnModels):
    """A model of its own for each client, from the same weights; nothing is sent. The result is the
    mean over clients, each tested on the whole test set.
    """

    Settings = Settings
    task_kinds = EVERY_TASK
    remote_calls = ("train_alone", "send_model")

    def initialise(self, task: Task, rng: Rng) -> State:
        """An empty state: the server has no part in it."""
        return State(task)

    def train_alone(
        self, clients: Sequence[Client], messages: Mapping[int, Message], rngs: Sequence[Rng]
    ) -> dict[int, Message]:
        """Train each client's model further; a client says no more than that it has."""
        for client, rng in zip(clients, rngs, strict=True):
            own, start = take(OWN, client.memory), Rng(rng.seed).at("initialise", "model")
            model = client.task.model_from(own) if own else client.task.new_model(start)
            loss = self.settings.data_loss(client.task, client.labels)
            objective = supervised(client.task, loss)
            train(model, client.images, client.labels, self.settings, objective, rng)
            client.memory = pack(model, OWN)
        return {client.id: Message({}) for client in clients}

    def round(self, state: State, clients: Sequence[Client], ledger: Ledger, rng: Rng) -> State:
        """Train every client's model further, and lay the models open for the test."""
        self.call_clients("train_alone", clients, None, ({}, {}), ledger, rng.at("client"))
        return self.with_client_models(state, clients, ledger, rng)

    def model(self, state: State) -> list[nn.Module]:
        """The model of every client that has trained one."""
        return self.client_models(state)
