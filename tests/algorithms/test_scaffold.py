"""SCAFFOLD: Algorithm 1 in float64 NumPy, and what sets it apart from FedAvg."""

import attrs
import numpy as np
import pytest
import torch

from core import algorithms
from core.federation import Client, Schedule
from core.models import Classifier
from core.rng import Rng
from lab import rounds
from lab.running import make_clients
from tests.algorithms.on_digits import on_digits

TINY = on_digits(
    "scaffold", {"local_steps": 3, "batch_size": 16, "lr": 0.05}, clients=4, active=2, rounds=3
)


class Linear(Classifier):
    """Logits x W^T of the flattened pixels: a model whose gradient can be written down."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = torch.nn.Linear(64, 10, bias=False)

    def embed(self, images):
        return images.flatten(1)


def gradient(w, x, y):
    """Of the mean cross-entropy at weights (10, 64), in float64."""
    z = x @ w.T
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return p.T @ x / len(y)


def test_a_run_against_algorithm_1_in_numpy(task, clients, monkeypatch):
    """Whole batches, so that both see the same gradients; client 3 sits out the second round."""
    method = algorithms.create(
        "scaffold",
        {"local_steps": 4, "batch_size": 10**6, "lr": 0.3, "server_lr": 0.7, "weight_decay": 0.0},
        schedule=Schedule(clients=4, rounds=2),
    )
    start = torch.randn(10, 64, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(type(method), "network", lambda self, task, tensors: linear(tensors))
    name = "classifier.weight"
    state = method.initialise(task, Rng(0))
    state = attrs.evolve(
        state,
        tensors={f"parameters/{name}": start, f"control/{name}": torch.zeros_like(start)},
    )
    x, c, own = (
        start.double().numpy(),
        np.zeros((10, 64)),
        {k: np.zeros((10, 64)) for k in range(4)},
    )
    for number, chosen in enumerate(([0, 1, 2, 3], [0, 1, 2])):
        here = [clients[k] for k in chosen]
        sent = {k: method.broadcast(state, k) for k in chosen}
        state = method.server_update(
            state,
            method.at_clients("client_update", here, sent, Rng(0).at(number).at("client")),
            Rng(0),
        )
        moves, changes = [], []
        for k in chosen:
            data = task.inputs(clients[k].images).flatten(1).double().numpy()
            y = x.copy()
            for _ in range(4):
                y -= 0.3 * (gradient(y, data, clients[k].labels.numpy()) - own[k] + c)
            renewed = own[k] - c + (x - y) / (4 * 0.3)
            moves.append(y - x)
            changes.append(renewed - own[k])
            own[k] = renewed
        x = x + 0.7 * np.mean(moves, 0)
        c = c + np.sum(changes, 0) / 4
    assert state.tensors[f"parameters/{name}"].numpy() == pytest.approx(x, abs=1e-4)
    assert state.tensors[f"control/{name}"].numpy() == pytest.approx(c, abs=1e-4)
    assert clients[0].memory[f"control/{name}"].numpy() == pytest.approx(own[0], abs=1e-4)


def linear(tensors):
    model = Linear()
    model.load_state_dict({k.split("/", 1)[1]: v for k, v in tensors.items() if "parameters" in k})
    return model


def test_the_servers_control_is_the_mean_over_clients_that_have_data(task):
    """N counts those that can take part: with others in it the controls would not sum to zero."""
    members = make_clients(attrs.evolve(TINY, active=None), task)
    idle = [Client(k, task, members[0].images[:0], members[0].labels[:0]) for k in range(4, 12)]
    stated = attrs.evolve(TINY, clients=12, active=None, rounds=2)
    *_, last = rounds(stated, task=task, clients=[*members, *idle])
    for name, value in last.state.tensors.items():
        if name.startswith("control/"):
            mean = torch.stack([client.memory[name] for client in last.clients[:4]]).mean(0)
            torch.testing.assert_close(value, mean)


def test_without_momentum_the_rate_goes_as_far_as_fedavgs():
    """A constant gradient moves the weights by lr / (1 - momentum) of itself in the long run."""
    ours, theirs = (algorithms.create(name).settings for name in ("scaffold", "fedavg"))
    assert ours.lr == pytest.approx(theirs.lr / (1 - theirs.momentum))
