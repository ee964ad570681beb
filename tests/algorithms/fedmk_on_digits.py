"""The small FedMK that its tests start from: its settings, its clients, and what one round leaves."""

import pytest

from core import algorithms
from core.federation import Ledger
from core.rng import Rng
from lab import make_clients
from tests.algorithms.on_digits import on_digits

SHORT = {
    "images_per_class": 2,
    "iterations": 2,
    "inner_batch": 8,
    "real_batch": 8,
    "server_steps": 3,
    "generator_steps": 2,
}
TINY = on_digits("fedmk", SHORT, model_options={}, model="lenet", clients=4, active=3, rounds=3)


def fedmk(**settings):
    return algorithms.create("fedmk", SHORT | settings)


@pytest.fixture(scope="module")
def clients(task):
    return make_clients(TINY, task)


@pytest.fixture(scope="module")
def after_one_round(task, clients):
    algorithm, ledger = fedmk(), Ledger()
    ledger.open_round()
    return algorithm.round(algorithm.initialise(task, Rng(0)), clients[:3], ledger, Rng(1))
