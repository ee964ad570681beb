"""Normalisation, shortcut, rectifier and average pooling of a block in one pass over the maps.

Between two convolutions PyTorch reads and writes the maps once for each of these; on a CPU that
takes as long as the convolutions of a small network. Here the forward pass reads them once (twice
where statistics are taken from them) and writes a pooled result, and the backward pass computes
again what it needs, so that nothing but the convolution's output is kept. Under `torch.func`, in float64,
without a C++ compiler and on a GPU without Triton the same functions are put together from PyTorch's own;
so is a second derivative. On a GPU the passes run for maps whose images or groups have statistics of their
own, and for all layers in replayed steps (`core.replay`); elsewhere PyTorch's kernels run.

With z = a x + b + shortcut, a = w r, b = bias - m a, r = (v + eps)^-1/2, and dz the gradient before
the rectifier, sums over the n values of a group and channel:

    dw = r sum dz (x - m),  dbias = sum dz
    dv = -1/2 w r^3 sum dz (x - m),  dm = -w r sum dz     (and what comes in for m and v themselves)
    dx = a dz + 2 dv / n (x - m) + dm / n
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from core.errors import InputError
from core.models import images_last, kernels
from core.models.kernels import on_gpu
from core.models.tensors import at_least_float32

Grads = tuple[torch.Tensor | None, ...]


def activate(
    maps: torch.Tensor,
    norm: nn.Module | None = None,
    *,
    shortcut: torch.Tensor | None = None,
    slope: float = 0.0,
    pool: int = 1,
) -> torch.Tensor:
    """pool(f(norm(maps) + shortcut)): what follows a convolution in a block.

    Args:
        maps: (N, C, H, W). norm: a normalisation layer, PyTorch's or a `FusedNorm`; None: none.
            shortcut: (N, C, H, W) or None.
        slope: f(z) is z above 0 and slope z below: 0 for ReLU, 1 for none.
        pool: side of the windows that are averaged; what is left over at the edges is dropped.

    Raises InputError where batch or instance normalisation has one value of a channel to go by.
    """
    _check_values(norm, maps)
    if norm is not None and heard(norm):
        return finish(norm(maps), shortcut, slope, pool)
    rest = (shortcut, slope, pool)
    if isinstance(norm, FusedNorm):
        return norm.activate(maps, *rest)
    replaced = on_gpu if on_gpu.replaces_layers(maps) else kernels
    if _fits(replaced, maps, shortcut, pool):
        if norm is None:
            one = torch.ones(1, maps.shape[1], device=maps.device)
            return affine(maps, one, torch.zeros_like(one), *rest)
        if type(norm) is nn.BatchNorm2d and norm.affine and norm.momentum is not None:
            return _batch_norm(maps, norm, *rest)
        if _per_image(norm, maps):
            each = torch.arange(len(maps), device=maps.device)
            return standardise(maps, norm.weight, norm.bias, each, len(maps), norm.eps, *rest)[0]  # type: ignore
    return finish(maps if norm is None else norm(maps), *rest)


def _check_values(norm: nn.Module | None, maps: torch.Tensor) -> None:
    """Raise InputError where a normalisation by the maps' own statistics has one value of a channel."""
    alone = isinstance(norm, nn.BatchNorm2d) and norm.training and len(maps) == 1
    if (alone or isinstance(norm, nn.InstanceNorm2d)) and maps.shape[2:] == (1, 1):
        raise InputError(
            f"a normalisation needs more than one value of a channel: {len(maps)} maps of 1x1 pixels; "
            "take larger batches or images, or a network of fewer layers"
        )


def heard(layer: nn.Module) -> bool:
    """Whether a hook wants to see a layer's maps."""
    forward, backward = layer._forward_hooks or layer._forward_pre_hooks, layer._backward_hooks
    return bool(forward or backward or layer._backward_pre_hooks)


