"""FedIOD under differential privacy: what is noised, how much, and what was spent."""

import math
from importlib.util import find_spec

import attrs
import pytest
import torch

from core import algorithms
from core.algorithms.fediod import clients as clients_side
from core.algorithms.fediod import conversation
from core.algorithms.fediod.conversation import part_of
from core.algorithms.fediod.teachers import train_teacher
from core.errors import InputError
from core.federation import LARGEST, Message
from core.rng import Rng
from lab import make_clients, rounds
from tests.algorithms.on_digits import last_round, on_digits

pytestmark = pytest.mark.skipif(not find_spec("opacus"), reason="needs opacus")

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
    from opacus.accountants import RDPAccountant  # takes a second

    accountant = RDPAccountant()
    accountant.history = [(multiplier, 1.0, releases)]
    return accountant.get_epsilon(1e-5)


@pytest.mark.filterwarnings("ignore:Optimal order")
@pytest.mark.parametrize(("private", "epsilon"), [(True, None), (True, 3.5), (False, 3.5)])
def test_a_budget_is_spent_to_its_last_step(task, private, epsilon):
    """A smaller one stops the same training earlier, also without noise."""
    last = last_round(TINY, task, private=private, epsilon=epsilon)
    noise, steps = last.state.meta["noise"], last.state.meta["step"]
    assert (steps == 40) == (epsilon is None) and steps > 0
    full = accounted(noise, 2 * 40)  # logits and gradients of each step
    assert 9.9 < full <= 10.0
    if epsilon:  # one step more would have been too many
        assert accounted(noise, 2 * steps) <= epsilon < accounted(noise, 2 * (steps + 1))
    assert ("spent_epsilon" in last.metrics) == private
    if private:
        wanted = accounted(noise, 2 * steps)
        assert last.metrics["spent_epsilon"] == pytest.approx(wanted, rel=0.01)


@pytest.mark.filterwarnings("ignore")
def test_more_noise_than_a_server_takes_is_cut_and_not_refused(task):
    """With a budget of 0.001 noise is often larger than any sound number."""
    more = {"full_epsilon": 0.001, "epsilon": 0.001, "distill_steps": 3, "distill_batch": 64}
    last = last_round(TINY, task, **more)
    assert last.state.meta["noise"] * 2 * 10 * 64**0.5 > LARGEST / 2
    assert last.state.meta["step"] == 3


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
    """The difference from an open client's upload is N(0, (3 * 2 C sqrt B)^2)."""
    _, server, side = sides(task, 3, logit_norm=0.01, clip_norm=0.02)
    _, _, open_ = sides(task, 3, private=False)
    images = server.images(0).detach()
    pull = clients_side.AnswerGradients(torch.ones(3, B, 10))
    found = []
    for one in (side, open_):
        answers, graph = one.answer(images, 0)
        found.append((answers.logits, one.pull_back(graph, pull, 0)))
    for noised, plain, bound in zip(*found, (0.01, 0.02), strict=True):
        norm = plain.flatten(2).norm(dim=2).clamp_min(bound)
        noise = noised - plain * (bound / norm).view(3, B, *[1] * (plain.ndim - 2))
        expected = 3.0 * 2 * bound * math.sqrt(B)
        assert float(noise.std()) == pytest.approx(expected, rel=0.15)
        assert float(noise.mean().abs()) < 4 * expected / math.sqrt(noise.numel())
        assert not torch.allclose(noise[0], noise[1])  # each client draws its own


def test_images_at_which_a_teacher_overflows_are_answered_as_others(task):
    """An error would tell, without noise, where that is; what is not finite counts as zero."""
    _, server, side = sides(task, 2, logit_norm=0.01)
    images = server.images(0).detach()
    images[0] = 1e38
    found = side.answer(images, 0)[0].logits
    assert not torch.isfinite(side.logits(images)[:, 0]).all()
    assert torch.isfinite(found).all() and float(found[:, 0].abs().min()) > 0


def test_discriminators_say_nothing(task):
    algorithm, server, side = sides(task, 2, student_steps=2)
    up = [message for message in algorithm.step(server, side, 0) if message.direction == "up"]
    assert {name for message in up for name in message.of(0).tensors} == {
        "logits",
        "gradients/images",
    }
    assert algorithm.settings.releases(1) == len(up) == 4


