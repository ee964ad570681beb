"""FedMD: the consensus, what crosses the network, and which model is tested."""

import itertools
import json

import attrs
import numpy as np
import pytest
import torch

from core import algorithms
from core.baselines import fedmd as module
from core.families import public_images as public
from core.federation import Message
from core.rng import Rng
from lab import make_clients, rounds
from tests.algorithms.on_digits import last_round, on_digits, uploads_of

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
LOGITS = 60 * 10 * 4  # bytes of one client's answers


def create(**changes):
    return algorithms.create("fedmd", TINY.settings | changes)


def consensus_of(algorithm, state, answers):
    uploads = {
        k: Message({"answers/logits": torch.tensor(z, dtype=torch.float32)})
        for k, z in enumerate(answers)
    }
    new = algorithm.server_update(state, uploads, Rng(0))
    return new.tensors["sent/consensus/logits"].double().numpy()


def test_a_client_digests_the_round_before_by_the_absolute_error(task, monkeypatch):
    """On the public images of that round, of which the consensus is."""
    algorithm, client, seen = create(), make_clients(TINY, task)[0], []
    state = algorithm.initialise(task, Rng(0))
    algorithm.client_update(client, algorithm.broadcast(state, 0), Rng(1))
    monkeypatch.setattr(public, "mimic", lambda *given: seen.append(given))
    state = attrs.evolve(state, meta=state.meta | {"round": 3})
    sent = algorithm.broadcast(state, 0)
    consensus = torch.randn(60, 10, generator=torch.Generator().manual_seed(0))
    sent.tensors["consensus/logits"] = consensus
    algorithm.client_update(client, sent, Rng(2))
    ((_, _, images, targets, divergence, *_),) = seen
    assert torch.equal(images, algorithm._aligned(task, state.meta["seed"], 2))
    assert targets is consensus
    assert float(divergence(torch.zeros(1, 2), torch.tensor([[1.0, -3.0]]))) == 2


def test_the_student_passes_the_consensus_as_often_as_it_is_told(task, monkeypatch):
    seen, algorithm = [], create(student_epochs=3)
    monkeypatch.setattr(public, "mimic", lambda *given: seen.append(given[7]))
    consensus_of(algorithm, algorithm.initialise(task, Rng(0)), np.zeros((2, 60, 10)))
    assert seen == [3 * 2]  # two batches hold 60 images


BIAS = "parameters/classifier.bias"


@pytest.fixture
def steps(monkeypatch):
    """Training that adds to the last bias instead, 1 where answers are digested and 10 where own data
    are visited; what each was given: batch size, steps, rate, the bias before it, and images.
    """
    seen = []

    def taught(model, by, batch, number, optimiser, images):
        bias = model.classifier.bias.detach()
        (group,) = optimiser.param_groups
        seen.append((batch, number, group["lr"], bias.clone(), images))
        bias.add_(by)

    def mimic(task, model, images, targets, divergence, optimiser, batch, number, rng):
        taught(model, 1, batch, number, optimiser, images)

    def train(model, images, labels, local, objective, rng, optimisers):
        taught(model, 10, local.batch_size, local.steps(len(images)), *optimisers, images)

    monkeypatch.setattr(public, "mimic", mimic)
    monkeypatch.setattr(module, "train", train)
    return seen


