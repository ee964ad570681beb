"""Standalone training: every client alone. The floor that federated methods are compared with."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from torch import nn

from core.federation import (
    Algorithm,
    Client,
    Ledger,
    LocalTraining,
    State,
    Task,
    pack,
    supervised,
    train,
)
from core.federation.tensors import put, put_each, take, take_each
from core.rng import Rng


@attrs.frozen(kw_only=True)
class Settings(LocalTraining):
    """The hyper-parameters of training."""


class Standalone(Algorithm):
    """Every client trains a model of its own and sends nothing.

    All start from the same weights. The result is the mean over clients, each tested on the whole
    test set.
    """

    Settings = Settings

    def initialise(self, task: Task, rng: Rng) -> State:
        """The weights that all clients start from."""
        return State(task, pack(task.new_model(rng.at("model")), "start/"))

    def round(self, state: State, clients: Sequence[Client], ledger: Ledger, rng: Rng) -> State:
        """Train every client's model further. The models stand in the state because they are what
        is tested.
        """
        start, trained = take("start/", state.tensors), take_each("clients/", state.tensors)
        with ledger.timed("clients"):
            for client in clients:
                model = state.task.model_from(trained.get(client.id, start))
                train(
                    model,
                    client.images,
                    client.labels,
                    self.settings,
                    self.settings.steps(len(client)),
                    supervised(state.task),
                    rng.at("client", client.id),
                )
                trained[client.id] = pack(model)
        return State(state.task, put("start/", start) | put_each("clients/", trained))

    def model(self, state: State) -> list[nn.Module]:
        """The model of every client that has trained one."""
        trained = take_each("clients/", state.tensors)
        return [state.task.model_from(tensors) for tensors in trained.values()]
