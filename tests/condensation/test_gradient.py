"""Gradient matching: the distance in NumPy, gradients and images' gradients by finite differences,
groups apart.
"""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from core import models
from core.condensation import augment, draw, gradient
from core.condensation.engine import Draws, RealData
from core.condensation.gradient import (
    EPS,
    GradientMatching,
    GradientProblem,
    class_gradients,
    gradient_distance,
    match_gradients,
)
from core.rng import Rng

AUGMENTATION = "color_crop_cutout_flip_scale_rotate"


def network(**options) -> nn.Module:
    return models.build("convnet", 1, 8, 3, Rng(4), width=3, depth=2, norm="instance", **options)


def stacked(groups: int) -> dict[str, torch.Tensor]:
    """Other weights for every group."""
    each = [
        dict(
            models.build(
                "convnet", 1, 8, 3, Rng(g), width=3, depth=2, norm="instance"
            ).named_parameters()
        )
        for g in range(groups)
    ]
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
    one = network().double()
    weights = {name: value.double() for name, value in stacked(2).items()}
    labels = torch.tensor([0, 2])
    generator = torch.Generator().manual_seed(2)
    real = class_gradients(
        one, weights, torch.randn(2, 5, 1, 8, 8, generator=generator).double(), labels
    )

    def distance(images: torch.Tensor) -> torch.Tensor:
        return gradient_distance(real, class_gradients(one, weights, images, labels))

    images = torch.randn(2, 1, 1, 8, 8, generator=generator).double().requires_grad_()
    (found,) = torch.autograd.grad(distance(images).sum(), images)
    direction = torch.randn(images.shape, generator=generator).double()
    step = 1e-6
    with torch.no_grad():
        slope = (
            distance(images + step * direction) - distance(images - step * direction)
        ).sum() / (2 * step)
    torch.testing.assert_close((found * direction).sum(), slope, rtol=1e-5, atol=1e-8)


# --- the loop
# ---------------------------------------------------------------------------------------------

SIZES = (6, 3, 5)  # client 0 has classes 0 and 2, client 1 has class 1


