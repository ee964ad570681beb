"""DFRD: the terms of the generator, the ensemble, the game on the server, label counts,
resuming.
"""

import attrs
import numpy as np
import pytest
import torch

from core import algorithms
from core.baselines.dfrd import DFRD, Ensemble, diversity_loss, transferability_loss
from core.federation import Message, pack
from core.federation.tensors import unpack
from core.models.stacked import Stacked
from core.rng import Rng
from lab import rounds
from tests.algorithms.on_digits import accuracy_after, on_digits

GAME = {"iterations": 2, "server_batch": 8, "generator_width": 4, "noise": 8}
LOCAL = {"local_steps": 2, "batch_size": 16}
TINY = on_digits("dfrd", LOCAL | GAME, rounds=3, evaluate_every=9)


def dfrd(**settings):
    return algorithms.create("dfrd", TINY.settings | settings)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def softmax(logits):
    odds = np.exp(logits)
    return odds / odds.sum(1, keepdims=True)


def test_transferability_counts_images_between_the_two_boundaries_only():
    heard, own, labels = random(200, 3), random(200, 3, seed=1), torch.arange(200) % 3
    p, q, total = softmax(heard.numpy()), softmax(own.numpy()), 0.0
    for i, y in enumerate(labels.tolist()):
        if p[i].argmax() == y and q[i].argmax() != y:
            total += (q[i] * np.log(q[i] / p[i])).sum()
    assert float(transferability_loss(heard, own, labels)) == pytest.approx(-total / 200, rel=1e-10)
    right = torch.nn.functional.one_hot(labels, 3).double()
    assert (
        float(transferability_loss(right, right, labels)) == 0
    )  # the global model sees the label too
    assert float(transferability_loss(-right, heard, labels)) == 0  # the ensemble does not


@pytest.mark.parametrize("distance", ["norm", "mean_square"])
def test_diversity_is_the_exponential_of_the_mean_product_of_distances(distance):
    images, merged = 0.1 * random(7, 2, 4, 4), random(7, 5, seed=1)

    def apart(a, b):
        difference = (a - b).numpy().ravel()
        return np.linalg.norm(difference) if distance == "norm" else (difference**2).mean()

    mean = np.mean(
        [
            apart(images[i], images[j]) * apart(merged[i], merged[j])
            for i in range(7)
            for j in range(7)
        ]
    )
    assert float(diversity_loss(images, merged, distance)) == pytest.approx(np.exp(-mean), rel=1e-5)
    assert float(
        diversity_loss(images[:1].expand(7, -1, -1, -1), merged, distance)
    ) == pytest.approx(1, abs=1e-3)


def test_diversity_sees_small_differences_of_bright_images_in_float32():
    images, merged = (20 + 0.01 * random(5, 3, 8, 8)).float(), random(5, 4, seed=1).float()
    s, h = (each.flatten(1).double().numpy() for each in (images, merged))
    s, h = (np.linalg.norm(each[:, None] - each, axis=2) for each in (s, h))
    assert float(diversity_loss(images, merged, "norm")) == pytest.approx(
        np.exp(-(s * h).mean()), rel=1e-4
    )


