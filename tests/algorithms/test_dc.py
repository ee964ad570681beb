"""DC and DSA: their budgets, what augmentation changes, and that they learn."""

import pytest
import torch

from core import algorithms
from core.baselines import dc as module
from core.errors import InputError
from core.families import condensing
from core.federation import Runtime
from core.rng import Rng
from lab import Experiment, make_clients, make_task

SMALL = {
    "images_per_class": 1,
    "iterations": 2,
    "real_batch": 4,
    "encoder_width": 4,
    "encoder_depth": 2,
    "image_lr": 10.0,
}
TINY = Experiment(algorithm="dc", dataset="digits", model_options={"width": 8}, clients=2, rounds=1)


def uploaded(task, name, **more):
    algorithm = algorithms.create(name, SMALL | more)
    client = make_clients(TINY, task)[0]
    message = algorithm.broadcast(algorithm.initialise(task, Rng(0)), 0)
    return algorithm.client_update(client, message, Rng(3)).tensors["images"].int()


@pytest.mark.parametrize("name", ["dc", "dsa"])
def test_the_defaults_are_those_of_the_authors_code(name):
    settings = algorithms.create(name).settings
    assert (settings.iterations, settings.image_lr, settings.network_lr, settings.real_batch) == (
        1000,
        0.1,
        0.01,
        256,
    )
    assert (
        settings.augmentation == {"dc": "none", "dsa": "color_crop_cutout_flip_scale_rotate"}[name]
    )
    assert settings.replacement
    released = algorithms.create(name, variant="released").settings
    assert (released.init, released.replacement) == ({"dc": "noise", "dsa": "real"}[name], False)


@pytest.mark.parametrize(
    ("images", "loops"),
    [(1, (1, 1)), (10, (10, 50)), (20, (20, 25)), (30, (30, 20)), (40, (40, 15)), (50, (50, 10))],
)
def test_how_often_images_and_network_take_turns(images, loops):
    matching = algorithms.create("dc", {"images_per_class": images}).settings.matching
    assert (matching.matches, matching.network_steps) == loops
    own = algorithms.create(
        "dc", {"images_per_class": images, "matches": 3, "network_steps": 2}
    ).settings.matching
    assert (own.matches, own.network_steps) == (3, 2)
    some = algorithms.create("dsa", {"images_per_class": images, "matches": 3}).settings.matching
    assert (some.matches, some.network_steps) == (3, loops[1])


@pytest.mark.parametrize("more", [{}, {"matches": 3}, {"network_steps": 2}])
def test_for_other_numbers_of_images_both_loops_must_be_said(more):
    with pytest.raises(
        InputError, match="for 5 images per class say how many matches and network_"
    ):
        algorithms.create("dc", {"images_per_class": 5, **more})


def test_normalised_real_images_are_matched_from_the_start_that_is_given(monkeypatch):
    """Of networks that all clients share, and of draws of each client."""
    seen = []
    monkeypatch.setattr(
        module, "match_gradients", lambda *given: seen.extend(given) or (given[1] + 1, None)
    )
    task, rngs = make_task(TINY, Runtime()), [Rng(1), Rng(2)]
    real, _ = condensing.gather(make_clients(TINY, task), rngs)
    start = torch.rand(real.groups, 1, 1, 8, 8, generator=Rng(0).generator())
    found = algorithms.create("dc", SMALL).condense(task, real, start, Rng(7), rngs)
    problem, given = seen
    assert torch.equal(given, start) and torch.equal(found, start + 1)
    wanted = (real.images.double() / 255 - task.dataset.mean[0]) / task.dataset.std[0]
    torch.testing.assert_close(problem.prepare(real.images).double(), wanted, rtol=1e-5, atol=1e-5)
    assert problem.networks == Rng(7) and list(problem.draws.rngs) == rngs


def test_dsa_is_dc_with_augmentation():
    task = make_task(TINY, Runtime())
    assert torch.equal(uploaded(task, "dsa", augmentation="none"), uploaded(task, "dc"))
    assert not torch.equal(uploaded(task, "dsa"), uploaded(task, "dc"))
    assert not torch.equal(uploaded(task, "dc", matches=2, network_lr=1.0), uploaded(task, "dc"))
