"""The small FedIOD that its tests start from: settings, trained teachers and some of its steps."""

import pytest

from core import algorithms
from core.algorithms.fediod.teachers import train_teacher
from core.federation import Schedule
from core.rng import Rng
from lab import make_clients
from tests.algorithms.on_digits import on_digits

FAST = {
    "local_steps": 2,
    "distill_steps": 6,
    "distill_batch": 8,
    "noise": 7,
    "generator_width": 4,
    "discriminator_width": 4,
    "scored_images": 20,
}
TINY = on_digits("fediod", FAST, model_options={"width": 4}, rounds=3, evaluate_every=9)
K, B, CLASSES, PIXELS = 3, 8, 10, 64


@pytest.fixture(scope="module")
def handed_out(task):
    """Clients that have trained their teachers."""
    clients = make_clients(TINY, task)
    for client in clients:
        train_teacher(client, fediod().settings, Rng(4).at(client.id))
    return clients


@pytest.fixture
def clients(handed_out):
    return [client.copy() for client in handed_out]


def fediod(**settings):
    return algorithms.create("fediod", FAST | settings, schedule=Schedule(rounds=1))


def play(task, clients, algorithm, steps=1):
    """Server's and clients' side after some steps from the same start."""
    state = algorithm.initialise(task, Rng(0))
    state.tensors.update({f"counts/{client.id}": client.class_counts for client in clients})
    server, side = algorithm.sides(state, clients, Rng(1))
    for step in range(steps):
        list(algorithm.step(server, side, step))
    return server, side


#: of the authors' code: who learns first, when, and what with
RELEASED = {
    "generator_form": "released",
    "discriminator_norm": "batch",
    "discriminator_first": True,
    "discriminator_rests": True,
}


def weights(server, side):
    return [
        parameter
        for network in (server.generator, server.student, *side.judges)
        for parameter in network.parameters()
    ]
