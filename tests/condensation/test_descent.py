"""How images move and when they stop: closed forms of one step, and losses made up."""

import attrs
import pytest
import torch

from core.condensation.descent import LOOK, Descent, milestones, progress
from core.condensation.problem import Condensation
from core.errors import InputError
from core.rng import Rng

#: three groups of two clients
GROUP, OWNER = torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([0, 0, 0, 1, 1, 1])


def start(**settings):
    generator = Rng(0).generator()
    images = torch.randn(6, 1, 2, 2, generator=generator)
    images.grad = torch.randn(6, 1, 2, 2, generator=generator)
    settings = {"image_lr": 0.5, "image_momentum": 0.0} | settings
    return images, Descent(images, GROUP, OWNER, Condensation(**settings))


@pytest.mark.parametrize("kind", ["sgd", "scaled", "adam"])
def test_the_first_step(kind):
    images, descent = start(image_optimiser=kind)
    before, slope = images.clone(), images.grad.clone()
    descent.step()
    moved = {
        "sgd": 0.5 * slope,
        "scaled": 0.5 * torch.tensor([2, 2, 1, 3, 3, 3]).view(-1, 1, 1, 1) * slope,
        "adam": 0.5 * slope.sign(),  # both moments are those of one gradient
    }[kind]
    torch.testing.assert_close(before - images, moved, rtol=1e-4, atol=1e-5)


def test_the_momentum_of_adam_shows_in_a_second_step_without_a_gradient():
    """m = b (1 - b) g / (1 - b^2), v = 0.999 * 0.001 g^2 / (1 - 0.999^2)."""
    images, descent = start(image_optimiser="adam", image_momentum=0.5)
    slope = images.grad.clone()
    descent.step()
    before = images.clone()
    images.grad.zero_()
    descent.step()
    moved = 0.5 * (0.5 / 1.5) * (1.999 / 0.999) ** 0.5 * slope.sign()
    torch.testing.assert_close(before - images, moved, rtol=1e-3, atol=1e-5)


def test_a_client_stops_where_its_own_loss_has_fallen():
    images, descent = start(stop_factor=4.0, image_momentum=0.9)
    groups = torch.tensor([0, 0, 1])
    trace = torch.full((3 * LOOK, 3), 8.0)
    trace[LOOK:, :2] = 1.9  # both groups of the first client
    trace[2 * LOOK :, 2] = 2.1  # not quite
    assert not descent.over(trace[: LOOK - 1], groups) and descent.still is None
    assert not descent.over(trace[: 2 * LOOK], groups)
    assert descent.still.tolist() == [True] * 3 + [False] * 3
    before = images.clone()
    descent.step()
    assert torch.equal(images[:3], before[:3]) and not torch.equal(images[3:], before[3:])
    assert not descent.over(trace, groups)
    assert descent.over(torch.cat([trace, torch.full((LOOK, 3), 2.0)]), groups)


def test_the_first_and_the_last_steps_count_by_their_means():
    """The first loss or the last one alone would say the opposite of both clients."""
    _, descent = start(stop_factor=2.0)
    trace = torch.full((2 * LOOK, 2), 8.0)
    trace[LOOK:] = torch.tensor([3.5, 9.0])
    trace[0], trace[-1] = torch.tensor([4.0, 80.0]), torch.tensor([5.0, 1.0])
    # means 7.6 and 3.65, which is less than half; 15.2 and 8.2, which is not
    assert not descent.over(trace, torch.tensor([0, 1]))
    assert descent.still.tolist() == [True] * 3 + [False] * 3
    # who has stopped stays where it is, whatever its loss does then
    assert not descent.over(torch.cat([trace, 9 * trace[:LOOK]]), torch.tensor([0, 1]))
    assert descent.still.tolist() == [True] * 3 + [False] * 3


def test_bad_settings_are_refused():
    for bad in ({"image_optimiser": "adm"}, {"stop_factor": 1.0}, {"refresh": 0}):
        with pytest.raises(InputError):
            attrs.evolve(Condensation(), **bad)


def test_the_loss_on_the_way():
    assert milestones(160) == [1, 2, 5, 10, 20, 50, 100, 160] and milestones(5) == [1, 2, 5]
    trace = torch.arange(12.0).view(4, 3)  # four steps of three groups
    found = progress(trace, torch.tensor([0, 0, 1]), 2, iterations=6)
    # sums of the groups: 1, 7, 13, 19 and 2, 5, 8, 11; the last one stands for steps 5 and 6
    expected = [[1, 7, (13 + 19 + 19) / 3, 19], [2, 5, (8 + 11 + 11) / 3, 11]]
    torch.testing.assert_close(found, torch.tensor(expected))
