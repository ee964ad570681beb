"""LeNet with its images last in memory beside the same network by PyTorch's own kernels."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

from core.models import Stacked, build, kernels
from core.models.images_last import lie_last, turned, wants_last
from core.rng import Rng

pytestmark = pytest.mark.skipif(kernels.library() is None, reason="there is no C++ compiler")
#: few values in a channel of the third: there the variance that is kept is not that of the batch
SHAPES = [(11, 1, 28, 28), (8, 3, 32, 32), (8, 3, 8, 8), (3, 3, 9, 9)]


def lenet(shape: tuple[int, ...], seed: int = 0, **options: int) -> torch.nn.Module:
    """A LeNet whose normalisation is not that of a fresh one."""
    network = build("lenet", shape[1], shape[2], 4, Rng(seed), **options)
    with torch.no_grad():
        for number, weight in enumerate(network.parameters()):
            weight.add_(torch.randn(weight.shape, generator=Rng(seed + number).generator()) / 9)
    return network


def drawn(shape: tuple[int, ...], seed: int = 5) -> torch.Tensor:
    images = torch.randn(shape, generator=Rng(seed).generator())
    return images.contiguous(memory_format=torch.channels_last)


def told(network: torch.nn.Module, images: torch.Tensor) -> list[torch.Tensor]:
    """Outputs, the gradients of a function of them for images and weights, and the statistics that a
    pass has moved.
    """
    images = images.detach().requires_grad_()
    outputs = network(images)
    outputs.sin().sum().backward()
    slopes = [weight.grad for weight in network.parameters()]
    assert images.grad is not None
    return [outputs.detach(), images.grad, *slopes, *network.buffers()]  # type: ignore[list-item]


def same(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for mine, theirs in zip(found, wanted, strict=True):
        # a bias before a normalisation has no gradient but for rounding
        apart = (mine - theirs).double().norm()
        assert apart <= 1e-4 * theirs.double().norm() + 3e-4


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_gradients_and_statistics_are_those_of_pytorchs_kernels(shape, training):
    network = lenet(shape).train(training)
    other = copy.deepcopy(network)
    found = told(network, drawn(shape))
    with kernels.eager():
        same(found, told(other, drawn(shape)))


def test_maps_stay_with_the_images_last_and_wider_networks_do_not_begin_with_it():
    seen: list[bool] = []
    for options in ({}, {"second": 32}):
        network = lenet(SHAPES[0], **options)
        network.hidden.register_forward_pre_hook(
            lambda _, given: seen.append(given[0].T.is_contiguous())
        )
        network(drawn(SHAPES[0]))
        assert wants_last(network, drawn(SHAPES[0])) == (not options)
    assert seen == [True, False]


def test_turned_images_are_the_same_and_no_gradient_is_lost():
    images = drawn((9, 3, 4, 5))
    assert torch.equal(turned(images), images) and lie_last(turned(images))
    images.requires_grad_()
    weights = drawn((9, 3, 4, 5), seed=6)
    (gradient,) = torch.autograd.grad((turned(images) * weights).sum(), [images])
    assert torch.equal(gradient, weights)
    assert not wants_last(lenet(SHAPES[0]), images)


@pytest.mark.parametrize(
    "apply", [lambda many, one: many(one), lambda many, one: many.each(torch.stack([one, one + 1]))]
)
@pytest.mark.parametrize("asked", [False, True])
def test_networks_side_by_side_are_those_alone(
    apply: Callable[[Stacked, torch.Tensor], torch.Tensor], asked: bool
):
    networks = [lenet(SHAPES[1], seed).train() for seed in (1, 2)]
    alone = copy.deepcopy(networks)
    images = drawn(SHAPES[1]).requires_grad_(asked)
    together = apply(Stacked(networks, batched=True), images)
    with kernels.eager():
        one_by_one = apply(Stacked(alone, batched=False), images)
    found, wanted = (
        [outputs.detach(), *grown(outputs, images), *weights_and_statistics(own)]
        for outputs, own in ((together, networks), (one_by_one, alone))
    )
    same(found, wanted)


def grown(outputs: torch.Tensor, images: torch.Tensor) -> list[torch.Tensor]:
    """The gradient for the images, where it is asked for; those for the weights come with it."""
    images.grad = None
    outputs.sin().sum().backward()
    return [] if images.grad is None else [images.grad]


def weights_and_statistics(networks: list[torch.nn.Module]) -> list[torch.Tensor]:
    return [
        value
        for network in networks
        for value in (*(one.grad for one in network.parameters()), *network.buffers())
        if value is not None
    ]
