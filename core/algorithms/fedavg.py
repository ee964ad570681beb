"""FedAvg: federated averaging.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-Efficient Learning of Deep Networks
from Decentralized Data. AISTATS 2017, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import attrs
import torch
from torch import nn

from core.errors import InputError
from core.families.own_models import OWN, OwnModels
from core.federation import (
    EVERY_TASK,
    Client,
    Field,
    Ledger,
    LocalTraining,
    Message,
    State,
    Task,
    as_announced,
    learn,
    pack,
    supervised,
)
from core.federation.local_training import Objective
from core.federation.schedule import TESTERS
from core.federation.tensors import put, take, weights
from core.rng import Rng
from core.server import Aggregation, combined


@attrs.frozen(kw_only=True)
class Settings(Aggregation, LocalTraining):
    """FedAvg has the hyper-parameters of local training; its average may be a robust one."""


class FedAvg(OwnModels):
    """Clients train the server's model on their data; the server averages the models by numbers of
    samples.

    Methods that differ in what a client minimises inherit from this class and override `objective`;
    those with another network override `network`.

    Running means and variances of batch norm are averaged like parameters, with the same weights: a
    global model with the initial running statistics would fail at test time. Where clients test,
    each goes on with its own statistics, and is tested by the global parameters and these.
    """

    Settings = Settings
    learns: ClassVar[tuple[str, ...]] = EVERY_TASK
    testers: ClassVar[tuple[str, ...]] = TESTERS

    def initialise(self, task: Task, rng: Rng) -> State:
        """A fresh model. Raises InputError where clients are to test what has no classes."""
        if self.clients_test and task.learns != "classification":
            raise InputError(
                f"tested_by must be server: {task.dataset.name} has no images of a class"
            )
        return State(task, pack(task.new_model(rng.at("model"))))

    def network(self, task: Task, tensors: Mapping[str, torch.Tensor]) -> nn.Module:
        """The network whose weights stand in `tensors` under `parameters/` and `buffers/`."""
        return task.model_from(tensors)

    def broadcast(self, state: State, client_id: int) -> Message:
        """The global model, the same for every client."""
        return Message(weights(state.tensors))

    def upload_format(self, state: State) -> tuple[dict[str, Field], dict[str, Field]]:
        """A model of the same form, and the number of samples behind it."""
        tensors = {
            name: Field(tuple(value.shape), value.dtype, near=value)
            for name, value in weights(state.tensors).items()
        }
        return tensors, {"samples": Field((), torch.int64, low=1, total=as_announced)}

    def objective(self, client: Client, received: Message, rng: Rng) -> Objective:
        """What a client minimises in this round: the mean loss F_k(w) of its own data.

        `received` is the server's message; `rng` is for whatever a method draws beside the batches.
        """
        return supervised(client.task)

    def client_update(self, client: Client, message: Message, rng: Rng) -> Message:
        """ClientUpdate(k, w_t): local SGD from the global model."""
        own = statistics(take(OWN, client.memory)) if self.clients_test else {}
        model = self.network(client.task, message.tensors | own)
        objective = self.objective(client, message, rng.at("objective"))
        learn(model, client.images, client.labels, self.settings, objective, rng)
        trained = pack(model)
        if self.clients_test:
            client.memory |= put(OWN, trained)
        return Message(trained, {"samples": len(client)})

    def round(self, state: State, clients: Sequence[Client], ledger: Ledger, rng: Rng) -> State:
        """The usual round; where clients test, their networks are laid beside the state."""
        state = super().round(state, clients, ledger, rng)
        return self.laid_open(state, clients, ledger, rng) if self.clients_test else state

    def server_update(self, state: State, uploads: Mapping[int, Message], rng: Rng) -> State:
        """w_{t+1} = sum_k n_k/n w^k_{t+1}, over the clients of the round; all else in the state
        stays.
        """
        samples = [upload.whole("samples") for upload in uploads.values()]
        average = self.combined(
            [weights(upload.tensors) for upload in uploads.values()], samples, state
        )
        return attrs.evolve(state, tensors=state.tensors | average)

    def combined(
        self, uploads: Sequence[Mapping[str, torch.Tensor]], samples: Sequence[int], state: State
    ) -> dict[str, torch.Tensor]:
        """The clients' tensors as one, by the rule that the settings name."""
        return combined(uploads, samples, state.tensors, self.settings)

    def model(self, state: State) -> nn.Module | list[nn.Module]:
        """The global model; where clients test, for each that has taken part with its own running
        statistics.
        """
        if not self.clients_test:
            return self.network(state.task, state.tensors)
        return self.tested(
            state, lambda own: self.network(state.task, state.tensors | statistics(own))
        )


def statistics(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The running statistics of batch norm among the weights of a network."""
    return {name: value for name, value in tensors.items() if name.startswith("buffers/")}
