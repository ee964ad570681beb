"""DC and DSA: their budgets, and what augmentation changes."""

import pytest
import torch

from core import algorithms
from core.baselines import dc as module
from core.families import condensing
from core.rng import Rng
from tests.algorithms.on_digits import ONE_SHOT, first_images, on_digits

TINY = on_digits("dc", clients=2)


def uploaded(task, clients, name, **more):
    algorithm = algorithms.create(name, ONE_SHOT | {"iterations": 2, "image_lr": 10.0} | more)
    return first_images(algorithm, task, clients)


@pytest.mark.parametrize(
    ("images", "loops"),
    [(1, (1, 1)), (10, (10, 50)), (20, (20, 25)), (30, (30, 20)), (40, (40, 15)), (50, (50, 10))],
)
def test_how_often_images_and_network_take_turns(images, loops):
    for name, own in (("dc", {}), ("dsa", {"matches": 3}), ("dc", {"network_steps": 2})):
        matching = algorithms.create(name, {"images_per_class": images, **own}).settings.matching
        wanted = own.get("matches", loops[0]), own.get("network_steps", loops[1])
        assert (matching.matches, matching.network_steps) == wanted


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
    found = algorithms.create("dc", ONE_SHOT).condense(task, real, start, Rng(7), rngs)
    problem, given = seen
    assert torch.equal(given, start) and torch.equal(found, start + 1)
    wanted = (real.images.double() / 255 - task.dataset.mean[0]) / task.dataset.std[0]
    torch.testing.assert_close(problem.prepare(real.images).double(), wanted, rtol=1e-5, atol=1e-5)
    assert problem.networks == Rng(7) and list(problem.draws.rngs) == rngs


def test_dsa_is_dc_with_augmentation(task, clients):
    plain = uploaded(task, clients, "dc")
    assert torch.equal(uploaded(task, clients, "dsa"), plain)
    assert not torch.equal(uploaded(task, clients, "dsa", augmentation="crop"), plain)
    assert not torch.equal(uploaded(task, clients, "dc", matches=2), plain)
