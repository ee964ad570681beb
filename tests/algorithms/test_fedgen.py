"""FedGen: the clients' terms against SciPy, the generator of the server, and what is sent."""

import attrs
import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax

from core import algorithms, server
from core.families import generative
from core.models import FeatureGenerator
from core.rng import Rng
from lab import make_clients
from tests.algorithms.on_digits import last_round, on_digits, uploads_of

TINY = on_digits(
    "fedgen",
    {"local_steps": 2, "batch_size": 16, "generator_steps": 3, "generator_hidden": 12},
    rounds=3,
)


@pytest.fixture(scope="module")
def clients(task):
    return make_clients(TINY, task)


@pytest.fixture(scope="module")
def after_two(task):
    return last_round(attrs.evolve(TINY, rounds=2), task).state


def first_six(task, clients, message):
    """The model of a message, and the first images and labels of client 0."""
    return task.model_from(message.tensors), clients[0].images[:6], clients[0].labels[:6]


def fedgen(**changes):
    return algorithms.create("fedgen", TINY.settings | changes)


def constant(after_two, **settings):
    """FedGen and a message whose generator gives its bias as features, whatever the noise and label."""
    method = fedgen(**settings)
    message = method.broadcast(after_two, 0)
    weight = "generator/parameters/out.weight"
    message.tensors[weight] = torch.zeros_like(message.tensors[weight])
    message.tensors["labels/distribution"] = torch.eye(10)[7]  # y^ is always 7
    return method, message


def test_the_terms_of_a_client_against_scipy(task, clients, after_two):
    alpha, beta = 2.0, 3.0
    method, message = constant(after_two, alpha=alpha, beta=beta)
    model, images, labels = first_six(task, clients, message)
    found = method.objective(clients[0], message, Rng(0))(model, images, labels)
    with torch.no_grad():
        outputs = model(task.inputs(images)).double().numpy()
        features = message.tensors["generator/parameters/out.bias"]
        generated = model.classifier(features).double().numpy()
    p, log_q = softmax(generated), log_softmax(outputs, axis=1)
    divergence = (p * (np.log(p) - log_q)).sum(1).mean()
    plain = -log_q[range(6), labels].mean()
    expected = plain + 0.98**2 * (alpha * -log_softmax(generated)[7] + beta * divergence)
    assert float(found.detach()) == pytest.approx(expected, rel=1e-4)


def test_a_divergence_does_not_move_the_features_it_is_measured_from(task, clients, after_two):
    """With beta alone the gradient of the last bias is q - y of the data and beta (q - p)."""
    method, message = constant(after_two, alpha=0.0, beta=10.0)
    model, images, y = first_six(task, clients, message)
    loss = method.objective(clients[0], message, Rng(0))(model, images, y)
    (bias,) = torch.autograd.grad(loss, model.classifier.bias)
    with torch.no_grad():
        q = model(task.inputs(images)).softmax(1)
        p = model.classifier(message.tensors["generator/parameters/out.bias"]).softmax(0)
    wanted = (q - torch.nn.functional.one_hot(y, 10)).mean(0) + 0.98**2 * 10 * (q - p).mean(0)
    torch.testing.assert_close(bias, wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_clients_ask_for_features_of_their_own_labels_and_of_drawn_ones(
    task, clients, after_two, monkeypatch, kind
):
    """z ~ G(y, e) for the batch, then for y^ ~ p(y), each by noise of its own."""
    seen, forward = [], FeatureGenerator.forward

    def noting(self, noise, labels):
        seen.append((self.training, noise, labels.tolist()))
        return forward(self, noise, labels)

    monkeypatch.setattr(FeatureGenerator, "forward", noting)
    method, message = constant(after_two, noise=kind)
    model, images, labels = first_six(task, clients, message)
    method.objective(clients[0], message, Rng(0))(model, images, labels)
    ((training, noise, asked),) = seen
    assert not training and asked == labels.tolist() + 6 * [7]
    assert len(noise.unique(dim=0)) == 12
    assert bool((noise < 0).any()) == bool((noise > 1).any()) == (kind == "normal")


UNIFORM = {"ensemble_weights": "uniform", "ensemble": "losses", "labels": "uniform", "eta": 2.5}


@pytest.mark.parametrize(("settings", "kind"), [({}, "normal"), (UNIFORM, "uniform")])
def test_the_generators_training(task, clients, after_two, monkeypatch, settings, kind):
    """Eq. 4 and the diversity; label shares; a rate that falls in each round; Adam goes on."""
    seen = []
    monkeypatch.setattr(generative, "trained", lambda *given: seen.extend(given) or {})
    method = fedgen(generator_batch=24, decay=0.5, noise=kind, **settings)
    uploads = uploads_of(method, after_two, clients, Rng(1))
    method.server_update(after_two, uploads, Rng(2))
    _, tensors, loss, distribution, training, _, drawn = seen
    assert (training.batch_size, drawn) == (24, kind)
    assert training.lr == method.settings.generator_lr * 0.5**2
    assert tensors["adam/step/out.weight"] == 2 * 3  # rounds, steps
    counts = torch.stack([client.class_counts for client in clients])
    labelled = counts.sum(0) if kind == "normal" else counts.sum(0) > 0
    torch.testing.assert_close(distribution, labelled / labelled.sum())
    draws = torch.Generator().manual_seed(0)
    heads = [method.network(task, upload.tensors).classifier for upload in uploads.values()]
    features = torch.randn(7, heads[0].in_features, generator=draws)
    noise, labels = torch.randn(7, 5, generator=draws), clients[0].labels[:7]
    with torch.no_grad():
        logits = torch.stack([head(features) for head in heads])
        shares = counts / counts.sum(0).clamp(min=1) if kind == "normal" else None
        agreed = server.ensemble_cross_entropy(logits, labels, method.settings.ensemble, shares)
        wanted = agreed + method.settings.eta * server.diversity(features, noise)
        torch.testing.assert_close(loss(features, labels, noise), wanted, rtol=1e-3, atol=1e-5)


def test_the_generator_goes_down_from_the_second_round_on(task, after_two):
    method = fedgen()
    kinds = [
        {name.split("/")[0] for name in method.broadcast(state, 0).tensors}
        for state in (method.initialise(task, Rng(0)), after_two)
    ]
    assert kinds[1] - kinds[0] == {"generator", "labels"}
