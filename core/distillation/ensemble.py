"""Weights of teachers for each class of each input, and the ensemble by them (FedIOD, Eq. 7 to 9)."""

from __future__ import annotations

import torch

from core.errors import unknown
from core.models.tensors import at_least_float32

CLASS_RATIOS = ("count", "share")


def class_input_importance(
    class_counts: torch.Tensor,
    generated: torch.Tensor | None = None,
    real: torch.Tensor | None = None,
    *,
    class_ratio: str = "count",
) -> torch.Tensor:
    """pi_k^c(x), (K, N, C): the class ratio times the discriminator ratio, normalised over the
    clients (Eq. 8).

    It estimates P_k(y|x) / P(y|x) (Eq. 7): the class ratio for P_k(y) / P(y), the discriminator
    ratio for P(x) / P_k(x). A D_k that says how likely x was generated grows with that; Eq. 2 of
    the paper is linear in D_k and asks it for 0 or 1. Without `generated` and `real` only the class
    ratio is left: the weights of the released code, our interpretation of the * of Tables 6 and 7,
    (K, 1, C).

    Args:
        class_counts: (K, C), samples of each class at each client.
        generated: D_k(x), (K, N), not negative; real: the mean of D_k over real images of client k,
            (K,).
        class_ratio: the numerator; its denominator is the same for all clients and cancels.
            "count": the number of samples of class c, as the sentence below Eq. 8 says. "share":
            that number over the client's samples, the expectation that the equation has; then a
            client with one image has as much to say as one with thousands.

    A class that no client has gets the weight 1/K from each. Raises InputError for an unknown
    `class_ratio`.
    """
    if class_ratio not in CLASS_RATIOS:
        raise unknown("class ratio", class_ratio, CLASS_RATIOS)
    counts = class_counts.double()
    # E_{y'_k} |y'_k = c|
    numerator = (
        counts if class_ratio == "count" else counts / counts.sum(1, keepdim=True).clamp_min(1)
    )
    absent = numerator.sum(0) == 0
    log = torch.where(absent, 1.0, numerator).log()[:, None]
    if generated is not None and real is not None:
        # D_k(x) / E_{x'_k} D_k(x'_k), as a difference of logarithms: it neither overflows nor is it
        # 0 / 0
        ratio = floored_log(generated) - floored_log(real)[:, None]
        log = log + ratio[..., None].where(~absent, 0.0)
    # pi_k^c(x) = pi^_k^c(x) / sum_k' pi^_k'^c(x)
    return log.softmax(0).float()


def ensemble_logits(logits: torch.Tensor, importance: torch.Tensor) -> torch.Tensor:
    """A(z_1, ..., z_K, x) = sum_k pi_k(x) * z_k, (N, C), of (K, N, C) and (K, N or 1, C) (Eq. 9)."""
    return (importance * at_least_float32(logits)).sum(0)


def floored_log(values: torch.Tensor) -> torch.Tensor:
    """The logarithm of positive values in float64; 0 counts as the smallest float32."""
    return values.double().clamp_min(torch.finfo(torch.float32).tiny).log()
