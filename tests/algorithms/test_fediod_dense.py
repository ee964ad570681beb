"""FedIOD where every pixel has an answer: told label maps, and judged beside them."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch

from core import distillation
from core.algorithms.fediod.clients import AnswerGradients
from core.algorithms.fediod.server import Server
from core.errors import InputError
from core.families import conditional
from core.federation import Ledger
from core.models import planes
from core.rng import Rng
from lab import make_clients, make_task, rounds
from tests.algorithms.on_drawings import on_heads, on_nuclei

FAST = {
    "local_steps": 3,
    "batch_size": 4,
    "lr": 0.05,
    "distill_steps": 4,
    "distill_batch": 4,
    "generator_width": 2,
    "discriminator_width": 2,
}
TINY = on_nuclei("fediod", FAST)


@pytest.fixture(scope="module")
def begun(task):
    """The algorithm, its state when stage two begins, its clients, and both sides."""
    algorithm, clients = TINY.new_algorithm(), make_clients(TINY, task)
    ledger, root = Ledger(), Rng(0, ("fediod",))
    ledger.open_round()
    state = algorithm.initialise(task, Rng(0))
    state = algorithm._introduced(state, clients, ledger, root, Rng(0).at("round", 1))
    return algorithm, state, clients, *algorithm.sides(state, clients, root)


def test_maps_are_drawn_from_each_client_in_turn():
    maps = [torch.full((5, 2, 2), k, dtype=torch.uint8) for k in range(3)]
    drawn = conditional.draw(maps, 7, Rng(0))
    owners = drawn.labels[:, 0, 0].tolist()
    assert [(owner - owners[0]) % 3 for owner in owners] == [0, 1, 2, 0, 1, 2, 0]
    assert ((drawn.rows >= 0).sum(0) == 1).all() and drawn.rows.max() < 5
    assert (drawn.rows[1] >= 0).tolist() == [owner == 1 for owner in owners]
    received = conditional.LabelMaps.received([drawn.of(k) for k in range(3)])
    assert torch.equal(received.rows, drawn.rows)


def test_every_client_has_its_turn_where_a_batch_has_fewer_maps():
    maps = [torch.full((5, 2, 2), k, dtype=torch.uint8) for k in range(10)]
    batches = [conditional.draw(maps, 5, Rng(0).at("told", step)) for step in range(200)]
    drawn = torch.stack([one.labels[:, 0, 0] for one in batches]).flatten().bincount()
    # each is in half of the batches: 100 of 200, with a deviation of 7
    assert len(drawn) == 10 and ((drawn - 100).abs() < 35).all()


def test_the_server_is_told_the_clients_own_masks(begun):
    _, state, clients, *_ = begun
    for client in clients:
        assert torch.equal(state.tensors[f"conditions/{client.id}"], client.labels)
        assert state.tensors[f"counts/{client.id}"].sum() == client.labels.numel()


def test_the_mimic_loss_is_that_of_pixels(begun, task):
    """Eq. 8 to 10 pixel by pixel, in NumPy."""
    _, state, clients, server, side = begun
    images, told = server.images(0).detach(), server.label_maps(0)
    answers, _ = side.answer(images, 0, told)
    z = answers.logits.numpy().astype(float)
    counts = np.stack([state.tensors[f"counts/{c.id}"].numpy() for c in clients]).astype(float)
    ratio = answers.generated.numpy() / answers.real.numpy()[:, None]
    weights = counts[:, None, :] * ratio[:, :, None]
    weights /= weights.sum(0)
    ensemble = (weights[..., None, None] * z).sum(0)
    inputs = task.dataset.standardise(images)
    found = server.student(inputs).detach().numpy()
    wanted = ((found - ensemble) ** 2).sum(1).mean()
    assert server.mimic(answers, images).item() == pytest.approx(wanted, rel=1e-4)


def test_confidence_and_divergence_are_those_of_pixels(begun):
    *_, server, _ = begun
    z = torch.randn(4, 2, 3, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    q, pi = z.softmax(2).numpy(), server.weights.numpy().astype(float)[:, None, None, None]

    def entropy(p):
        return -(p * np.log(p)).sum(-3)

    confident = (pi * entropy(q)).sum(0).mean()
    mean = (pi[..., None] * q).sum(0)
    apart = (entropy(mean) - (pi * entropy(q)).sum(0)).mean()
    assert server.shaping(z).item() == pytest.approx(confident - apart, rel=1e-5)


def test_a_judge_sees_the_image_beside_its_map(begun, task):
    *_, server, side = begun
    images, told = server.images(0).detach(), server.label_maps(0)
    inputs = task.dataset.standardise(images)
    shown = conditional.beside(task, inputs, told.labels)
    assert torch.equal(shown[:, 3:], planes(told.labels, 3)) and torch.equal(shown[:, :3], inputs)
    _, graph = side.answer(images, 0, told)
    wanted = torch.stack([distillation.generated(judge(shown)[None])[0] for judge in side.judges])
    torch.testing.assert_close(graph.generated, wanted)


def test_the_perceptual_loss_is_of_a_clients_own_images(begun, task):
    """By hand: mean squared distances of the maps of the client's own teacher."""
    _, _, clients, server, side = begun
    images, told = server.images(0).detach(), server.label_maps(0)
    _, graph = side.answer(images, 0, told)
    for k, client in enumerate(clients):
        (n,) = (told.rows[k] >= 0).nonzero().flatten().tolist()
        row = int(told.rows[k, n])
        teacher = task.model_from(client.memory, "teacher/").eval()
        made = teacher.encode(task.dataset.standardise(images[n : n + 1]))
        real = teacher.encode(task.inputs(client.images[row : row + 1]))
        wanted = sum(
            float((a - b).detach().square().mean()) for a, b in zip(made, real, strict=True)
        )
        assert graph.perceiving[k].item() == pytest.approx(wanted, rel=1e-4)


