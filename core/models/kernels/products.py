"""The compiled products of convolutions; `core.models.convolution` says which is taken when."""

from __future__ import annotations

import ctypes

import torch

from core.models import kernels


def gather(taps: torch.Tensor, size: tuple[int, int], padding: int) -> torch.Tensor:
    """A convolution's gradient for its images, (N, C, h, w) float32 of the given size, from its taps
    (N, H, W, side, side, C): what each output pixel has for each pixel that it was made of.
    """
    n, h, w, side, _, c = taps.shape
    images = torch.zeros(n, *size, c)
    shape = (ctypes.c_int64 * 4)(n, h, w, c)
    kernels.call("gather", taps, images, shape, *size, side, padding)
    return images.permute(0, 3, 1, 2)


def winograd(
    x: torch.Tensor,
    points: torch.Tensor,
    bias: torch.Tensor | None,
    groups: int,
    padding: int,
) -> torch.Tensor:
    """Maps (N, groups * outputs, H + 2 padding - 2, W + 2 padding - 2) of a 3x3 convolution from maps
    (N, groups * inputs, H, W) and its weights at the 36 points, (groups, 36, inputs, outputs).
    """
    n, c, h, w = x.shape
    outputs = points.shape[3]
    assert x.permute(0, 2, 3, 1).is_contiguous()
    assert _float32(points, *([] if bias is None else [bias]))
    assert points.shape == (groups, 36, c // groups, outputs) and 0 <= padding <= 2
    assert c % (16 * groups) == outputs % 16 == 0
    size = n, groups * outputs, h + 2 * padding - 2, w + 2 * padding - 2
    y = torch.empty(size, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    kernels.call("winograd", x, points, bias, y, _grouped(x, groups), *size[2:], outputs, padding)
    return y


def winograd_weights(x: torch.Tensor, dy: torch.Tensor, groups: int, padding: int) -> torch.Tensor:
    """The gradient of the weights at the 36 points, (groups, 36, inputs, outputs), from the
    convolution's maps x and the gradient dy of its results.
    """
    outputs = dy.shape[1] // groups
    assert all(each.permute(0, 2, 3, 1).is_contiguous() for each in (x, dy))
    assert x.dtype == dy.dtype and 0 <= padding <= 2
    assert x.shape[1] % (16 * groups) == dy.shape[1] % (16 * groups) == 0
    points = x.new_zeros(groups, 36, x.shape[1] // groups, outputs, dtype=torch.float32)
    shape = _grouped(x, groups)
    kernels.call("winograd_weights", x, dy, points, shape, *dy.shape[2:], outputs, padding)
    return points


def tiles_weights(
    x: torch.Tensor, dy: torch.Tensor, side: int, groups: int, padding: int
) -> torch.Tensor:
    """The gradient of a convolution's weights, (groups * outputs, inputs, side, side) in float32, from
    its maps x and the gradient dy of its results, both bfloat16.
    """
    assert all(each.permute(0, 2, 3, 1).is_contiguous() for each in (x, dy))
    assert x.dtype == dy.dtype == torch.bfloat16 and 0 <= padding < side
    inputs, outputs = (each.shape[1] // groups for each in (x, dy))
    assert inputs % 32 == outputs % 32 == 0
    found = torch.empty(dy.shape[1], inputs, side, side)
    numbers = (*_grouped(x, groups), *dy.shape[2:], outputs, side, padding)
    kernels.call("tiles_weights", x, dy, found, (ctypes.c_int64 * 10)(*numbers))
    return found


def combined(matrix: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A small matrix (a, b) times values (groups, b, ...) in float32, (groups, a, ...); what is inside
    a group's b is a multiple of 16 numbers. Each sum goes from 0 to b, for any number of threads.
    """
    assert _float32(matrix, values) and values.shape[1] == matrix.shape[1]
    result = values.new_empty(len(values), len(matrix), *values.shape[2:])
    inside = values[0, 0].numel()
    assert inside % 16 == 0
    kernels.call("combined", matrix, values, result, len(values), *matrix.shape, inside)
    return result


def _float32(*given: torch.Tensor) -> bool:
    return all(each.dtype == torch.float32 and each.is_contiguous() for each in given)


def _grouped(x: torch.Tensor, groups: int) -> ctypes.Array[ctypes.c_int64]:
    n, c, h, w = x.shape
    return (ctypes.c_int64 * 5)(n, h, w, c // groups, groups)
