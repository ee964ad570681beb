"""Convolutions and their gradients beside PyTorch's own in float64."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn import functional as F

from core.models import build, convolution, kernels
from core.models.convolution import convolve
from core.models.kernels import products
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


def test_zeros_as_wide_as_the_weights_are_put_around_the_images():
    """PyTorch's kernels take padding below the side of the weights only."""
    layer, images = nn.Conv2d(1, 32, 3, padding=3), torch.randn(4, 1, 28, 28)
    result = convolve(layer, images)
    assert result.grad_fn._saved_padding == (1, 1) and result.shape == layer(images).shape


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


def taken(layer: nn.Conv2d, maps: torch.Tensor) -> str:
    """The way that a layer takes: the name of what computes its gradient."""
    return type(convolve(layer, maps).grad_fn).__name__.strip("_").removesuffix("Backward")


def check_nearer_than_pytorch(
    layer: nn.Conv2d, maps: torch.Tensor, given: torch.dtype, way: str, twice: bool
) -> None:
    """By this way values and gradients under bfloat16 are as near to those of float64 as PyTorch's are,
    or nearer; `given` is the type of the maps that come in.
    """
    exact = gradients(layer.double(), maps.double(), twice)
    layer, maps, found = layer.float(), maps.to(given), []
    with autocast(torch.bfloat16):
        assert taken(layer, maps) == way
        for kind in (contextlib.nullcontext, kernels.eager):
            with kind():
                found.append(gradients(layer, maps, twice))
    for ours, theirs, true in zip(*found, exact, strict=True):
        assert (ours - true).norm() < (1.3 if twice else 1.05) * (theirs - true).norm()


def autocast(precision: torch.dtype) -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == torch.bfloat16)


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "groups, padding, vectors",
    [(1, 1, "native"), (2, 0, "native"), (1, 2, "x86-64-v3"), (1, 1, "x86-64")],
)
def test_bfloat16_maps_are_nearer_than_pytorchs(
    groups, padding, vectors, given, twice, take_kernels_for, monkeypatch
):
    """They are multiplied in float32, so only the maps are rounded; second derivatives are
    PyTorch's.
    """
    monkeypatch.setattr(convolution, "has_tiles", lambda: False)
    monkeypatch.setitem(convolution.WASTE, torch.bfloat16, 2)  # tiles that the maps do not fill
    take_kernels_for(vectors)
    generator = Rng(7).generator()
    images = torch.randn(20, groups * 64, 12, 12, generator=generator).bfloat16()
    layer = nn.Conv2d(groups * 64, groups * 80, 3, 1, padding, 1, groups)
    layer.weight.data.copy_(0.1 * torch.randn(layer.weight.shape, generator=generator))
    check_nearer_than_pytorch(layer, images, given, "MinimalFilter", twice)


needs_tiles = pytest.mark.skipif(
    not (convolution.has_tiles() and kernels.has_tiles()), reason="needs a processor with AMX"
)


@needs_tiles
@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize(
    "inputs, outputs, groups, size, side, padding, images",
    [
        (128, 128, 1, (8, 8), 3, 1, 13),  # several images at once, and some left over
        (32, 64, 1, (16, 16), 3, 1, 3),
        (32, 96, 1, (7, 9), 3, 0, 5),  # odd rows
        (64, 32, 3, (5, 6), 3, 2, 4),  # networks side by side
        (32, 32, 1, (12, 10), 5, 2, 2),
        (32, 64, 1, (4, 4), 1, 0, 40),
    ],
)
def test_gradients_of_weights_by_tiles_are_nearer_than_pytorchs(
    inputs, outputs, groups, size, side, padding, images, twice
):
    generator = Rng(8).generator()
    maps = torch.randn(images, groups * inputs, *size, generator=generator).bfloat16()
    layer = nn.Conv2d(groups * inputs, groups * outputs, side, 1, padding, 1, groups)
    layer.weight.data.copy_(0.1 * torch.randn(layer.weight.shape, generator=generator))
    check_nearer_than_pytorch(layer, maps, torch.bfloat16, "Tiles", twice)


@needs_tiles
def test_tiles_give_exact_sums_for_any_number_of_threads_and_leave_the_units_as_they_were():
    generator, threads, found = Rng(9).generator(), torch.get_num_threads(), []
    maps = torch.randn(9, 96, 8, 8, generator=generator).bfloat16()
    dy = torch.randn(9, 160, 8, 8, generator=generator).bfloat16()
    maps, dy = (each.contiguous(memory_format=torch.channels_last) for each in (maps, dy))
    matrix = torch.randn(256, 256, generator=generator).bfloat16()
    before = matrix @ matrix
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(products.tiles_weights(maps, dy, 3, 1, 1))
            assert torch.equal(matrix @ matrix, before)
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(found[0], other) for other in found[1:])
    _, wanted, _ = torch.ops.aten.convolution_backward(
        dy.double(), maps.double(), torch.zeros(160, 96, 3, 3).double(), None, [1, 1], [1, 1],
        [1, 1], False, [0, 0], 1, [False, True, False],
    )  # fmt: skip
    torch.testing.assert_close(found[0].double(), wanted, rtol=1e-5, atol=1e-4)


