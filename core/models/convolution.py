"""Convolutions that a CPU does faster than PyTorch's kernels do them.

The gradient of a network's first convolution for its images, which condensation and attacks ask for
at every step, is a product with the weights, which gives what each output pixel has for each pixel
around it, and a sum over these: at 32x32x3 a third of the time of PyTorch's kernel for it.

A 3x3 convolution of many channels by minimal filtering (Lavin and Gray, CVPR 2016) takes a quarter
of the multiplications, forward and in both gradients. With float32 that is half of the time; the
results round by some 1e-6, a few times as much as sums of products. With bfloat16 maps it is three
quarters of the time on processors that multiply such numbers in vectors (AVX-512 BF16); it
multiplies in float32, so only the maps are rounded. Processors that multiply matrices (AMX) are faster
than it; there the gradient of the weights takes two thirds of the time of PyTorch's kernel or less.

Maps of few channels whose images lie last in memory stay so; see `core.models.images_last`.

Zeros as wide as the weights or wider, with which a ConvNet brings 28x28 to 32x32, are put around the
images here: PyTorch's kernels for gradients of weights do not take them, and what it does in their
place took 26 times as long.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from core.models import images_last, kernels
from core.models.kernels import products
from core.models.slopes import without_slope

#: channels of a group's results up to which vectors of images are faster than vectors of channels
NARROW = 16
#: channels of images up to which the product is the faster way
FEW = 4
#: channels of a group from which minimal filtering is the faster way, and what they are a multiple of
MANY, MULTIPLE = {torch.float32: 32, torch.bfloat16: 64}, 16
#: tiles of 4x4 results that pay for bringing the weights to their points
TILES = 128
#: channels of a group that fill what AMX multiplies
FULL = 32
#: pixels of the tiles for a pixel of the maps, at most: what lies outside is computed for nothing
WASTE = {torch.float32: 1.5, torch.bfloat16: 1.2}


def convolve(layer: nn.Conv2d, images: torch.Tensor) -> torch.Tensor:
    """The layer's output for images or maps (N, C, H, W), in the faster way where there is one."""
    values = without_slope(images)
    if not _plain(layer, images) or not (kernels.fits(values) and kernels.fits(layer.weight)):
        return layer(images)
    padding = layer.padding[0]
    assert isinstance(padding, int)
    if layer.out_channels <= NARROW * layer.groups and images_last.lie_last(images):
        window = images_last.Window(layer.kernel_size[0], layer.stride[0], padding, layer.groups)
        rows = images.permute(1, 2, 3, 0)
        return images_last.convolve(rows, layer.weight, layer.bias, window).permute(3, 0, 1, 2)
    if layer.stride != (1, 1):
        return layer(images)
    if padding >= layer.kernel_size[0]:
        most = layer.kernel_size[0] // 2
        images, padding = F.pad(images, [padding - most] * 4), most
    few = layer.groups == 1 and layer.in_channels <= FEW
    if few and images.requires_grad and images.dtype == torch.float32:
        return _FewChannels.apply(images, layer.weight, layer.bias, padding, 1)
    precision = _precision()
    if way := _way(layer, images, precision):
        maps = images.to(precision)
        return way.apply(maps, layer.weight, layer.bias, padding, layer.groups)
    if padding == layer.padding[0]:
        return layer(images)
    return F.conv2d(images, layer.weight, layer.bias, padding=padding, groups=layer.groups)


def _precision() -> torch.dtype:
    """The type of a convolution's maps here."""
    autocast = torch.is_autocast_enabled("cpu")
    return torch.get_autocast_dtype("cpu") if autocast else torch.float32


def _plain(layer: nn.Conv2d, images: torch.Tensor) -> bool:
    """Whether a layer has square weights and strides, zeros around the maps and nobody who listens,
    and it and the images fit each other, in a type that PyTorch takes here.
    """
    if type(layer) is not nn.Conv2d or images.dtype not in (torch.float32, _precision()):
        return False
    hooks = (
        layer._forward_hooks,
        layer._forward_pre_hooks,
        layer._backward_hooks,
        layer._backward_pre_hooks,
    )
    shape = layer.out_channels, layer.in_channels // layer.groups, *layer.kernel_size
    return (
        (images.dtype == layer.weight.dtype or torch.is_autocast_enabled("cpu"))
        and layer.stride[0] == layer.stride[1]
        and layer.dilation == (1, 1)
        and layer.kernel_size[0] == layer.kernel_size[1]
        and layer.padding in ((0, 0), (1, 1), (2, 2), (3, 3))
        and layer.padding_mode == "zeros"
        and not any(hooks)
        and images.shape[1:2] == (layer.in_channels,)
        and layer.weight.shape == shape
    )


