"""Convolutions and normalisation with the images last in memory, (C, H, W, N): fast for few channels,
and for derivatives of derivatives.

PyTorch's kernels on CPUs make vectors of channels. Six fill none, and the kernels of second
derivatives are slow even where they are filled. Vectors of images need no channels. Of
    T(x, w, s) = sum over r of s[r] conv(x, w)[r]
the three derivatives are the convolution itself, the gradient for its maps and that for its weights;
T is linear in each, so any further derivative is one of the three again.

A channel is one row in memory, short enough for the cache. So normalisation and the rectifier behind
it are one pass to the statistics and one to the result, and their second derivative, one formula, is
two as well; it stands above the compiled code. PyTorch needs some thirty.

In float32 on a CPU they are compiled (`core.models.kernels`), else put together from PyTorch's
operations.
"""

from __future__ import annotations

import ctypes
from typing import Any

import attrs
import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from core.models import kernels

#: images that fill a vector
FEWEST = 8


@attrs.frozen
class Window:
    """What a convolution's results look at: squares of `side` pixels, `stride` apart, with `padding`
    pixels of zeros around the maps, in `groups` of channels that do not see each other.
    """

    side: int
    stride: int = 1
    padding: int = 0
    groups: int = 1

    def across(self, pixels: int) -> int:
        """Results in a row of so many pixels."""
        return (pixels + 2 * self.padding - self.side) // self.stride + 1


def turned(images: torch.Tensor) -> torch.Tensor:
    """Images (N, C, H, W) with the images last in memory, where the kernels take them; elsewhere as
    they are. A network that begins with this (`images_last = True` says so) goes on with the images
    last, as far as its layers know how (`core.models.convolution.convolve`,
    `core.models.fused.activate`).
    """
    if len(images) < FEWEST or not _fits(images) or lie_last(images):
        return images
    if images.requires_grad:
        return images.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2)
    return images_last(images[None])[0]


def wants_last(network: torch.nn.Module, images: torch.Tensor) -> bool:
    """Whether such a network begins with `turned`, and nobody asks for a gradient of the images
    (N, C, H, W), which `images_last` does not have.
    """
    wanted = getattr(network, "images_last", False) and len(images) >= FEWEST
    return wanted and _fits(images) and not images.requires_grad


def lie_last(maps: torch.Tensor) -> bool:
    """Whether maps (N, C, H, W) in float32 lie last in memory, enough of them to fill a vector, and the
    kernels take them.
    """
    enough = maps.ndim == 4 and len(maps) >= FEWEST
    return enough and maps.permute(1, 2, 3, 0).is_contiguous() and _fits(maps)


def images_last(images: torch.Tensor) -> torch.Tensor:
    """A copy of images (K, N, ...) in which those of each of K networks lie last in memory, so that
    (K, ..., N) of it is a view.
    """
    flat = images.flatten(2)
    found = images.new_empty(flat.mT.shape)
    _turn(flat, found)
    return found.mT.unflatten(2, images.shape[2:])


def images_first(images: torch.Tensor, found: torch.Tensor) -> None:
    """Write images (K, N, ...), which may lie last in memory, into `found`, where they come first."""
    _turn(images.flatten(2).mT, found.view(*found.shape[:2], -1))


def _turn(matrices: torch.Tensor, found: torch.Tensor) -> None:
    """found (K, C, R) <- matrices (K, R, C), turned."""
    each = matrices[:, None], found[:, None]  # with as many dimensions as maps have
    if _fits(*each) and all(one[0].is_contiguous() for one in (matrices, found)):
        apart = (one.stride(0) for one in (matrices, found))
        kernels.call("last_turned", matrices, found, *matrices.shape, *apart)
    else:
        found.copy_(matrices.mT)


def convolve(
    maps: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, window: Window
) -> torch.Tensor:
    """Results (groups * outputs, h, w, N) of maps (groups * inputs, H, W, N), weights
    (groups * outputs, inputs, side, side) and biases (groups * outputs,).
    """
    return _Results.apply(maps.contiguous(), weight.contiguous(), bias, window)


class _Results(torch.autograd.Function):
    """y <- conv(x, w) + b."""

    @staticmethod
    def forward(
        ctx: Any,
        maps: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        window: Window,
    ) -> torch.Tensor:
        ctx.save_for_backward(maps, weight)
        ctx.window = window
        h, w = (window.across(pixels) for pixels in maps.shape[1:3])
        if not _fits(maps, weight):
            seen, rows = _around(maps, window), _rows(weight, window)
            flat = rows @ seen if bias is None else torch.baddbmm(_rows(bias, window), rows, seen)
            return flat.reshape(len(weight), h, w, -1)
        found = maps.new_empty(len(weight), h, w, maps.shape[3])
        own = None if bias is None else bias.contiguous()
        kernels.call("last_results", maps, weight, own, found, _shape(maps, found, window))
        return found

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        maps, weight = ctx.saved_tensors
        of_maps, of_weight, *of_bias = _asked(ctx)
        slope = slope.contiguous()
        return (
            _Maps.apply(weight, slope, maps.shape, ctx.window) if of_maps else None,
            _Weights.apply(maps, slope, weight.shape, ctx.window) if of_weight else None,
            slope.sum((1, 2, 3)) if any(of_bias) else None,
            None,
        )


