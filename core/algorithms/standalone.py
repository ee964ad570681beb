"""Standalone training: every client alone. The floor that federated methods are compared with."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
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
        return State(task, _put("start", pack(task.new_model(rng.at("model")))), {"trained": []})

    def round(self, state: State, clients: Sequence[Client], ledger: Ledger, rng: Rng) -> State:
        """Train every client's model further. The models stand in the state because they are what
        is tested.
        """
        tensors, trained = dict(state.tensors), set(state.meta["trained"])
        with ledger.timed("clients"):
            for client in clients:
                model = state.task.model_from(
                    _take(str(client.id) if client.id in trained else "start", tensors)
                )
                train(
                    model,
                    client.images,
                    client.labels,
                    self.settings,
                    self.settings.steps(len(client)),
                    supervised(state.task),
                    rng.at("client", client.id),
                )
                tensors |= _put(str(client.id), pack(model))
        return State(
            state.task, tensors, {"trained": sorted(trained | {client.id for client in clients})}
        )

    def model(self, state: State) -> list[nn.Module]:
        """The model of every client that has trained one."""
        return [
            state.task.model_from(_take(str(owner), state.tensors))
            for owner in state.meta["trained"]
        ]


def _put(owner: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{owner}/{name}": value for name, value in tensors.items()}


def _take(owner: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix(f"{owner}/"): value
        for name, value in tensors.items()
        if name.startswith(f"{owner}/")
    }
