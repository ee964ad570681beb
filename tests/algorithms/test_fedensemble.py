"""FedEnsemble: training is FedAvg's, the test is that of the clients' models together."""

import attrs
import pytest
import torch

from core.baselines.fedensemble import Ensemble, FedEnsemble
from lab import make_clients, rounds
from tests.algorithms.on_digits import on_digits

TINY = on_digits(
    "fedensemble",
    {"local_steps": 4, "batch_size": 16},
    model_options={"width": 8, "depth": 2},
    clients=4,
    active=3,
)


def test_the_models_of_the_last_round_are_tested_together(task, monkeypatch):
    seen = []
    average = FedEnsemble.server_update
    monkeypatch.setattr(
        FedEnsemble,
        "server_update",
        lambda self, state, uploads, rng: (
            seen.append(uploads) or average(self, state, uploads, rng)
        ),
    )
    settings = {"local_steps": 30, "batch_size": 32, "lr": 0.05}
    *_, last = rounds(attrs.evolve(TINY, settings=settings), task=task)
    images, labels = task.dataset.test.images, task.dataset.test.labels
    logits = [
        task.outputs(task.model_from(upload.tensors), images).double()
        for upload in seen[-1].values()
    ]
    each = [float((one.argmax(1) == labels).double().mean()) for one in (*logits, sum(logits))]
    assert len(set(each)) == 4  # three models and the sum of their logits: all differ
    assert last.metrics["accuracy"] == pytest.approx(each[-1])


def test_training_is_that_of_fedavg_and_so_is_the_traffic(task):
    *_, ours = rounds(TINY, task=task)
    *_, plain = rounds(attrs.evolve(TINY, algorithm="fedavg"), task=task)
    for name, value in plain.state.tensors.items():
        assert torch.equal(ours.state.tensors[name], value)
    assert (ours.up, ours.down) == (plain.up, plain.down)
    assert (
        len({name.split("/")[1] for name in ours.state.tensors if name.startswith("members/")}) == 3
    )


def test_the_ensemble_is_the_mean_of_logits_and_starts_as_one_model(task):
    clients = make_clients(TINY, task)
    first, second = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(Ensemble([first, second])(x), (first(x) + second(x)) / 2)
    method = TINY.new_algorithm()
    state = next(rounds(attrs.evolve(TINY, rounds=1), task=task, clients=clients)).state
    start = attrs.evolve(
        state, tensors={n: v for n, v in state.tensors.items() if not n.startswith("members/")}
    )
    torch.testing.assert_close(
        task.outputs(method.model(start), clients[0].images[:4]),
        task.outputs(task.model_from(state.tensors), clients[0].images[:4]),
    )
