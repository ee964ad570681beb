"""Averages of what clients send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from core.errors import InputError


def weighted_average(
    uploads: Sequence[Mapping[str, torch.Tensor]], weights: Sequence[float]
) -> dict[str, torch.Tensor]:
    """The average of named tensors, sum_k w_k x_k / sum_k w_k (McMahan et al. 2017, Algorithm 1).

    Args:
        uploads: one mapping per client, all with the same names and shapes.
        weights: one non-negative weight per client, for example its number of samples.

    Returns: the averaged tensors, in the dtype of the first upload; sums run in float32 or wider.

    Raises InputError when no weight is positive or the names differ.
    """
    if len(uploads) != len(weights):
        raise InputError(f"{len(uploads)} uploads need as many weights, not {len(weights)}")
    total = float(sum(weights))
    if not total > 0 or min(weights) < 0:
        raise InputError(
            "weights must not be negative, and at least one must be positive: has any client data?"
        )
    if any(upload.keys() != uploads[0].keys() for upload in uploads):
        raise InputError("uploads can only be averaged when all have the same tensors")
    average = {}
    for name, first in uploads[0].items():
        sum_ = torch.zeros_like(first, dtype=torch.promote_types(first.dtype, torch.float32))
        for upload, weight in zip(uploads, weights, strict=True):
            sum_.add_(upload[name], alpha=weight / total)
        average[name] = sum_.to(first.dtype)
    return average
