"""Centralized training: all data in one place. The ceiling that federated methods are compared
with.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import nn

from core.errors import InputError
from core.federation import (
    EVERY_TASK,
    Algorithm,
    Client,
    Field,
    Format,
    Ledger,
    Message,
    State,
    SupervisedTraining,
    Task,
    pack,
    supervised,
    train,
)
from core.rng import Rng


@attrs.frozen(kw_only=True)
class Settings(SupervisedTraining):
    """The hyper-parameters of training."""


class Centralized(Algorithm):
    """One model, trained on the union of the clients' data, which cross the network once, in the first
    round. A round takes as many passes, or steps, as all clients of a federated round together.
    """

    Settings = Settings
    task_kinds = EVERY_TASK
    remote_calls = ()

    def initialise(self, task: Task, rng: Rng) -> State:
        """A fresh model; no data yet. Raises InputError with `active`: the union is of all."""
        if self.schedule.active is not None:
            raise InputError(
                "centralized training has the data of all clients in every round: leave out active, "
                f"{self.schedule.active}"
            )
        return State(task, pack(task.new_model(rng.at("model"))), {"received": []})

    def upload_format(self, state: State) -> Format:
        """All images of a client, and their labels."""
        data = state.task.dataset
        most = len(data.train)
        return {
            "images": Field((None, *data.train.images.shape[1:]), torch.uint8, most=most),
            "labels": state.task.targets(most),
        }, {}

    def round(self, state: State, clients: Sequence[Client], ledger: Ledger, rng: Rng) -> State:
        """Collect the data that are not here yet, then train."""
        received = set(state.meta["received"])
        new = [client for client in clients if client.id not in received]
        answers = {
            client.id: Message({"images": client.images, "labels": client.labels}) for client in new
        }
        if new:
            received |= set(self.validate(answers, self.upload_format(state), new, ledger))
        clients = [client for client in clients if client.id in received]
        with ledger.timed("server"):
            model = self.model(state)
            images = torch.cat([client.images for client in clients])
            labels = torch.cat([client.labels for client in clients])
            steps = (
                self.settings.local_steps * len(clients)
                if self.settings.local_steps
                else self.settings.steps(len(labels))
            )
            loss = self.settings.data_loss(state.task, labels)
            objective = supervised(state.task, loss)
            train(model, images, labels, self.settings, objective, rng, steps=steps)
        return State(
            state.task,
            pack(model),
            {"received": sorted(received)},
        )

    def model(self, state: State) -> nn.Module:
        """The one model."""
        return state.task.model_from(state.tensors)