def problem(**more) -> GradientProblem:
    images = torch.randint(
        0, 256, (14, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(3)
    )
    group = torch.repeat_interleave(torch.arange(3), torch.tensor(SIZES))
    share = 1 / torch.tensor(SIZES, dtype=torch.float32)[group]
    real = RealData(images, group, share, torch.tensor([0, 0, 1]), torch.tensor([0, 2, 1]))
    settings = GradientMatching(
        **{"iterations": 1, "real_batch": 4, "image_lr": 1.0, "image_momentum": 0.0, **more}
    )
    return GradientProblem(
        network(),
        real,
        settings,
        Draws([Rng(1), Rng(2)], real.owner),
        lambda images: images.float() / 128 - 1,
        Rng(9),
    )


def alone(one: GradientProblem, client: int) -> GradientProblem:
    """The same with one client only."""
    groups = (one.real.owner == client).nonzero()[:, 0]
    mine = one.real.owner[one.real.group] == client
    real = RealData(
        one.real.images[mine],
        one.real.group[mine] - groups[0],
        one.real.probabilities[mine],
        torch.zeros_like(groups),
        one.real.label[groups],
    )
    return attrs.evolve(one, real=real, draws=Draws([one.draws.rngs[client]], real.owner))


def start(groups: int = 3, images: int = 2) -> torch.Tensor:
    return torch.randn(groups, images, 1, 8, 8, generator=torch.Generator().manual_seed(6))


@pytest.mark.parametrize("augmentation", ["none", AUGMENTATION])
def test_one_step_by_hand(augmentation):
    """theta ~ P, one batch per class, S - eta grad D, with plain autograd and one group at a
    time; real and condensed images of a group have the same augmentation.
    """
    one = problem(augmentation=augmentation)
    images, trace = match_gradients(one, start())
    net = network()
    models.initialise(net, Rng(9).at("network", 0))
    rows = draw(one.real.probabilities, one.real.group, 3, one.draws.uniform(4, "batch", 0, 0))
    parameters, drawn = list(net.parameters()), one.augmentation("augment", 0, 0)
    for group, label in enumerate(one.real.label):
        index = torch.full((4,), group)
        real = augment(one.prepare(one.real.images[rows[group]]), drawn, index)
        loss = F.cross_entropy(net(real), label.expand(4))
        goal = torch.autograd.grad(loss, parameters)
        s = start()[group].requires_grad_()
        found = torch.autograd.grad(
            F.cross_entropy(net(augment(s, drawn, index[:2])), label.expand(2)),
            parameters,
            create_graph=True,
        )
        distance = sum(
            (1 - F.cosine_similarity(a.flatten(1), b.flatten(1))).sum()
            for a, b in zip(goal, found, strict=True)
            if a.ndim > 1
        )
        (slope,) = torch.autograd.grad(distance, s)
        torch.testing.assert_close(trace[0, group], distance.detach(), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(images[group], start()[group] - slope, rtol=1e-3, atol=1e-4)


def test_every_iteration_has_another_random_network_the_same_for_all_clients():
    one = problem()
    for step in (0, 3):
        net = network()
        models.initialise(net, Rng(9).at("network", step))
        weights = one.weights(step)
        for name, value in net.named_parameters():
            assert all(torch.equal(own, value) for own in weights[name])


@pytest.mark.parametrize("augmentation", ["none", AUGMENTATION])
def test_the_network_is_trained_on_all_images_of_its_client_between_two_matches(augmentation):
    """Three steps, each under an augmentation of its own."""
    one = problem(network_steps=3, network_lr=0.5, augmentation=augmentation)
    images, weights = start(), one.weights(0)
    found = gradient._trained(one, weights, images, 0, 0)
    for client, groups in ((0, [0, 1]), (1, [2])):
        net = network()
        models.initialise(net, Rng(9).at("network", 0))
        optimiser = torch.optim.SGD(net.parameters(), lr=0.5)
        index = torch.tensor(groups).repeat_interleave(2)
        for turn in range(3):
            optimiser.zero_grad()
            drawn = one.augmentation("train", 0, 0, turn)
            shown = augment(images[groups].flatten(0, 1), drawn, index)
            F.cross_entropy(net(shown), one.real.label[index]).backward()
            optimiser.step()
        for name, value in net.named_parameters():
            torch.testing.assert_close(found[name][client], value.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"augmentation": AUGMENTATION},
        {"matches": 3, "network_steps": 2},
        {"matches": 2, "iterations": 2, "augmentation": AUGMENTATION, "image_momentum": 0.5},
    ],
    ids=str,
)
def test_clients_match_the_same_together_and_alone(more):
    one = problem(**more)
    together, trace = match_gradients(one, start())
    for client, groups in ((0, [0, 1]), (1, [2])):
        apart, own = match_gradients(alone(one, client), start()[groups])
        torch.testing.assert_close(together[groups], apart, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(trace[:, groups], own, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("size", [1, 4, 100])
def test_how_many_groups_are_taken_at_once_does_not_matter(size, monkeypatch):
    one = problem(matches=2, augmentation=AUGMENTATION)
    wanted, _ = match_gradients(one, start())
    monkeypatch.setitem(gradient.AT_ONCE, "cpu", size)
    found, _ = match_gradients(one, start())
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


def test_the_network_learns_before_every_match_but_the_first(monkeypatch):
    """Three matches have two trainings between them, each from the weights of the one before."""
    calls, trained = [], gradient._trained
    monkeypatch.setattr(
        gradient, "_trained", lambda *given: calls.append(given[3:]) or trained(*given)
    )
    match_gradients(problem(iterations=2, matches=3), start())
    assert calls == [(0, 0), (0, 1), (1, 0), (1, 1)]
