"""The runs of a page: what they share, what they keep, and the looks inside them."""

from __future__ import annotations

import math

import attrs
import pytest
import torch
from torch import nn

import lab
from core.condensation import LatentEncoder
from core.federation import Ledger
from core.rng import Rng
from lab.profiles import apply
from lab.report.lesson import (
    SMALL,
    Lesson,
    TaughtLesson,
    answers,
    condensed,
    distilled,
    pooled,
    share_right,
    trained,
)


@pytest.fixture(scope="module")
def lesson():
    return Lesson(
        "quick",
        "fedprox",
        dataset="digits",
        alpha=0.1,
        clients=4,
        rounds=2,
        seed=3,
        model_options={"width": 4, "depth": 1},
        settings={"local_steps": 2, "lr": 0.05},
        own={"fedprox": {"mu": 0.5}},
    )


def test_an_experiment_is_what_a_reader_would_ask_for_by_hand(lesson):
    fields = {
        "dataset": "digits",
        "partition": {"name": "dirichlet", "alpha": 0.1},
        "clients": 4,
        "rounds": 2,
        "seed": 3,
        "model_options": {"width": 4, "depth": 1},
    }
    settings = {"local_steps": 2, "lr": 0.05}
    by_hand = {"algorithm": "fedprox", "settings": settings | {"mu": 0.5}, **fields}
    assert lesson.experiment().id == apply("quick", by_hand).id
    by_hand = {"algorithm": "fedavg", "settings": settings | {"lr": 0.1}, **fields}
    assert lesson.experiment("fedavg", lr=0.1).id == apply("quick", by_hand).id
    assert lesson.title == "digits, alpha = 0.1"


def test_a_changed_lesson_keeps_the_rest(lesson):
    other = lesson.changed(rounds=1, alpha=5.0)
    changed = {"rounds": 1, "partition": {"name": "dirichlet", "alpha": 5.0}}
    assert other.experiment() == attrs.evolve(lesson.experiment(), **changed)
    assert lesson.experiment().rounds == 2
    own = lesson.changed(own={"fedprox": {"lr": 0.2}, "fedavg": {"lr": 0.3}})
    assert own.experiment().settings == lesson.experiment(lr=0.2).settings
    assert own.experiment().settings["mu"] == 0.5 and lesson.experiment().settings["lr"] == 0.05


def test_a_run_keeps_what_the_package_gives_round_by_round(lesson):
    run = lesson.run("fedavg")
    plain = list(lab.rounds(lesson.experiment("fedavg")))
    assert [result.metrics for result in run.results] == [result.metrics for result in plain]
    for name, value in plain[-1].state.tensors.items():
        torch.testing.assert_close(run.state.tensors[name], value, rtol=0, atol=0)
    assert [state.tensors.keys() for state in run.states] == 2 * [run.state.tensors.keys()]
    assert run.accuracy == 100 * plain[-1].metrics["accuracy"]
    assert run.record.bytes["up"] == run.results[-1].ledger.total("up")
    table = run.per_round()
    assert table.index.tolist() == [1, 2] and table.loc[2, "accuracy (%)"] == run.accuracy
    assert table["up (MB)"].sum() * 2**20 == sum(run.record.bytes["up"].values())


def test_the_first_round_begins_at_the_start(lesson):
    run, algorithm = lesson.run(), lesson.experiment().new_algorithm()
    ledger = Ledger()
    ledger.open_round()
    after = algorithm.round(lesson.start(), lesson.members(), ledger, Rng(3).at("round", 1))
    assert after.tensors.keys() == run.states[0].tensors.keys()
    for name, value in after.tensors.items():
        assert torch.equal(value, run.states[0].tensors[name])


def test_a_run_goes_on_with_the_clients_that_it_is_given(lesson):
    people = lesson.members()[:2]
    run = lesson.run("fedavg", clients=people)
    assert [client.id for client in run.clients] == [client.id for client in people]
    sent = [r.record.bytes["up"]["parameters"] for r in (run, lesson.run("fedavg"))]
    assert sent[0] * len(lesson.members()) == 2 * sent[1]


def test_members_have_data_and_the_plot_shows_all_clients(lesson):
    pytest.importorskip("matplotlib")
    lonely = lesson.changed(
        partition={"name": "dirichlet", "alpha": 0.005, "min_size": 0}, clients=12
    )
    members = lonely.members()
    assert all(len(client) for client in members) and len(members) < 12
    figure = lonely.partition_plot()
    assert "12 clients" in figure.get_label() and "has 0 to" in figure.get_label()


def test_pooled_images_know_their_owners(lesson):
    members = lesson.members()
    images, labels, owner = pooled(members)
    for number, client in enumerate(members):
        assert torch.equal(images[owner == number], client.images)
        assert torch.equal(labels[owner == number], client.labels)


def test_answers_are_those_of_each_network(lesson):
    networks = [lesson.task.new_model(Rng(k)).eval() for k in range(3)]
    inputs = lesson.task.inputs(lesson.task.dataset.train.images[:700])
    found = answers(networks, inputs)
    assert found.shape[:2] == (3, 700)
    for k, network in enumerate(networks):
        torch.testing.assert_close(found[k], network(inputs).detach(), rtol=1e-4, atol=1e-4)
    assert not found.requires_grad