def test_a_client_digests_and_revisits_with_the_model_it_has_and_answers_with_what_it_learnt(
    task, steps
):
    """20 images in batches of 8, 60 answers in batches of 32; the first visit has passes of its own."""
    client = max(make_clients(TINY, task), key=len)
    client = attrs.evolve(client, images=client.images[:20], labels=client.labels[:20])
    passes = {"initial_epochs": 3, "local_epochs": 2, "align_epochs": 5, "student_epochs": 7}
    none = {"initial_steps": None, "local_steps": None}
    algorithm = create(batch_size=8, lr=0.25, **passes, **none)
    state = algorithm.initialise(task, Rng(0))
    answers = []
    for t in range(2):
        sent = algorithm.broadcast(attrs.evolve(state, meta=state.meta | {"round": t}), 0)
        if t:
            sent.tensors["consensus/logits"] = torch.zeros(60, 10)
        upload = algorithm.client_update(client, sent, Rng(t)).tensors["answers/logits"]
        learnt = task.model_from(client.memory, "model/")
        answers.append(
            (upload, task.outputs(learnt, algorithm._aligned(task, sent.meta["seed"], t)))
        )
    assert [one[:3] for one in steps] == [(8, 9, 0.25), (32, 10, 0.25), (8, 6, 0.25)]
    first, *later = (one[3] for one in steps)
    for bias, added in zip(later, (10, 11), strict=True):
        torch.testing.assert_close(bias, first + added)
    torch.testing.assert_close(client.memory[f"model/{BIAS}"], first + 21)
    for upload, wanted in answers:
        torch.testing.assert_close(upload, wanted)


def test_the_student_goes_on_from_round_to_round_on_the_images_of_the_consensus(task, steps):
    algorithm = create(lr=0.25)
    state = start = algorithm.initialise(task, Rng(0))
    uploads = {0: Message({"answers/logits": torch.zeros(60, 10)})}
    for t in range(2):
        state = algorithm.server_update(state, uploads, Rng(t))
        batch, _, lr, _, images = steps[t]
        assert (batch, lr) == (32, 0.25)
        assert torch.equal(images, algorithm._aligned(task, state.meta["seed"], t))
    torch.testing.assert_close(state.tensors[BIAS], start.tensors[BIAS] + 2)


def test_the_consensus_is_the_plain_mean_of_the_answers(task):
    """Each party counts once, as the server knows of none how much data it has."""
    answers, algorithm = Rng(0).numpy().normal(size=(5, 60, 10)), create()
    state = algorithm.initialise(task, Rng(0))
    assert np.allclose(consensus_of(algorithm, state, answers), answers.mean(0), atol=1e-6)
    tensors, meta = algorithm.upload_format(state)
    assert set(tensors) == {"answers/logits"} and not meta


def test_traffic_is_logits_up_and_consensus_down_and_never_a_model(task):
    results = list(rounds(TINY, task=task))
    for number, result in enumerate(results):
        meta = len(json.dumps({"round": number, "seed": result.state.meta["seed"]}))
        assert result.up == 4 * LOGITS
        assert result.down == 4 * (meta + (LOGITS if number else 0))
    assert set(results[-1].ledger.total("up")) == {"answers"}
    assert set(results[-1].ledger.total("down")) == {"consensus", "meta"}


def test_both_sides_see_the_same_public_images_and_others_in_every_round(task):
    algorithm = create()
    state = algorithm.initialise(task, Rng(0))
    first, again, later = (
        algorithm._aligned(task, source.meta["seed"], number)
        for source, number in ((state, 0), (algorithm.broadcast(state, 3), 0), (state, 1))
    )
    assert first.shape == (60, 1, 8, 8)
    assert torch.equal(first, again) and not torch.equal(first, later)
    assert len(create(alignment=10**6)._aligned(task, state.meta["seed"], 0)) == 5_000


def test_a_client_starts_from_its_own_weights(task):
    algorithm, clients = create(), make_clients(TINY, task)
    uploads_of(algorithm, algorithm.initialise(task, Rng(0)), clients, Rng(4))
    weights = [client.memory["model/parameters/blocks.0.conv.weight"] for client in clients]
    assert all(not torch.allclose(a, b, atol=0.05) for a, b in itertools.pairwise(weights))


def test_the_clients_models_are_tested_on_demand(task):
    clients, student = last_round(TINY, task, tested="clients"), last_round(TINY, task)
    assert clients.metrics["accuracy_std"] > 0 and "accuracy_std" not in student.metrics
    assert not any(name.startswith("parameters/") for name in clients.state.tensors)  # no student
    assert not any(name.startswith("tested/") for name in student.state.tensors)
    assert algorithms.create("fedmd", variant="released").settings.tested == "clients"
