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
from core.federation import Ledger, Runtime
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
    told = conditional.draw(maps, 7, Rng(0))
    owners = told.labels[:, 0, 0].tolist()
    assert [(owner - owners[0]) % 3 for owner in owners] == [0, 1, 2, 0, 1, 2, 0]
    assert ((told.rows >= 0).sum(0) == 1).all() and told.rows.max() < 5
    assert (told.rows[1] >= 0).tolist() == [owner == 1 for owner in owners]
    heard = conditional.LabelMaps.received([told.of(k) for k in range(3)])
    assert torch.equal(heard.rows, told.rows) and conditional.LabelMaps.received([{}]) is None


def test_every_client_has_its_turn_where_a_batch_has_fewer_maps():
    maps = [torch.full((5, 2, 2), k, dtype=torch.uint8) for k in range(10)]
    batches = [conditional.draw(maps, 5, Rng(0).at("told", step)) for step in range(200)]
    drawn = torch.stack([told.labels[:, 0, 0] for told in batches]).flatten().bincount()
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
    images, told = server.images(0).detach(), server.told(0)
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
    images, told = server.images(0).detach(), server.told(0)
    inputs = task.dataset.standardise(images)
    shown = conditional.beside(task, inputs, told.labels)
    assert torch.equal(shown[:, 3:], planes(told.labels, 3)) and torch.equal(shown[:, :3], inputs)
    _, graph = side.answer(images, 0, told)
    wanted = torch.stack([distillation.generated(judge(shown)[None])[0] for judge in side.judges])
    torch.testing.assert_close(graph.generated, wanted)


def test_the_perceptual_loss_is_of_a_clients_own_images(begun, task):
    """By hand: mean squared distances of the maps of the client's own teacher."""
    _, _, clients, server, side = begun
    images, told = server.images(0).detach(), server.told(0)
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


def test_no_perceptual_loss_of_an_image_with_itself(begun, task):
    _, _, clients, *_ = begun
    teacher = task.model_from(clients[0].memory, "teacher/").eval()
    images = task.inputs(clients[0].images[:2])
    assert conditional.perceptual_loss(teacher, images, images) == 0
    with pytest.raises(InputError, match="model 'unet'"):
        conditional.perceptual_loss(torch.nn.Identity(), images, images)


@pytest.mark.parametrize("settings", [{}, {"pretrain_steps": 2, "student_steps": 2}], ids=str)
def test_questions_give_what_the_batched_program_gives(task, settings):
    """Clients that are elsewhere hear which label maps are their own, and answer the same."""
    experiment = attrs.evolve(TINY, settings=FAST | settings)
    *_, batched = rounds(experiment, task=task)
    distant = experiment.new_algorithm()
    distant.remote = True
    *_, by_questions = rounds(experiment, task=task, algorithm=distant)
    for name, value in batched.state.tensors.items():
        assert torch.equal(value, by_questions.state.tensors[name]), name
    assert batched.up == by_questions.up and batched.down == by_questions.down


def test_images_are_painted_from_maps(task):
    algorithm = TINY.new_algorithm()
    *_, last = rounds(TINY, task=task, algorithm=algorithm)
    labels = task.dataset.test.masks[:, :32, :32]
    assert algorithm.painted(last.state, labels).shape == (4, 3, 32, 32)
    assert algorithm.synthetic(last.state, 5, Rng(0)).shape == (5, 3, 32, 32)
    assert {"dice", "teacher_jsd", "student_gap"} <= set(last.metrics)
    assert "adapted_inception_score" not in last.metrics


def test_disagreement_is_the_weighted_variance():
    values = torch.tensor([[[1.0, 0.0]], [[3.0, 0.0]]])
    # mean 1.5: 0.75 * 0.25 + 0.25 * 2.25
    found = distillation.disagreement(values, torch.tensor([0.75, 0.25]))
    assert found.item() == pytest.approx(0.75)


