"""FedMD: the consensus, what crosses the network, and which model is tested."""

import attrs
import pytest
import torch

from core import algorithms
from core.baselines import fedmd as module
from core.families import public_images as public
from core.federation import Message
from core.rng import Rng
from lab import make_clients
from tests.algorithms.on_digits import last_round, on_digits

TINY = on_digits(
    "fedmd",
    {
        "local_steps": 2,
        "initial_steps": 3,
        "alignment": 60,
        "align_batch": 32,
        "student_epochs": 1,
        "auxiliary": "photographs",
    },
    alpha=0.3,
    model_options={"width": 8, "depth": 2},
    clients=4,
    rounds=3,
)


def create(**changes):
    return algorithms.create("fedmd", TINY.settings | changes)


BIAS = "parameters/classifier.bias"


@pytest.fixture
def steps(monkeypatch):
    """Training that adds 1 (digesting) or 10 (own data) to the last bias; what it was given."""
    seen = []

    def taught(model, by, batch, number, optimiser, *digested):
        bias = model.classifier.bias.detach()
        (group,) = optimiser.param_groups
        seen.append((batch, number, group["lr"], bias.clone(), *digested))
        bias.add_(by)

    def mimic(task, model, images, targets, divergence, optimiser, batch, number, rng):
        assert float(divergence(torch.zeros(1, 2), torch.tensor([[1.0, -3.0]]))) == 2
        taught(model, 1, batch, number, optimiser, images, targets)

    def train(model, images, labels, local, objective, rng, optimisers):
        taught(model, 10, local.batch_size, local.steps(len(images)), *optimisers)

    monkeypatch.setattr(public, "mimic", mimic)
    monkeypatch.setattr(module, "train", train)
    return seen


def test_a_client_digests_and_revisits_with_the_model_it_has_and_answers_with_what_it_learnt(
    task, steps
):
    """It digests the public images of the round before, of which the consensus is."""
    client = max(make_clients(TINY, task), key=len)
    client = attrs.evolve(client, images=client.images[:20], labels=client.labels[:20])
    passes = {"initial_epochs": 3, "local_epochs": 2, "align_epochs": 5, "student_epochs": 7}
    none = {"initial_steps": None, "local_steps": None}
    algorithm = create(batch_size=8, lr=0.25, **passes, **none)
    state = algorithm.initialise(task, Rng(0))
    answers, consensus = [], torch.randn(60, 10, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(*(algorithm._aligned(task, state.meta["seed"], t) for t in (0, 1)))
    for t in range(2):
        sent = algorithm.broadcast(attrs.evolve(state, meta=state.meta | {"round": t}), 0)
        if t:
            sent.tensors["consensus/logits"] = consensus
        upload = algorithm.client_update(client, sent, Rng(t)).tensors["answers/logits"]
        learnt = task.model_from(client.memory, "model/")
        answers.append(
            (upload, task.outputs(learnt, algorithm._aligned(task, sent.meta["seed"], t)))
        )
    assert [one[:3] for one in steps] == [(8, 9, 0.25), (32, 10, 0.25), (8, 6, 0.25)]
    images, targets = steps[1][4:]
    assert torch.equal(images, algorithm._aligned(task, state.meta["seed"], 0))
    assert targets is consensus
    first, *later = (one[3] for one in steps)
    for bias, added in zip(later, (10, 11), strict=True):
        torch.testing.assert_close(bias, first + added)
    torch.testing.assert_close(client.memory[f"model/{BIAS}"], first + 21)
    for upload, wanted in answers:
        torch.testing.assert_close(upload, wanted)


def test_the_student_goes_on_from_round_to_round_on_the_mean_of_the_answers(task, steps):
    """Each party counts once; two batches hold 60 images."""
    algorithm = create(lr=0.25, student_epochs=3)
    state = start = algorithm.initialise(task, Rng(0))
    answers = torch.randn(2, 5, 60, 10, generator=torch.Generator().manual_seed(0))
    for t, round_ in enumerate(answers):
        uploads = {k: Message({"answers/logits": one}) for k, one in enumerate(round_)}
        state = algorithm.server_update(state, uploads, Rng(t))
        batch, number, lr, _, images, targets = steps[t]
        assert (batch, number, lr) == (32, 3 * 2, 0.25)
        assert torch.equal(images, algorithm._aligned(task, state.meta["seed"], t))
        torch.testing.assert_close(targets, round_.mean(0))
        assert algorithm.broadcast(state, 0).tensors["consensus/logits"].equal(targets)
    torch.testing.assert_close(state.tensors[BIAS], start.tensors[BIAS] + 2)


def test_the_clients_models_are_tested_on_demand(task):
    clients, student = last_round(TINY, task, tested="clients"), last_round(TINY, task)
    assert clients.metrics["accuracy_std"] > 0 and "accuracy_std" not in student.metrics
    assert not any(name.startswith("parameters/") for name in clients.state.tensors)  # no student
    assert not any(name.startswith("tested/") for name in student.state.tensors)
    for last in (clients, student):  # no model crosses the network
        assert set(last.ledger.total("up")) == {"answers"}
        assert set(last.ledger.total("down")) == {"consensus", "meta"}
    own = [one for name, one in clients.state.tensors.items() if name.endswith("conv.weight")]
    assert not torch.allclose(own[0], own[2], atol=0.05)  # each drew its own
