"""Averages of uploads: by weights, and so that a few hostile clients cannot decide them.

Coordinate-wise median and trimmed mean: Yin, Chen, Ramchandran, Bartlett. Byzantine-Robust
Distributed Learning: Towards Optimal Statistical Rates. ICML 2018, Definitions 1 and 2. Norm
clipping: Sun, Kairouz, Suresh, McMahan. Can You Really Backdoor Federated Learning? 2019, Section
4; the bound is the median of the norms of the round, so that it need not be chosen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import attrs
import torch

from core.checks import number, one_of
from core.errors import InputError

RULES = ("mean", "median", "trimmed_mean", "norm_clipping")
Named = Mapping[str, torch.Tensor]


@attrs.frozen(kw_only=True, slots=False)
class Aggregation:
    """Hyper-parameters of the aggregation of models."""

    #: "mean": by numbers of samples, as the methods have it; "median" and "trimmed_mean": of each
    #: number by itself, every client counting once; "norm_clipping": the mean of updates no longer
    #: than the median one, and the median of running statistics
    aggregation: str = attrs.field(default="mean", validator=one_of("aggregation", *RULES))
    #: share of the clients that "trimmed_mean" leaves out at either end
    trim: float = attrs.field(default=0.1, validator=number(0, 0.49))


def weighted_average(uploads: Sequence[Named], weights: Sequence[float]) -> dict[str, torch.Tensor]:
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


def combined(
    uploads: Sequence[Named], samples: Sequence[float], start: Named, settings: Aggregation
) -> dict[str, torch.Tensor]:
    """The clients' tensors as one, by the rule of the settings.

    Args:
        uploads: one mapping per client, all with the same names and shapes.
        samples: a weight per client, for the rules that have weights.
        start: what the clients started from, by name; zeros where a name is missing.

    Returns: tensors of the same names, in the dtype of the first upload. Raises InputError as
    `weighted_average`.
    """
    if settings.aggregation == "mean":
        return weighted_average(uploads, samples)
    if settings.aggregation == "norm_clipping":
        return _clipped_mean(uploads, samples, start)
    trim = settings.trim if settings.aggregation == "trimmed_mean" else 0.5
    return {
        name: _trimmed(torch.stack([upload[name] for upload in uploads]), trim)
        for name in uploads[0]
    }


def _trimmed(values: torch.Tensor, share: float) -> torch.Tensor:
    """Mean over clients (K, ...) without a share at either end; with a half, the median."""
    clients = len(values)
    cut = min(math.ceil(share * clients - 1e-9), (clients - 1) // 2)
    middle = values.sort(0).values[cut : clients - cut]
    return middle.to(torch.promote_types(values.dtype, torch.float32)).mean(0).to(values.dtype)


def _clipped_mean(
    uploads: Sequence[Named], samples: Sequence[float], start: Named
) -> dict[str, torch.Tensor]:
    """x + sum_k n_k/n d_k min(1, M / ||d_k||), d_k = x_k - x, M the median of the norms.

    Each part of an upload (the first word of a name) has its own norm and median. Of running statistics,
    which are no update and would drown the weights, the median is taken.
    """
    result, parts = {}, dict[str, list[str]]()
    for name in uploads[0]:
        if name.startswith("buffers/") or "/buffers/" in name:
            result[name] = _trimmed(torch.stack([upload[name] for upload in uploads]), 0.5)
        else:
            parts.setdefault(name.split("/", 1)[0], []).append(name)
    for names in parts.values():
        origin = {name: start.get(name, torch.zeros_like(uploads[0][name])) for name in names}
        updates = [{name: upload[name] - origin[name] for name in names} for upload in uploads]
        flat = [torch.cat([d.double().flatten() for d in each.values()]) for each in updates]
        norms = torch.stack([update.norm() for update in flat])
        factors = (norms.quantile(0.5) / norms.clamp(min=1e-30)).clamp(max=1).tolist()
        pairs = zip(updates, factors, strict=True)
        shortened = [{name: d * factor for name, d in each.items()} for each, factor in pairs]
        mean = weighted_average(shortened, samples)
        result |= {name: origin[name] + value for name, value in mean.items()}
    return result
