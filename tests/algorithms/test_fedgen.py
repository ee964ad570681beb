"""FedGen: the clients' terms against SciPy, the server's generator, the traffic."""

import attrs
import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax

from core import algorithms, server
from core.families import generative
from core.federation import Message
from core.models import FeatureGenerator, count_parameters
from core.rng import Rng
from lab import make_clients, rounds
from tests.algorithms.on_digits import on_digits

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
    *_, last = rounds(attrs.evolve(TINY, rounds=2), task=task)
    return last.state


def fedgen(**changes):
    return algorithms.create("fedgen", TINY.settings | changes)


@pytest.mark.parametrize(("alpha", "beta"), [(10.0, 0.0), (0.0, 10.0), (2.0, 3.0)])
def test_the_terms_of_a_client_against_scipy(task, clients, after_two, alpha, beta):
    """A generator without a hidden unit to speak of gives the same features for all noise and
    labels: its bias.
    """
    method = fedgen(alpha=alpha, beta=beta)
    message = method.broadcast(after_two, 0)
    constant = {
        name: torch.zeros_like(value) if name == "generator/parameters/out.weight" else value
        for name, value in message.tensors.items()
    }
    message = Message(
        constant | {"labels/distribution": torch.eye(10)[7]}, message.meta
    )  # y^ is always 7
    model, (images, labels) = (
        task.model_from(message.tensors),
        (clients[0].images[:6], clients[0].labels[:6]),
    )
    found = method.objective(clients[0], message, Rng(0))(model, images, labels)
    with torch.no_grad():
        outputs = model(task.inputs(images)).double().numpy()
        generated = model.classifier(constant["generator/parameters/out.bias"]).double().numpy()
    p, log_q = softmax(generated), log_softmax(outputs, axis=1)
    divergence = (p * (np.log(p) - log_q)).sum(1).mean()
    plain = -log_q[range(6), labels].mean()
    expected = plain + 0.98**2 * (alpha * -log_softmax(generated)[7] + beta * divergence)
    assert float(found.detach()) == pytest.approx(expected, rel=1e-4)


def test_a_divergence_does_not_move_the_features_it_is_measured_from(task, clients, after_two):
    """Its target is fixed: with beta alone the gradient of the last bias is that of the outputs, q -
    y of the data and beta (q - p) of the divergence.
    """
    message = fedgen().broadcast(after_two, 0)
    still = torch.zeros_like(message.tensors["generator/parameters/out.weight"])
    message.tensors["generator/parameters/out.weight"] = still  # all features are its bias
    model, images, y = (
        task.model_from(message.tensors),
        clients[0].images[:6],
        clients[0].labels[:6],
    )
    objective = fedgen(alpha=0.0, beta=10.0).objective(clients[0], message, Rng(0))
    bias = torch.autograd.grad(objective(model, images, y), model.classifier.bias)[0]
    with torch.no_grad():
        q = model(task.inputs(images)).softmax(1)
        p = model.classifier(message.tensors["generator/parameters/out.bias"]).softmax(0)
    wanted = (q - torch.nn.functional.one_hot(y, 10)).mean(0) + 0.98**2 * 10 * (q - p).mean(0)
    torch.testing.assert_close(bias, wanted, rtol=1e-3, atol=1e-5)


def test_clients_ask_for_features_of_their_own_labels_and_of_drawn_ones(
    task, clients, after_two, monkeypatch
):
    """Of a generator with its running statistics: z ~ G(y, e) for the batch, then for y^ ~ p(y)."""
    seen, forward = [], FeatureGenerator.forward

    def noting(self, noise, labels):
        seen.append((self.training, labels.tolist()))
        return forward(self, noise, labels)

    monkeypatch.setattr(FeatureGenerator, "forward", noting)
    message = fedgen().broadcast(after_two, 0)
    message.tensors["labels/distribution"] = torch.eye(10)[7]
    images, labels = clients[0].images[:6], clients[0].labels[:6]
    objective = fedgen().objective(clients[0], message, Rng(0))
    objective(task.model_from(message.tensors), images, labels)
    assert seen == [(False, labels.tolist() + 6 * [7])]


@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_each_feature_has_noise_of_its_own_of_the_kind_that_is_set(
    task, clients, after_two, monkeypatch, kind
):
    seen, forward = [], FeatureGenerator.forward
    monkeypatch.setattr(
        FeatureGenerator,
        "forward",
        lambda self, noise, labels: seen.append(noise) or forward(self, noise, labels),
    )
    message = fedgen(noise=kind).broadcast(after_two, 0)
    objective = fedgen(noise=kind).objective(clients[0], message, Rng(0))
    objective(task.model_from(message.tensors), clients[0].images[:6], clients[0].labels[:6])
    (noise,) = seen
    assert len(noise.unique(dim=0)) == 12
    assert bool((noise < 0).any()) == bool((noise > 1).any()) == (kind == "normal")