@pytest.mark.parametrize("distance", ["norm", "mean_square"])
def test_diversity_has_a_finite_gradient_also_for_equal_images(distance):
    images = torch.ones(4, 1, 8, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(diversity_loss(images, random(4, 3), distance), images)
    assert torch.isfinite(gradient).all()


def test_the_printed_norms_vanish_for_images_as_large_as_those_of_the_paper():
    """Why the mean square is the default: at 3x32x32 pixels the printed loss and its gradient are 0
    in float32.
    """
    images, merged = random(8, 3, 32, 32).float().requires_grad_(), random(8, 64, seed=1).float()
    for distance, alive in (("norm", False), ("mean_square", True)):
        loss = diversity_loss(images, merged, distance)
        (gradient,) = torch.autograd.grad(loss, images)
        assert bool(loss > 0) == bool(gradient.any()) == alive


def test_the_ensemble_hears_each_model_by_its_share_of_the_class(task):
    models = [task.new_model(Rng(seed)).eval() for seed in range(3)]
    inputs, labels = torch.rand(6, 1, 8, 8), torch.tensor([0, 3, 3, 7, 9, 1])
    shares = torch.rand(3, 10)
    with torch.no_grad():
        found = Ensemble(Stacked(models), shares)(inputs, labels).numpy()
        each = [model(inputs).double().numpy() for model in models]
    for i, y in enumerate(labels.tolist()):
        by_hand = sum(float(shares[k, y]) * each[k][i] for k in range(3))
        np.testing.assert_allclose(found[i], by_hand, rtol=1e-4, atol=1e-5)


def test_counts_of_labels_say_who_is_heard_and_what_is_drawn(task, monkeypatch):
    """tau_{i,y} = n_{i,y} / n_y, and p(y) in proportion to n_y."""
    counts = np.array([[9, 0, 1, 0], [3, 6, 0, 0], [0, 2, 4, 0]])
    counts = np.pad(counts, ((0, 0), (0, 6)))
    uploads, seen = {}, []
    for k, of in enumerate(counts):
        tensors = pack(task.new_model(Rng(k))) | {"labels/counts": torch.from_numpy(of)}
        uploads[k] = Message(tensors, {"samples": int(of.sum())})
    monkeypatch.setattr(DFRD, "_distil", lambda self, *asked: seen.append(asked) or {})
    algorithm = dfrd()
    algorithm.server_update(algorithm.initialise(task, Rng(0)), uploads, Rng(5))
    ((_, _, ensemble, often, _),) = seen
    np.testing.assert_allclose(often / often.sum(), counts.sum(0) / counts.sum(), rtol=1e-6)
    shares = [[0.75, 0, 0.2], [0.25, 0.75, 0], [0, 0.25, 0.8]]
    np.testing.assert_allclose(ensemble.shares, np.pad(shares, ((0, 0), (0, 7))), rtol=1e-6)
    draws = torch.Generator().manual_seed(0)
    _, labels = dfrd(server_batch=50_000, noise=1)._sample(often, draws)
    found = np.bincount(labels, minlength=10) / 50_000
    np.testing.assert_allclose(found, counts.sum(0) / counts.sum(), atol=0.01)


def test_label_and_noise_are_multiplied(task):
    generator = dfrd()._generator(task, Rng(0))
    noise, labels = torch.randn(4, 8), torch.tensor([1, 1, 2, 0])
    merged = generator.merge(noise, labels)
    for i, y in enumerate(labels.tolist()):
        torch.testing.assert_close(merged[i], noise[i] * generator.embedding[y])
    assert generator(merged).shape == (4, 1, 8, 8)


def test_clients_count_the_labels_of_their_batches(task, clients):
    client = clients[0]
    whole = dfrd(local_steps=None, local_epochs=3)
    state = whole.initialise(task, Rng(0))
    upload = whole.client_update(client, whole.broadcast(state, 0), Rng(1))
    assert upload.tensors["labels/counts"].equal(3 * client.class_counts)
    some = (
        dfrd(local_steps=2)
        .client_update(client, whole.broadcast(state, 0), Rng(1))
        .tensors["labels/counts"]
    )
    assert some.sum() == 32 and not (some > client.class_counts).any()


def test_without_the_game_it_is_fedavg_bit_for_bit(task, one_by_one):
    *_, plain = rounds(attrs.evolve(TINY, algorithm="fedavg", settings=LOCAL), task=task)
    *_, ours = rounds(attrs.evolve(TINY, settings=TINY.settings | {"iterations": 0}), task=task)
    assert all(ours.state.tensors[name].equal(value) for name, value in plain.state.tensors.items())
    *_, played = rounds(TINY, task=task)
    assert not played.state.tensors["parameters/classifier.weight"].equal(
        plain.state.tensors["parameters/classifier.weight"]
    )


@pytest.fixture
def after(task, clients):
    """A state, the uploads that its clients answer, and the state after the server has seen
    them.
    """
    algorithm = dfrd(ema=0.75)
    state = algorithm.initialise(task, Rng(0))
    uploads = {
        c.id: algorithm.client_update(c, algorithm.broadcast(state, c.id), Rng(c.id))
        for c in clients
    }
    before = {
        id_: {name: value.clone() for name, value in upload.tensors.items()}
        for id_, upload in uploads.items()
    }
    new = algorithm.server_update(state, uploads, Rng(5))
    for id_, upload in uploads.items():  # the teachers stay as they were uploaded
        assert all(upload.tensors[name].equal(value) for name, value in before[id_].items())
    return state, uploads, new


@pytest.fixture
def game(task):
    """A game of one step each, what it starts from, and what it gives; the generator moves far."""
    once = {"iterations": 1, "generator_steps": 1, "student_steps": 1, "alpha": 0.3}
    once |= {"generator_lr": 0.2}
    weights = {"transferability": 2.0, "diversity": 3.0}
    plain = {"server_momentum": 0.0, "server_weight_decay": 0.0, "server_lr": 0.5}
    algorithm, often = dfrd(**once, **weights, **plain), torch.ones(10)
    tensors = algorithm.initialise(task, Rng(0)).tensors
    shares = torch.rand(2, 10, generator=torch.Generator().manual_seed(0))
    ensemble = Ensemble(Stacked([task.new_model(Rng(k)).eval() for k in (1, 2)]), shares)
    draws = Rng(5).at("draws").generator()
    samples = [algorithm._sample(often, draws) for _ in range(2)]
    return (
        algorithm,
        tensors,
        ensemble,
        samples,
        algorithm._distil(task, tensors, ensemble, often, Rng(5)),
    )


def test_the_students_step_on_the_new_and_the_averaged_generator(task, game):
    """KL on the images of the generator that has moved, and alpha KL on those of w~ = w_0."""
    algorithm, tensors, ensemble, samples, found = game
    student, loss = algorithm.network(task, tensors).eval(), 0.0
    for factor, source, (noise, labels) in zip((1, 0.3), (found, tensors), samples, strict=True):
        generator = unpack(algorithm._generator(task, Rng(0)), source, "generator/")
        with torch.no_grad():
            made = task.dataset.standardise(generator(generator.merge(noise, labels)))
            p = ensemble(made, labels).softmax(1)
        loss = loss + factor * (p * (p.log() - student(made).log_softmax(1))).sum(1).mean()
    loss.backward()
    for name, w in student.named_parameters():
        wanted = w.detach() - 0.5 * w.grad
        torch.testing.assert_close(found[f"parameters/{name}"], wanted, rtol=1e-3, atol=1e-5)


def test_the_student_has_momentum_and_decay_of_weights(task, game):
    """Two steps on the same images: v = 0.9 v + g + 0.1 w, w = w - 0.5 v."""
    _, tensors, ensemble, ((noise, labels), _), _ = game
    steps = {"iterations": 1, "generator_steps": 1, "student_steps": 2, "alpha": 0.0}
    training = {"server_lr": 0.5, "server_momentum": 0.9, "server_weight_decay": 0.1}
    algorithm = dfrd(**steps, **training)
    found = algorithm._distil(task, tensors, ensemble, torch.ones(10), Rng(5))
    generator = unpack(algorithm._generator(task, Rng(0)), found, "generator/")
    student = algorithm.network(task, tensors).eval()
    weights = dict(student.named_parameters())
    with torch.no_grad():
        made = task.dataset.standardise(generator(generator.merge(noise, labels)))
        p = ensemble(made, labels).softmax(1)
    speed = dict.fromkeys(weights, 0.0)
    for _ in range(2):
        loss = (p * (p.log() - student(made).log_softmax(1))).sum(1).mean()
        slopes = torch.autograd.grad(loss, list(weights.values()))
        with torch.no_grad():
            for (name, w), slope in zip(weights.items(), slopes, strict=True):
                speed[name] = 0.9 * speed[name] + slope + 0.1 * w
                w -= 0.5 * speed[name]
    for name, w in weights.items():
        torch.testing.assert_close(found[f"parameters/{name}"], w.detach(), rtol=1e-3, atol=1e-5)


def test_the_generators_step_is_down_its_three_terms(task, game):
    """Adam's mean after a step is half the gradient of L_fid + beta_tran L_tran + beta_div L_div."""
    algorithm, tensors, ensemble, ((noise, labels), _), found = game
    generator = unpack(algorithm._generator(task, Rng(0)), tensors, "generator/")
    merged = noise * generator.embedding[labels]
    made = task.dataset.standardise(generator(merged))
    heard, own = ensemble(made, labels), algorithm.network(task, tensors).eval()(made)
    loss = torch.nn.functional.cross_entropy(heard, labels)
    loss = loss + 2 * transferability_loss(heard, own, labels)
    (loss + 3 * diversity_loss(made, merged, "mean_square")).backward()
    for name, w in generator.named_parameters():
        mean = found[f"adam/exp_avg/{name}"]
        torch.testing.assert_close(mean, 0.5 * w.grad, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("distance", ["norm", "mean_square"])
def test_the_generators_loss_has_the_distance_that_is_asked_for(task, distance):
    """The loss with L_div less the loss without it: by NumPy, of inputs that are near each other."""
    often, draws = torch.ones(10), torch.Generator().manual_seed(3)
    plain, other = (dfrd(diversity=weight, distance=distance) for weight in (0.0, 2.0))
    generator, student = plain._generator(task, Rng(0)), task.new_model(Rng(0)).eval()
    ensemble = Ensemble(Stacked([task.new_model(Rng(1)).eval()]), torch.ones(1, 10))
    noise, labels = plain._sample(often, draws)
    noise = 0.02 * noise
    with torch.no_grad():
        without, whole = (
            each.generator_loss(task, generator, student, ensemble, noise, labels)
            for each in (plain, other)
        )
        merged = generator.merge(noise, labels)
        images = task.dataset.standardise(generator(merged))
    s, h = (each.flatten(1).double().numpy() for each in (images, merged))
    s, h = (each[:, None] - each for each in (s, h))
    if distance == "norm":
        apart = np.linalg.norm(s, axis=2) * np.linalg.norm(h, axis=2)
    else:
        apart = (s**2).mean(2) * (h**2).mean(2)
    assert float(whole - without) == pytest.approx(2 * np.exp(-apart.mean()), rel=1e-4)


def test_the_averaged_generator_keeps_its_share_of_itself(after):
    state, _, new = after
    names = [name.removeprefix("ema/") for name in new.tensors if name.startswith("ema/")]
    assert "parameters/embedding" in names and "parameters/network.seed.weight" in names
    for name in names:
        start, latest = state.tensors[f"ema/{name}"], new.tensors[f"generator/{name}"]
        torch.testing.assert_close(
            new.tensors[f"ema/{name}"], 0.75 * start + 0.25 * latest, rtol=1e-5, atol=1e-6
        )
    embedding = "generator/parameters/embedding"
    assert not new.tensors[embedding].equal(state.tensors[embedding])


def test_the_student_keeps_the_averaged_running_statistics(after):
    _, uploads, new = after
    total = sum(upload.meta["samples"] for upload in uploads.values())
    for name, value in new.tensors.items():
        if name.startswith(("buffers/", "parameters/")):
            average = sum(
                upload.meta["samples"] / total * upload.tensors[name].double()
                for upload in uploads.values()
            )
            close = torch.allclose(value.double(), average, rtol=1e-5, atol=1e-7)
            assert close == name.startswith("buffers/"), name


def test_the_student_learns_what_the_ensemble_says(task, clients):
    """On images of the generator most of the distance to the ensemble is gone.

    The ensemble hears its models by the label that was asked for, and a student sees the image
    alone: the best it can do is the mean over labels, as long as the images of a young generator do
    not show theirs.
    """
    algorithm = dfrd(local_steps=20, iterations=20, server_batch=32)
    state = algorithm.initialise(task, Rng(0))
    uploads = {
        c.id: algorithm.client_update(c, algorithm.broadcast(state, c.id), Rng(c.id))
        for c in clients
    }
    new = algorithm.server_update(state, uploads, Rng(5))
    average = algorithms.create("fedavg").server_update(state, uploads, Rng(0))
    counts = torch.stack([upload.tensors["labels/counts"] for upload in uploads.values()]).float()
    ensemble = Ensemble(
        Stacked([algorithm.network(task, upload.tensors).eval() for upload in uploads.values()]),
        counts / counts.sum(0).clamp(min=1),
    )
    generator, often = algorithm._generator(task, Rng(0)), counts.sum(0) / counts.sum()
    unpack(generator, new.tensors, "generator/")
    draws = torch.Generator().manual_seed(9)
    labels = torch.multinomial(often, 256, replacement=True, generator=draws)

    def apart(logits):
        return float((target * (target.log() - logits.log_softmax(1))).sum(1).mean())

    with torch.no_grad():
        inputs = task.dataset.standardise(
            generator(generator.merge(torch.randn(256, 8, generator=draws), labels))
        )
        target = ensemble(inputs, labels).softmax(1)
        mean = sum(
            often[y] * ensemble(inputs, torch.full_like(labels, y)).softmax(1) for y in range(10)
        )
        before, after = (apart(algorithm.model(one).eval()(inputs)) for one in (average, new))
        least = apart(mean.log())
    assert after - least < 0.2 * (before - least)


def test_the_upload_is_a_model_and_label_counts(task):
    ours, plain = (
        next(rounds(attrs.evolve(TINY, algorithm=name, settings=settings), task=task))
        for name, settings in (("dfrd", TINY.settings), ("fedavg", LOCAL))
    )
    assert ours.ledger.total("up") == plain.ledger.total("up") | {"labels": 3 * 10 * 8}
    assert ours.down == plain.down


def test_both_generators_and_adams_moments_go_on_from_round_to_round(task):
    *_, whole = rounds(TINY, task=task)
    kinds = {name.split("/")[0] for name in whole.state.tensors}
    assert kinds == {"parameters", "buffers", "generator", "ema", "adam"}
    assert whole.state.tensors["adam/step/embedding"] == 3 * 2 * 2  # rounds, iterations, steps


def test_it_beats_chance_on_digits():
    accuracy = accuracy_after(
        TINY,
        model_options={"width": 16},
        clients=4,
        rounds=6,
        evaluate_every=6,
        settings=GAME | {"local_steps": 10, "batch_size": 32, "iterations": 5},
    )
    assert accuracy > 0.25  # chance is 0.10
