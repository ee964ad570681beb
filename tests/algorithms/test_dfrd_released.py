"""DFRD as in the public copy of its code: each difference by hand, and a game of it step by step."""

import attrs
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from core import algorithms
from core.baselines.dfrd import DFRD, Ensemble, taken
from core.federation.tensors import unpack
from core.models.stacked import Stacked
from core.rng import Rng
from core.server.game import embedding_excess, transferability_loss
from lab import rounds
from tests.algorithms.on_digits import on_digits
from tests.lab.test_record import AS_BEFORE

GAME = {"iterations": 2, "server_batch": 8, "generator_width": 4, "noise": 8}
LOCAL = {"local_steps": 2, "batch_size": 16}
TINY = on_digits("dfrd", LOCAL | GAME, rounds=2, evaluate_every=9)
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


def dfrd(**settings):
    return algorithms.create("dfrd", LOCAL | GAME | settings)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def softmax(logits, temperature=1.0):
    odds = np.exp(np.asarray(logits) / temperature)
    return odds / odds.sum(1, keepdims=True)


def test_printed_and_released_values():
    switches = algorithms.switches("dfrd")
    assert {name: pair[1] for name, pair in switches.items()} == CODE
    new = set(CODE) - {"local_steps", "momentum", "weight_decay", "server_momentum"}
    assert all(switches[name][0] == AS_BEFORE[name] for name in new)


@pytest.mark.parametrize("form", ["printed", "released"])
@pytest.mark.parametrize("temperature", [1.0, 10.0])
def test_transferability_at_a_temperature_over_all_or_over_the_chosen(form, temperature):
    heard, own, labels = random(200, 3), random(200, 3, seed=1), torch.arange(200) % 3
    p, q = softmax(heard, temperature), softmax(own, temperature)
    chosen = [i for i, y in enumerate(labels.tolist()) if p[i].argmax() == y and q[i].argmax() != y]
    total = sum((q[i] * np.log(q[i] / p[i])).sum() for i in chosen)
    wanted = -total / (200 if form == "printed" else len(chosen))
    found = transferability_loss(heard, own, labels, temperature, form)
    assert float(found) == pytest.approx(wanted, rel=1e-9)


def test_the_released_transferability_moves_the_ensemble_alone():
    heard, own, labels = random(20, 3), random(20, 3, seed=1), torch.arange(20) % 3
    for form in ("printed", "released"):
        both = [each.clone().requires_grad_() for each in (heard, own)]
        loss = transferability_loss(*both, labels, 2.0, form)
        first, second = torch.autograd.grad(loss, both, allow_unused=True)
        assert first.any() and (second is None) == (form == "released")


def test_the_released_transferability_is_nothing_where_no_image_lies_between():
    logits = random(6, 3).requires_grad_()
    labels = logits.argmax(1)  # both see it
    loss = transferability_loss(logits, logits, labels, 10.0, "released")
    assert float(loss.detach()) == 0 and not torch.autograd.grad(loss, logits)[0].any()


def test_embeddings_pay_for_what_is_longer_than_noise():
    embeddings = torch.tensor([[3.0, 4, 0, 0], [1, 1, 0, 0], [2, 0, 0, 0], [0, 0, 12, 5]])
    assert float(embedding_excess(embeddings)) == pytest.approx((3 + 0 + 0 + 11) / 4)


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 10.0])
def test_the_student_learns_at_a_temperature_and_without_old_images(task, old, temperature):
    algorithm = dfrd(temperature=temperature, alpha=0.3)
    student = task.new_model(Rng(0)).eval()
    lessons = [(torch.rand(6, 1, 8, 8) * k, random(6, 10, seed=k)) for k in (1, 2)]
    loss = algorithm.student_loss(task, student, lessons[0], lessons[1] if old else None)
    wanted = 0.0
    for factor, (inputs, heard) in zip((1, 0.3) if old else (1,), lessons, strict=False):
        p = softmax(heard, temperature)
        q = softmax(student(inputs).detach().double(), temperature)
        wanted += factor * (p * np.log(p / q)).sum(1).mean()
    assert float(loss.detach()) == pytest.approx(wanted, rel=1e-4)


@pytest.fixture
def unlike_half(task):
    """A task whose images are standardised by another mean and deviation than 0.5."""
    return attrs.evolve(task, dataset=attrs.evolve(task.dataset, mean=(0.3,), std=(0.2,)))


def test_a_generator_makes_pixels_or_the_inputs_of_a_network(unlike_half):
    images = torch.rand(4, 1, 8, 8)
    for output, wanted in (("inputs", 2 * images - 1), ("pixels", (images - 0.3) / 0.2)):
        torch.testing.assert_close(dfrd(output=output).inputs(unlike_half, images), wanted)


def test_once_is_the_same_again_and_each_step_another():
    for draws, wanted in (("once", [1, 1, 1]), ("each_step", [1, 2, 3])):
        found = taken(iter(range(1, 9)), draws)
        assert [next(found) for _ in range(3)] == wanted


@pytest.mark.parametrize("draws", ["once", "each_step"])
def test_what_the_steps_of_an_iteration_see(task, monkeypatch, draws):
    """By default one batch for all steps of the generator, and one lesson for all of the student;
    old lessons are always new.
    """
    seen, taught, old_ones = [], [], []
    generator_loss, student_loss = DFRD.generator_loss, DFRD.student_loss

    def of_generator(self, task, generator, student, ensemble, noise, labels):
        seen.append(noise)
        return generator_loss(self, task, generator, student, ensemble, noise, labels)

    def of_student(self, task, student, new, old):
        taught.append(new[0])
        old_ones.append(old[0])
        return student_loss(self, task, student, new, old)

    monkeypatch.setattr(DFRD, "generator_loss", of_generator)
    monkeypatch.setattr(DFRD, "student_loss", of_student)
    play(dfrd(draws=draws, generator_steps=2, student_steps=3), task)
    distinct = [len({each.numpy().tobytes() for each in some}) for some in (seen, taught, old_ones)]
    assert distinct == ([2, 2, 6] if draws == "once" else [4, 6, 6])


def play(algorithm, task, tensors=None):
    """A game against two models from a fresh state, or from `tensors`."""
    tensors = algorithm.initialise(task, Rng(0)).tensors if tensors is None else tensors
    shares = torch.rand(2, 10, generator=torch.Generator().manual_seed(0))
    ensemble = Ensemble(Stacked([task.new_model(Rng(k)).eval() for k in (1, 2)]), shares)
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


@pytest.mark.parametrize("name", sorted(SERVER))
def test_each_difference_changes_what_the_student_learns(unlike_half, name):
    plain, other = (
        play(dfrd(**settings), unlike_half)["parameters/classifier.weight"]
        for settings in ({}, {name: CODE[name]})
    )
    assert other.isfinite().all() and not plain.equal(other)


def test_the_variant_runs_its_rounds(task):
    *_, last = rounds(attrs.evolve(TINY, variant="released"), task=task)
    kinds = {name.split("/")[0] for name in last.state.tensors}
    assert kinds == {"parameters", "buffers", "generator", "ema"}
    assert all(value.isfinite().all() for value in last.state.tensors.values())