class FusedNorm(nn.Module, ABC):
    """A normalisation of another kind than PyTorch's, which says itself what `activate` makes of maps
    that it normalises.
    """

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """The normalised maps (N, C, H, W)."""
        return self.activate(maps, None, 1.0, 1)

    @abstractmethod
    def activate(
        self, maps: torch.Tensor, shortcut: torch.Tensor | None, slope: float, pool: int
    ) -> torch.Tensor:
        """pool(f(norm(maps) + shortcut)), with the arguments of `activate`."""

    def biased(self, maps: torch.Tensor, bias: torch.Tensor, *rest: Any) -> torch.Tensor:
        """`activate` of maps to which a bias (C,) is still to be added; `rest` as there."""
        return self.activate(maps + bias[:, None, None].to(maps.dtype), *rest)


def affine(
    maps: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    shortcut: torch.Tensor | None = None,
    slope: float = 0.0,
    pool: int = 1,
) -> torch.Tensor:
    """pool(f(scale maps + shift + shortcut)) with scale and shift (N, C), or (1, C), in float32."""
    if _fit(maps, shortcut, pool):
        return _Affine.apply(maps, scale, shift, shortcut, slope, pool)
    return _affine(maps, scale, shift, shortcut, slope, pool)


def standardise(
    maps: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    group: torch.Tensor | None,
    groups: int,
    eps: float,
    shortcut: torch.Tensor | None = None,
    slope: float = 0.0,
    pool: int = 1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """pool(f(weight (x - m) / sqrt(v + eps) + bias + shortcut)) with the mean and variance of each
    image's group.

    Args:
        maps: (N, C, H, W); weight, bias: (C,).
        group: (N,) int64, the group of each image; None: all are one. groups: G.

    Returns: the result, and m and v, (G, C) each in float32, through which gradients flow; a group
    without images has mean and variance 0.
    """
    if _fit(maps, shortcut, pool):
        return _Standardise.apply(maps, weight, bias, shortcut, group, groups, eps, slope, pool)
    return _standardise(maps, weight, bias, shortcut, group, groups, eps, slope, pool)


def _fit(maps: torch.Tensor, shortcut: torch.Tensor | None, pool: int) -> bool:
    """Whether there are passes for these maps where they are."""
    return _fits(_passes(maps), maps, shortcut, pool)


def _fits(passes: Any, maps: torch.Tensor, shortcut: torch.Tensor | None, pool: int) -> bool:
    given = (maps,) if shortcut is None else (maps, shortcut)
    return pool in (1, 2) and all(each.numel() for each in given) and passes.fits(*given)


def _passes(maps: torch.Tensor) -> Any:
    """The module whose passes run where the maps are."""
    return on_gpu if maps.is_cuda else kernels


def _per_image(norm: nn.Module, maps: torch.Tensor) -> bool:
    """Whether a layer normalises each channel of each image by itself, with scale and shift."""
    if type(norm) is nn.GroupNorm:
        return norm.affine and norm.num_groups == maps.shape[1]
    return type(norm) is nn.InstanceNorm2d and norm.affine and not norm.track_running_stats


def _batch_norm(
    maps: torch.Tensor, norm: nn.BatchNorm2d, shortcut: torch.Tensor | None, slope: float, pool: int
) -> torch.Tensor:
    """The layer as PyTorch has it: own statistics in training mode, which move the running ones, else
    those.
    """
    last = shortcut is None and pool == 1 and images_last.lie_last(maps)
    rows = maps.permute(1, 2, 3, 0)
    if not norm.training and norm.running_mean is not None and norm.running_var is not None:
        scale = (norm.running_var + norm.eps).rsqrt() * norm.weight
        shift = norm.bias - norm.running_mean * scale
        if last:
            return images_last.affine(rows, scale, shift, slope).permute(3, 0, 1, 2)
        return affine(maps, scale[None], shift[None], shortcut, slope, pool)
    own = norm.weight, norm.bias
    if last:
        rows, _, _, mean, rate = images_last.standardise(rows, *own, norm.eps, slope)
        result, mean = rows.permute(3, 0, 1, 2), mean[None]
        variance = (rate[None] ** -2 - norm.eps).clamp(0)  # rounding may take it below
    else:
        result, mean, variance = standardise(maps, *own, None, 1, norm.eps, shortcut, slope, pool)
    if norm.training and norm.running_mean is not None and norm.running_var is not None:
        assert norm.momentum is not None
        with torch.no_grad():
            values = maps.numel() // maps.shape[1]
            unbiased = variance[0] * (values / max(values - 1, 1))
            norm.running_mean.lerp_(mean[0], norm.momentum)
            norm.running_var.lerp_(unbiased, norm.momentum)
            norm.num_batches_tracked.add_(1)  # type: ignore[union-attr, operator]
    return result


def finish(z: torch.Tensor, shortcut: torch.Tensor | None, slope: float, pool: int) -> torch.Tensor:
    """pool(f(z + shortcut)) by PyTorch."""
    z = z if shortcut is None else z + shortcut
    z = F.relu(z) if slope == 0 else z if slope == 1 else F.leaky_relu(z, slope)
    return F.avg_pool2d(z, pool) if pool > 1 else z


def _affine(
    maps: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    shortcut: torch.Tensor | None,
    slope: float,
    pool: int,
) -> torch.Tensor:
    """`affine` by PyTorch."""
    scale, shift = (each[:, :, None, None] for each in (scale, shift))
    # in the precision of the statistics; only the result is rounded
    return finish(torch.addcmul(shift, maps, scale).to(maps.dtype), shortcut, slope, pool)


def _standardise(
    maps: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    shortcut: torch.Tensor | None,
    group: torch.Tensor | None,
    groups: int,
    eps: float,
    slope: float,
    pool: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`standardise` by PyTorch."""
    wide = at_least_float32(maps)
    # about a value of each channel, as the passes do: of squares far from zero a sum keeps no variance
    pivot = wide.detach()[:1, :, :1, :1].sum(0)
    off = wide - pivot
    values = _values(maps, group, groups)[:, None]
    mean, square = (
        _summed(rows, group, groups) / values.clamp_min(1)
        for rows in (off.sum((2, 3)), off.square().sum((2, 3)))
    )
    variance = (square - mean.square()).clamp_min(0).to(wide.dtype)
    mean = torch.where(values > 0, mean + pivot[:, 0, 0], 0).to(wide.dtype)
    scale = (variance + eps).rsqrt() * weight
    shift = bias - mean * scale
    result = _affine(maps, _rows(scale, group), _rows(shift, group), shortcut, slope, pool)
    return result, mean, variance


def _summed(rows: torch.Tensor, group: torch.Tensor | None, groups: int) -> torch.Tensor:
    """Sums of rows (N, D) over each group, (G, D), in float64."""
    rows = rows.double()
    if group is None:
        return rows.sum(0, keepdim=True)
    return rows.new_zeros(groups, rows.shape[1]).index_add(0, group, rows)


def _rows(values: torch.Tensor, group: torch.Tensor | None) -> torch.Tensor:
    """Values (G, C) of every image's group, (N, C); (1, C) where all are one."""
    return values if group is None else values[group]


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        scale: torch.Tensor,
        shift: torch.Tensor,
        shortcut: torch.Tensor | None,
        slope: float,
        pool: int,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, scale, shift, shortcut)
        ctx.slope, ctx.pool = slope, pool
        x, shortcut = _last(x), _last(shortcut)
        return _passes(x).forward(x, _plain(scale), _plain(shift), shortcut, slope, pool)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Grads:  # type: ignore[override]
        x, scale, shift, shortcut = ctx.saved_tensors
        if torch.is_grad_enabled():
            return (*_again(_affine, ctx, (x, scale, shift, shortcut), (), (dy,)), None, None)
        rest = (_last(shortcut), ctx.slope, ctx.pool)
        x, dy, a, b = _last(x), _last(dy.to(x.dtype)), _plain(scale), _plain(shift)
        passes = _passes(x)
        dx, dz = passes.backward(x, dy, a, b, None, *rest)
        d_scale = d_shift = None
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            zero = a.new_zeros(1, x.shape[1])
            d_shift, d_scale = passes.sums(x, dy, a, b, zero, *rest)
            if len(scale) == 1:
                d_shift, d_scale = (_summed(each, None, 1).float() for each in (d_shift, d_scale))
        return dx, d_scale, d_shift, dz, None, None


class _Standardise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        shortcut: torch.Tensor | None,
        group: torch.Tensor | None,
        groups: int,
        eps: float,
        slope: float,
        pool: int,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        given = x, weight, bias, shortcut
        x, shortcut = _last(x), _last(shortcut)
        pivot, own = x[0, :, 0, 0].float(), (_plain(weight), _plain(bias))
        values, passes = _values(x, group, groups), _passes(x)
        mean, variance, rate, scale, shift = passes.statistics(
            *passes.moments(x, pivot), pivot, *own, group, values, eps
        )
        ctx.save_for_backward(*given, group, mean, rate, scale, shift, values)
        ctx.rest = groups, eps, slope, pool
        ctx.set_materialize_grads(False)
        result = passes.forward(x, _rows(scale, group), _rows(shift, group), shortcut, slope, pool)
        return result, mean, variance

    @staticmethod
    def backward(
        ctx: Any, dy: torch.Tensor | None, d_mean: torch.Tensor | None, d_var: torch.Tensor | None
    ) -> Grads:  # type: ignore[override]
        x, weight, bias, shortcut, group, mean, rate, scale, shift, values = ctx.saved_tensors
        groups, eps, slope, pool = ctx.rest
        if torch.is_grad_enabled():
            found = _again(
                _standardise,
                ctx,
                (x, weight, bias, shortcut),
                (group, groups, eps),
                (dy, d_mean, d_var),
            )
            return (*found, None, None, None, None, None)
        a, b = _rows(scale, group), _rows(shift, group)
        x, rest, passes = _last(x), (_last(shortcut), slope, pool), _passes(x)
        if dy is None:
            dy = x.new_zeros(*x.shape[:2], x.shape[2] // pool, x.shape[3] // pool)
        dy = _last(dy.to(x.dtype))
        both = passes.sums(x, dy, a, b, _rows(mean, group), *rest)
        incoming = (None if each is None else _plain(each) for each in (d_mean, d_var))
        slant, offset, d_weight, d_bias = passes.slopes(
            *both, _plain(weight), group, values, mean, rate, *incoming
        )
        line = _rows(slant, group), _rows(offset, group)
        dx, dz = passes.backward(x, dy, a, b, line, *rest)
        return dx, d_weight, d_bias, dz, None, None, None, None, None


def _values(maps: torch.Tensor, group: torch.Tensor | None, groups: int) -> torch.Tensor:
    """How many values of a channel each group has, (G,) float64."""
    pixels = maps.shape[2] * maps.shape[3]
    if group is None:
        return torch.full((1,), len(maps) * pixels, dtype=torch.float64, device=maps.device)
    each = torch.zeros(groups, dtype=torch.float64, device=maps.device)
    return each.index_add(0, group, each.new_full((len(group),), pixels))


def _again(function: Any, ctx: Any, inputs: Any, between: Any, gradients: Any) -> Grads:
    """The gradients of `inputs` by PyTorch's own operations, so that they can be differentiated in turn."""
    rest = ctx.rest[2:] if hasattr(ctx, "rest") else (ctx.slope, ctx.pool)
    # maps come from the shortcut as well: under names of their own each has its direct part only
    inputs = tuple(None if each is None else each.view_as(each) for each in inputs)
    wanted = [
        each
        for each, needed in zip(inputs, ctx.needs_input_grad, strict=False)
        if each is not None and needed
    ]
    results = function(*inputs, *between, *rest)
    results = results if isinstance(results, tuple) else (results,)
    pairs = [(r, g) for r, g in zip(results, gradients, strict=True) if g is not None]
    found = iter(
        torch.autograd.grad(
            [r for r, _ in pairs],
            wanted,
            [g.to(r.dtype) for r, g in pairs],
            create_graph=True,
            allow_unused=True,
        )
    )
    return tuple(
        next(found) if each is not None and needed else None
        for each, needed in zip(inputs, ctx.needs_input_grad, strict=False)
    )


def _last(maps: Any) -> Any:
    """The maps with channels last, as the passes read them."""
    return None if maps is None else maps.contiguous(memory_format=torch.channels_last)


def _plain(values: torch.Tensor) -> torch.Tensor:
    return values.detach().float().contiguous()
