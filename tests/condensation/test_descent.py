"""Optimisers of condensed images in closed form, and when a client stops."""

import pytest
import torch

from core.condensation.engine import INTERVAL, Condensation, ImageOptimiser, milestones, progress
from core.rng import Rng

#: three groups of two clients
GROUP, OWNER = torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([0, 0, 0, 1, 1, 1])


def start(**settings):
    generator = Rng(0).generator()
    images = torch.randn(6, 1, 2, 2, generator=generator)
    images.grad = torch.randn(6, 1, 2, 2, generator=generator)
    settings = {"image_lr": 0.5, "image_momentum": 0.0} | settings
    return images, ImageOptimiser(images, GROUP, OWNER, Condensation(**settings))


@pytest.mark.parametrize("kind", ["sgd", "scaled", "adam"])
def test_the_first_step(kind):
    images, optimiser = start(image_optimiser=kind)
    before, slope = images.clone(), images.grad.clone()
    optimiser.step()
    moved = {
        "sgd": 0.5 * slope,
        "scaled": 0.5 * torch.tensor([2, 2, 1, 3, 3, 3]).view(-1, 1, 1, 1) * slope,
        "adam": 0.5 * slope.sign(),  # both moments are those of one gradient
    }[kind]
    torch.testing.assert_close(before - images, moved, rtol=1e-4, atol=1e-5)


def test_the_momentum_of_adam_shows_in_a_second_step_without_a_gradient():
    """m = b (1 - b) g / (1 - b^2), v = 0.999 * 0.001 g^2 / (1 - 0.999^2)."""
    images, optimiser = start(image_optimiser="adam", image_momentum=0.5)
    slope = images.grad.clone()
    optimiser.step()
    before = images.clone()
    images.grad.zero_()
    optimiser.step()
    moved = 0.5 * (0.5 / 1.5) * (1.999 / 0.999) ** 0.5 * slope.sign()
    torch.testing.assert_close(before - images, moved, rtol=1e-3, atol=1e-5)


def test_a_client_stops_where_its_own_loss_has_fallen():
    images, optimiser = start(stop_factor=4.0, image_momentum=0.9)
    groups = torch.tensor([0, 0, 1])
    trace = torch.full((3 * INTERVAL, 3), 8.0)
    trace[INTERVAL:, :2] = 1.9  # both groups of the first client
    trace[2 * INTERVAL :, 2] = 2.1  # not quite
    assert not optimiser.all_stopped(trace[: INTERVAL - 1], groups) and optimiser.stopped is None
    assert not optimiser.all_stopped(trace[: 2 * INTERVAL], groups)
    assert optimiser.stopped.tolist() == [True] * 3 + [False] * 3
    before = images.clone()
    optimiser.step()
    assert torch.equal(images[:3], before[:3]) and not torch.equal(images[3:], before[3:])
    assert not optimiser.all_stopped(trace, groups)
    assert optimiser.all_stopped(torch.cat([trace, torch.full((INTERVAL, 3), 2.0)]), groups)


def test_the_first_and_the_last_steps_count_by_their_means():
    """The first loss or the last one alone would say the opposite of both clients."""
    _, optimiser = start(stop_factor=2.0)
    trace = torch.full((2 * INTERVAL, 2), 8.0)
    trace[INTERVAL:] = torch.tensor([3.5, 9.0])
    trace[0], trace[-1] = torch.tensor([4.0, 80.0]), torch.tensor([5.0, 1.0])
    # means 7.6 and 3.65, which is less than half; 15.2 and 8.2, which is not
    assert not optimiser.all_stopped(trace, torch.tensor([0, 1]))
    assert optimiser.stopped.tolist() == [True] * 3 + [False] * 3
    # a client stays stopped, whatever its loss does then
    later = torch.cat([trace, 9 * trace[:INTERVAL]])
    assert not optimiser.all_stopped(later, torch.tensor([0, 1]))
    assert optimiser.stopped.tolist() == [True] * 3 + [False] * 3


def test_the_loss_on_the_way():
    assert milestones(160) == [1, 2, 5, 10, 20, 50, 100, 160] and milestones(5) == [1, 2, 5]
    trace = torch.arange(12.0).view(4, 3)  # four steps of three groups
    found = progress(trace, torch.tensor([0, 0, 1]), 2, iterations=6)
    # sums of the groups: 1, 7, 13, 19 and 2, 5, 8, 11; the last one stands for steps 5 and 6
    expected = [[1, 7, (13 + 19 + 19) / 3, 19], [2, 5, (8 + 11 + 11) / 3, 11]]
    torch.testing.assert_close(found, torch.tensor(expected))
