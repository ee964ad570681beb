"""DFRD: the generator's terms, the ensemble, label counts and the game on the server."""

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
from tests.algorithms.on_digits import on_digits, uploads_of

GAME = {"iterations": 2, "server_batch": 8, "generator_width": 4, "noise": 8}
LOCAL = {"local_steps": 2, "batch_size": 16}
TINY = on_digits("dfrd", LOCAL | GAME, rounds=3, evaluate_every=9)


def dfrd(**settings):
    return algorithms.create("dfrd", TINY.settings | settings)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


@pytest.mark.parametrize("distance", ["norm", "mean_square"])
def test_diversity_of_bright_images_and_of_equal_ones(distance):
    """Small differences keep their digits; the gradient is finite where there are none."""
    images, merged = (20 + 0.01 * random(7, 3, 8, 8)).float(), random(7, 5, seed=1).float()

    def distances(each):
        rows = each.flatten(1).double()
        apart = (rows[:, None] - rows).square()
        return apart.sum(2).sqrt() if distance == "norm" else apart.mean(2)

    wanted = (-(distances(images) * distances(merged)).mean()).exp()
    assert float(diversity_loss(images, merged, distance)) == pytest.approx(float(wanted), rel=1e-4)
    equal = torch.ones(7, 1, 8, 8, requires_grad=True)
    loss = diversity_loss(equal, merged, distance)
    assert float(loss.detach()) == pytest.approx(1, abs=1e-3)
    assert torch.isfinite(torch.autograd.grad(loss, equal)[0]).all()


def test_the_printed_norms_vanish_for_images_as_large_as_those_of_the_paper():
    """Why the mean square is the default: the printed loss and its gradient are 0 in float32."""
    images, merged = random(8, 3, 32, 32).float().requires_grad_(), random(8, 64, seed=1).float()
    for distance, alive in (("norm", False), ("mean_square", True)):
        loss = diversity_loss(images, merged, distance)
        (gradient,) = torch.autograd.grad(loss, images)
        assert bool(loss > 0) == bool(gradient.any()) == alive


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


def test_clients_count_the_labels_of_their_batches(task, clients):
    def counted(**settings):
        algorithm = dfrd(**settings)
        uploads = uploads_of(algorithm, algorithm.initialise(task, Rng(0)), clients[:1], Rng(1))
        return uploads[0].tensors["labels/counts"]

    own = clients[0].class_counts
    assert counted(local_steps=None, local_epochs=3).equal(3 * own)
    some = counted(local_steps=2)
    assert some.sum() == 32 and not (some > own).any()


# the public copy of its code

#: what concerns the game on the server
SERVER = {
    name: released
    for name, (_, released) in algorithms.switches("dfrd").items()
    if name not in attrs.fields_dict(algorithms.find("fedavg").Settings)
}


