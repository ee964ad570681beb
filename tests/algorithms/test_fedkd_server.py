"""FedKD's server: what it makes of quantised answers, and how its student is taught."""

import attrs
import numpy as np
import pytest
import torch

from core import algorithms
from core.families import public_images as public
from core.rng import Rng
from tests.algorithms.on_digits import on_digits

TINY = on_digits(
    "fedkd",
    {"pool": 80, "distill_batch": 32, "auxiliary": "photographs"},
    model_options={"width": 8, "depth": 2},
)


def create(**changes):
    return algorithms.create("fedkd", TINY.settings | changes)


def lesson(task, monkeypatch, ensemble, **settings):
    """What the student's training is given: network, images, targets, divergence, optimiser, batch
    size and number of steps.
    """
    seen, algorithm = [], create(**settings)
    monkeypatch.setattr(public, "mimic", lambda *given: seen.append(given))
    state = algorithm.initialise(task, Rng(0))
    algorithm._distil(attrs.evolve(state, tensors=state.tensors | {"ensemble": ensemble}), Rng(3))
    return seen[0][1:8]


def test_levels_come_back_as_logits_before_they_are_averaged():
    """50 of 100 levels of a largest logit of 8 are a logit of 4; a client's answers have its own size."""
    uploads = [
        {
            "answers/levels": torch.tensor([steps], dtype=torch.int8),
            "answers/scale": torch.tensor([size]),
            "samples/classes": torch.tensor(counts),
        }
        for steps, size, counts in (([50, -100], 8.0, [3, 1]), ([100, 25], 2.0, [1, 1]))
    ]
    found = create(levels=100, noise_scale=0.0)._ensemble(uploads, Rng(0))
    wanted = [[0.75 * 4.0 + 0.25 * 2.0, 0.5 * -8.0 + 0.5 * 0.5]]
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "steps"),
    [({"distill_epochs": 5}, 15), ({"distill_epochs": 5, "distill_steps": 7}, 7)],
)
def test_the_student_passes_all_answers_as_often_as_it_is_told_at_its_own_rate(
    task, monkeypatch, settings, steps
):
    """Three batches of 32 hold 80 images, the last one fewer."""
    *_, optimiser, batch, taken = lesson(
        task, monkeypatch, torch.ones(80, 10), distill_lr=0.125, lr=0.5, **settings
    )
    assert (batch, taken) == (32, steps)
    assert [group["lr"] for group in optimiser.param_groups] == [0.125]


def test_noise_of_the_batches_is_another_one_in_each(task, monkeypatch):
    """The mean of |Laplace(b)| is b; over many batches the noise averages out."""
    ensemble = torch.zeros(400, 10)
    settings = {"fresh_noise": True, "noise_scale": 3.0}
    divergence = lesson(task, monkeypatch, ensemble, **settings)[3]
    losses = [float(divergence(ensemble, ensemble)) for _ in range(4)]
    assert losses == pytest.approx(4 * [3.0], rel=0.1) and len(set(losses)) == 4


def test_no_more_images_are_asked_than_there_are(task):
    algorithm = create(pool=10**6)
    state = algorithm.initialise(task, Rng(0))
    assert state.meta["queries"] == len(algorithm._asked(task, state.meta)) == 5_000
