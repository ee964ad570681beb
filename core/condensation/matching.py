"""Distances between distributions of features, and matching losses of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch.func import vmap

from core.errors import InputError, brief, one_line, unknown
from core.models.tensors import at_least_float32

#: from the real features (n, D) of a class, the condensed ones (m, D) and the weights of these (m,),
#: 1 for an image and 0 for padding, to a scalar
MatchingLoss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
KERNELS = ("linear", "gaussian")
_OWN: dict[str, MatchingLoss] = {}
#: widths of the Gaussian kernel, as multiples of the bandwidth (M3D, and FedVCK's released code)
MULTIPLES = (0.25, 0.5, 1.0, 2.0, 4.0)


def register(name: str, loss: MatchingLoss) -> None:
    """Name a matching loss for the setting `kernel`, in this process. InputError for a name that is taken."""
    if not isinstance(name, str) or not name or name in KERNELS or not callable(loss):
        raise InputError(
            f"a loss of your own needs a name of its own and a function, not {brief((name, loss))}"
        )
    _OWN[name] = loss


def kernel_or_loss(instance: Any, attribute: attrs.Attribute, value: Any) -> None:
    """Validator: a kernel of `mmd`, or a matching loss or its registered name."""
    known = (*KERNELS, *_OWN)
    if not callable(value) and value not in known:
        also = "or a function (real, condensed, weights) -> scalar"
        raise InputError(f"{attribute.name}: {unknown('kernel', value, known)}, {also}")


def matching_losses(
    kernel: str | MatchingLoss, real: torch.Tensor, condensed: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """L of every group, (G,), of real (G, n, D) and condensed (G, m, D) features, with weights (G, m) of the
    latter: the `mmd` of a kernel, or a loss of one's own. InputError where that fails or is no scalar.
    """
    if isinstance(kernel, str) and kernel not in _OWN:
        # L = sum_c K_BB + K_SS - 2 K_BS, for every client (Eq. 3; with P_w Eq. 9)
        return mmd(real, condensed, kernel, weights)
    loss = _OWN[kernel] if isinstance(kernel, str) else kernel
    shapes = ", ".join(str(tuple(each.shape[1:])) for each in (real, condensed, weights))
    what = f"the loss {getattr(loss, '__name__', brief(loss))} of {shapes}"
    try:
        losses = vmap(loss)(real, condensed, weights)
    except Exception as error:  # code of others can raise anything
        raise InputError(f"{what} fails: {one_line(error)}") from None
    if losses.ndim != 1 or losses.requires_grad != condensed.requires_grad:
        raise InputError(f"{what} is no scalar that depends on the condensed features")
    return losses


def is_of_means(kernel: str | MatchingLoss) -> bool:
    """True where a loss depends on real features by their mean alone, as two of them show."""
    real, condensed = torch.eye(2, 3)[None], torch.tensor([[[1.0, 3, 2], [4, 1, 5]]])
    means = real.mean(1, keepdim=True)
    first, second = (matching_losses(kernel, x, condensed, torch.ones(1, 2)) for x in (real, means))
    return torch.allclose(first, second)


def mmd(
    x: torch.Tensor,
    y: torch.Tensor,
    kernel: str = "linear",
    y_weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Squared maximum mean discrepancy, biased: K_XX + K_YY - 2 K_XY (FedVCK, Eq. 3).

    K_XY is the mean of k(x_i, y_j) over all pairs, pairs of a sample with itself included. With
    weights of Y it is the mean over i of sum_j v_j k(x_i, y_j), where v are the weights divided by their
    sum. A sample of weight 0 does not count, so that groups of different sizes fit in one tensor.

    Kernels:
        "linear": k(a, b) = <a, b>. The MMD is then the squared distance of the means (Eq. 2), and is
            computed as such, without the n x m matrix. FedVCK names a linear and an inner-product
            kernel, but a linear kernel is the inner product, and the released code has this one only
            under the name "linear" (its other kernels are polynomial, Gaussian and Laplace).
        "gaussian": k(a, b) = sum_m exp(-|a - b|^2 / (m h)) for m = 1/4, 1/2, 1, 2, 4, as in M3D
            (Zhang et al. 2024), which FedVCK refers to, and in the released code. The bandwidth h
            is the mean of |a - b|^2 over all pairs of two different samples of X and Y together, of
            weight above 0; it is taken as a constant: no gradient flows through it.

    Args:
        x: features (..., n, D); y: (..., m, D); all finite, also those of weight 0.
        y_weights: (..., m), not negative; None: all alike. Where all are 0, Y has mean 0.

    Returns: (...,), in float32 even under autocast (float64 for float64). Raises InputError for an
    unknown kernel.
    """
    if kernel not in KERNELS:
        raise unknown("kernel", kernel, KERNELS)
    with torch.autocast(x.device.type, enabled=False):
        x, y = at_least_float32(x), at_least_float32(y)
        if kernel == "gaussian":
            return gaussian_mmd(x, y, weight_shares(y, y_weights))
        mean = (
            y.mean(-2)
            if y_weights is None
            else (y * weight_shares(y, y_weights)[..., None]).sum(-2)
        )
        return (x.mean(-2) - mean).square().sum(-1)


def _not_zero(values: torch.Tensor) -> torch.Tensor:
    return values.clamp_min(torch.finfo(values.dtype).tiny)


def weight_shares(samples: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """Weights that sum to one, (..., n)."""
    if weights is None:
        return samples.new_full(samples.shape[:-1], 1 / samples.shape[-2])
    weights = weights.to(samples.dtype)
    return weights / _not_zero(weights.sum(-1, keepdim=True))


def gaussian_mmd(x: torch.Tensor, y: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """The squared distance of `mmd` with the Gaussian kernel; `shares` of Y sum to one."""
    samples = torch.cat([x, y], -2)
    # distances do not change, but |a|^2 + |b|^2 - 2<a, b> loses fewer digits near the origin
    samples = samples - samples.detach().mean(-2, keepdim=True)
    squares = samples.square().sum(-1)
    distances = (
        squares[..., :, None] + squares[..., None, :] - 2 * samples @ samples.transpose(-2, -1)
    )
    distances = distances.clamp_min(0)
    signed = torch.cat([weight_shares(x, None), -shares], -1)
    # h: a sample has distance 0 to itself
    present = (signed != 0).to(x.dtype)
    count = present.sum(-1)
    total = torch.einsum("...i,...ij,...j->...", present, distances.detach(), present)
    width = _not_zero(total / _not_zero(count * (count - 1)))[..., None, None]
    kernel = sum(torch.exp(-distances / (width * multiple)) for multiple in MULTIPLES)
    return torch.einsum("...i,...ij,...j->...", signed, kernel, signed)
