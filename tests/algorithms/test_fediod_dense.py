"""FedIOD where every pixel has an answer: told label maps, and judged beside them."""

from __future__ import annotations

import attrs
import pytest
import torch

from core.families import conditional
from core.federation import Ledger
from core.rng import Rng
from lab import make_clients, make_task
from tests.algorithms.on_drawings import on_heads, on_nuclei
from tests.algorithms.on_fediod import check_gradients

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
ROOT = Rng(0, ("fediod",))


def begin(experiment, task):
    """The algorithm, its state when stage two begins, and its clients."""
    algorithm, clients = experiment.new_algorithm(), make_clients(experiment, task)
    ledger = Ledger()
    ledger.open_round()
    state = algorithm.initialise(task, Rng(0))
    state = algorithm._introduced(state, clients, ledger, ROOT, Rng(0).at("round", 1))
    return algorithm, state, clients


@pytest.fixture(scope="module")
def begun(task):
    return begin(TINY, task)


def sides_of(begun, **settings):
    """The algorithm with other settings, and both sides when stage two begins."""
    _, state, clients = begun
    algorithm = attrs.evolve(TINY, settings=FAST | settings).new_algorithm()
    return algorithm, *algorithm.sides(state, clients, ROOT)


RELEASED = {"confidence": 0.0, "uniqueness": 1.5, "uniqueness_form": "released", "balance": 2.0}


@pytest.mark.parametrize(
    ("drawn", "settings"),
    [
        (on_nuclei, {"importance": "class_and_input"}),
        (on_nuclei, {"gan": 0.0, "perceptual": 2.0}),
        (on_nuclei, RELEASED),
        (on_heads, {"uniqueness": 3.0}),
    ],
    ids=["importance", "perceptual", "released", "heads"],
)
def test_the_messages_carry_the_gradients_of_the_objective_of_pixels(drawn, settings):
    """Eq. 2 to 10 by pixel, with judges of label maps; reconstructions differ in variance."""
    experiment = drawn("fediod", FAST | settings)
    algorithm, state, clients = begin(experiment, make_task(experiment))
    before, after = (algorithm.sides(state, clients, ROOT) for _ in range(2))
    list(algorithm.step(*after, 0))
    check_gradients(before, after, algorithm.settings)


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
    _, state, clients = begun
    for client in clients:
        assert torch.equal(state.tensors[f"conditions/{client.id}"], client.labels)
        assert state.tensors[f"counts/{client.id}"].sum() == client.labels.numel()


def test_images_are_painted_from_maps(begun, task):
    algorithm, state, _ = begun
    labels = task.dataset.test.masks[:, :32, :32]
    assert algorithm.painted(state, labels).shape == (4, 3, 32, 32)
    images = algorithm.synthetic(state, 5, Rng(0))
    assert images.shape == (5, 3, 32, 32)
    # in a file of names "10" comes before "2"
    turned = attrs.evolve(state, tensors=dict(reversed(state.tensors.items())))
    assert torch.equal(algorithm.synthetic(turned, 5, Rng(0)), images)


def test_the_student_sees_fresh_images_in_each_of_its_steps(begun):
    algorithm, server, side = sides_of(begun, student_steps=3)
    crossed = [exchange.tensors(0) for exchange in algorithm.step(server, side, 0)]
    sent = [one for one in crossed if "images" in one]
    assert len(sent) == 1 + 3
    for part, one in enumerate(sent):
        assert torch.equal(one["conditions/labels"], server.label_maps(0, part).labels)
        assert not any(torch.equal(one["images"], other["images"]) for other in sent[:part])


def test_the_students_descent_has_the_momentum_of_the_released_code(begun):
    """Two steps along the same gradient of ones: 1, then 1 + 0.9, times the rate."""
    _, server, _ = sides_of(begun, student_optimiser="sgd", student_lr=0.5)
    before = [w.detach().clone() for w in server.student.parameters()]
    for _ in range(2):
        server.student_step(tuple(torch.ones_like(w) for w in before))
    for old, w in zip(before, server.student.parameters(), strict=True):
        torch.testing.assert_close(w.detach(), old - 0.5 * 2.9)


def test_the_generators_first_steps_follow_the_sum_over_clients(begun):
    algorithm, server, side = sides_of(begun, pretrain_steps=1)
    seen = []
    server.generator_step = lambda images, slope: seen.append(slope)
    _, up = algorithm.step(server, side, 0)
    wanted = sum(up.tensors(k)["gradients/images"] for k in range(4))
    torch.testing.assert_close(seen, [wanted])
