"""Gradient matching: the distance in NumPy, images' gradients by finite differences, the loop."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from core import models
from core.condensation import augment, draw, gradient
from core.condensation.engine import Draws
from core.condensation.gradient import (
    EPS,
    GradientMatching,
    GradientProblem,
    class_gradients,
    gradient_distance,
    match_gradients,
)
from core.rng import Rng
from tests.condensation.small import real_data

AUGMENTATION = "color_crop_cutout_flip_scale_rotate"


def network(**options) -> nn.Module:
    return models.build("convnet", 1, 8, 3, Rng(4), width=3, depth=2, norm="instance", **options)


def stacked(groups: int) -> dict[str, torch.Tensor]:
    """Other weights for every group."""
    options = {"width": 3, "depth": 2, "norm": "instance"}
    networks = [models.build("convnet", 1, 8, 3, Rng(g), **options) for g in range(groups)]
    each = [dict(one.named_parameters()) for one in networks]
    return {name: torch.stack([one[name].detach() for one in each]) for name in each[0]}


def random_gradients(groups: int = 4, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "conv.weight": (groups, 5, 2, 3, 3),
        "conv.bias": (groups, 5),
        "norm.weight": (groups, 5),
        "classifier.weight": (groups, 3, 7),
        "classifier.bias": (groups, 3),
    }
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }


def test_the_distance_is_the_sum_of_cosines_over_layers_and_outputs():
    real, condensed = random_gradients(seed=1), random_gradients(seed=2)
    wanted = np.zeros(4)
    for name in ("conv.weight", "classifier.weight"):  # biases and scales do not count
        for group in range(4):
            for a, b in zip(real[name][group].numpy(), condensed[name][group].numpy(), strict=True):
                a, b = a.ravel(), b.ravel()
                wanted[group] += 1 - a @ b / (np.sqrt(a @ a) * np.sqrt(b @ b) + EPS)
    np.testing.assert_allclose(gradient_distance(real, condensed).numpy(), wanted, rtol=1e-12)


def test_the_distance_of_scaled_opposite_and_zero_gradients():
    real, outputs = random_gradients(), 5 + 3
    for scale, expected in ((3.0, 0.0), (-1.0, 2.0 * outputs)):
        other = {name: scale * value for name, value in real.items()}
        distance = gradient_distance(real, other)
        np.testing.assert_allclose(distance, np.full(4, expected), atol=1e-5)
    zero = {name: torch.zeros_like(value).requires_grad_() for name, value in real.items()}
    distance = gradient_distance(real, zero)
    assert distance.tolist() == [outputs] * 4
    slope = torch.autograd.grad(distance.sum(), [zero["conv.weight"], zero["classifier.weight"]])
    assert all(bool(torch.isfinite(one).all()) for one in slope)


def test_the_gradient_of_the_distance_by_images_agrees_with_finite_differences():
    """A second derivative, in float64."""
    one, labels = network().double(), torch.tensor([0, 2])
    weights = {name: value.double() for name, value in stacked(2).items()}
    generator = torch.Generator().manual_seed(2)
    shown = torch.randn(2, 5, 1, 8, 8, generator=generator).double()
    real = class_gradients(one, weights, shown, labels)

    def distance(images: torch.Tensor) -> torch.Tensor:
        return gradient_distance(real, class_gradients(one, weights, images, labels)).sum()

    images = torch.randn(2, 1, 1, 8, 8, generator=generator).double().requires_grad_()
    (found,) = torch.autograd.grad(distance(images), images)
    way = 1e-6 * torch.randn(images.shape, generator=generator).double()
    with torch.no_grad():
        slope = (distance(images + way) - distance(images - way)) / 2
    torch.testing.assert_close((found * way).sum(), slope, rtol=1e-5, atol=1e-14)


# --- the loop

SIZES = (6, 3, 5)  # client 0 has classes 0 and 2, client 1 has class 1


def problem(**more) -> GradientProblem:
    plain = {"iterations": 1, "real_batch": 4, "image_lr": 1.0, "image_momentum": 0.0}
    settings, real = GradientMatching(**plain | more), real_data(SIZES, [0, 0, 1], [0, 2, 1])
    draws = Draws([Rng(1), Rng(2)], real.owner)
    return GradientProblem(network(), real, settings, draws, lambda x: x.float() / 128 - 1, Rng(9))


def start(groups: int = 3, images: int = 2) -> torch.Tensor:
    return torch.randn(groups, images, 1, 8, 8, generator=torch.Generator().manual_seed(6))


def distance_of(net, one, group, rows, drawn, images):
    """The distance between the gradients of real and of condensed images of one group."""
    label, index = one.real.label[group], torch.full((4,), group)
    parameters = list(net.parameters())
    shown = augment(one.prepare(one.real.images[rows]), drawn, index)
    goal = torch.autograd.grad(F.cross_entropy(net(shown), label.expand(4)), parameters)
    made = F.cross_entropy(net(augment(images, drawn, index[:2])), label.expand(2))
    found = torch.autograd.grad(made, parameters, create_graph=True)
    pairs = [(a.flatten(1), b.flatten(1)) for a, b in zip(goal, found, strict=True) if a.ndim > 1]
    return sum((1 - F.cosine_similarity(a, b)).sum() for a, b in pairs)


@pytest.mark.parametrize("augmentation", ["none", AUGMENTATION])
def test_two_iterations_of_two_matches_by_hand(augmentation):
    """By autograd, client by client and group by group, from theta ~ P in each iteration."""
    options = {"iterations": 2, "matches": 2, "network_steps": 3}
    one = problem(augmentation=augmentation, image_lr=0.2, **options)
    images, trace = match_gradients(one, start())
    expected, wanted = start(), torch.zeros(2, 3)
    for iteration, groups in itertools.product((0, 1), ([0, 1], [2])):
        net = network()
        models.initialise(net, Rng(9).at("network", iteration))
        optimiser = torch.optim.SGD(net.parameters(), lr=0.01)
        for match in (0, 1):
            draws = one.draws.uniform(4, "batch", iteration, match)
            rows = draw(one.real.probabilities, one.real.group, 3, draws)
            drawn = one.augmentation("augment", iteration, match)
            for group in groups:
                s = expected[group].clone().requires_grad_()
                distance = distance_of(net, one, group, rows[group], drawn, s)
                expected[group] -= 0.2 * torch.autograd.grad(distance, s)[0]
                wanted[iteration, group] = distance.detach()
            index = torch.tensor(groups).repeat_interleave(2)
            for turn in range(3):
                optimiser.zero_grad()
                shown = expected[groups].flatten(0, 1)
                shown = augment(shown, one.augmentation("train", iteration, match, turn), index)
                F.cross_entropy(net(shown), one.real.label[index]).backward()
                optimiser.step()
    torch.testing.assert_close(images, expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(trace, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("size", [1, 4, 100])
def test_how_many_groups_are_taken_at_once_does_not_matter(size, monkeypatch):
    one = problem(matches=2, augmentation=AUGMENTATION)
    wanted, _ = match_gradients(one, start())
    monkeypatch.setitem(gradient.AT_ONCE, "cpu", size)
    found, _ = match_gradients(one, start())
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
