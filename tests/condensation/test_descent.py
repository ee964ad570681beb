"""Optimisers of condensed images in closed form, and the loss on the way."""

import pytest
import torch

from core.condensation.engine import Condensation, ImageOptimiser, milestones, progress
from core.rng import Rng

#: three groups
GROUP = torch.tensor([0, 0, 1, 2, 2, 2])


def start(**settings):
    generator = Rng(0).generator()
    images = torch.randn(6, 1, 2, 2, generator=generator)
    images.grad = torch.randn(6, 1, 2, 2, generator=generator)
    settings = {"image_lr": 0.5, "image_momentum": 0.0} | settings
    return images, ImageOptimiser(images, GROUP, Condensation(**settings))


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


def test_the_loss_on_the_way():
    assert milestones(160) == [1, 2, 5, 10, 20, 50, 100, 160] and milestones(5) == [1, 2, 5]
    trace = torch.arange(18.0).view(6, 3)  # six steps of three groups
    found = progress(trace, torch.tensor([0, 0, 1]), 2)
    # sums of the groups: 1, 7, 13, 19, 25, 31 and 2, 5, 8, 11, 14, 17
    expected = [[1, 7, (13 + 19 + 25) / 3, (19 + 25 + 31) / 3], [2, 5, 11, 14]]
    torch.testing.assert_close(found, torch.tensor(expected))
