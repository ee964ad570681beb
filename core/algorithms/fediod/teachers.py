"""Stage one of FedIOD: every client trains a teacher to completion."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from torch import nn

from core.algorithms.fediod.settings import Settings
from core.errors import InputError
from core.federation import Client, Task, pack, supervised, train
from core.federation.dense import task_of
from core.federation.tensors import take
from core.rng import Rng


def teacher_task(task: Task, settings: Settings, client_id: int) -> Task:
    """The task with the architecture of a client's teacher."""
    if not settings.teacher_models:
        return task
    options = dict(settings.teacher_models[client_id % len(settings.teacher_models)])
    return attrs.evolve(task, model=options.pop("model"), model_options=options)


def check_teachers(task: Task, settings: Settings) -> None:
    """Raise InputError for a teacher that cannot be built, or that does not fit the task."""
    for number, _ in enumerate(settings.teacher_models or ()):
        own = teacher_task(task, settings, number)
        task_of(own.dataset, own.model, own.model_options)
        own.new_model(Rng(0, ("teacher", number)))


def train_teacher(client: Client, settings: Settings, rng: Rng) -> None:
    """Stage one: train T_k on the client's data to completion; it stays in the client's memory."""
    task = teacher_task(client.task, settings, client.id)
    model = task.new_model(rng.at("teacher"))
    train(model, client.images, client.labels, settings, supervised(task), rng.at("local"))
    client.memory |= pack(model, "teacher/")


def teachers(clients: Sequence[Client], settings: Settings) -> list[nn.Module]:
    """The clients' teachers, frozen, in evaluation mode. Raises InputError before stage one."""
    networks: list[nn.Module] = []
    for client in clients:
        if not take("teacher/", client.memory):
            raise InputError(f"client {client.id} has no teacher yet")
        task = teacher_task(client.task, settings, client.id)
        networks.append(task.model_from(client.memory, "teacher/").eval().requires_grad_(False))
    return networks
