"""DFRD: the terms of the generator, the ensemble, label counts and the game on the server, as
described and as in the public copy of its code.
"""

import attrs
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from core import algorithms
from core.baselines.dfrd import DFRD, Ensemble, diversity_loss
from core.federation import Message, pack
from core.federation.tensors import unpack
from core.models.stacked import Stacked
from core.rng import Rng
from core.server.game import embedding_excess, transferability_loss
from lab import make_clients
from tests.algorithms.on_digits import last_round, on_digits, uploads_of

GAME = {"iterations": 2, "server_batch": 8, "generator_width": 4, "noise": 8}
LOCAL = {"local_steps": 2, "batch_size": 16}
TINY = on_digits("dfrd", LOCAL | GAME, rounds=3, evaluate_every=9)


def dfrd(**settings):
    return algorithms.create("dfrd", TINY.settings | settings)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def softmax(logits, temperature=1.0):
    odds = np.exp(np.asarray(logits) / temperature)
    return odds / odds.sum(1, keepdims=True)


def distances(each, distance):
    """Distances between all rows, (N, N), in float64."""
    rows = each.detach().flatten(1).double().numpy()
    apart = rows[:, None] - rows
    return np.linalg.norm(apart, axis=2) if distance == "norm" else (apart**2).mean(2)


@pytest.mark.parametrize("distance", ["norm", "mean_square"])
def test_diversity_is_the_exponential_of_the_mean_product_of_distances(distance):
    merged = random(7, 5, seed=1)
    # also of small differences of bright images, in float32
    for images in (0.1 * random(7, 2, 4, 4), (20 + 0.01 * random(7, 3, 8, 8)).float()):
        mean = (distances(images, distance) * distances(merged, distance)).mean()
        found = diversity_loss(images, merged.to(images.dtype), distance)
        assert float(found) == pytest.approx(np.exp(-mean), rel=1e-4)
    equal = torch.ones(7, 1, 8, 8, requires_grad=True)
    loss = diversity_loss(equal, merged, distance)
    assert float(loss.detach()) == pytest.approx(1, abs=1e-3)
    assert torch.isfinite(torch.autograd.grad(loss, equal)[0]).all()


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
    for k, own in enumerate(counts):
        tensors = pack(task.new_model(Rng(k))) | {"labels/counts": torch.from_numpy(own)}
        uploads[k] = Message(tensors, {"samples": int(own.sum())})
    monkeypatch.setattr(DFRD, "_distil", lambda self, *asked: seen.append(asked) or {})
    algorithm = dfrd()
    algorithm.server_update(algorithm.initialise(task, Rng(0)), uploads, Rng(5))
    ((_, _, ensemble, often, _),) = seen
    shares = [[0.75, 0, 0.2], [0.25, 0.75, 0], [0, 0.25, 0.8]]
    np.testing.assert_allclose(ensemble.shares, np.pad(shares, ((0, 0), (0, 7))), rtol=1e-6)
    share = counts.sum(0) / counts.sum()
    np.testing.assert_allclose(often / often.sum(), share, rtol=1e-6)
    _, labels = dfrd(server_batch=50_000, noise=1)._sample(often, torch.Generator().manual_seed(0))
    np.testing.assert_allclose(np.bincount(labels, minlength=10) / 50_000, share, atol=0.01)


def test_label_and_noise_are_multiplied(task):
    generator = dfrd()._generator(task, Rng(0))
    noise, labels = torch.randn(4, 8), torch.tensor([1, 1, 2, 0])
    merged = generator.merge(noise, labels)
    for i, y in enumerate(labels.tolist()):
        torch.testing.assert_close(merged[i], noise[i] * generator.embedding[y])
    assert generator(merged).shape == (4, 1, 8, 8)


def test_clients_count_the_labels_of_their_batches(task, clients):
    def counted(**settings):
        algorithm = dfrd(**settings)
        uploads = uploads_of(algorithm, algorithm.initialise(task, Rng(0)), clients[:1], Rng(1))
        return uploads[0].tensors["labels/counts"]

    own = clients[0].class_counts
    assert counted(local_steps=None, local_epochs=3).equal(3 * own)
    some = counted(local_steps=2)
    assert some.sum() == 32 and not (some > own).any()


@pytest.fixture(scope="module")
def after(task):
    """A state, the uploads that its clients answer, and the state after the server has seen
    them.
    """
    algorithm = dfrd(ema=0.75)
    state = algorithm.initialise(task, Rng(0))
    uploads = uploads_of(algorithm, state, make_clients(TINY, task), Rng(0))
    return state, uploads, algorithm.server_update(state, uploads, Rng(5))


def fixed_ensemble(task):
    """Two models by random shares of each class."""
    shares = torch.rand(2, 10, generator=torch.Generator().manual_seed(0))
    return Ensemble(Stacked([task.new_model(Rng(k)).eval() for k in (1, 2)]), shares)