def test_matrix_processors_keep_their_own_convolution(monkeypatch):
    layer, maps = nn.Conv2d(64, 64, 3, padding=1), torch.randn(20, 64, 12, 12)
    for has in (True, False):
        monkeypatch.setattr(convolution, "has_tiles", lambda has=has: has)
        with autocast(torch.bfloat16):
            assert (taken(layer, maps) == "MinimalFilter") != has
        assert taken(layer, maps) == "MinimalFilter"


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize(
    "inputs, outputs, groups, size, padding",
    [
        (32, 48, 1, (8, 8), 1),  # as in a block of ConvNet
        (64, 32, 1, (7, 11), 1),  # tiles that the maps do not fill
        (32, 32, 3, (14, 10), 1),  # networks side by side; an odd number of tiles
        (48, 32, 1, (10, 10), 0),
        (32, 32, 1, (10, 7), 2),
    ],
)
def test_many_channels_have_the_values_and_gradients_of_pytorch(
    inputs, outputs, groups, size, padding, twice
):
    generator, found = Rng(0).generator(), []
    images = torch.randn(41, groups * inputs, *size, generator=generator)
    weight = torch.randn(groups * outputs, inputs, 3, 3, generator=generator)
    for dtype in (torch.float32, torch.float64):
        layer = nn.Conv2d(groups * inputs, groups * outputs, 3, 1, padding, 1, groups).to(dtype)
        layer.weight.data.copy_(weight)
        layer.bias.data.copy_(weight[:, 0, 0, 0])
        assert (taken(layer, images.to(dtype)) == "MinimalFilter") == (dtype == torch.float32)
        found.append(gradients(layer, images.to(dtype), twice))
    for ours, theirs in zip(*found, strict=True):
        assert (ours - theirs).norm() < 3e-5 * theirs.norm()


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_minimal_filtering_does_not_depend_on_the_number_of_threads(precision, monkeypatch):
    monkeypatch.setattr(convolution, "has_tiles", lambda: False)
    generator, threads, found = Rng(2).generator(), torch.get_num_threads(), []
    maps = torch.randn(40, 128, 8, 8, generator=generator)
    layer = nn.Conv2d(128, 64, 3, padding=1)
    layer.weight.data.copy_(torch.randn(64, 128, 3, 3, generator=generator))
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            leaf = maps.clone().requires_grad_()
            with autocast(precision):
                assert taken(layer, leaf) == "MinimalFilter"
                y = convolve(layer, leaf)
            found.append((y, *torch.autograd.grad(y.square().sum(), [leaf, layer.weight])))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for one in found[1:] for a, b in zip(one, found[0], strict=True))


