"""FedIOD under differential privacy: what is noised, how much, and what the record says was
spent.
"""

import math

import attrs
import pytest
import torch

from core import algorithms
from core.algorithms.fediod import clients as clients_side
from core.algorithms.fediod.teachers import train_teacher
from core.errors import InputError
from core.experiments import make_clients, rounds
from core.federation import Message
from core.rng import Rng
from tests.algorithms.on_digits import on_digits

accountants = pytest.importorskip("opacus.accountants")

PRIVATE = {
    "local_steps": 2,
    "distill_steps": 40,
    "distill_batch": 4,
    "noise": 7,
    "generator_width": 4,
    "discriminator_width": 4,
    "importance": "class_ratio",
    "private": True,
    "scored_images": 0,
}
TINY = on_digits("fediod", PRIVATE, model_options={"width": 4}, evaluate_every=9)
B = 4


def accounted(multiplier, releases):
    """The bound of the library itself, over its own orders."""
    accountant = accountants.RDPAccountant()
    accountant.history = [(multiplier, 1.0, releases)]
    return accountant.get_epsilon(1e-5)


@pytest.mark.filterwarnings("ignore:Optimal order")
def test_the_whole_training_spends_the_full_budget_and_the_record_says_so(task):
    *_, last = rounds(TINY, task=task)
    spent = last.metrics["spent_epsilon"]
    assert 9.9 < spent <= 10.0 and last.state.meta["step"] == 40
    assert spent == pytest.approx(
        accounted(last.state.meta["noise"], 2 * 40), rel=0.01
    )  # logits and gradients


@pytest.mark.parametrize("private", [True, False])
def test_a_smaller_budget_stops_the_same_training_earlier(task, private):
    steps = {}
    for epsilon in (3.5, 6.0):
        *_, last = rounds(
            attrs.evolve(TINY, settings=PRIVATE | {"private": private, "epsilon": epsilon}),
            task=task,
        )
        steps[epsilon] = last.state.meta["step"]
        assert ("spent_epsilon" in last.metrics) == private
        if private:
            assert last.metrics["spent_epsilon"] <= epsilon
        multiplier, releases = last.state.meta["noise"], 2 * (steps[epsilon] + 1)
        assert accounted(multiplier, releases) > epsilon  # one step more would have been too many
    assert 0 < steps[3.5] < steps[6.0] < 40


def sides(task, number, **settings):
    algorithm = algorithms.create("fediod", PRIVATE | settings)
    clients = make_clients(attrs.evolve(TINY, clients=number), task)
    state = algorithm.initialise(task, Rng(0))
    for client in clients:
        train_teacher(client, algorithm.settings, Rng(4).at(client.id))
        state.tensors[f"counts/{client.id}"] = client.class_counts
    state.meta["noise"] = 3.0
    return algorithm, *algorithm.sides(state, clients, Rng(1))


def test_noise_of_the_stated_size_is_added_to_clipped_logits_and_gradients(task):
    """All but a private client's upload is the same, so the difference is the noise: N(0, (3 * 2 C
    sqrt B)^2).
    """
    _, centre, locals_ = sides(task, 3, logit_norm=0.01, clip_norm=0.02)
    _, _, open_ = sides(task, 3, private=False)
    images = centre.images(0).detach()
    pull = clients_side.Pull(torch.ones(3, B, 10))
    found = []
    for side in (locals_, open_):
        answers, graph = side.answer(images, 0)
        found.append((answers.logits, side.pull_back(graph, pull, 0)))
    for noised, plain, bound in zip(*found, (0.01, 0.02), strict=True):
        norm = plain.flatten(2).norm(dim=2).clamp_min(bound)
        noise = noised - plain * (bound / norm).view(3, B, *[1] * (plain.ndim - 2))
        expected = 3.0 * 2 * bound * math.sqrt(B)
        assert float(noise.std()) == pytest.approx(expected, rel=0.15)
        assert float(noise.mean().abs()) < 4 * expected / math.sqrt(noise.numel())
        assert not torch.allclose(noise[0], noise[1])  # each client draws its own


def test_noise_differs_from_step_to_step_and_repeats_with_the_seed(task):
    _, centre, locals_ = sides(task, 2)
    images = centre.images(0).detach()
    first, again, later = (locals_.answer(images, step)[0].logits for step in (0, 0, 1))
    assert torch.equal(first, again) and not torch.allclose(first, later)


def test_discriminators_say_nothing(task):
    algorithm, centre, locals_ = sides(task, 2, student_steps=2)
    sent = {
        name
        for message in algorithm.step(centre, locals_, 0)
        if message.direction == "up"
        for name in message.of(0).tensors
    }
    assert sent == {"logits", "gradients/images"}
    assert (
        algorithm.settings.releases(1)
        == sum(message.direction == "up" for message in algorithm.step(centre, locals_, 1))
        == 4
    )


def test_what_private_needs(task):
    with pytest.raises(InputError, match="class_ratio"):
        algorithms.create("fediod", {"private": True})
    with pytest.raises(InputError, match="does not buy one step"):
        list(
            rounds(
                attrs.evolve(TINY, settings=PRIVATE | {"epsilon": 0.2, "distill_steps": 2}),
                task=task,
            )
        )


def test_a_private_client_answers_no_test(task, clients):
    algorithm = algorithms.create("fediod", PRIVATE)
    message = Message({"images": torch.zeros(2, 1, 8, 8)})
    with pytest.raises(InputError, match="to nobody"):
        algorithm.logits(clients, {client.id: message for client in clients}, Rng(0))