def test_where_images_are_reconstructed_teachers_should_differ():
    """L_unique is minus the weighted variance of the teachers' values; there is no L_conf."""
    heads = on_heads("fediod", FAST | {"uniqueness": 3.0})
    task, algorithm = make_task(heads, Runtime()), heads.new_algorithm()
    tensors, counts = algorithm.initialise(task, Rng(0)).tensors, torch.tensor([[100], [300]])
    server = Server(task, algorithm.settings, tensors, counts, Rng(0))
    z = torch.randn(2, 5, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    mean = (z[0] + 3 * z[1]) / 4
    variance = ((z[0] - mean).square() + 3 * (z[1] - mean).square()) / 4
    assert server.shaping(z).item() == pytest.approx(-3 * variance.mean().item(), rel=1e-5)


def test_the_generator_steps_by_adam_with_the_momentum_of_the_settings(task):
    """Adam's mean after a step is 1 - beta of the gradient that the slope of the images gives."""
    algorithm = attrs.evolve(TINY, settings=FAST | {"gan_beta": 0.2}).new_algorithm()
    tensors = algorithm.initialise(task, Rng(0)).tensors
    maps = [conditional.maps_of(client) for client in make_clients(TINY, task)]
    server, twin = (
        Server(task, algorithm.settings, tensors, torch.ones(4, 3), Rng(0), maps) for _ in range(2)
    )
    slope = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    server.generator_step(server.images(0), slope)
    twin.images(0).backward(slope)
    for name, w in twin.generator.named_parameters():
        mean = server.tensors()[f"generator/optimiser/exp_avg/{name}"]
        torch.testing.assert_close(mean, 0.8 * w.grad, rtol=1e-3, atol=1e-5)


def test_the_released_terms_of_the_generators_loss(task):
    """The mean of KL(q- || q_k), and sum_k pi_k sum_c q^c log2 q^c of the batch's mean answer."""
    terms = {"confidence": 0.0, "uniqueness": 1.5, "uniqueness_form": "released", "balance": 2.0}
    algorithm = attrs.evolve(TINY, settings=FAST | terms).new_algorithm()
    tensors, counts = algorithm.initialise(task, Rng(0)).tensors, torch.tensor([[1, 0, 0]] * 2)
    server = Server(task, algorithm.settings, tensors, counts * torch.tensor([[1], [3]]), Rng(0))
    z = torch.randn(2, 4, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    q = z.softmax(2).movedim(2, -1).flatten(1, 3).double().numpy()
    seen = q.mean(1)
    balance = np.array([0.25, 0.75]) @ (seen * np.log2(seen)).sum(1)
    mean, each = np.clip(q.mean(0), 0.01, 0.99), np.clip(q, 0.01, 0.99)
    apart = (mean * np.log(mean / each)).sum(-1).mean()
    assert server.shaping(z).item() == pytest.approx(1.5 * apart + 2 * balance, rel=1e-4)


def test_the_student_sees_fresh_images_in_each_of_its_steps(begun):
    _, state, clients, *_ = begun
    algorithm = attrs.evolve(TINY, settings=FAST | {"student_steps": 3}).new_algorithm()
    server, side = algorithm.sides(state, clients, Rng(0, ("fediod",)))
    crossed = [exchange.tensors(0) for exchange in algorithm.step(server, side, 0)]
    sent = [one for one in crossed if "images" in one]
    assert len(sent) == 1 + 3
    for part, one in enumerate(sent):
        assert torch.equal(one["conditions/labels"], server.told(0, part).labels)
        assert not any(torch.equal(one["images"], other["images"]) for other in sent[:part])


def test_the_students_descent_has_the_momentum_of_the_released_code(task):
    """Two steps along the same gradient of ones: 1, then 1 + 0.9, times the rate."""
    descent = {"student_optimiser": "sgd", "student_lr": 0.5}
    algorithm = attrs.evolve(TINY, settings=FAST | descent).new_algorithm()
    tensors = algorithm.initialise(task, Rng(0)).tensors
    server = Server(task, algorithm.settings, tensors, torch.ones(4, 3), Rng(0))
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
    _, state, clients, *_ = begun
    algorithm = attrs.evolve(TINY, settings=FAST | {"gan": 0.0, "perceptual": 2.0}).new_algorithm()
    server, side = algorithm.sides(state, clients, Rng(0, ("fediod",)))
    images, told = server.images(0).detach(), server.told(0)
    (_, graph), (_, twin) = (side.answer(images, 0, told) for _ in range(2))
    (wanted,) = torch.autograd.grad(2 * twin.perceiving.sum(), twin.images)
    torch.testing.assert_close(side.pull_back(graph, AnswerGradients(), 0), wanted)


def test_the_generators_first_steps_follow_the_sum_over_clients(begun):
    _, state, clients, *_ = begun
    algorithm, seen = attrs.evolve(TINY, settings=FAST | {"pretrain_steps": 1}).new_algorithm(), []
    server, side = algorithm.sides(state, clients, Rng(0, ("fediod",)))
    server.generator_step = lambda images, slope: seen.append(slope)
    _, up = algorithm.step(server, side, 0)
    wanted = sum(up.tensors(k)["gradients/images"] for k in range(4))
    torch.testing.assert_close(seen, [wanted])


def test_message_sizes_of_a_step(task):
    """For each client: images and maps down, logits and judgements up."""
    *_, last = rounds(TINY, task=task)
    n, pixels = 4, 32 * 32
    down, up = last.ledger.total("down"), last.ledger.total("up")
    assert down["images"] == 4 * 4 * n * 3 * pixels * 4  # steps, clients, images, channels, float32
    assert down["conditions"] == 4 * 4 * (n * pixels + n * 8)
    assert up["logits"] == 4 * 4 * n * 3 * pixels * 4
    assert up["conditions"] == len(task.dataset.train) * pixels


def test_pictures_do_not_depend_on_the_order_of_a_states_tensors(begun):
    """As a file has them by name, "10" stands before "2"."""
    algorithm, state, *_ = begun
    shown = algorithm.synthetic(state, 5, Rng(0))
    turned = attrs.evolve(state, tensors=dict(reversed(state.tensors.items())))
    assert torch.equal(algorithm.synthetic(turned, 5, Rng(0)), shown)


def test_private_clients_are_refused_for_their_maps_would_cross_as_they_are(task):
    settings = FAST | {"private": True, "importance": "class_ratio"}
    private = attrs.evolve(TINY, settings=settings).new_algorithm()
    with pytest.raises(InputError, match="private must be off"):
        private.initialise(task, Rng(0))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tau": 4.0}, "no temperature: tau must be null"),
        (
            dict.fromkeys(("gan", "uniqueness", "mimic", "perceptual"), 0.0),
            "one of gan, uniqueness",
        ),
    ],
)
def test_values_of_an_image_are_no_classes(settings, said):
    """Of one channel the softmax is one: nothing would be learned, and nothing would tell."""
    heads = on_heads("fediod", FAST | settings)
    with pytest.raises(InputError, match=said):
        heads.new_algorithm().initialise(make_task(heads, Runtime()), Rng(0))


def test_a_teacher_that_answers_no_pixel_is_refused_before_any_is_trained(task):
    models = [{"model": "unet", "width": 2}, {"model": "resnet8"}]
    wrong = attrs.evolve(TINY, settings=FAST | {"teacher_models": models})
    with pytest.raises(InputError, match="asks for an answer for each pixel"):
        wrong.new_algorithm().initialise(task, Rng(0))