def test_what_a_budget_cannot_buy_is_said_before_teachers_are_trained(task, monkeypatch):
    trained = []
    monkeypatch.setattr(conversation, "train_teacher", lambda *given: trained.append(given))
    poor = attrs.evolve(TINY, settings=PRIVATE | {"epsilon": 0.2, "distill_steps": 2})
    with pytest.raises(InputError, match="does not buy one step"):
        list(rounds(poor, task=task))
    assert not trained


def test_a_private_client_answers_no_test(task, clients):
    algorithm = algorithms.create("fediod", PRIVATE)
    message = Message({"images": torch.zeros(2, 1, 8, 8)})
    with pytest.raises(InputError, match="to nobody"):
        algorithm.logits(clients, {client.id: message for client in clients}, [Rng(0)])


def listening(task, steps=40, **settings):
    """FedIOD, and two private clients that have heard of so many steps."""
    algorithm = algorithms.create("fediod", PRIVATE | settings)
    clients = make_clients(attrs.evolve(TINY, clients=2), task)
    for client in clients:
        train_teacher(client, algorithm.settings, Rng(4).at(client.id))
    told(algorithm, clients, steps)
    return algorithm, clients


def told(algorithm, clients, steps):
    message = Message({}, {"weight": 0.5, "steps": steps})
    messages = {client.id: message for client in clients}
    algorithm.at_clients("receive_schedule", clients, messages, Rng(0))


def asked(algorithm, question, clients, step, part=0, value=0.5):
    shape = (B, 10) if question == "pull_back" else (B, 1, 8, 8)
    name = "gradients/logits" if question == "pull_back" else "images"
    message = Message({name: torch.full(shape, value)})
    rng = part_of(Rng(0, ("fediod",)), step, part)
    messages = {client.id: message for client in clients}
    return algorithm.at_clients(question, clients, messages, rng)


REFUSED = "more than its privacy budget"


def test_a_private_client_answers_each_question_of_each_step_once_and_in_order(task):
    """One that answered other images of the same step would add the same noise to both."""
    algorithm, clients = listening(task, student_steps=2)
    honest = [("answer", 0), ("pull_back", 0), ("answer_only", 1), ("answer_only", 2)]
    for step in (0, 1):
        for place, (question, part) in enumerate(honest):
            assert asked(algorithm, question, clients, step, part)
            for before, (other, number) in enumerate(honest):
                if before <= place:
                    with pytest.raises(InputError, match=REFUSED):
                        asked(algorithm, other, clients, step, number, value=0.7)
    with pytest.raises(InputError, match=REFUSED):
        asked(algorithm, "answer_only", clients, 2, part=3)


@pytest.mark.parametrize(
    ("settings", "first", "last"),
    [({}, 0, 40), ({"epsilon": 3.5}, 0, 6), ({"pretrain_steps": 3}, 3, 43)],
)
def test_a_private_client_answers_no_step_that_its_budget_does_not_have(
    task, settings, first, last
):
    """Nor with logits in a step of the pretraining."""
    algorithm, clients = listening(task, 40, **settings)
    for step in (first - 1, last, last + 1):
        for question in ("answer", "pull_back"):
            if step >= first or question == "answer":
                with pytest.raises(InputError, match=REFUSED):
                    asked(algorithm, question, clients, step)
    assert asked(algorithm, "answer", clients, first)


def test_the_steps_on_which_the_noise_depends_are_heard_once(task):
    """Few at first, for little noise, and then more, would be cheap."""
    algorithm, clients = listening(task, steps=1)
    told(algorithm, clients, 1)
    with pytest.raises(InputError, match="another number of steps"):
        told(algorithm, clients, 40)


def test_private_clients_that_are_elsewhere_answer_as_at_hand_also_after_a_cut(task, tmp_path):
    settings = PRIVATE | {"distill_steps": 4, "pretrain_steps": 1, "student_steps": 2}
    experiment = attrs.evolve(TINY, settings=settings, rounds=2)
    at_hand, distant = last_round(experiment, task), experiment.new_algorithm()
    distant.remote = True
    given = {"task": task, "algorithm": distant, "checkpoint": tmp_path / "c"}
    next(rounds(experiment, **given))
    *_, asked = rounds(experiment, **given)
    for name, value in at_hand.state.tensors.items():
        assert torch.equal(value, asked.state.tensors[name]), name
    assert at_hand.metrics == asked.metrics
