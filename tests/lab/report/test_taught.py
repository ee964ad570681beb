"""Lessons on FedIOD: what their runs share, and what teachers say of images."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from core.rng import Rng
from lab.report.lesson import SMALL, Lesson
from lab.report.taught import (
    TaughtLesson,
    distilled,
    downhill,
    ensembles,
    panel,
    slope,
    small_lesson,
)

FIELDS = {"dataset": "digits", "alpha": 0.5, "clients": 2, "rounds": 1, "seed": 1}
FEDIOD = {**SMALL["fediod"], "local_steps": 2, "distill_steps": 2, "scored_images": 0}


@pytest.fixture
def lesson():
    return TaughtLesson("quick", "fediod", own={"fediod": FEDIOD}, **FIELDS)


class Sure(nn.Module):
    """Says one class, or one value, whatever the image."""

    def __init__(self, logits):
        super().__init__()
        self.logits = torch.tensor(logits)

    def forward(self, x):
        return self.logits.expand(len(x), *self.logits.shape)


def test_runs_that_share_teachers_are_those_that_train_their_own(lesson):
    own = Lesson("quick", "fediod", own={"fediod": FEDIOD}, **FIELDS)
    lesson.run(uniqueness=0)
    again, alone = lesson.run(), own.run()
    for name, value in alone.state.tensors.items():
        assert torch.equal(again.state.tensors[name], value), name
    assert len(lesson.taught) == len(lesson.members()) == len(lesson.teachers) == 2
    assert lesson.run("fedavg", local_steps=1, lr=0.1).experiment.algorithm == "fedavg"


def test_shares_are_those_of_all_images(lesson):
    sizes = [len(client) for client in lesson.members()]
    assert lesson.counts.sum(1).tolist() == sizes
    assert lesson.shares.tolist() == pytest.approx([n / sum(sizes) for n in sizes])


def test_two_sure_teachers_apart_and_one_unsure(lesson):
    inputs = lesson.task.inputs(lesson.task.dataset.test.images[:3])
    lesson.counts = torch.tensor([[3, 0], [0, 1]])
    lesson.teachers = [Sure([50.0, 0.0]), Sure([0.0, 50.0])]
    apart = -0.75 * math.log(0.75) - 0.25 * math.log(0.25)
    said = lesson.opinion(inputs)
    assert said["entropy"] == pytest.approx(0, abs=1e-6)
    assert said["JSD"] == pytest.approx(apart, rel=1e-5)
    assert said["classes"] == pytest.approx(math.exp(apart), rel=1e-5)
    lesson.teachers = [Sure([0.0, 0.0]), Sure([0.0, 0.0])]
    said = lesson.opinion(inputs)
    assert said["entropy"] == pytest.approx(math.log(2)) and abs(said["JSD"]) < 1e-6


def test_opinions_follow_the_states_of_runs_on_the_same_noise(lesson):
    begin, run = lesson.start(), lesson.run()
    found = lesson.opinions({"a": [begin, run.state], "b": [begin]})
    assert found["label"].tolist() == ["a", "a", "b"] and found["step"].tolist() == [0, 2, 0]
    assert found.iloc[0, 2:].tolist() == found.iloc[2, 2:].tolist() != found.iloc[1, 2:].tolist()
    assert not torch.equal(lesson.pictures(begin, 3), lesson.pictures(run.state, 3))


def test_a_discriminator_that_says_one_thing_is_heard(lesson):
    real = lesson.judged([Sure(torch.full((1, 2, 2), v).tolist()) for v in (0.0, math.log(3))])
    assert real.tolist() == pytest.approx([0.5, 0.25])


def test_a_small_lesson_asks_for_what_a_reader_would_ask_by_hand():
    by_hand = TaughtLesson(
        "quick",
        "fediod",
        **FIELDS,
        model_options={"depth": 2, "width": 16},
        settings={"lr": 0.05, "batch_size": 32},
        own={"fediod": {**SMALL["fediod"], "local_steps": 2}},
    )
    found = small_lesson("quick", {"local_steps": 2}, **FIELDS)
    assert found.experiment().id == by_hand.experiment().id


def test_pixels_go_straight_down_a_slope_by_one_length_a_step():
    start, goal = torch.full((2, 1, 2, 2), 0.5), torch.zeros(2, 1, 2, 2)
    start[1] = 0

    def loss(x):
        return (x - goal).square().sum()

    torch.testing.assert_close(slope(start, loss), 2 * (start - goal))
    # four pixels of 0.5 are at a distance of 1; the second image is there already
    for steps, left in ((1, 0.7), (3, 0.1)):
        moved = downhill(start, loss, steps, 0.3)
        torch.testing.assert_close(moved[0].norm(), torch.tensor(left))
        assert torch.equal(moved[1], goal[1])
    up = downhill(start, lambda x: -x.sum(), 9, 0.3)
    assert torch.equal(up, torch.ones_like(up))


def test_a_student_comes_to_the_answers_it_is_given(lesson):
    task = lesson.task
    inputs = task.inputs(task.dataset.train.images[:64])
    targets = torch.nn.functional.one_hot(task.dataset.train.labels[:64], 10).float()

    def loss(scores, wanted):
        return (scores - wanted).square().mean()

    errors = [
        loss(distilled(task, inputs, targets, loss, steps, Rng(3)).eval()(inputs), targets).item()
        for steps in (1, 40)
    ]
    assert errors[1] < 0.3 * errors[0]


def test_each_teacher_of_a_panel_knows_its_clients_classes_and_no_others(lesson):
    task = lesson.task
    data = task.dataset.train
    some = panel(task, 3, 0.1, 60, 2)
    held = torch.cat(some.parts)
    assert sorted(held.tolist()) == list(range(len(data.labels)))
    for part, counts, network in zip(some.parts, some.counts, some.networks, strict=True):
        own = data.labels[part].tolist()
        assert counts.tolist() == [own.count(c) for c in range(10)]
        guessed = task.outputs(network, data.images).argmax(1)
        assert (guessed[part] == data.labels[part]).float().mean() > 0.6
        assert counts[guessed.bincount(minlength=10) > 0].min() > 0
        assert not any(weight.requires_grad for weight in network.parameters())


def test_ensembles_equal_loops():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(2, 3, 2, generator=generator).double()
    counts = torch.tensor([[1, 0], [2, 5]])
    found = ensembles(z, counts)
    for n in range(3):
        for c in range(2):
            q = [math.exp(z[k, n, c]) / sum(math.exp(v) for v in z[k, n]) for k in range(2)]
            wanted = {
                "mean of probabilities": math.log(q[0] / 8 + q[1] * 7 / 8),
                "mean of logits": z[0, n, c] / 8 + z[1, n, c] * 7 / 8,
                "class-wise weights": (z[0, n, 0] + 2 * z[1, n, 0]) / 3 if c == 0 else z[1, n, 1],
            }
            for name, value in wanted.items():
                assert found[name][n, c].item() == pytest.approx(float(value), rel=1e-6), name
