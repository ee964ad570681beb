"""Batch normalisation with a quick second derivative and a quick, differentiable slope.

PyTorch takes the derivative apart into some thirty passes over the maps, which then cost more than
all convolutions of a small network together, and the slope (in 2.15) with mean and variance as
constants, so that its gradient is wrong. Here both are one formula. Values and first derivatives come
from PyTorch's own kernels, so on a CPU they are the same numbers.

In a channel of n numbers with mean m, inverse deviation r and x^ = (x - m) r, let P(v) = v -
mean(v) - x^ mean(v x^). Backward gives dx = w r P(dy), dw = sum dy x^, db = sum dy. For G = <g, dx>
+ g_w dw + g_b db and a = mean(g x^), b = mean(dy x^), s = mean(g P(dy)):

    dG/d dy = w r P(g) + g_w x^ + g_b
    dG/dw = n r s
    dG/dx = -w r (b r P(g) + a r P(dy) + s r x^) + g_w r P(dy)

P equals its transpose, so along a direction t of the maps the slope is w r P(t): what Backward makes of
t in place of dy, and these formulas differentiate it in turn. Along t_w of the scale and t_b of the
shift it is t_w x^ + t_b, the same layer with these two.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

Tensors = tuple[torch.Tensor, ...]


def quicken(model: nn.Module) -> nn.Module:
    """Give every `nn.BatchNorm2d` of a network, in place, a quick second derivative and slope, and every
    `nn.GroupNorm` a slope in its maps' precision; hands the network on.
    """
    for layer in model.modules():
        if type(layer) is nn.BatchNorm2d and layer.affine and layer.momentum is not None:
            layer.__class__ = QuickBatchNorm2d
        elif type(layer) is nn.GroupNorm and layer.affine:
            layer.__class__ = WideGroupNorm
    return model


class WideGroupNorm(nn.GroupNorm):
    """`nn.GroupNorm` in its weights' precision: of bfloat16 maps PyTorch's slope has another type than
    its values.
    """

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Normalised maps (N, C, ...), of the type of `maps`."""
        return super().forward(maps.to(self.weight.dtype)).to(maps.dtype)


class QuickBatchNorm2d(nn.BatchNorm2d):
    """`nn.BatchNorm2d` with scale, shift and a momentum; in evaluation mode it is just that."""

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Normalised maps (N, C, H, W)."""
        if not self.training:
            return super().forward(maps)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        return _Forward.apply(
            maps,
            self.weight,
            self.bias,
            self.running_mean,
            self.running_var,
            self.momentum,
            self.eps,
        )


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *rest: Any
    ) -> torch.Tensor:
        running_mean, running_var, momentum, eps = rest
        y, mean, rate = torch.native_batch_norm(
            x, weight, bias, running_mean, running_var, True, momentum, eps
        )
        ctx.save_for_backward(x, weight, mean, rate)
        ctx.save_for_forward(x, weight, mean, rate)
        ctx.eps = eps
        ctx.set_materialize_grads(False)
        return y

    @staticmethod
    def jvp(
        ctx: Any,
        t: torch.Tensor | None,
        t_w: torch.Tensor | None,
        t_b: torch.Tensor | None,
        *_: None,
    ) -> torch.Tensor:  # type: ignore[override]
        x, weight, mean, rate = ctx.saved_tensors
        # w r P(t) + t_w x^ + t_b
        parts = [] if t is None else [_Backward.apply(t, x, weight, mean, rate)[0]]
        if t_w is not None or t_b is not None:
            none = torch.zeros_like(weight)
            affine = (none if each is None else each for each in (t_w, t_b))
            parts.append(_Forward.apply(x, *affine, None, None, 0.0, ctx.eps))
        return functools.reduce(torch.add, parts)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        if dy is None:
            return (None,) * 7
        x, weight, mean, rate = ctx.saved_tensors
        return (*_Backward.apply(dy, x, weight, mean, rate), None, None, None, None)


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        dy: torch.Tensor,
        x: torch.Tensor,
        weight: torch.Tensor,
        mean: torch.Tensor,
        rate: torch.Tensor,
    ) -> Tensors:
        dy = _laid_out_as(x, dy)
        dx, dw, db = _kernel(dy, x, weight, mean, rate)
        ctx.save_for_backward(dy, x, weight, mean, rate, dw)
        ctx.set_materialize_grads(True)
        return dx, dw, db

    @staticmethod
    def backward(
        ctx: Any, g: torch.Tensor, g_w: torch.Tensor, g_b: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        dy, x, w, m, r, dw = ctx.saved_tensors
        n, one = x.numel() // x.shape[1], torch.ones_like(w)
        g = _laid_out_as(x, g)
        # with a unit scale the kernel gives r P(v), and sum v x^
        p_g, g_x, _ = _kernel(g, x, one, m, r)
        p_dy, _, _ = _kernel(dy, x, one, m, r)
        a, b = g_x / n, dw / n
        # s = mean(g P(dy)); the sum runs along the memory
        both = g * p_dy
        if x.is_contiguous():
            s = both.sum((0, 2, 3), dtype=w.dtype) / (n * r)
        else:
            s = both.permute(0, 2, 3, 1).flatten(0, 2).sum(0, dtype=w.dtype) / (n * r)

        def channels(values: torch.Tensor) -> torch.Tensor:
            return values.to(x.dtype).view(1, -1, 1, 1)

        # -w r (b r P(g) + a r P(dy) + s r x^) + g_w r P(dy), with x^ = (x - m) r
        slope = w * r.pow(3) * s
        d_x = (x * channels(-slope)).add_(channels(slope * m))
        d_x.addcmul_(p_g, channels(-w * r * b)).addcmul_(p_dy, channels(g_w - w * r * a))
        # w r P(g) + g_w x^ + g_b
        d_dy = (p_g * channels(w)).addcmul_(x, channels(g_w * r)).add_(channels(g_b - g_w * r * m))
        return d_dy, d_x, n * r * s, None, None


def _kernel(
    dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, mean: torch.Tensor, rate: torch.Tensor
) -> Tensors:
    """dx, dw and db of batch normalisation by PyTorch's own kernel."""
    return torch.ops.aten.native_batch_norm_backward(
        dy, x, w, None, None, mean, rate, True, 0.0, [True, True, True]
    )


def _laid_out_as(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    last = x.is_contiguous(memory_format=torch.channels_last)
    return value.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
