"""FedEnsemble: the test is that of the clients' models together."""

import pytest
import torch

from core.baselines.fedensemble import Ensemble, FedEnsemble
from core.rng import Rng
from tests.algorithms.on_digits import last_round, on_digits

TINY = on_digits(
    "fedensemble",
    {"local_steps": 4, "batch_size": 16},
    model_options={"width": 8, "depth": 2},
    clients=4,
    active=3,
)


def test_the_models_of_the_last_round_are_tested_together(task, monkeypatch):
    """Training is FedAvg's (`test_model_centric.py`)."""
    seen, average = [], FedEnsemble.server_update
    monkeypatch.setattr(
        FedEnsemble, "server_update", lambda *given: seen.append(given[2]) or average(*given)
    )
    last = last_round(TINY, task, local_steps=30, batch_size=32, lr=0.05)
    images, labels = task.dataset.test.images, task.dataset.test.labels
    uploads = seen[-1].values()
    logits = [task.outputs(task.model_from(one.tensors), images).double() for one in uploads]
    each = [float((one.argmax(1) == labels).double().mean()) for one in (*logits, sum(logits))]
    assert len(set(each)) == 4  # three models and the sum of their logits: all differ
    assert last.metrics["accuracy"] == pytest.approx(each[-1])


def test_the_ensemble_is_the_mean_of_logits_and_starts_as_one_model(task):
    first, second = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(Ensemble([first, second])(x), (first(x) + second(x)) / 2)
    method, images = TINY.new_algorithm(), task.dataset.test.images[:4]
    state = method.initialise(task, Rng(0))
    torch.testing.assert_close(
        task.outputs(method.model(state), images),
        task.outputs(task.model_from(state.tensors), images),
    )
