"""Convolutions and normalisation with the images last in memory beside PyTorch's, and their
derivatives beside finite differences.
"""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F

from core.models import kernels
from core.models.images_last import (
    Window,
    affine,
    convolve,
    images_first,
    images_last,
    standardise,
)
from core.rng import Rng

#: groups, inputs and outputs of each, height, width, images; side, stride, padding
SHAPES = [
    ((2, 1, 6, 9, 8, 5), (3, 2, 1)),
    ((1, 3, 2, 6, 7, 3), (3, 1, 0)),
    ((3, 2, 3, 5, 5, 1), (5, 3, 2)),
    ((1, 2, 1, 4, 6, 2), (1, 1, 0)),
    # windows that lie outside on one side
    ((1, 1, 2, 2, 2, 2), (3, 1, 2)),
]


def given(
    shape: tuple[int, ...], seen: tuple[int, ...], dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Window]:
    groups, inputs, outputs, height, width, images = shape
    draws = Rng(sum(shape)).generator()
    maps, weight, bias = (
        torch.randn(size, generator=draws, dtype=torch.float64).to(dtype).requires_grad_()
        for size in (
            (groups * inputs, height, width, images),
            (groups * outputs, inputs, seen[0], seen[0]),
            (groups * outputs,),
        )
    )
    return maps, weight, bias, Window(*seen, groups)


def pytorchs(
    maps: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, window: Window
) -> torch.Tensor:
    first = maps.permute(3, 0, 1, 2)
    result = F.conv2d(first, weight, bias, window.stride, window.padding, groups=window.groups)
    return result.permute(1, 2, 3, 0)


@pytest.mark.parametrize("shape, seen", SHAPES)
def test_values_and_both_derivatives_in_float64(shape, seen):
    maps, weight, bias, window = given(shape, seen)
    torch.testing.assert_close(
        convolve(maps, weight, bias, window), pytorchs(maps, weight, bias, window)
    )

    def results(*tensors: torch.Tensor) -> torch.Tensor:
        return convolve(*tensors, window)

    assert gradcheck(results, (maps, weight, bias))
    assert gradgradcheck(results, (maps, weight, bias))
    assert gradgradcheck(lambda x, w: convolve(x, w, None, window), (maps, weight))


def derivatives(way, maps, weight, bias, how) -> list[torch.Tensor]:
    """Values, slopes, and the slopes of a function of these slopes."""
    results = way(maps, weight, bias, how)
    slopes = torch.autograd.grad(results.pow(3).sum(), [maps, weight, bias], create_graph=True)
    twice = torch.autograd.grad(sum(one.square().sum() for one in slopes), [maps, weight, bias])
    return [each.detach().double() for each in (results, *slopes, *twice)]


@pytest.mark.skipif(kernels.library() is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("vectors", ["native", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize(
    "shape, seen",
    [
        *SHAPES,
        # LeNet's: vectors of images, and what is left over; channels of one block and of several
        ((3, 3, 6, 12, 12, 64), (3, 2, 1)),
        ((2, 6, 16, 7, 7, 37), (3, 2, 1)),
        ((1, 9, 21, 5, 4, 24), (3, 1, 1)),
    ],
)
def test_compiled_passes_give_the_same(shape, seen, vectors, take_kernels_for):
    take_kernels_for(vectors)
    exact = derivatives(pytorchs, *given(shape, seen))
    ours = derivatives(convolve, *given(shape, seen, torch.float32))
    for mine, theirs in zip(ours, exact, strict=True):
        assert (mine - theirs).norm() <= 2e-5 * theirs.norm()


@pytest.mark.skipif(kernels.library() is None, reason="there is no C++ compiler")
def test_the_number_of_threads_changes_no_bit():
    tensors, found = given((5, 3, 6, 9, 9, 33), (3, 2, 1), torch.float32), []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(derivatives(convolve, *tensors))
    finally:
        torch.set_num_threads(before)
    for one, two in zip(*found, strict=True):
        assert torch.equal(one, two)


@pytest.mark.skipif(kernels.library() is None, reason="there is no C++ compiler")
def test_maps_of_any_layout_are_taken():
    maps, weight, bias, window = given((2, 2, 3, 6, 6, 18), (3, 2, 1), torch.float32)
    elsewhere = maps.detach().permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0)
    assert not elsewhere.is_contiguous()
    plain = convolve(maps, weight, bias, window)
    assert torch.equal(convolve(elsewhere, weight, bias, window), plain)


@pytest.mark.skipif(kernels.library() is None, reason="there is no C++ compiler")
def test_only_derivatives_that_are_asked_for_are_computed(monkeypatch):
    maps, weight, bias, window = given((2, 2, 3, 6, 6, 18), (3, 2, 1), torch.float32)
    called, call = [], kernels.call
    monkeypatch.setattr(
        kernels, "call", lambda name, *rest: (called.append(name), call(name, *rest))
    )
    # of leaves of the graph PyTorch does not tell
    cost = convolve(2 * maps, 2 * weight, bias, window).square().sum()
    (slope,) = torch.autograd.grad(cost, [weight], create_graph=True)
    assert called == ["last_results", "last_weights"]
    torch.autograd.grad(slope.square().sum(), [maps])
    # as the images of the slope, and as those of the results
    assert called[2:].count("last_maps") == 2 and "last_weights" not in called[2:]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 5, 1, 7, 9), (2, 33, 3, 8, 8), (1, 16, 4, 4, 4)])