def by_hand(algorithm, task, tensors, moments):
    """A round in float64: its networks, Adam after `moments`, how often L_tran is above 0."""
    settings = algorithm.settings
    generator = unpack(algorithm._generator(task, Rng(0)), tensors, "generator/").double()
    average = None
    if "ema/parameters/embedding" in tensors:
        average = unpack(algorithm._generator(task, Rng(0)), tensors, "ema/").double()
    student = algorithm.network(task, tensors).eval().double()
    teachers = [task.new_model(Rng(k)).eval().double() for k in (1, 2)]
    draws, between_boundaries = Rng(5).at("draws").generator(), 0

    def sample():
        return algorithm._sample(torch.ones(10), draws)

    def made(network, noise, labels):
        merged = noise.double() * network.embedding[labels]
        images = network.network(merged)
        images = 2 * images - 1 if settings.output == "inputs" else (images - 0.3) / 0.2
        pairs = zip(SHARES, teachers, strict=True)
        answers = sum(share[labels, None] * teacher(images) for share, teacher in pairs)
        return images, labels, merged, answers

    def adam():
        return torch.optim.Adam(generator.parameters(), lr=0.01, betas=(0.5, 0.999))

    def distance(rows):
        apart = rows.flatten(1)[:, None] - rows.flatten(1)
        if settings.distance == "norm":
            return (apart.square().sum(2) + 1e-30).sqrt()
        return apart.square().mean(2)

    optimiser = adam()
    optimiser.load_state_dict(moments or optimiser.state_dict())
    sgd = torch.optim.SGD(
        student.parameters(),
        0.5,
        settings.server_momentum,
        weight_decay=settings.server_weight_decay,
    )
    for _ in range(2):
        shared = sample() if settings.draws == "once" else None
        optimiser = adam() if settings.moments == "anew" else optimiser
        for _ in range(2):
            images, labels, merged, answers = made(generator, *(shared or sample()))
            own = student(images)
            loss = F.cross_entropy(answers, labels)
            chosen = (answers.argmax(1) == labels) & (own.argmax(1) != labels)
            if chosen.any():
                between_boundaries += 1
                p, q = ((z / settings.temperature).softmax(1)[chosen] for z in (answers, own))
                q = q.detach() if settings.transferability_form == "released" else q
                number = len(p) if settings.transferability_form == "released" else len(labels)
                loss = loss - 2 * (q * (q / p).log()).sum() / number
            loss = loss + 3 * (-(distance(images) * distance(merged)).mean()).exp()
            lengths = generator.embedding[labels].square().sum(1).sqrt()
            excess = (lengths - 8**0.5).clamp(min=0).mean()
            optimiser.zero_grad()
            (loss + settings.embedding_bound * excess).backward()
            optimiser.step()
        for _ in range(2):
            loss = 0.0
            for factor, network, given in ((1, generator, shared), (0.5, average, None)):
                if network is not None:
                    with torch.no_grad():
                        images, _, _, answers = made(network, *(given or sample()))
                    p, q = (
                        (z / settings.temperature).softmax(1) for z in (answers, student(images))
                    )
                    loss = loss + factor * (p * (p / q).log()).sum(1).mean()
            sgd.zero_grad()
            loss.backward()
            sgd.step()
    old = dict(average.named_parameters()) if average else {}
    averaged = {
        name: 0.25 * w + 0.75 * old.get(name, 0.0) for name, w in generator.named_parameters()
    }
    networks = {"": student.named_parameters(), "generator/": generator.named_parameters()}
    return networks | {"ema/": averaged.items()}, optimiser.state_dict(), between_boundaries


SHARES = torch.rand(2, 10, generator=torch.Generator().manual_seed(0))
STEPS = {"generator_steps": 2, "student_steps": 2, "generator_lr": 0.01, "server_lr": 0.5}
WEIGHTS = {"transferability": 2.0, "diversity": 3.0, "ema": 0.75}


@pytest.mark.parametrize(
    ("settings", "length"),
    [({"server_weight_decay": 0.1}, 1.0), ({"distance": "norm"}, 0.1), (SERVER, 1.0)],
    ids=["printed", "printed distance", "released"],
)
def test_two_rounds_of_the_game_step_by_step(task, settings, length):
    """As described, also with the 2-norm, and as released; images have another mean."""
    task = attrs.evolve(task, dataset=attrs.evolve(task.dataset, mean=(0.3,), std=(0.2,)))
    algorithm = dfrd(**STEPS, **WEIGHTS, **settings)
    tensors, moments, pulled = algorithm.initialise(task, Rng(0)).tensors, None, 0
    assert ("ema/parameters/embedding" in tensors) == ("ema_start" not in settings)
    tensors["generator/parameters/embedding"] *= length
    ensemble = Ensemble(Stacked([task.new_model(Rng(k)).eval() for k in (1, 2)]), SHARES)
    for _ in range(2):
        changed = algorithm._distil(task, tensors, ensemble, torch.ones(10), Rng(5))
        # running statistics stay those of the average
        kept = [name for name in tensors if name.startswith("buffers/")]
        assert kept and all(changed[name].equal(tensors[name]) for name in kept)
        expected, moments, steps = by_hand(algorithm, task, tensors, moments)
        pulled += steps
        for prefix, parameters in expected.items():
            for name, value in parameters:
                result = changed[f"{prefix}parameters/{name}"]
                torch.testing.assert_close(result, value.detach().float(), rtol=1e-3, atol=1e-4)
        tensors = tensors | changed
    assert pulled, "the example shows nothing of L_tran"
    adam = {name for name in tensors if name.startswith("adam/")}
    assert bool(adam) == (algorithm.settings.moments == "kept")