def _way(layer: nn.Conv2d, maps: torch.Tensor, precision: torch.dtype) -> type[_Convolution] | None:
    """What is faster for a layer of many channels than PyTorch's kernels, or None."""
    if _can_filter(layer) and _pays(layer, maps, precision):
        return _MinimalFilter
    if precision == torch.bfloat16 and layer.weight.requires_grad and _fills_tiles(layer):
        return _Tiles
    return None


def _can_filter(layer: nn.Conv2d) -> bool:
    """Whether minimal filtering computes what a plain layer does."""
    each = [count // layer.groups for count in (layer.in_channels, layer.out_channels)]
    return (
        layer.kernel_size == (3, 3)
        and layer.padding in ((0, 0), (1, 1), (2, 2))
        and all(count % MULTIPLE == 0 for count in each)
    )


def _pays(layer: nn.Conv2d, maps: torch.Tensor, precision: torch.dtype) -> bool:
    """Whether minimal filtering is the faster way for maps (N, C, H, W) in a precision."""
    if precision not in MANY or (precision == torch.bfloat16 and has_tiles()):
        return False
    if min(layer.in_channels, layer.out_channels) < MANY[precision] * layer.groups:
        return False
    if torch.get_num_threads() > 1 and not kernels.threaded():
        return False
    grow = 2 * int(layer.padding[0]) - 2
    for h, w in (maps.shape[2:], (maps.shape[2] + grow, maps.shape[3] + grow)):
        tiles = -(-h // 4) * -(-w // 4)
        if len(maps) * tiles < TILES or 16 * tiles > WASTE[precision] * h * w:
            return False
    return True


def _fills_tiles(layer: nn.Conv2d) -> bool:
    """Whether AMX has enough to do for the gradient of a layer's weights."""
    if not (has_tiles() and kernels.has_tiles()):
        return False
    each = [count // layer.groups for count in (layer.in_channels, layer.out_channels)]
    full = all(count % FULL == 0 for count in each)
    return full and layer.out_channels // FULL >= torch.get_num_threads()


class _Convolution(torch.autograd.Function):
    """PyTorch's convolution with stride 1, in steps of which a subclass does some otherwise."""

    @staticmethod
    def results(
        images: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        padding: int,
        groups: int,
    ) -> torch.Tensor:
        """y (N, outputs, h, w)."""
        return F.conv2d(images, weight, bias, padding=padding, groups=groups)

    @staticmethod
    def of_images(
        dy: torch.Tensor, weight: torch.Tensor, images: torch.Tensor, padding: int, groups: int
    ) -> torch.Tensor:
        """dx, of the images' shape."""
        found, _, _ = torch.ops.aten.convolution_backward(
            dy, images.to(dy.dtype), weight.to(dy.dtype), None, [1, 1], [padding] * 2, [1, 1],
            False, [0, 0], groups, [True, False, False],
        )  # fmt: skip
        return found

    @staticmethod
    def of_weights(
        dy: torch.Tensor, weight: torch.Tensor, images: torch.Tensor, padding: int, groups: int
    ) -> torch.Tensor:
        """dg, of the weights' shape."""
        _, found, _ = torch.ops.aten.convolution_backward(
            dy, images.to(dy.dtype), weight.to(dy.dtype), None, [1, 1], [padding] * 2, [1, 1],
            False, [0, 0], groups, [False, True, False],
        )  # fmt: skip
        return found.to(weight.dtype)

    @classmethod
    def forward(
        cls,
        ctx: Any,
        images: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        padding: int,
        groups: int,
    ) -> torch.Tensor:
        ctx.save_for_backward(images, weight, bias)
        ctx.save_for_forward(images, weight, bias)
        ctx.set_materialize_grads(False)
        ctx.rest = padding, groups
        return cls.results(images, weight, bias, padding, groups)

    @classmethod
    def jvp(
        cls,
        ctx: Any,
        t: torch.Tensor | None,
        t_w: torch.Tensor | None,
        t_b: torch.Tensor | None,
        *_: None,
    ) -> torch.Tensor:  # type: ignore[override]
        images, weight, _bias = ctx.saved_tensors
        # conv(t, w) + conv(x, t_w) + t_b
        parts = [] if t is None else [cls.apply(t, weight, None, *ctx.rest)]
        if t_w is not None or t_b is not None:
            t_w = torch.zeros_like(weight) if t_w is None else t_w
            parts.append(cls.apply(images, t_w, t_b, *ctx.rest))
        return functools.reduce(torch.add, parts)

    @classmethod
    def backward(cls, ctx: Any, dy: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        if dy is None:
            return (None,) * 5
        images, weight, bias = ctx.saved_tensors
        padding, groups = ctx.rest
        needs = list(ctx.needs_input_grad[:3])
        if torch.is_grad_enabled():  # someone differentiates this gradient
            found = torch.ops.aten.convolution_backward(
                dy, images.to(dy.dtype), weight.to(dy.dtype), [weight.shape[0]], [1, 1],
                [padding] * 2, [1, 1], False, [0, 0], groups, needs,
            )  # fmt: skip
            pairs = zip(found, (images, weight, bias), needs, strict=True)
            return (
                *(one.to(given.dtype) if need else None for one, given, need in pairs),
                None,
                None,
            )
        return (
            cls.of_images(dy, weight, images, padding, groups) if needs[0] else None,
            cls.of_weights(dy, weight, images, padding, groups) if needs[1] else None,
            _of_bias(dy) if needs[2] else None,
            None,
            None,
        )


class _FewChannels(_Convolution):
    @staticmethod
    def of_images(
        dy: torch.Tensor, weight: torch.Tensor, images: torch.Tensor, padding: int, groups: int
    ) -> torch.Tensor:
        """Every output pixel's gradient times the weights, summed at the pixel that they look at."""
        rows = dy.permute(0, 2, 3, 1).reshape(-1, dy.shape[1])
        taps = rows @ weight.to(dy.dtype).permute(0, 2, 3, 1).flatten(1)
        taps = taps.view(len(dy), *dy.shape[2:], *weight.shape[2:], weight.shape[1])
        return products.gather(taps, (images.shape[2], images.shape[3]), padding)


class _MinimalFilter(_Convolution):
    @staticmethod
    def results(
        images: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        padding: int,
        groups: int,
    ) -> torch.Tensor:
        weights = _by_group(weight, groups).permute(0, 3, 2, 1)
        b = None if bias is None else bias.detach().float().contiguous()
        return products.winograd(_last(images), _at_points(weights), b, groups, padding)

    @staticmethod
    def of_images(
        dy: torch.Tensor, weight: torch.Tensor, images: torch.Tensor, padding: int, groups: int
    ) -> torch.Tensor:
        """dy convolved with the weights turned round, from outputs to inputs."""
        weights = _by_group(weight, groups).flip(3).permute(0, 3, 1, 2)
        return products.winograd(_last(dy), _at_points(weights), None, groups, 2 - padding)

    @staticmethod
    def of_weights(
        dy: torch.Tensor, weight: torch.Tensor, images: torch.Tensor, padding: int, groups: int
    ) -> torch.Tensor:
        points = products.winograd_weights(_last(images), _last(dy), groups, padding)
        # dg = G^T dU G
        found = products.combined(_points().T.contiguous(), points)
        return found.permute(0, 3, 2, 1).reshape(weight.shape).contiguous()


class _Tiles(_Convolution):
    @staticmethod
    def of_weights(
        dy: torch.Tensor, weight: torch.Tensor, images: torch.Tensor, padding: int, groups: int
    ) -> torch.Tensor:
        """Every pixel's gradient times the pixels around it, summed by AMX."""
        maps = _last(images.to(dy.dtype))
        return products.tiles_weights(maps, _last(dy), weight.shape[-1], groups, padding)


@functools.cache
def has_tiles() -> bool:
    """Whether this processor multiplies matrices of bfloat16 as a whole (AMX)."""
    return bool(getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)())


@functools.cache
def _points() -> torch.Tensor:
    """G of F(4x4, 3x3) for rows and columns at once, (36, 9)."""
    g = torch.tensor(
        [
            [1 / 4, 0, 0],
            [-1 / 6, -1 / 6, -1 / 6],
            [-1 / 6, 1 / 6, -1 / 6],
            [1 / 24, 1 / 12, 1 / 6],
            [1 / 24, -1 / 12, 1 / 6],
            [0, 0, 1],
        ],
        dtype=torch.float32,
        device="cpu",
    )
    return torch.kron(g, g)


def _by_group(weight: torch.Tensor, groups: int) -> torch.Tensor:
    """Weights (groups, outputs, inputs, 9)."""
    return weight.detach().reshape(groups, -1, weight.shape[1], 9)


def _at_points(weights: torch.Tensor) -> torch.Tensor:
    """U = G g G^T: (groups, 9, from, to) becomes (groups, 36, from, to)."""
    return products.combined(_points(), weights.float().contiguous())


def _of_bias(dy: torch.Tensor) -> torch.Tensor:
    """The bias's gradient (C,): PyTorch's sum over images and pixels takes up to ten times as long."""
    plain, _ = kernels.moments(_last(dy), torch.zeros(dy.shape[1]))
    return plain.sum(0)


def _last(maps: torch.Tensor) -> torch.Tensor:
    """The maps with channels last, as the kernels read them."""
    return maps.detach().contiguous(memory_format=torch.channels_last)
