"""MOON: its loss against NumPy, what a client remembers, what a projection head costs."""

import attrs
import numpy as np
import pytest
import torch

from core import algorithms
from core.baselines import moon as moon_module
from core.baselines.moon import Projected
from core.federation import Client
from core.models import build, count_parameters
from core.rng import Rng
from tests.algorithms.on_digits import last_round, on_digits
from tests.algorithms.watching import differences

TINY = on_digits("moon", {"local_steps": 3, "batch_size": 16})


def cosine(a, b):
    return (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))


@pytest.mark.parametrize("projection", [0, 6])
def test_the_objective_is_the_loss_and_mu_times_the_contrast(task, clients, projection):
    moon = algorithms.create("moon", {"mu": 3.0, "projection": projection})
    state, other, last = (moon.initialise(task, Rng(seed)) for seed in (0, 1, 2))
    clients[0].memory = {f"previous/{name}": value for name, value in last.tensors.items()}
    places = torch.tensor([3, 0, 8, 5])
    images, labels = clients[0].some(places), clients[0].labels[places]
    inputs = task.inputs(images)

    def network(state, training=False):
        return moon.network(task, state.tensors).train(training)

    objective = moon.contrastive(clients[0], moon.broadcast(state, 0))
    total = objective(network(other, True), images, places)
    with torch.no_grad():
        z = network(other, True).embed(inputs).double().numpy()
        near, far = (
            np.exp(cosine(z, network(fixed).embed(inputs).double().numpy()) / 0.5)
            for fixed in (state, last)
        )
        plain = task.loss(network(other, True)(inputs), labels)
    wanted = -3 * np.log(near / (near + far)).mean()
    assert float(total.detach() - plain) == pytest.approx(wanted, rel=1e-4)


def test_features_of_frozen_networks_are_kept_where_there_is_room(task, clients, monkeypatch):
    """In as much memory as that takes; the result is the same without."""
    monkeypatch.setattr(moon_module, "at_once", lambda images: 16)  # in four parts
    moon = algorithms.create("moon", {"batch_size": 16, "projection": 0, "local_epochs": 3})
    largest, answers = max(clients, key=len), []
    message = moon.broadcast(moon.initialise(task, Rng(0)), 0)
    previous = moon.initialise(task, Rng(1)).tensors
    for room in (moon_module.CACHE_BYTES, 0):
        monkeypatch.setattr(moon_module, "CACHE_BYTES", room)
        client = Client(0, task, largest.images[:50], largest.labels[:50])
        client.memory = {f"previous/{name}": value for name, value in previous.items()}
        answers.append(moon.client_update(client, message, Rng(0)).tensors)
    for name, value in answers[0].items():
        torch.testing.assert_close(value, answers[1][name], rtol=1e-3, atol=1e-5)


def test_in_its_first_round_a_client_has_nothing_to_contrast_with(task):
    """Whatever mu is, the first round is that of FedAvg on the same network."""
    once = attrs.evolve(TINY, rounds=1)
    plain, strong = (last_round(once, task, mu=mu).state.tensors for mu in (0.0, 50.0))
    assert not differences(plain, strong)


def test_a_client_remembers_its_own_last_model_and_nothing_else(task, clients):
    moon = algorithms.create("moon", TINY.settings | {"projection": 6})
    sent = moon.broadcast(moon.initialise(task, Rng(0)), 0)
    for seed in (1, 2):
        answer = moon.client_update(clients[0], sent, Rng(seed))
        assert clients[0].memory.keys() == {f"previous/{name}" for name in answer.tensors}
        for name, value in answer.tensors.items():
            assert torch.equal(clients[0].memory[f"previous/{name}"], value)
            assert name.startswith("buffers/") or not torch.equal(value, sent.tensors[name])


def test_fedvck_prints_what_moon_sends_without_a_head():
    """PathMNIST, ten clients: 12.13 MB in FedVCK's Table 9, 191.60 MB with MOON's head."""
    network = build("convnet", 3, 28, 9, Rng(0))
    plain = count_parameters(network)
    headed = count_parameters(Projected(network, 256, torch.device("meta")))
    assert [round(10 * 4 * size / 2**20, 2) for size in (plain, headed)] == [12.13, 191.60]