def test_a_trained_network_knows_what_it_was_shown(lesson):
    train = lesson.task.dataset.train
    inputs, labels = lesson.task.inputs(train.images), train.labels
    fresh, taught = (trained(lesson.task, inputs, labels, n, Rng(0)) for n in (1, 60))
    scores = [
        share_right(lesson.task.outputs(net, train.images), labels) for net in (fresh, taught)
    ]
    assert scores[1] > scores[0] + 20


def test_condensation_starts_at_the_distance_of_mean_features(lesson):
    task, client = lesson.task, max(lesson.members(), key=len)
    model, seen = task.new_model(Rng(1)).eval(), []
    pictures, labels, losses = condensed(
        task,
        model,
        client.images,
        client.labels,
        2,
        Rng(5),
        watch=lambda step, images: seen.append(images.clone()),
        iterations=3,
        image_lr=1.0,
    )
    held = client.labels.unique()
    assert labels.tolist() == held.repeat_interleave(2).tolist()
    assert len(seen) == len(losses) == 3 and pictures.shape == seen[0].shape
    assert abs(seen[0].mean()) < 0.15 and abs(seen[0].std() - 1) < 0.15  # noise
    assert losses[-1] < losses[0]
    # by hand: Eq. 2 of FedVCK, both sides under the statistics of the real images
    eye = LatentEncoder(model)
    real, statistics = eye(task.inputs(client.images), torch.zeros_like(client.labels))
    made, _ = eye(seen[0], torch.zeros_like(labels), statistics)
    gaps = [
        (real[client.labels == c].mean(0) - made[labels == c].mean(0)).square().sum() for c in held
    ]
    assert losses[0].item() == pytest.approx(torch.stack(gaps).mean().item(), rel=0.02)


def test_pictures_are_the_images_that_network_inputs_stand_for(lesson):
    images = lesson.task.dataset.test.images[:5]
    inputs = lesson.task.inputs(images)
    assert torch.equal(lesson.as_images(inputs.double()), images)
    assert lesson.as_images(inputs - 100).max() == 0 and lesson.as_images(inputs + 100).min() == 255


FIELDS = {"dataset": "digits", "alpha": 0.5, "clients": 2, "rounds": 1, "seed": 1}
FEDIOD = {**SMALL["fediod"], "local_steps": 2, "distill_steps": 2, "scored_images": 0}


@pytest.fixture
def taught():
    return TaughtLesson("quick", "fediod", own={"fediod": FEDIOD}, **FIELDS)


class Sure(nn.Module):
    """Says one class, or one value, whatever the image."""

    def __init__(self, logits):
        super().__init__()
        self.logits = torch.tensor(logits)

    def forward(self, x):
        return self.logits.expand(len(x), *self.logits.shape)


def test_runs_that_share_teachers_are_those_that_train_their_own(taught):
    own = Lesson("quick", "fediod", own={"fediod": FEDIOD}, **FIELDS)
    taught.run(uniqueness=0)
    again, alone = taught.run(), own.run()
    for name, value in alone.state.tensors.items():
        assert torch.equal(again.state.tensors[name], value), name
    assert len(taught.clients_with_teachers) == len(taught.members()) == len(taught.teachers) == 2
    assert taught.run("fedavg", local_steps=1, lr=0.1).experiment.algorithm == "fedavg"


def test_two_sure_teachers_apart_and_one_unsure(taught):
    inputs = taught.task.inputs(taught.task.dataset.test.images[:3])
    taught.counts = torch.tensor([[3, 0], [0, 1]])
    taught.teachers = [Sure([50.0, 0.0]), Sure([0.0, 50.0])]
    apart = -0.75 * math.log(0.75) - 0.25 * math.log(0.25)
    said = taught.opinion(inputs)
    assert said["entropy"] == pytest.approx(0, abs=1e-6)
    assert said["JSD"] == pytest.approx(apart, rel=1e-5)
    assert said["classes"] == pytest.approx(math.exp(apart), rel=1e-5)
    taught.teachers = [Sure([0.0, 0.0]), Sure([0.0, 0.0])]
    said = taught.opinion(inputs)
    assert said["entropy"] == pytest.approx(math.log(2)) and abs(said["JSD"]) < 1e-6


def test_opinions_follow_the_states_of_runs_on_the_same_noise(taught):
    begin, run = taught.start(), taught.run()
    found = taught.opinions({"a": [begin, run.state], "b": [begin]})
    assert found["label"].tolist() == ["a", "a", "b"] and found["step"].tolist() == [0, 2, 0]
    assert found.iloc[0, 2:].tolist() == found.iloc[2, 2:].tolist() != found.iloc[1, 2:].tolist()
    assert not torch.equal(taught.pictures(begin, 3), taught.pictures(run.state, 3))


def test_a_discriminator_that_says_one_thing_is_heard(taught):
    real = taught.judged([Sure(torch.full((1, 2, 2), v).tolist()) for v in (0.0, math.log(3))])
    assert real.tolist() == pytest.approx([0.5, 0.25])


def test_a_student_comes_to_the_answers_it_is_given(taught):
    task = taught.task
    inputs = task.inputs(task.dataset.train.images[:64])
    targets = torch.nn.functional.one_hot(task.dataset.train.labels[:64], 10).float()

    def loss(scores, wanted):
        return (scores - wanted).square().mean()

    errors = [
        loss(distilled(task, inputs, targets, loss, steps, Rng(3)).eval()(inputs), targets).item()
        for steps in (1, 40)
    ]
    assert errors[1] < 0.3 * errors[0]
