"""DC and DSA: their budgets, and what augmentation changes."""

import pytest
import torch

from core import algorithms
from core.baselines import dc as module
from core.errors import InputError
from core.families import condensing
from core.rng import Rng
from lab import Experiment
from tests.algorithms.on_digits import uploads_of

SMALL = {
    "images_per_class": 1,
    "iterations": 2,
    "real_batch": 4,
    "encoder_width": 4,
    "encoder_depth": 2,
    "image_lr": 10.0,
}
TINY = Experiment(algorithm="dc", dataset="digits", model_options={"width": 8}, clients=2, rounds=1)


def uploaded(task, clients, name, **more):
    algorithm = algorithms.create(name, SMALL | more)
    state = algorithm.initialise(task, Rng(0))
    return uploads_of(algorithm, state, clients[:1], Rng(3))[0].tensors["images"].int()


@pytest.mark.parametrize(
    ("name", "augmentation", "init"),
    [("dc", "none", "noise"), ("dsa", "color_crop_cutout_flip_scale_rotate", "real")],
)
def test_the_defaults_are_those_of_the_authors_code(name, augmentation, init):
    printed, released = (
        algorithms.create(name, variant=which).settings for which in ("printed", "released")
    )
    assert (printed.iterations, printed.real_batch) == (1000, 256)
    assert (printed.image_lr, printed.network_lr) == (0.1, 0.01)
    assert (printed.augmentation, printed.replacement) == (augmentation, True)
    assert (released.init, released.replacement) == (init, False)


@pytest.mark.parametrize(
    ("images", "loops"),
    [(1, (1, 1)), (10, (10, 50)), (20, (20, 25)), (30, (30, 20)), (40, (40, 15)), (50, (50, 10))],
)
def test_how_often_images_and_network_take_turns(images, loops):
    for name, own in (("dc", {}), ("dsa", {"matches": 3}), ("dc", {"network_steps": 2})):
        matching = algorithms.create(name, {"images_per_class": images, **own}).settings.matching
        wanted = own.get("matches", loops[0]), own.get("network_steps", loops[1])
        assert (matching.matches, matching.network_steps) == wanted


@pytest.mark.parametrize("more", [{}, {"matches": 3}, {"network_steps": 2}])
def test_for_other_numbers_of_images_both_loops_must_be_said(more):
    with pytest.raises(
        InputError, match="for 5 images per class say how many matches and network_"
    ):
        algorithms.create("dc", {"images_per_class": 5, **more})


def test_normalised_real_images_are_matched_from_the_start_that_is_given(
    task, clients, monkeypatch
):
    """Of networks that all clients share, and of draws of each client."""
    seen, rngs = [], [Rng(1), Rng(2)]
    monkeypatch.setattr(
        module, "match_gradients", lambda *given: seen.extend(given) or (given[1] + 1, None)
    )
    real, _ = condensing.gather(clients, rngs)
    start = torch.rand(real.groups, 1, 1, 8, 8, generator=Rng(0).generator())
    found = algorithms.create("dc", SMALL).condense(task, real, start, Rng(7), rngs)
    problem, given = seen
    assert torch.equal(given, start) and torch.equal(found, start + 1)
    wanted = (real.images.double() / 255 - task.dataset.mean[0]) / task.dataset.std[0]
    torch.testing.assert_close(problem.prepare(real.images).double(), wanted, rtol=1e-5, atol=1e-5)
    assert problem.networks == Rng(7) and list(problem.draws.rngs) == rngs


def test_dsa_is_dc_with_augmentation(task, clients):
    plain = uploaded(task, clients, "dc")
    assert torch.equal(uploaded(task, clients, "dsa", augmentation="none"), plain)
    assert not torch.equal(uploaded(task, clients, "dsa"), plain)
    assert not torch.equal(uploaded(task, clients, "dc", matches=2, network_lr=1.0), plain)