def test_images_are_turned_and_turned_back(shape, dtype):
    images = torch.randn(shape, generator=Rng(1).generator()).to(dtype)
    # of a longer row of images, as the parts of a client's knowledge are
    part = torch.cat([images, images], 1)[:, 2 : shape[1]]
    last = images_last(part)
    assert torch.equal(last, part)
    assert last.permute(0, 2, 3, 4, 1).is_contiguous()
    room = torch.zeros_like(torch.cat([images, images], 1))
    images_first(last, room[:, 2 : shape[1]])
    assert torch.equal(room[:, 2 : shape[1]], part)
    assert not room[:, :2].any() and not room[:, shape[1] :].any()


#: channels, height, width, images
ROWS = [(1, 2, 1, 3), (3, 4, 5, 7), (60, 8, 8, 64), (2, 33, 17, 29)]
EPS = 1e-5


def rows(
    shape: tuple[int, ...], dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draws = Rng(sum(shape)).generator()
    maps, weight, bias = (
        torch.randn(size, generator=draws, dtype=torch.float64)
        for size in (shape, shape[:1], shape[:1])
    )
    each = 3 * maps + 5, weight, bias
    return tuple(one.to(dtype).requires_grad_() for one in each)  # type: ignore[return-value]


def ours(maps, weight, bias, slope):
    return standardise(maps, weight, bias, EPS, slope)[0]


def pytorchs_norm(maps, weight, bias, slope):
    first = maps.permute(3, 0, 1, 2)
    z = F.batch_norm(first, None, None, weight, bias, training=True, eps=EPS)
    return F.leaky_relu(z, slope).permute(1, 2, 3, 0)


def of_second(maps, weight, bias, slope):
    """Values of other maps, normalised by the statistics of these."""
    _, scale, shift, *_ = standardise(maps, weight, bias, EPS, slope)
    return affine(maps.flip(3).sin(), scale, shift, slope)


def pytorchs_of_second(maps, weight, bias, slope):
    flat = maps.flatten(1)
    scale = weight / (flat.var(1, unbiased=False) + EPS).sqrt()
    z = (maps.flip(3).sin() - flat.mean(1)[:, None, None, None]) * scale[:, None, None, None]
    return F.leaky_relu(z + bias[:, None, None, None], slope)


@pytest.mark.parametrize("slope", [0.0, 0.2, 1.0])
def test_normalised_rows_and_both_derivatives_in_float64(slope):
    given = rows((3, 2, 3, 4))
    torch.testing.assert_close(ours(*given, slope), pytorchs_norm(*given, slope))
    torch.testing.assert_close(of_second(*given, slope), pytorchs_of_second(*given, slope))
    assert gradcheck(lambda *each: standardise(*each, EPS, slope)[:3], given)
    assert gradgradcheck(lambda *each: ours(*each, slope), given)
    assert gradcheck(lambda *each: of_second(*each, slope), given)


@pytest.mark.skipif(kernels.library() is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("vectors", ["native", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("slope", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("shape", ROWS)
def test_compiled_normalisation_gives_the_same(shape, slope, vectors, take_kernels_for):
    take_kernels_for(vectors)
    exact = derivatives(pytorchs_norm, *rows(shape), slope)
    for mine, theirs in zip(
        derivatives(ours, *rows(shape, torch.float32), slope), exact, strict=True
    ):
        assert (mine - theirs).norm() <= 1e-4 * theirs.norm() + 1e-4


@pytest.mark.skipif(kernels.library() is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("vectors", ["native", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("shape", ROWS)
def test_compiled_normalisation_by_others_gives_the_same(shape, vectors, take_kernels_for):
    take_kernels_for(vectors)

    def once(way, given):
        results = way(*given, 0.2)
        both = torch.autograd.grad(results.pow(3).sum(), given)
        return [each.detach().double() for each in (results, *both)]

    exact = once(pytorchs_of_second, rows(shape))
    for mine, theirs in zip(once(of_second, rows(shape, torch.float32)), exact, strict=True):
        assert (mine - theirs).norm() <= 1e-4 * theirs.norm() + 1e-4


@pytest.mark.skipif(kernels.library() is None, reason="there is no C++ compiler")
def test_scale_and_shift_are_differentiated_once():
    maps, weight, bias = rows((24, 3, 3, 4), torch.float32)
    _, scale, *_ = standardise(maps, weight, bias, EPS, 0.0)
    (slope,) = torch.autograd.grad(scale.sum(), weight, create_graph=True)
    exact = (maps.detach().double().var((1, 2, 3), correction=0) + EPS).rsqrt()
    torch.testing.assert_close(slope.detach().double(), exact, rtol=1e-5, atol=1e-6)
    with pytest.raises(
        RuntimeError, match="through scale and shift cannot be differentiated again"
    ):
        slope.sum().backward()


@pytest.mark.skipif(kernels.library() is None, reason="there is no C++ compiler")
def test_the_number_of_threads_changes_no_bit_of_a_normalised_row():
    given, found = rows((7, 9, 9, 33), torch.float32), []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(derivatives(ours, *given, 0.0))
    finally:
        torch.set_num_threads(before)
    for one, two in zip(*found, strict=True):
        assert torch.equal(one, two)