def test_questions_give_what_the_batched_program_gives(task):
    """Clients that are elsewhere hear which label maps are their own, and answer the same."""
    settings = FAST | {"pretrain_steps": 2, "student_steps": 2}
    experiment = attrs.evolve(TINY, settings=settings)
    *_, batched = rounds(experiment, task=task)
    distant = experiment.new_algorithm()
    distant.remote = True
    *_, asked = rounds(experiment, task=task, algorithm=distant)
    for name, value in batched.state.tensors.items():
        assert torch.equal(value, asked.state.tensors[name]), name
    assert batched.up == asked.up and batched.down == asked.down


def test_images_are_painted_from_maps(begun, task):
    algorithm, state, *_ = begun
    labels = task.dataset.test.masks[:, :32, :32]
    assert algorithm.painted(state, labels).shape == (4, 3, 32, 32)
    images = algorithm.synthetic(state, 5, Rng(0))
    assert images.shape == (5, 3, 32, 32)
    # in a file of names "10" comes before "2"
    turned = attrs.evolve(state, tensors=dict(reversed(state.tensors.items())))
    assert torch.equal(algorithm.synthetic(turned, 5, Rng(0)), images)


def server_of(experiment, task, counts, maps=None):
    """FedIOD's server of clients with these counts, when stage two begins."""
    algorithm = experiment.new_algorithm()
    tensors = algorithm.initialise(task, Rng(0)).tensors
    return Server(task, algorithm.settings, tensors, torch.tensor(counts), Rng(0), maps)