@pytest.mark.parametrize("channels, side", [(3, 5), (64, 16)])
@pytest.mark.parametrize("moved", [(0, 1, 2), (0,), (2,)])
def test_a_slope_and_its_gradient_are_those_of_float64(channels, side, moved):
    """conv(t, w) + conv(x, t_w) + t_b, with t, t_w and t_b along images, weights and biases."""
    shapes = (16, channels, side, side), (64, channels, 3, 3), (64,)
    draws = torch.Generator().manual_seed(0)
    points, ways = ([torch.randn(s, generator=draws) for s in shapes] for _ in range(2))
    leaves = [point.requires_grad_() for point in points]
    with forward_ad.dual_level():
        there = [
            forward_ad.make_dual(leaf, way) if k in moved else leaf
            for k, (leaf, way) in enumerate(zip(leaves, ways, strict=True))
        ]
        function = convolution._MinimalFilter if channels > 3 else convolution._FewChannels
        slope = forward_ad.unpack_dual(function.apply(*there, 1, 1)).tangent
    x, w, _ = (p.detach().double().requires_grad_() for p in points)
    t, t_w, t_b = (way.double() if k in moved else None for k, way in enumerate(ways))
    wanted = torch.zeros_like(slope, dtype=torch.float64)
    if t is not None:
        wanted = wanted + F.conv2d(t, w, padding=1)
    if t_w is not None:
        wanted = wanted + F.conv2d(x, t_w, padding=1)
    if t_b is not None:
        wanted = wanted + t_b[:, None, None]
    torch.testing.assert_close(slope.double(), wanted, rtol=1e-4, atol=1e-3)
    if moved != (2,):
        pair = [(slope, leaves[:2]), (wanted, [x, w])]
        ours, theirs = (
            torch.autograd.grad(s.pow(2).sum(), at, allow_unused=True) for s, at in pair
        )
        for one, other in zip(ours, theirs, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                assert float((one - other).norm() / other.norm()) < 1e-5


def test_small_odd_or_listened_to_layers_take_pytorchs_way():
    maps = torch.randn(40, 32, 8, 8)
    plain = nn.Conv2d(32, 32, 3, padding=1)
    assert taken(plain, maps) == "MinimalFilter"
    for layer, given in (
        (nn.Conv2d(32, 40, 3, padding=1), maps),  # 40 is no multiple of 16
        (nn.Conv2d(32, 32, 3, padding=3), maps),
        (nn.Conv2d(32, 16, 3, padding=1), maps),
        (nn.Conv2d(32, 32, 3, padding=1, stride=2), maps),
        (nn.Conv2d(32, 32, 5, padding=2), maps),
        (nn.Conv2d(32, 32, 3, padding=1, padding_mode="reflect"), maps),
        (plain, maps[:4]),  # too few tiles
        (plain, maps[..., :5, :5]),  # half of what tiles hold
    ):
        assert taken(layer, given) != "MinimalFilter"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert taken(plain, maps) != "MinimalFilter"
    plain.register_forward_hook(lambda layer, given, found: found)
    assert taken(plain, maps) != "MinimalFilter"


@pytest.mark.parametrize("name", ["convnet", "resnet8", "resnet18"])
def test_a_network_by_minimal_filtering_is_the_network(name, monkeypatch):
    """Beside float64: the outputs to rounding; of the gradients a few may show a value that fell on the
    rectifier's other side.
    """
    images, calls = torch.randn(16, 3, 32, 32, generator=Rng(1).generator()), []
    filtered = products.winograd
    monkeypatch.setattr(products, "winograd", lambda *given: calls.append(1) or filtered(*given))
    network, found = build(name, 3, 32, 4, Rng(0)), []
    for dtype in (torch.float32, torch.float64):
        outputs = network.to(dtype)(images.to(dtype))
        gradients = torch.autograd.grad(outputs.square().mean(), [*network.parameters()])
        found.append((outputs, torch.cat([each.flatten() for each in gradients])))
    assert calls
    for ours, exact, bound in zip(*found, (2e-5, 2e-2), strict=True):
        assert (ours - exact).norm() < bound * exact.norm()


@pytest.mark.parametrize("vectors", ["x86-64", "x86-64-v3"])
def test_minimal_filtering_on_processors_with_shorter_vectors(vectors, take_kernels_for):
    take_kernels_for(vectors)
    layer, found = nn.Conv2d(48, 32, 3, padding=1), []
    maps = torch.randn(37, 48, 8, 7, generator=Rng(3).generator())
    assert taken(layer, maps) == "MinimalFilter"
    for dtype in (torch.float32, torch.float64):
        found.append(gradients(layer.to(dtype), maps.to(dtype), False))
    for ours, theirs in zip(*found, strict=True):
        assert (ours - theirs).norm() < 1e-5 * theirs.norm()


def test_many_tiles_are_summed_as_well_as_by_pytorch():
    """The gradient of the weights is a sum over all pixels of all images."""
    maps = torch.randn(128, 32, 32, 32, generator=Rng(4).generator())
    pull = torch.randn(128, 32, 32, 32, generator=Rng(5).generator())
    layer, found = nn.Conv2d(32, 32, 3, padding=1, bias=False), []
    for dtype, way in ((torch.float32, convolve), (torch.float32, nn.Conv2d.forward)):
        result = way(layer.to(dtype), maps)
        found.append(torch.autograd.grad((result * pull).sum(), layer.weight)[0].double())
    exact = (layer.double()(maps.double()) * pull.double()).sum()
    exact = torch.autograd.grad(exact, layer.weight)[0]
    ours, theirs = ((each - exact).norm() for each in found)
    assert ours < 2 * theirs


def test_autocast_around_the_gradient_alone_changes_nothing():
    maps = torch.randn(40, 32, 8, 8, generator=Rng(6).generator()).requires_grad_()
    layer, found = nn.Conv2d(32, 32, 3, padding=1), []
    for precision in (torch.float32, torch.bfloat16):
        y = convolve(layer, maps)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == torch.bfloat16):
            found.append(torch.autograd.grad(y.square().sum(), [maps, layer.weight]))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_maps_that_do_not_fit_a_layer_are_refused_by_pytorch():
    layer, maps = nn.Conv2d(64, 32, 3, padding=1), torch.randn(40, 32, 8, 8)
    with pytest.raises(RuntimeError, match="64 channels"):
        convolve(layer, maps)
    with pytest.raises(RuntimeError, match="type"):
        convolve(nn.Conv2d(32, 32, 3, padding=1).bfloat16(), maps)
    strided = torch.randn(32, 2)[:, 0]
    layer = nn.Conv2d(32, 32, 3, padding=1)
    weights = {"weight": layer.weight, "bias": strided}
    ours = functional_call(Convolve(layer), {f"layer.{k}": v for k, v in weights.items()}, (maps,))
    torch.testing.assert_close(ours, functional_call(layer, weights, (maps,)), rtol=1e-4, atol=1e-4)


class Convolve(nn.Module):
    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        return convolve(self.layer, maps)