def test_classes_keep_their_weights_beside_generated_features(task, clients, after_two):
    """n / (C n_c) of each class, in a round with a generator whose two terms are off."""
    client, method = clients[0], fedgen(alpha=0.0, beta=0.0, class_weights="balanced")
    message = method.broadcast(after_two, 0)
    model, images, y = task.model_from(message.tensors), client.images[:9], client.labels[:9]
    found = method.objective(client, message, Rng(0))(model, images, y)
    weights = len(client) / (10 * client.class_counts.clamp(min=1))
    wanted = torch.nn.functional.cross_entropy(model(task.inputs(images)), y, weights)
    torch.testing.assert_close(found, wanted)
    assert not torch.isclose(found, task.loss(model(task.inputs(images)), y), rtol=1e-3)


@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_the_generators_training_has_its_own_batch_noise_and_weight_of_diversity(
    task, clients, monkeypatch, kind
):
    seen, trained = [], generative.trained
    monkeypatch.setattr(generative, "trained", lambda *given: seen.append(given) or trained(*given))
    heard, train = [], server.train_generator
    monkeypatch.setattr(
        server,
        "train_generator",
        lambda *given, noise: heard.append(noise) or train(*given, noise=noise),
    )
    draws = torch.Generator().manual_seed(0)
    features, noise = torch.randn(7, 32, generator=draws), torch.randn(7, 5, generator=draws)
    losses = []
    for eta in (0.0, 2.5):
        method = fedgen(eta=eta, generator_batch=24, noise=kind)
        state = method.initialise(task, Rng(0))
        sent = method.broadcast(state, 0)
        method.server_update(state, {0: method.client_update(clients[0], sent, Rng(1))}, Rng(2))
        _, _, loss, _, training, _, told = seen[-1]
        assert (training.batch_size, told) == (24, kind)
        size = state.tensors["parameters/classifier.weight"].shape[1]
        losses.append(
            loss(features.repeat(1, size // 32 + 1)[:, :size], clients[0].labels[:7], noise)
        )
        apart = server.diversity(features.repeat(1, size // 32 + 1)[:, :size], noise)
    torch.testing.assert_close(losses[1] - losses[0], 2.5 * apart, rtol=1e-3, atol=1e-5)
    assert heard == [kind, kind]


@pytest.mark.parametrize("side_by_side", [False, True])
def test_after_so_many_batches_a_client_has_its_images_only(
    task, clients, after_two, monkeypatch, side_by_side
):
    """As far as the bound it is FedGen bit for bit, and from there on it goes FedAvg's way."""
    monkeypatch.setattr(
        "core.baselines.fedavg.clients_at_once", lambda *given: 2 if side_by_side else 1
    )
    pair = clients[:2]

    def trained(steps, bound, start=after_two, **more):
        method = fedgen(
            local_steps=steps, generated_steps=bound, batch_size=10**6, momentum=0.0, **more
        )
        messages = {client.id: method.broadcast(start, client.id) for client in pair}
        return method.at_clients("client_update", pair, messages, Rng(1).at("client"))

    def alike(ours, theirs):
        return all(
            torch.equal(value, theirs[k].tensors[name])
            for k, upload in ours.items()
            for name, value in upload.tensors.items()
        )

    assert alike(trained(5, 5), trained(5, None)) and alike(trained(5, 9), trained(5, None))
    assert not alike(trained(5, 3), trained(5, None))
    # whole batches without momentum: each step goes on from the weights alone
    started = trained(3, None)
    for client, upload in trained(5, 3).items():
        halfway = attrs.evolve(after_two, tensors=after_two.tensors | started[client].tensors)
        wanted = trained(2, None, halfway, alpha=0.0, beta=0.0)[client].tensors
        for name, value in upload.tensors.items():
            torch.testing.assert_close(value, wanted[name], rtol=1e-4, atol=1e-5, msg=name)


def test_twenty_batches_are_bounded_in_the_code_and_as_many_are_all_of_its_own():
    released = algorithms.create("fedgen", variant="released").settings
    # the code's bound of 20 batches is no bound for its own commands
    assert released.generated_steps is None and released.steps(10**6) == 20
    assert fedgen().settings.generated_steps is None


def test_the_generators_adam_goes_on_from_round_to_round(after_two):
    assert after_two.tensors["adam/step/out.weight"] == 2 * 3  # rounds, steps


def test_the_generators_rate_falls_from_round_to_round(task, clients):
    """Adam's first step is as long as the rate."""
    method, name = fedgen(generator_steps=1, decay=0.5), "generator/parameters/out.weight"
    state, moved = method.initialise(task, Rng(0)), []
    sent = method.broadcast(state, 0)
    uploads = {client.id: method.client_update(client, sent, Rng(1)) for client in clients}
    for t in (0, 2):
        new = method.server_update(attrs.evolve(state, meta={"round": t}), uploads, Rng(2))
        moved.append(new.tensors[name] - state.tensors[name])
    torch.testing.assert_close(moved[1], moved[0] / 4, rtol=1e-2, atol=1e-7)


def test_labels_for_generated_features_follow_the_clients_counts(task, clients, after_two):
    counts = sum(client.class_counts for client in clients)
    torch.testing.assert_close(after_two.tensors["labels/distribution"], counts / counts.sum())
    uniform = [
        *rounds(
            attrs.evolve(TINY, rounds=1, settings=TINY.settings | {"labels": "uniform"}), task=task
        )
    ][-1]
    torch.testing.assert_close(
        uniform.state.tensors["labels/distribution"], (counts > 0) / (counts > 0).sum()
    )


def test_what_goes_up_and_down(task, clients):
    """Up: the model and 8 bytes a class. Down: the model, and from the second round on the
    generator and p(y).
    """
    *_, last = rounds(TINY, task=task)
    plain = [
        *rounds(
            attrs.evolve(TINY, algorithm="fedavg", settings={"local_steps": 2, "batch_size": 16}),
            task=task,
        )
    ]
    size = task.new_model(Rng(0)).feature_size
    with torch.device("meta"):
        generator = 4 * (count_parameters(FeatureGenerator(10, size, hidden=12)) + 2 * 12)
    for number, (ours, its) in enumerate(
        zip(last.ledger.rounds, plain[-1].ledger.rounds, strict=True)
    ):
        assert {k: v for k, v in ours["up"].items() if k != "labels"} == its["up"]
        assert ours["up"]["labels"] == 3 * 8 * 10
        assert ours["down"].get("generator", 0) == (3 * generator if number else 0)
        assert ours["down"].get("labels", 0) == (3 * 4 * 10 if number else 0)
        assert ours["down"]["parameters"] == its["down"]["parameters"]


@pytest.mark.parametrize("variant", ["printed", "released"])
def test_the_generator_learns_what_the_clients_models_agree_on(task, clients, variant):
    settings = {
        "generator_lr": 0.01,
        "generator_steps": 150,
        "generator_hidden": 32,
        "local_steps": 20,
    }
    experiment = attrs.evolve(TINY, rounds=1, variant=variant, settings=settings)
    state = next(rounds(experiment, task=task)).state
    method = experiment.new_algorithm()
    uploads = [
        method.client_update(
            client, Message(method.broadcast(state, 0).tensors, {"round": 0}), Rng(1)
        )
        for client in clients
    ]
    before, after = method.initialise(task, Rng(0)), None
    after = method.server_update(
        attrs.evolve(
            before,
            tensors=state.tensors
            | {n: v for n, v in before.tensors.items() if n.startswith("generator/")},
            meta={"round": 0},
        ),
        dict(enumerate(uploads)),
        Rng(2),
    )
    losses = []
    for one in (before, after):
        generator = method.generator(task, one.tensors).eval()
        draws = torch.Generator().manual_seed(0)
        labels = server.draw_labels(after.tensors["labels/distribution"], 400, draws)
        with torch.no_grad():
            features = generator(server.draw_noise(method.settings.noise, (400, 32), draws), labels)
            logits = server.Heads.of([upload.tensors for upload in uploads]).logits(features)
        losses.append(float(server.ensemble_cross_entropy(logits, labels)))
    assert losses[1] < 0.5 * losses[0]
    assert "adam/exp_avg/out.weight" in after.tensors


def test_uniform_weights_are_those_of_equation_4(task, clients, monkeypatch):
    seen = []
    original = server.ensemble_cross_entropy
    monkeypatch.setattr(
        server,
        "ensemble_cross_entropy",
        lambda logits, labels, form, shares: (
            seen.append((form, shares)) or original(logits, labels, form, shares)
        ),
    )
    next(
        rounds(
            attrs.evolve(TINY, settings=TINY.settings | {"ensemble_weights": "uniform"}), task=task
        )
    )
    next(rounds(attrs.evolve(TINY, settings=TINY.settings | {"ensemble": "losses"}), task=task))
    counts = torch.stack([client.class_counts for client in clients]).double()
    assert seen[0] == ("logits", None) and seen[-1][0] == "losses"
    torch.testing.assert_close(
        seen[-1][1].double(), counts / counts.sum(0).clamp(min=1), check_dtype=False
    )