def test_where_images_are_reconstructed_teachers_should_differ():
    """L_unique is minus the weighted variance of the teachers' values; there is no L_conf."""
    heads = on_heads("fediod", FAST | {"uniqueness": 3.0})
    server = server_of(heads, make_task(heads), [[100], [300]])
    z = torch.randn(2, 5, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    mean = (z[0] + 3 * z[1]) / 4
    variance = ((z[0] - mean).square() + 3 * (z[1] - mean).square()) / 4
    assert server.shaping(z).item() == pytest.approx(-3 * variance.mean().item(), rel=1e-5)


def test_the_generator_steps_by_adam_with_the_momentum_of_the_settings(task):
    """Adam's mean after a step is 1 - beta of the gradient that the slope of the images gives."""
    stated = attrs.evolve(TINY, settings=FAST | {"gan_beta": 0.2})
    maps = [conditional.maps_of(client) for client in make_clients(TINY, task)]
    server, twin = (server_of(stated, task, 4 * [3 * [1]], maps) for _ in range(2))
    slope = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    server.generator_step(server.images(0), slope)
    twin.images(0).backward(slope)
    for name, w in twin.generator.named_parameters():
        mean = server.tensors()[f"generator/optimiser/exp_avg/{name}"]
        torch.testing.assert_close(mean, 0.8 * w.grad, rtol=1e-3, atol=1e-5)


def test_the_released_terms_of_the_generators_loss(task):
    """The mean of KL(q- || q_k), and sum_k pi_k sum_c q^c log2 q^c of the batch's mean answer."""
    terms = {"confidence": 0.0, "uniqueness": 1.5, "uniqueness_form": "released", "balance": 2.0}
    stated = attrs.evolve(TINY, settings=FAST | terms)
    server = server_of(stated, task, [[1, 0, 0], [3, 0, 0]])
    z = torch.randn(2, 4, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    q = z.softmax(2).movedim(2, -1).flatten(1, 3).double().numpy()
    seen = q.mean(1)
    balance = np.array([0.25, 0.75]) @ (seen * np.log2(seen)).sum(1)
    mean, each = np.clip(q.mean(0), 0.01, 0.99), np.clip(q, 0.01, 0.99)
    apart = (mean * np.log(mean / each)).sum(-1).mean()
    assert server.shaping(z).item() == pytest.approx(1.5 * apart + 2 * balance, rel=1e-4)


def sides_of(begun, **settings):
    """The algorithm with other settings, and both sides when stage two begins."""
    _, state, clients, *_ = begun
    algorithm = attrs.evolve(TINY, settings=FAST | settings).new_algorithm()
    return algorithm, *algorithm.sides(state, clients, Rng(0, ("fediod",)))


def test_the_student_sees_fresh_images_in_each_of_its_steps(begun):
    algorithm, server, side = sides_of(begun, student_steps=3)
    crossed = [exchange.tensors(0) for exchange in algorithm.step(server, side, 0)]
    sent = [one for one in crossed if "images" in one]
    assert len(sent) == 1 + 3
    for part, one in enumerate(sent):
        assert torch.equal(one["conditions/labels"], server.label_maps(0, part).labels)
        assert not any(torch.equal(one["images"], other["images"]) for other in sent[:part])


def test_the_students_descent_has_the_momentum_of_the_released_code(task):
    """Two steps along the same gradient of ones: 1, then 1 + 0.9, times the rate."""
    descent = {"student_optimiser": "sgd", "student_lr": 0.5}
    server = server_of(attrs.evolve(TINY, settings=FAST | descent), task, 4 * [3 * [1]])
    before = [w.detach().clone() for w in server.student.parameters()]
    for _ in range(2):
        server.student_step(tuple(torch.ones_like(w) for w in before))
    for old, w in zip(before, server.student.parameters(), strict=True):
        torch.testing.assert_close(w.detach(), old - 0.5 * 2.9)


def test_real_images_are_drawn_anew_in_every_step(begun):
    *_, side = begun
    first, again, next_ = (side._real(step) for step in (0, 0, 1))
    assert torch.equal(first, again)
    assert not any(torch.equal(a, b) for a, b in zip(first, next_, strict=True))


def test_the_perceptual_gradient_has_its_factor(begun):
    """Of each client the whole of it: with this term alone, against autograd."""
    _, server, side = sides_of(begun, gan=0.0, perceptual=2.0)
    images, told = server.images(0).detach(), server.label_maps(0)
    (_, graph), (_, twin) = (side.answer(images, 0, told) for _ in range(2))
    (wanted,) = torch.autograd.grad(2 * twin.perceiving.sum(), twin.images)
    torch.testing.assert_close(side.pull_back(graph, AnswerGradients(), 0), wanted)


def test_the_generators_first_steps_follow_the_sum_over_clients(begun):
    algorithm, server, side = sides_of(begun, pretrain_steps=1)
    seen = []
    server.generator_step = lambda images, slope: seen.append(slope)
    _, up = algorithm.step(server, side, 0)
    wanted = sum(up.tensors(k)["gradients/images"] for k in range(4))
    torch.testing.assert_close(seen, [wanted])


TEACHERS = [{"model": "unet", "width": 2}, {"model": "resnet8"}]
TERMS = ("gan", "uniqueness", "mimic", "perceptual")


@pytest.mark.parametrize(
    ("drawn", "settings", "reason"),
    [
        # maps would cross as they are
        (on_nuclei, {"private": True, "importance": "class_ratio"}, "private must be off"),
        (on_nuclei, {"teacher_models": TEACHERS}, "asks for an answer for each pixel"),
        # of one channel the softmax is one: nothing would be learned
        (on_heads, {"tau": 4.0}, "tau must be null"),
        (on_heads, dict.fromkeys(TERMS, 0.0), "one of gan, uniqueness"),
    ],
)
def test_settings_that_do_not_fit_the_task_are_refused_before_any_training(drawn, settings, reason):
    experiment = drawn("fediod", FAST | settings)
    with pytest.raises(InputError, match=reason):
        experiment.new_algorithm().initialise(make_task(experiment), Rng(0))