class _Maps(torch.autograd.Function):
    """The gradient for the maps, of weights and the slope of the results: dT / dx."""

    @staticmethod
    def forward(
        ctx: Any, weight: torch.Tensor, slope: torch.Tensor, shape: torch.Size, window: Window
    ) -> torch.Tensor:
        ctx.save_for_backward(weight, slope)
        ctx.window = window
        if not _fits(weight, slope):
            rows = slope.reshape(window.groups, len(slope) // window.groups, -1)
            return _gathered(_rows(weight, window).mT @ rows, slope.shape, shape, window)
        found = slope.new_empty(shape)
        kernels.call("last_maps", weight, slope, found, _shape(found, slope, window))
        return found

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        weight, slope = ctx.saved_tensors
        of_weight, of_slope = _asked(ctx)
        given = given.contiguous()
        return (
            _Weights.apply(given, slope, weight.shape, ctx.window) if of_weight else None,
            _Results.apply(given, weight, None, ctx.window) if of_slope else None,
            None,
            None,
        )


class _Weights(torch.autograd.Function):
    """The gradient for the weights, of maps and the slope of the results: dT / dw."""

    @staticmethod
    def forward(
        ctx: Any, maps: torch.Tensor, slope: torch.Tensor, shape: torch.Size, window: Window
    ) -> torch.Tensor:
        ctx.save_for_backward(maps, slope)
        ctx.window = window
        if not _fits(maps, slope):
            rows = slope.reshape(window.groups, len(slope) // window.groups, -1)
            return (rows @ _around(maps, window).mT).reshape(shape)
        found = maps.new_empty(shape)
        kernels.call("last_weights", maps, slope, found, _shape(maps, slope, window))
        return found

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        maps, slope = ctx.saved_tensors
        of_maps, of_slope = _asked(ctx)
        given = given.contiguous()
        return (
            _Maps.apply(given, slope, maps.shape, ctx.window) if of_maps else None,
            _Results.apply(maps, given, None, ctx.window) if of_slope else None,
            None,
            None,
        )


def standardise(
    maps: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float, slope: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """f(scale x + shift) of maps (C, H, W, N) that are normalised by their own statistics; f(z) is z
    above 0 and slope z below. Besides, (C,) each: the scale and the shift, and, for who keeps them
    and without a derivative, the mean m and the rate (v + eps)^-1/2 of a channel with variance v.

    With weight and bias (C,): scale = weight (v + eps)^-1/2 and shift = bias - m scale. A derivative
    that goes through these two cannot be differentiated again.
    """
    maps = maps.contiguous()
    if _fits(maps):
        return _Standard.apply(maps, weight.contiguous(), bias.contiguous(), eps, slope)
    variance, mean = torch.var_mean(maps, (1, 2, 3), unbiased=False)
    rate = (variance + eps).rsqrt()
    scale = rate * weight
    shift = bias - mean * scale
    return affine(maps, scale, shift, slope), scale, shift, mean.detach(), rate.detach()


def affine(
    maps: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, slope: float
) -> torch.Tensor:
    """f(scale x + shift) of maps (C, H, W, N) by given values (C,)."""
    maps = maps.contiguous()
    if _fits(maps):
        return _Affine.apply(maps, scale.contiguous(), shift.contiguous(), slope)
    scale, shift = (each[:, None, None, None] for each in (scale, shift))
    return F.leaky_relu(torch.addcmul(shift, maps, scale), slope)


class _Standard(torch.autograd.Function):
    """y <- f(scale x + shift), scale and shift, mean and rate."""

    @staticmethod
    def forward(
        ctx: Any,
        maps: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        eps: float,
        slope: float,
    ) -> tuple[torch.Tensor, ...]:
        found, values = torch.empty_like(maps), [torch.empty_like(weight) for _ in range(4)]
        size = len(maps), maps[0].numel()
        kernels.call(
            "last_standard", maps, weight, bias, found, *values, *size, float(eps), float(slope)
        )
        ctx.save_for_backward(maps, weight, *values)
        ctx.slope = float(slope)
        ctx.set_materialize_grads(False)
        mean, rate, scale, shift = values
        ctx.mark_non_differentiable(mean, rate)
        return found, scale, shift, mean, rate

    @staticmethod
    def backward(
        ctx: Any,
        given: torch.Tensor | None,
        d_scale: torch.Tensor | None,
        d_shift: torch.Tensor | None,
        *_: None,
    ) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        given = torch.zeros_like(ctx.saved_tensors[0]) if given is None else given
        # an expanded gradient has no memory of its own for every channel
        aside = tuple(None if each is None else each.contiguous() for each in (d_scale, d_shift))
        return (*_Slopes.apply(given, *ctx.saved_tensors, aside, ctx.slope), None, None)


class _Slopes(torch.autograd.Function):
    """dx, dweight and dbias."""

    @staticmethod
    def forward(
        ctx: Any,
        given: torch.Tensor,
        maps: torch.Tensor,
        weight: torch.Tensor,
        mean: torch.Tensor,
        rate: torch.Tensor,
        scale: torch.Tensor,
        shift: torch.Tensor,
        aside: tuple[torch.Tensor | None, torch.Tensor | None],
        slope: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        given, own = given.contiguous(), (weight, mean, rate, scale, shift)
        ctx.save_for_backward(given, maps, *own)
        ctx.aside, ctx.slope = any(each is not None for each in aside), float(slope)
        found = torch.empty_like(maps), torch.empty_like(weight), torch.empty_like(weight)
        size = len(maps), maps[0].numel()
        kernels.call("last_standard_once", maps, given, *aside, *own, *found, *size, float(slope))
        return found

    @staticmethod
    def backward(
        ctx: Any, g: torch.Tensor, g_weight: torch.Tensor, g_bias: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        if ctx.aside:
            raise RuntimeError("derivatives through scale and shift cannot be differentiated again")
        given, maps, *own = ctx.saved_tensors
        over = [each.contiguous() for each in (g, g_weight, g_bias)]
        found = torch.empty_like(maps), torch.empty_like(maps), torch.empty_like(own[0])
        size = len(maps), maps[0].numel()
        kernels.call("last_standard_twice", maps, given, *over, *own, *found, *size, ctx.slope)
        return (*found, *(None,) * 6)


class _Affine(torch.autograd.Function):
    """y <- f(scale x + shift), differentiated once."""

    @staticmethod
    def forward(
        ctx: Any, maps: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, slope: float
    ) -> torch.Tensor:
        found, size = torch.empty_like(maps), (len(maps), maps[0].numel())
        kernels.call("last_affine", maps, scale, shift, found, *size, float(slope))
        ctx.save_for_backward(maps, scale, shift)
        ctx.slope = float(slope)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        maps, scale, shift = ctx.saved_tensors
        found = torch.empty_like(maps), torch.empty_like(scale), torch.empty_like(shift)
        size = len(maps), maps[0].numel()
        both = scale, shift
        kernels.call("last_affine_once", maps, given.contiguous(), *both, *found, *size, ctx.slope)
        return (*found, None)


def _asked(ctx: Any) -> list[bool]:
    """For which of a function's tensors this pass through the graph wants a derivative. One that could
    be had may not be asked for, such as that for images in a step of the weights. Of a leaf of the
    graph PyTorch does not tell.
    """
    return [
        node is not None and (hasattr(node, "variable") or torch._C._will_engine_execute_node(node))
        for node, _ in ctx.next_functions
    ]


def _fits(*given: torch.Tensor) -> bool:
    return given[0].dtype == torch.float32 and kernels.fits(*given)


def _shape(
    maps: torch.Tensor, results: torch.Tensor, window: Window
) -> ctypes.Array[ctypes.c_int64]:
    channels = len(maps) // window.groups, len(results) // window.groups
    sizes = *maps.shape[1:3], *results.shape
    height, width, _, rows, columns, images = sizes
    return (ctypes.c_int64 * 11)(
        window.groups,
        *channels,
        height,
        width,
        rows,
        columns,
        images,
        window.side,
        window.stride,
        window.padding,
    )


def _rows(values: torch.Tensor, window: Window) -> torch.Tensor:
    """Weights or biases of each group, (groups, outputs, numbers of one)."""
    return values.reshape(window.groups, len(values) // window.groups, -1)


def _around(maps: torch.Tensor, window: Window) -> torch.Tensor:
    """What lies around each pixel, (groups, inputs * side^2, h * w * N)."""
    wide = F.pad(maps, (0, 0, *(window.padding,) * 4))
    for dimension in (1, 2):
        wide = wide.unfold(dimension, window.side, window.stride)
    around = wide.permute(0, 4, 5, 1, 2, 3)
    return around.reshape(window.groups, len(maps) // window.groups * window.side**2, -1)


def _gathered(
    around: torch.Tensor, results: torch.Size, shape: torch.Size, window: Window
) -> torch.Tensor:
    """The adjoint of `_around`: sums over all results that a pixel lies around."""
    side, stride, padding = window.side, window.stride, window.padding
    channels, height, width, images = shape
    h, w = results[1:3]
    around = around.reshape(channels, side, side, h, w, images)
    wide = around.new_zeros(channels, height + 2 * padding, width + 2 * padding, images)
    for i in range(side):
        for j in range(side):
            wide[:, i : i + stride * h : stride, j : j + stride * w : stride] += around[:, i, j]
    return wide[:, padding : height + padding, padding : width + padding].contiguous()