@pytest.fixture(scope="module")
def game(task):
    """A game of one step each, what it starts from, and what it gives; the generator moves far."""
    once = {"iterations": 1, "generator_steps": 1, "student_steps": 1, "alpha": 0.3}
    weights = {"transferability": 2.0, "diversity": 3.0, "generator_lr": 0.2}
    plain = {"server_momentum": 0.0, "server_weight_decay": 0.0, "server_lr": 0.5}
    algorithm, often = dfrd(**once, **weights, **plain), torch.ones(10)
    tensors, ensemble = algorithm.initialise(task, Rng(0)).tensors, fixed_ensemble(task)
    draws = Rng(5).at("draws").generator()
    samples = [algorithm._sample(often, draws) for _ in range(2)]
    found = algorithm._distil(task, tensors, ensemble, often, Rng(5))
    return algorithm, tensors, ensemble, samples, found


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
    loss = F.cross_entropy(heard, labels)
    loss = loss + 2 * transferability_loss(heard, own, labels)
    (loss + 3 * diversity_loss(made, merged, "mean_square")).backward()
    for name, w in generator.named_parameters():
        mean = found[f"adam/exp_avg/{name}"]
        torch.testing.assert_close(mean, 0.5 * w.grad, rtol=1e-3, atol=1e-6)


def test_the_generators_loss_has_the_distance_that_is_asked_for(task):
    """The loss with L_div less the loss without it, of inputs that are near each other."""
    often, draws = torch.ones(10), torch.Generator().manual_seed(3)
    plain, other = (dfrd(diversity=weight, distance="norm") for weight in (0.0, 2.0))
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
    apart = distances(images, "norm") * distances(merged, "norm")
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


@pytest.mark.parametrize("variant", ["printed", "released"])
def test_both_generators_go_on_from_round_to_round_and_as_described_adam_too(task, variant):
    last = last_round(attrs.evolve(TINY, variant=variant), task)
    kinds = {name.split("/")[0] for name in last.state.tensors}
    assert kinds - {"adam"} == {"parameters", "buffers", "generator", "ema"}
    assert ("adam" in kinds) == (variant == "printed")
    if "adam" in kinds:  # rounds, iterations, steps
        assert last.state.tensors["adam/step/embedding"] == 3 * 2 * 2


# the public copy of its code

#: the copy's value of each setting that it changes
CODE = {
    "local_steps": 20,
    "momentum": 0.0,
    "weight_decay": 0.0,
    "server_momentum": 0.0,
    "transferability_form": "released",
    "temperature": 10.0,
    "embedding_bound": 0.25,
    "output": "inputs",
    "draws": "each_step",
    "moments": "anew",
    "ema_start": "zero",
}


#: what concerns the game on the server
SERVER = {
    name: value
    for name, value in CODE.items()
    if name not in attrs.fields_dict(algorithms.find("fedavg").Settings)
}


def test_printed_and_released_values():
    switches = algorithms.switches("dfrd")
    assert {name: pair[1] for name, pair in switches.items()} == CODE


@pytest.mark.parametrize("form", ["printed", "released"])
@pytest.mark.parametrize("temperature", [1.0, 10.0])
def test_transferability_counts_images_between_the_two_boundaries_only(form, temperature):
    """Over all images, or over those; the released one moves the ensemble alone."""
    both, labels = [random(200, 3, seed=k).requires_grad_() for k in (0, 1)], torch.arange(200) % 3
    p, q = (softmax(each.detach(), temperature) for each in both)
    chosen = (p.argmax(1) == labels.numpy()) & (q.argmax(1) != labels.numpy())
    total = (q * np.log(q / p)).sum(1)[chosen].sum()
    loss = transferability_loss(*both, labels, temperature, form)
    wanted = -total / (200 if form == "printed" else chosen.sum())
    assert float(loss.detach()) == pytest.approx(wanted, rel=1e-9)
    first, second = torch.autograd.grad(loss, both, allow_unused=True)
    assert first.any() and (second is None) == (form == "released")
    # both see the label, so that no image lies between
    right = both[0].detach().requires_grad_()
    loss = transferability_loss(right, right, right.argmax(1), temperature, form)
    assert float(loss.detach()) == 0 and not torch.autograd.grad(loss, right)[0].any()


def test_embeddings_pay_for_what_is_longer_than_noise():
    embeddings = torch.tensor([[3.0, 4, 0, 0], [1, 1, 0, 0], [2, 0, 0, 0], [0, 0, 12, 5]])
    assert float(embedding_excess(embeddings)) == pytest.approx((3 + 0 + 0 + 11) / 4)


@pytest.fixture
def unlike_half(task):
    """A task whose images are standardised by another mean and deviation than 0.5."""
    return attrs.evolve(task, dataset=attrs.evolve(task.dataset, mean=(0.3,), std=(0.2,)))


def test_a_generator_makes_pixels_or_the_inputs_of_a_network(unlike_half):
    images = torch.rand(4, 1, 8, 8)
    for output, wanted in (("inputs", 2 * images - 1), ("pixels", (images - 0.3) / 0.2)):
        torch.testing.assert_close(dfrd(output=output).inputs(unlike_half, images), wanted)


