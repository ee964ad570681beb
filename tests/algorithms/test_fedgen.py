"""FedGen: the clients' terms against SciPy, the generator of the server, and what is sent."""

import attrs
import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax

from core import algorithms, server
from core.families import generative
from core.models import FeatureGenerator, count_parameters
from core.rng import Rng
from lab import make_clients, rounds
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


@pytest.mark.parametrize(("alpha", "beta"), [(10.0, 0.0), (0.0, 10.0), (2.0, 3.0)])
def test_the_terms_of_a_client_against_scipy(task, clients, after_two, alpha, beta):
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
    """Its target is fixed: with beta alone the gradient of the last bias is that of the outputs, q -
    y of the data and beta (q - p) of the divergence.
    """
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
    """Of a generator with its running statistics: z ~ G(y, e) for the batch, then for y^ ~ p(y),
    each by noise of its own.
    """
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


@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_the_generators_training_has_its_own_batch_noise_and_weight_of_diversity(
    task, clients, monkeypatch, kind
):
    seen, trained = [], generative.trained
    monkeypatch.setattr(generative, "trained", lambda *given: seen.append(given) or trained(*given))
    size = task.new_model(Rng(0)).feature_size
    draws = torch.Generator().manual_seed(0)
    features, noise = (torch.randn(7, length, generator=draws) for length in (size, 5))
    losses = []
    for eta in (0.0, 2.5):
        method = fedgen(eta=eta, generator_batch=24, noise=kind)
        state = method.initialise(task, Rng(0))
        method.server_update(state, uploads_of(method, state, clients[:1], Rng(1)), Rng(2))
        _, _, loss, _, training, _, drawn = seen[-1]
        assert (training.batch_size, drawn) == (24, kind)
        losses.append(loss(features, clients[0].labels[:7], noise))
    apart = server.diversity(features, noise)
    torch.testing.assert_close(losses[1] - losses[0], 2.5 * apart, rtol=1e-3, atol=1e-5)


def test_the_generators_adam_goes_on_from_round_to_round(after_two):
    assert after_two.tensors["adam/step/out.weight"] == 2 * 3  # rounds, steps


def test_the_generators_rate_falls_from_round_to_round(task, clients):
    """Adam's first step is as long as the rate."""
    method, name = fedgen(generator_steps=1, decay=0.5), "generator/parameters/out.weight"
    state, moved = method.initialise(task, Rng(0)), []
    uploads = uploads_of(method, state, clients, Rng(1))
    for t in (0, 2):
        new = method.server_update(attrs.evolve(state, meta={"round": t}), uploads, Rng(2))
        moved.append(new.tensors[name] - state.tensors[name])
    torch.testing.assert_close(moved[1], moved[0] / 4, rtol=1e-2, atol=1e-7)


def test_labels_for_generated_features_follow_the_clients_counts(task, clients, after_two):
    counts = sum(client.class_counts for client in clients)
    name = "labels/distribution"
    torch.testing.assert_close(after_two.tensors[name], counts / counts.sum())
    uniform = last_round(attrs.evolve(TINY, rounds=1), task, labels="uniform").state.tensors[name]
    torch.testing.assert_close(uniform, (counts > 0) / (counts > 0).sum())


def test_what_goes_up_and_down(task):
    """Up: the model and 8 bytes a class. Down: the model, and from the second round on the
    generator and p(y).
    """
    *_, last = rounds(TINY, task=task)
    size = task.new_model(Rng(0)).feature_size
    with torch.device("meta"):
        generator = 4 * (count_parameters(FeatureGenerator(10, size, hidden=12)) + 2 * 12)
    for number, entry in enumerate(last.ledger.rounds):
        assert entry["up"]["labels"] == 3 * 8 * 10
        assert entry["down"].get("generator", 0) == (3 * generator if number else 0)
        assert entry["down"].get("labels", 0) == (3 * 4 * 10 if number else 0)


def test_the_generator_learns_what_the_clients_models_agree_on(task, clients):
    settings = {"generator_lr": 0.01, "generator_steps": 100, "local_steps": 10}
    method = attrs.evolve(TINY, settings=settings).new_algorithm()
    before = method.initialise(task, Rng(0))
    uploads = uploads_of(method, before, clients, Rng(1))
    after, losses = method.server_update(before, uploads, Rng(2)), []
    for state in (before, after):
        generator = method.generator(task, state.tensors).eval()
        draws = torch.Generator().manual_seed(0)
        labels = server.draw_labels(after.tensors["labels/distribution"], 400, draws)
        with torch.no_grad():
            noise = server.draw_noise(method.settings.noise, (400, generator.noise), draws)
            heads = server.Heads.of([upload.tensors for upload in uploads.values()])
            logits = heads.logits(generator(noise, labels))
        losses.append(float(server.ensemble_cross_entropy(logits, labels)))
    assert losses[1] < 0.5 * losses[0]


def test_uniform_weights_are_those_of_equation_4(task, clients, monkeypatch):
    seen, plain = [], server.ensemble_cross_entropy
    monkeypatch.setattr(
        server,
        "ensemble_cross_entropy",
        lambda *given: seen.append(given[2:]) or plain(*given),
    )
    for settings in ({"ensemble_weights": "uniform"}, {"ensemble": "losses"}):
        last_round(attrs.evolve(TINY, rounds=1), task, **settings)
    counts = torch.stack([client.class_counts for client in clients])
    assert seen[0] == ("logits", None) and seen[-1][0] == "losses"
    torch.testing.assert_close(seen[-1][1], counts / counts.sum(0).clamp(min=1))
