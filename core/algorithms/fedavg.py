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

from core.federation import (
    EVERY_TASK,
    Algorithm,
    Client,
    Field,
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
from core.federation.tensors import weights
from core.rng import Rng
from core.server import Aggregation, combined


@attrs.frozen(kw_only=True)
class Settings(Aggregation, LocalTraining):
    """FedAvg has the hyper-parameters of local training; its average may be a robust one."""


class FedAvg(Algorithm):
    """Clients train the server's model on their data; the server averages the models by numbers of
    samples.

    Methods that differ in what a client minimises inherit from this class and override `objective`;
    those with another network override `network`.

    Running means and variances of batch norm are averaged like parameters, with the same weights: a
    global model with the initial running statistics would fail at test time.
    """

    Settings = Settings
    learns: ClassVar[tuple[str, ...]] = EVERY_TASK

    def initialise(self, task: Task, rng: Rng) -> State:
        """A fresh model."""
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
        model = self.network(client.task, message.tensors)
        objective = self.objective(client, message, rng.at("objective"))
        learn(model, client.images, client.labels, self.settings, objective, rng)
        return Message(pack(model), {"samples": len(client)})

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

    def model(self, state: State) -> nn.Module:
        """The global model."""
        return self.network(state.task, state.tensors)
