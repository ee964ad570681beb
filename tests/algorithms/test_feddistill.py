"""FedDistill: mean logits against NumPy, the regulariser against SciPy, both ways of sharing."""

import attrs
import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax

from core import algorithms
from core.federation import Message, pack
from core.rng import Rng
from lab import rounds
from tests.algorithms.on_digits import on_digits

# without normalisation an output does not depend on the rest of its batch
TINY = on_digits(
    "feddistill",
    {"local_steps": 3, "batch_size": 16},
    model_options={"width": 8, "norm": "none"},
    rounds=3,
)


def feddistill(**changes):
    return algorithms.create("feddistill", TINY.settings | changes)


def test_a_client_sends_the_mean_logits_of_each_of_its_classes(task, clients):
    """One pass with a step too small to move the model."""
    client, labels = clients[0], clients[0].labels.numpy()
    method = feddistill(lr=1e-12, local_steps=None, local_epochs=1)
    state = method.initialise(task, Rng(0))
    found = method.client_update(client, method.broadcast(state, 0), Rng(1)).tensors
    logits = task.outputs(method.model(state), client.images).double().numpy()
    for c in range(10):
        expected = logits[labels == c].mean(0) if (labels == c).any() else np.zeros(10)
        np.testing.assert_allclose(found["logits/mean"][c].numpy(), expected, atol=1e-5)
    assert found["logits/samples"].tolist() == client.class_counts.tolist()


def test_logits_are_tracked_over_the_round_or_over_the_run(task, clients):
    for tracking, passes in (("round", [1, 1]), ("run", [1, 2])):
        method = feddistill(tracking=tracking, local_steps=None, local_epochs=1)
        sent = method.broadcast(method.initialise(task, Rng(0)), 0)
        client = clients[0].copy()
        for times in passes:
            answer = method.client_update(client, sent, Rng(1))
            assert answer.tensors["logits/samples"].equal(times * client.class_counts)


def upload(task, mean, samples):
    weights = pack(task.new_model(Rng(0)))
    return Message(
        weights | {"logits/mean": mean, "logits/samples": torch.tensor(samples)}, {"samples": 5}
    )


def test_the_server_averages_over_clients_that_hold_the_class(task):
    """And remembers a class that is absent for a round."""
    first, second = ([2] + [3] * 8 + [0], 4.0), ([0] + [900] * 8 + [0], 8.0)
    uploads = {
        k: upload(task, value * torch.ones(10, 10) * torch.tensor(samples).gt(0)[:, None], samples)
        for k, (samples, value) in enumerate((first, second))
    }
    nobody = {0: upload(task, torch.zeros(10, 10), [0] * 10)}
    for absent, row0, known9 in (("skipped", 4.0, False), ("zero", 2.0, True)):
        method = feddistill(absent=absent)
        state = method.server_update(method.initialise(task, Rng(0)), uploads, Rng(0))
        mean, known = state.tensors["logits/mean"], state.tensors["logits/known"]
        assert mean[0].unique().tolist() == [row0] and mean[1:9].unique().tolist() == [6.0]
        assert known.tolist() == [True] * 9 + [known9]
        later = method.server_update(state, nobody, Rng(0)).tensors
        if absent == "skipped":
            assert torch.equal(later["logits/mean"], mean) and later["logits/known"][:9].all()


def test_the_regulariser_against_scipy_where_logits_are_known(task, clients):
    method = feddistill(weight=2.0)
    images, labels = clients[0].images[:12], clients[0].labels[:12]
    known = torch.zeros(10, dtype=torch.bool).index_fill(0, labels[:5], True)
    mean = torch.randn(10, 10, generator=torch.Generator().manual_seed(0))
    model = task.new_model(Rng(3))
    sent = Message(pack(model) | {"logits/mean": mean, "logits/known": known})
    found = method.objective(clients[0], sent, Rng(0))(model, images, labels)
    outputs = task.outputs(model, images).double().numpy()
    log_q, y = log_softmax(outputs, axis=1), labels.numpy()
    p = softmax(mean.double().numpy()[y], axis=1)
    divergence = (p * (np.log(p) - log_q)).sum(1) * known.numpy()[y]
    expected = -log_q[range(12), y].mean() + 2 * divergence.mean()
    assert 0 < known[labels].sum() < 12
    assert float(found.detach()) == pytest.approx(expected, rel=1e-4)
    # an image whose class is not known pulls the model exactly as without the regulariser
    only = images[~known[labels]][:1], labels[~known[labels]][:1]
    weight = model.classifier.weight
    ours = torch.autograd.grad(method.objective(clients[0], sent, Rng(0))(model, *only), weight)[0]
    plain = torch.autograd.grad(task.loss(model(task.inputs(only[0])), only[1]), weight)[0]
    torch.testing.assert_close(ours, plain)


def test_with_logits_only_no_model_crosses_the_network_and_each_is_tested(task, clients):
    experiment = attrs.evolve(TINY, settings=TINY.settings | {"sharing": "logits"})
    *_, last = rounds(experiment, task=task, clients=clients)
    for way in ("up", "down"):
        assert last.ledger.total(way).keys() <= {"logits", "meta"}
    models = experiment.new_algorithm().model(last.state)
    assert len(models) == 3 and "accuracy_std" in last.metrics
    for client, model in zip(last.clients, models, strict=True):
        for name, value in pack(model).items():
            assert torch.equal(value, client.memory[f"model/{name}"])


def test_with_logits_only_all_start_alike_and_go_on_from_their_own_model(task, clients):
    still, moving = (feddistill(sharing="logits", lr=lr) for lr in (1e-12, 0.1))
    state, name = still.initialise(task, Rng(0)), "model/parameters/classifier.weight"
    for client in clients:
        still.client_update(client, still.broadcast(state, client.id), Rng(client.id))
        torch.testing.assert_close(client.memory[name], clients[0].memory[name])
    start = clients[0].memory[name]
    moving.client_update(clients[0], moving.broadcast(state, 0), Rng(0))
    middle = clients[0].memory[name]
    still.client_update(clients[0], still.broadcast(state, 0), Rng(0))
    assert float((middle - start).abs().max()) > 1e-3
    torch.testing.assert_close(clients[0].memory[name], middle)
