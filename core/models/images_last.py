"""Convolutions with the images last in memory, (C, H, W, N): fast for few channels, and for derivatives
of derivatives.

PyTorch's kernels on CPUs make vectors of channels. Six fill none, and the kernels of second
derivatives are slow even where they are filled. Vectors of images need no channels. Of
    T(x, w, s) = sum over r of s[r] conv(x, w)[r]
the three derivatives are the convolution itself, the gradient for its maps and that for its weights;
T is linear in each, so any further derivative is one of the three again.

In float32 on a CPU they are compiled (`core.models.kernels`), else put together from PyTorch's
operations.
"""

from __future__ import annotations

import ctypes
from typing import Any

import attrs
import torch
from torch.nn import functional as F

from core.models import kernels


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
        of_maps, of_weight, of_bias, _ = ctx.needs_input_grad
        slope = slope.contiguous()
        return (
            _Maps.apply(weight, slope, maps.shape, ctx.window) if of_maps else None,
            _Weights.apply(maps, slope, weight.shape, ctx.window) if of_weight else None,
            slope.sum((1, 2, 3)) if of_bias else None,
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
        of_weight, of_slope, *_ = ctx.needs_input_grad
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
        of_maps, of_slope, *_ = ctx.needs_input_grad
        given = given.contiguous()
        return (
            _Maps.apply(given, slope, maps.shape, ctx.window) if of_maps else None,
            _Results.apply(maps, given, None, ctx.window) if of_slope else None,
            None,
            None,
        )


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
