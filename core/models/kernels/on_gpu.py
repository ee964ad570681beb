"""The passes of `core.models.kernels` on a GPU, in Triton, which comes with PyTorch for CUDA.

A program of the GPU takes some positions of one image and all channels, which lie next to each other
in memory (channels last). Sums are kept per image and channel, as on a CPU, and no two programs add
to the same number, so that the same call gives the same bits.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from core.errors import one_line
from core.models import kernels
from core.replay import rehearsed

#: positions that a program takes at once
POSITIONS = 16
#: channels that a program holds beside so many positions without running out of registers
CHANNELS = 512


def in_use() -> str:
    """ "fused" where there is Triton and nobody asked to do without (`FEDCON_KERNELS=eager`), else
    "eager": what condensation and replayed training on a GPU run by.
    """
    return "fused" if _there() and not kernels.off() else "eager"


@functools.cache
def _there() -> bool:
    """Whether Triton is there and can build a program, for which it needs a C compiler; said once."""
    if not torch.cuda.is_available():
        return False
    try:
        one = torch.ones(1, 1, device="cuda")
        forward(torch.ones(1, 1, 2, 2, device="cuda"), one, one, None, 0.0, 1)
    except Exception as error:  # of many kinds: no Triton, no compiler, an old card
        print(
            f"condensation and replayed steps run without fused kernels, slower: {one_line(error)}",
            file=sys.stderr,
        )
        return False
    return True


def fits(*maps: torch.Tensor) -> bool:
    """Whether the passes take these maps: all of one type, plain tensors on a GPU."""
    return kernels.plain_on("cuda", maps) and in_use() == "fused"


def replaces_layers(maps: torch.Tensor) -> bool:
    """Whether the passes are faster than a layer of PyTorch's, which starts fewer programs: where
    their start costs nothing, as in a recording.
    """
    return maps.is_cuda and rehearsed() and maps.shape[1] <= CHANNELS


def _start(name: str, grid: tuple[int, int], *given: Any, **blocks: int) -> None:
    """Start a program where its first tensor is. Triton is imported where it is used."""
    from core.models.kernels import triton_programs

    with torch.cuda.device_of(given[0]):
        getattr(triton_programs, name)[grid](*given, **blocks, enable_fp_fusion=True)


def forward(
    x: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    shortcut: torch.Tensor | None,
    slope: float,
    pool: int,
) -> torch.Tensor:
    """See `core.models.kernels.forward`."""
    n, c, h, w = x.shape
    size = n, c, h // pool, w // pool
    y = torch.empty(size, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    grid, blocks = _parted(n, size[2] * size[3], c)
    given = x, x if shortcut is None else shortcut, scale, shift, y
    rest = (h, w, c, kernels.stride(scale), slope, pool, shortcut is not None)
    _start("forward", grid, *given, *rest, **blocks)
    return y


def backward(
    x: torch.Tensor,
    dy: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    line: tuple[torch.Tensor, torch.Tensor] | None,
    shortcut: torch.Tensor | None,
    slope: float,
    pool: int,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """See `core.models.kernels.backward`."""
    n, c, h, w = x.shape
    dx, dz = torch.empty_like(x), None if shortcut is None else torch.empty_like(x)
    a, b = (scale, scale) if line is None else line
    grid, blocks = _parted(n, h * w, c)
    other, out = (x, dx) if shortcut is None else (shortcut, dz)
    rest = (h, w, c, kernels.stride(scale), kernels.stride(a), slope, pool, shortcut is not None)
    given = x, other, dy, scale, shift, a, b, dx, out
    _start("backward", grid, *given, *rest, line is not None, **blocks)
    return dx, dz


def moments(x: torch.Tensor, pivot: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See `core.models.kernels.moments`."""
    n, c, h, w = x.shape
    plain, square = (torch.empty(n, c, device=x.device) for _ in range(2))
    grid, blocks = _whole(n, c)
    _start("moments", grid, x, pivot, plain, square, h * w, c, **blocks)
    return plain, square


def sums(
    x: torch.Tensor,
    dy: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    mean: torch.Tensor,
    shortcut: torch.Tensor | None,
    slope: float,
    pool: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `core.models.kernels.sums`."""
    n, c, h, w = x.shape
    plain, centred = (torch.empty(n, c, device=x.device) for _ in range(2))
    given = x, x if shortcut is None else shortcut, dy, scale, shift, mean, plain, centred
    rest = (h, w, c, kernels.stride(scale), kernels.stride(mean), slope, pool, shortcut is not None)
    grid, blocks = _whole(n, c)
    _start("sums", grid, *given, *rest, **blocks)
    return plain, centred


def statistics(
    plain: torch.Tensor,
    square: torch.Tensor,
    pivot: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    group: torch.Tensor | None,
    values: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    """See `core.models.kernels.statistics`."""
    count = values[:, None].clamp_min(1)
    off, square = (_summed(each, group, len(values)) / count for each in (plain, square))
    full = values[:, None] > 0
    mean = torch.where(full, off + pivot, 0.0).float()
    variance = (square - off.square()).clamp_min(0).float()
    rate = (variance + eps).rsqrt()
    scale = rate * weight
    return mean, variance, rate, scale, bias - mean * scale


def slopes(
    plain: torch.Tensor,
    centred: torch.Tensor,
    weight: torch.Tensor,
    group: torch.Tensor | None,
    values: torch.Tensor,
    mean: torch.Tensor,
    rate: torch.Tensor,
    d_mean: torch.Tensor | None,
    d_variance: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    """See `core.models.kernels.slopes`; the formulas stand in `core.models.fused`."""
    dz, dz_x = (_summed(each, group, len(values)) for each in (plain, centred))
    r, count = rate.double(), values[:, None].clamp_min(1)
    # dv = -1/2 w r^3 sum dz (x - m),  dm = -w r sum dz
    dv = -0.5 * weight * r.pow(3) * dz_x + (0 if d_variance is None else d_variance)
    dm = -weight * r * dz + (0 if d_mean is None else d_mean)
    # 2 dv / n (x - m) + dm / n as a line in x
    slant = 2 * dv / count
    offset = dm / count - slant * mean
    return slant.float(), offset.float(), (r * dz_x).sum(0).float(), dz.sum(0).float()


def _summed(rows: torch.Tensor, group: torch.Tensor | None, groups: int) -> torch.Tensor:
    """Sums of rows (N, C) over each group, (G, C), in float64."""
    if group is None:
        return rows.sum(0, keepdim=True, dtype=torch.float64)
    # a product, not index_add, which adds in whatever order its threads come
    of_group = group == torch.arange(groups, device=group.device)[:, None]
    return of_group.double() @ rows.double()


def _parted(n: int, positions: int, c: int) -> tuple[tuple[int, int], dict[str, int]]:
    """A program for every image and some of its positions."""
    channels = 1 << (c - 1).bit_length()
    some = max(POSITIONS, 2048 // channels)
    return (n, -(-positions // some)), {"P": some, "C_ALL": channels}


def _whole(n: int, c: int) -> tuple[tuple[int, int], dict[str, int]]:
    """A program for every image and some of its channels, which goes over all positions."""
    channels = min(32, 1 << (c - 1).bit_length())
    return (n, -(-c // channels)), {"P": 64, "C_SOME": channels}
