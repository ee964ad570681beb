"""FedAvg: federated averaging.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-Efficient Learning of Deep Networks
from Decentralized Data. AISTATS 2017, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import nn

from core.checks import one_of
from core.errors import InputError
from core.families.own_models import OWN, OwnModels
from core.federation import (
    EVERY_TASK,
    Client,
    Field,
    Format,
    Message,
    OutputObjective,
    State,
    SupervisedTraining,
    Task,
    each_once,
    network_form,
    pack,
    train,
)
from core.federation.local_training import LocalLoss
from core.federation.schedule import EVALUATORS, Schedule
from core.federation.stacked_training import Learner, clients_at_once, train_stacked
from core.federation.tensors import put, take, weights
from core.progress import counted
from core.rng import Rng
from core.server import Aggregation, combined
from core.training import Objective, in_order

#: a client that trains, what it received and its stream of random numbers
Job = tuple[Client, Message, Rng]
ORDERS = ("random", "stored", "by_class")
#: a client's memory of how many batches it has taken
TAKEN = "batches/taken"


@attrs.frozen(kw_only=True)
class Settings(Aggregation, SupervisedTraining):
    """FedAvg has the hyper-parameters of local training; its average may be a robust one."""

    #: in which a client's images come: "random", another one in each pass; or one that stays, in passes
    #: that go on where the client's last round ended: "stored", that of the data set, or "by_class", class
    #: after class, as in FedGen's code until January 2022
    order: str = attrs.field(default="random", validator=one_of("order", *ORDERS))


class FedAvg(OwnModels):
    """Clients train the server's model on their data; the server averages the models by numbers of
    samples.

    Methods that differ in what a client minimises inherit from this class and override `loss`, or
    `objective` where it takes more than the network's outputs; those with another network override
    `network`, and those with another local training write `client_update`.

    Running means and variances of batch norm are averaged like parameters, with the same weights: a
    global model with the initial running statistics would fail at test time. Where clients test,
    each goes on with its own statistics, and is tested by the global parameters and these; one that
    trains for the first time begins with the received ones, in FedGen's code with those of a new model.
    """

    Settings = Settings
    task_kinds = EVERY_TASK
    evaluators = EVALUATORS

    def __init__(self, settings: Any = None, schedule: Schedule | None = None) -> None:
        super().__init__(settings, schedule)
        if self.settings.order != "random" and self.one_by_one:
            raise InputError("order must be random: this algorithm has a local training of its own")

    def initialise(self, task: Task, rng: Rng) -> State:
        """A fresh model. Raises InputError where clients test or order by class what has no classes."""
        if task.kind != "classification":
            if self.clients_test:
                raise InputError(
                    f"tested_by must be server: {task.dataset.name} has no images of a class"
                )
            if self.settings.order == "by_class":
                raise InputError(f"order must not be by_class: {task.dataset.name} has no classes")
        return State(task, pack(task.new_model(rng.at("model"))))

    def network(self, task: Task, tensors: Mapping[str, torch.Tensor]) -> nn.Module:
        """The network whose weights are in `tensors` under `parameters/` and `buffers/`."""
        return task.model_from(tensors)

    def broadcast(self, state: State, client_id: int) -> Message:
        """The global model, the same for every client."""
        return Message(weights(state.tensors))

    def upload_format(self, state: State) -> Format:
        """A model of the same form, and the number of samples behind it."""
        samples = Field((), torch.int64, low=1, total=each_once)
        return network_form(weights(state.tensors)), {"samples": samples}

    def loss(self, client: Client, received: Message, rng: Rng) -> LocalLoss:
        """Return F_k(w), the loss of a client in this round, of the network's outputs; `received` is the
        server's message, `rng` for what a method draws beside the batches.
        """
        loss = self.settings.data_loss(client.task, client.labels)
        return lambda model, outputs, labels: loss(outputs, labels)

    def objective(self, client: Client, received: Message, rng: Rng) -> Objective:
        """Return what a client minimises, of the network and a batch of images."""
        return OutputObjective(client.task, self.loss(client, received, rng))

    def start(self, client: Client, message: Message) -> nn.Module:
        """The network with which a client begins its round."""
        own = statistics(take(OWN, client.memory)) if self.clients_test else {}
        return self.network(client.task, message.tensors | own)

    def answer(self, client: Client, model: nn.Module) -> Message:
        """Return what a client sends when its network is trained."""
        trained = pack(model)
        if self.clients_test:
            client.memory |= put(OWN, trained)
        return Message(trained, {"samples": len(client)})

    def batches(self, client: Client, rng: Rng) -> Iterator[torch.Tensor]:
        """Index tensors of a client's batches; it remembers where the round ended in a fixed order."""
        settings = self.settings
        if settings.order == "random":
            return settings.drawn(client.labels, rng)
        steps, taken = settings.steps(len(client)), client.memory.get(TAKEN, torch.tensor(0))
        client.memory[TAKEN] = taken + steps
        order = torch.arange(len(client), device=client.labels.device)
        if settings.order == "by_class":
            order = client.labels.argsort(stable=True)
        return in_order(order, settings.batch_size, steps, int(taken))

    def local_update(self, client: Client, message: Message, rng: Rng) -> Message:
        """ClientUpdate(k, w_t): local SGD from the global model."""
        model = self.start(client, message)
        objective = self.objective(client, message, rng.at("objective"))
        drawn = self.batches(client, rng)
        train(model, client.images, client.labels, self.settings, objective, rng, drawn=drawn)
        return self.answer(client, model)

    def client_updates(
        self, clients: Sequence[Client], messages: Mapping[int, Message], rngs: Sequence[Rng]
    ) -> dict[int, Message]:
        """The trained models. Clients with small networks and as many steps train as one program."""
        answers, by_steps = dict[int, Message](), dict[int, list[Job]]()
        for client, rng in zip(clients, rngs, strict=True):
            steps = self.settings.steps(len(client))
            by_steps.setdefault(steps, []).append((client, messages[client.id], rng))
        groups = [group for jobs in by_steps.values() for group in self._groups(jobs)]
        for group in counted(groups, "clients", len(groups)):
            several = len(group) > 1 and self._stacked_update(group)
            answers |= several or {job[0].id: self.local_update(*job) for job in group}
        return {client.id: answers[client.id] for client in clients}

    def _groups(self, jobs: list[Job]) -> list[list[Job]]:
        """Clients that take as many steps, in groups of which each trains as one program."""
        size = 1
        if len(jobs) > 1:
            client, message, _ = jobs[0]
            image = client.some(torch.zeros(1, dtype=torch.int64))
            size = clients_at_once(self.start(client, message), image, self.settings)
        return [jobs[k : k + size] for k in range(0, len(jobs), size)]

    def _stacked_update(self, group: list[Job]) -> dict[int, Message] | None:
        """Models of clients that train as one program; None where a loss needs more than outputs."""
        objectives = [
            self.objective(client, message, rng.at("objective")) for client, message, rng in group
        ]
        losses = [each.loss for each in objectives if isinstance(each, OutputObjective)]
        if len(losses) < len(group):
            return None
        learners = [
            Learner(
                self.start(client, message),
                client.images,
                client.labels,
                loss,
                self.batches(client, rng),
            )
            for (client, message, rng), loss in zip(group, losses, strict=True)
        ]
        train_stacked(group[0][0].task, learners, self.settings)
        return {
            client.id: self.answer(client, learner.model)
            for (client, *_), learner in zip(group, learners, strict=True)
        }

    def server_update(self, state: State, uploads: Mapping[int, Message], rng: Rng) -> State:
        """w_{t+1} = sum_k n_k/n w^k_{t+1}, over the clients of the round; the rest stays."""
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
        """The global model; where clients test, one for each with its own running statistics."""
        if not self.clients_test:
            return self.network(state.task, state.tensors)
        return self.client_models(
            state, lambda own: self.network(state.task, state.tensors | statistics(own))
        )


def statistics(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The running statistics of batch norm among the weights of a network."""
    return {name: value for name, value in tensors.items() if name.startswith("buffers/")}
