"""Batch normalisation with a quick second derivative and slope: the numbers of PyTorch's own."""

import copy

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

from core.models import build, kernels
from core.models.batchnorm import QuickBatchNorm2d, quicken
from core.models.slopes import along
from core.rng import Rng


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


def layers(channels=3):
    plain = nn.BatchNorm2d(channels)
    with torch.no_grad():
        plain.weight.copy_(torch.randn(channels, generator=draws(8)))
        plain.bias.copy_(torch.randn(channels, generator=draws(9)))
    return plain, quicken(copy.deepcopy(plain))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_values_and_first_derivatives_are_the_same_numbers(layout):
    x = torch.randn(4, 3, 5, 6, generator=draws()).contiguous(memory_format=layout)
    pull = torch.randn(4, 3, 5, 6, generator=draws(1)).contiguous(memory_format=layout)
    found = []
    for layer in layers():
        maps = x.clone().requires_grad_()
        out = layer.train()(maps)
        found.append(
            [
                out,
                *torch.autograd.grad(out, [maps, layer.weight, layer.bias], pull),
                layer.running_mean,
                layer.running_var,
                layer.num_batches_tracked,
                layer.eval()(x),
            ]
        )
    assert type(layers()[1]) is QuickBatchNorm2d
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_first_and_second_derivatives_by_finite_differences(layout):
    quick = layers()[1].double().train()
    x = 3 * torch.randn(3, 3, 2, 4, generator=draws()).double()
    x = x.contiguous(memory_format=layout).requires_grad_()
    weight, bias = (value.detach().clone().requires_grad_() for value in (quick.weight, quick.bias))

    def normalised(maps, scale, shift):
        return torch.func.functional_call(quick, {"weight": scale, "bias": shift}, (maps,))

    assert torch.autograd.gradcheck(normalised, (x, weight, bias))
    assert torch.autograd.gradgradcheck(normalised, (x, weight, bias))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_slope_and_its_gradient_by_finite_differences(layout):
    quick = layers()[1].double().train()
    x, direction = 3 * torch.randn(2, 3, 3, 2, 4, generator=draws()).double()
    x, direction = (each.contiguous(memory_format=layout) for each in (x, direction))
    scale = quick.weight.detach().clone().requires_grad_()

    def values(maps, scale):
        return torch.func.functional_call(quick, {"weight": scale}, (maps,))

    def slope(maps, scale):
        return along(lambda maps: values(maps, scale), maps, direction)[1]

    step = 1e-6 * direction
    wanted = (values(x + step, scale) - values(x - step, scale)) / 2e-6
    torch.testing.assert_close(slope(x, scale), wanted, rtol=1e-5, atol=1e-7)
    assert torch.autograd.gradcheck(slope, (x.requires_grad_(), scale))


@pytest.mark.parametrize("moved", [(0, 1, 2), (1,), (2,), (0, 2)])
def test_a_slope_along_scale_and_shift_by_finite_differences(moved):
    quick = layers()[1].double().train()
    shapes = (4, 3, 2, 3), (3,), (3,)
    points = [torch.randn(shape, generator=draws(k)).double() for k, shape in enumerate(shapes)]
    ways = [torch.randn(shape, generator=draws(9 + k)).double() for k, shape in enumerate(shapes)]

    def values(maps, scale, shift):
        return torch.func.functional_call(quick, {"weight": scale, "bias": shift}, (maps,))

    def slope(*points):
        with forward_ad.dual_level():
            there = [
                forward_ad.make_dual(point, way) if k in moved else point
                for k, (point, way) in enumerate(zip(points, ways, strict=True))
            ]
            return forward_ad.unpack_dual(values(*there)).tangent

    steps = [1e-6 * way * (k in moved) for k, way in enumerate(ways)]
    ends = [values(*(p + sign * s for p, s in zip(points, steps, strict=True))) for sign in (1, -1)]
    torch.testing.assert_close(slope(*points), (ends[0] - ends[1]) / 2e-6, rtol=1e-5, atol=1e-7)
    if 0 in moved or 1 in moved:  # along the shift alone it depends on nothing
        assert torch.autograd.gradcheck(slope, [point.requires_grad_() for point in points])


@pytest.mark.parametrize("precision", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ["convnet", "resnet8", "lenet"])
def test_a_gradient_of_a_gradient_through_a_network_is_that_of_pytorch(name, precision):
    low = precision == torch.bfloat16
    x, direction = torch.randn(2, 6, 1, 12, 12, generator=draws()).to(
        torch.float32 if low else precision
    )
    found = []
    for change in (quicken, lambda model: model):
        model = change(build(name, 1, 12, 4, Rng(0)).to(x.dtype)).train()
        inputs = x.clone().requires_grad_()
        with kernels.eager(), torch.autocast("cpu", dtype=precision, enabled=low):
            out = model(inputs).to(x.dtype)
        (pull,) = torch.autograd.grad(out.square().sum(), inputs, create_graph=True)
        found.append(
            torch.cat(
                [
                    each.flatten()
                    for each in torch.autograd.grad(
                        (pull * direction).sum(), [p for p in model.parameters() if p.ndim > 1]
                    )
                ]
            )
        )
    assert any(isinstance(layer, QuickBatchNorm2d) for layer in quicken(model).modules())
    assert float((found[0] - found[1]).norm() / found[1].norm()) < (0.1 if low else 1e-9)


def test_one_image_and_layers_without_scale_are_left_alone():
    model = nn.Sequential(
        nn.BatchNorm2d(2, affine=False), nn.BatchNorm1d(2), nn.BatchNorm2d(2, momentum=None)
    )
    assert [type(layer) for layer in quicken(model)] == [
        nn.BatchNorm2d,
        nn.BatchNorm1d,
        nn.BatchNorm2d,
    ]
    plain, quick = layers()
    one = torch.randn(1, 3, 2, 2, generator=draws())
    assert torch.equal(plain.train()(one), quick.train()(one))
