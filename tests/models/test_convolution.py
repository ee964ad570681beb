"""The first convolution's gradients beside PyTorch's own in float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from core.models import kernels
from core.models.convolution import convolve
from core.rng import Rng

pytestmark = pytest.mark.skipif(kernels.library() is None, reason="there is no C++ compiler")


def gradients(layer: nn.Conv2d, images: torch.Tensor, twice: bool) -> list[torch.Tensor]:
    images = images.clone().requires_grad_()
    result = convolve(layer, images)
    wanted = [images, *layer.parameters()]
    found = torch.autograd.grad(result.pow(3).sum(), wanted, create_graph=twice)
    if twice:
        found = torch.autograd.grad(found[0].square().sum(), wanted)
    return [each.detach().double() for each in (result, *found)]


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("channels, side, padding", [(1, 3, 3), (3, 3, 1), (4, 5, 0), (2, 1, 2)])
def test_values_and_gradients_are_those_of_pytorch(channels, side, padding, twice):
    generator, found = Rng(0).generator(), []
    images = torch.randn(3, channels, 7, 6, generator=generator)
    weight = torch.randn(5, channels, side, side, generator=generator)
    for dtype in (torch.float32, torch.float64):
        layer = nn.Conv2d(channels, 5, side, padding=padding).to(dtype)
        layer.weight.data.copy_(weight)
        layer.bias.data.copy_(weight[:, 0, 0, 0])
        found.append(gradients(layer, images.to(dtype), twice))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))


def test_bfloat16_is_as_near_as_pytorchs():
    generator = Rng(1).generator()
    layer, images = nn.Conv2d(3, 16, 3, padding=1), torch.randn(4, 3, 8, 8, generator=generator)
    for parameter in layer.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))

    def found() -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            leaf = images.clone().requires_grad_()
            result = convolve(layer, leaf)
        return torch.cat(
            [
                each.flatten()
                for each in torch.autograd.grad(
                    result.float().square().sum(), [leaf, *layer.parameters()]
                )
            ]
        )

    exact = torch.cat([each.flatten() for each in squares(layer, images)])
    with kernels.eager():
        theirs = found()
    assert (found() - exact).norm() < 1.5 * (theirs - exact).norm()


def squares(layer: nn.Conv2d, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
    leaf = images.clone().requires_grad_()
    return torch.autograd.grad(layer(leaf).square().sum(), [leaf, *layer.parameters()])
