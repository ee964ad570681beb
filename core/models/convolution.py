"""The gradient of a network's first convolution for its images, as a matrix product.

Condensation and attacks ask for it at every step. PyTorch's kernel for it is slow on a CPU where
there are few channels, as images have: at 32x32x3 it takes three times as long as a product with
the weights, which gives what each output pixel has for each pixel around it, and a sum over these.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from core.models import kernels

#: channels of images up to which the product is the faster way
FEW = 4


def convolve(layer: nn.Conv2d, images: torch.Tensor) -> torch.Tensor:
    """The layer's output for images (N, C, H, W); with few channels its gradient for them is a matrix
    product.
    """
    if (
        type(layer) is nn.Conv2d
        and layer.stride == layer.dilation == (1, 1)
        and layer.groups == 1
        and images.requires_grad
        and layer.in_channels <= FEW
        and layer.kernel_size[0] == layer.kernel_size[1]
        and layer.padding in ((0, 0), (1, 1), (2, 2), (3, 3))
        and not layer._forward_hooks
        and not layer._forward_pre_hooks
        and images.dtype == torch.float32
        and kernels.fits(images, layer.weight)
    ):
        return _FewChannels.apply(images, layer.weight, layer.bias, layer.padding[0])
    return layer(images)


class _FewChannels(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        images: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        padding: int,
    ) -> torch.Tensor:
        ctx.save_for_backward(images, weight, bias)
        ctx.padding = padding
        return F.conv2d(images, weight, bias, padding=padding)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        images, weight, bias = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # someone differentiates this gradient
            given = images, weight, bias
            inputs = [each for each, need in zip(given, needs, strict=True) if need]
            # in the precision of the forward pass
            b = None if bias is None else bias.to(dy.dtype)
            y = F.conv2d(images.to(dy.dtype), weight.to(dy.dtype), b, padding=ctx.padding)
            found = iter(torch.autograd.grad(y, inputs, dy, create_graph=True))
            return (*(next(found) if need else None for need in needs), None)
        d_images = _of_images(dy, weight, images, ctx.padding) if needs[0] else None
        d_weight = d_bias = None
        if needs[1]:
            _, d_weight, _ = torch.ops.aten.convolution_backward(
                dy, images.to(dy.dtype), weight.to(dy.dtype), None, [1, 1], [ctx.padding] * 2, [1, 1],
                False, [0, 0], 1, [False, True, False],
            )  # fmt: skip
            d_weight = d_weight.to(weight.dtype)
        if needs[2]:
            d_bias = dy.sum((0, 2, 3), dtype=torch.float32)
        return d_images, d_weight, d_bias, None


def _of_images(
    dy: torch.Tensor, weight: torch.Tensor, images: torch.Tensor, padding: int
) -> torch.Tensor:
    """dx (N, C, H, W): every output pixel's gradient times the weights, summed at the pixel that they
    look at.
    """
    rows = dy.permute(0, 2, 3, 1).reshape(-1, dy.shape[1])
    taps = rows @ weight.to(dy.dtype).permute(0, 2, 3, 1).flatten(1)
    taps = taps.view(len(dy), *dy.shape[2:], *weight.shape[2:], weight.shape[1])
    return kernels.gather(taps, (images.shape[2], images.shape[3]), padding)