@pytest.mark.parametrize("draws", ["once", "each_step"])
def test_what_the_steps_of_an_iteration_see(task, monkeypatch, draws):
    """By default one batch for all steps of the generator, and one lesson for all of the student;
    old lessons are always new.
    """
    seen, new, old = [], [], []
    generator_loss, student_loss = DFRD.generator_loss, DFRD.student_loss

    def of_generator(self, *given):
        seen.append(given[4])
        return generator_loss(self, *given)

    def of_student(self, task, student, *lessons):
        for some, (images, _) in zip((new, old), lessons, strict=True):
            some.append(images)
        return student_loss(self, task, student, *lessons)

    monkeypatch.setattr(DFRD, "generator_loss", of_generator)
    monkeypatch.setattr(DFRD, "student_loss", of_student)
    play(dfrd(draws=draws, generator_steps=2, student_steps=3), task)
    distinct = [len({each.numpy().tobytes() for each in some}) for some in (seen, new, old)]
    assert distinct == ([2, 2, 6] if draws == "once" else [4, 6, 6])


def play(algorithm, task, tensors=None):
    """A game against two models from a fresh state, or from `tensors`."""
    tensors = algorithm.initialise(task, Rng(0)).tensors if tensors is None else tensors
    ensemble = fixed_ensemble(task)
    return tensors | algorithm._distil(task, tensors, ensemble, torch.ones(10), Rng(5))


def by_hand(algorithm, task, tensors):
    """The game as the copy plays it, in float64: the student's weights and the generator's."""
    generator, average = (
        unpack(algorithm._generator(task, Rng(0)), tensors, prefix).double()
        if f"{prefix}parameters/embedding" in tensors
        else None
        for prefix in ("generator/", "ema/")
    )
    student = algorithm.network(task, tensors).eval().double()
    teachers = [task.new_model(Rng(k)).eval().double() for k in (1, 2)]
    shares = torch.rand(2, 10, generator=torch.Generator().manual_seed(0)).double()
    draws, told = Rng(5).at("draws").generator(), []

    def made(network):
        noise, labels = algorithm._sample(torch.ones(10), draws)
        merged = noise.double() * network.embedding[labels]
        images = 2 * network.network(merged) - 1
        heard = sum(shares[k, labels, None] * teacher(images) for k, teacher in enumerate(teachers))
        return images, labels, merged, heard

    for _ in range(2):
        adam = torch.optim.Adam(generator.parameters(), lr=0.01, betas=(0.5, 0.999))
        for _ in range(2):
            images, labels, merged, heard = made(generator)
            own = student(images).detach()
            chosen = (heard.argmax(1) == labels) & (own.argmax(1) != labels)
            loss = F.cross_entropy(heard, labels)
            told.append(int(chosen.sum()))
            if chosen.any():
                p, q = (heard / 10).softmax(1)[chosen], (own / 10).softmax(1)[chosen]
                loss = loss - 2 * (q * (q / p).log()).sum(1).mean()
            s, h = images.flatten(1), merged
            between = (s[:, None] - s).square().mean(2) * (h[:, None] - h).square().mean(2)
            lengths = generator.embedding[labels].square().sum(1).sqrt()
            loss = (
                loss + 3 * (-between.mean()).exp() + 0.25 * (lengths - 8**0.5).clamp(min=0).mean()
            )
            adam.zero_grad()
            loss.backward()
            adam.step()
        sgd = torch.optim.SGD(student.parameters(), lr=0.5, weight_decay=1e-4)
        for _ in range(2):
            loss = 0.0
            for factor, network in ((1, generator), (0.5, average)):
                if network is not None:
                    with torch.no_grad():
                        images, _, _, heard = made(network)
                    p, q = (heard / 10).softmax(1), (student(images) / 10).softmax(1)
                    loss = loss + factor * (p * (p / q).log()).sum(1).mean()
            sgd.zero_grad()
            loss.backward()
            sgd.step()
    assert any(told), "the example shows nothing of L_tran"
    return dict(student.named_parameters()), dict(generator.named_parameters())


def test_two_rounds_of_the_released_game_step_by_step(task):
    """Without old images in the first round, and with those of (1 - lambda) w in the second."""
    steps = {"generator_steps": 2, "student_steps": 2, "generator_lr": 0.01, "server_lr": 0.5}
    weights = {"transferability": 2.0, "diversity": 3.0, "ema": 0.75}
    algorithm = dfrd(**SERVER, **steps, **weights)
    tensors = algorithm.initialise(task, Rng(0)).tensors
    assert not any(name.startswith("ema/") for name in tensors)
    kept = 0.0
    for _ in range(2):
        found = play(algorithm, task, tensors)
        student, generator = by_hand(algorithm, task, tensors)
        kept = {
            name: 0.25 * w.detach() + (0.75 * kept[name] if kept else 0.0)
            for name, w in generator.items()
        }
        for prefix, wanted in (("", student), ("generator/", generator), ("ema/", kept)):
            for name, value in wanted.items():
                torch.testing.assert_close(
                    found[f"{prefix}parameters/{name}"],
                    value.detach().float(),
                    rtol=1e-3,
                    atol=1e-4,
                )
        tensors = found
    assert not any(name.startswith("adam/") for name in tensors)
