"""Random choice of real images: for a batch, more often those that the model gets wrong (FedVCK,
Eq. 5-8), and as initial condensed images.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.nn import functional as F

from core.errors import InputError, unknown
from core.models.tensors import at_least_float32

BLENDS = ("probabilities", "logits")
RULES = ("share", "softmax")
STARTS = ("noise", "real", "real_average")
#: real images behind one image of "real_average", as in FedVCK's released code and in a public program
#: of FedDM
AVERAGED = 5


def importance(loss: torch.Tensor, b: float) -> torch.Tensor:
    """w = 1 / (1 + exp(-err + b)), in (0, 1), of prediction errors of any shape (FedVCK, Eq. 5)."""
    return torch.sigmoid(at_least_float32(loss) - b)


def smoothed_error(
    current: torch.Tensor,
    previous: torch.Tensor,
    labels: torch.Tensor,
    alpha: float,
    blend: str = "probabilities",
) -> torch.Tensor:
    """Cross-entropy of a model blended with the model of the round before, per sample (FedVCK, Eq.
    7).

    Args:
        current: logits (N, C) of M_t; previous: logits (N, C) of M_{t-1}.
        labels: (N,) int64.
        alpha: weight of the current model, in [0, 1]; with 1 this is Eq. 6. The paper does not
            state it; the released code has 0.5.
        blend: "probabilities", as in the paper: M(x) has its softmax, since Eq. 11 calls the model
            without it f; "logits", as released.

    Returns: (N,) float32 (float64 for float64). Raises InputError for another alpha or blend.
    """
    if blend not in BLENDS:
        raise unknown("blend of two models", blend, BLENDS)
    if not 0 <= alpha <= 1:
        raise InputError(
            f"alpha, the weight of the current model, must be in [0, 1], not {alpha!r}"
        )
    current, previous = at_least_float32(current), at_least_float32(previous)
    if blend == "logits":
        return F.cross_entropy(alpha * current + (1 - alpha) * previous, labels, reduction="none")
    # log(alpha p + (1 - alpha) q), from log p and log q: a probability that underflows still has a
    # finite error
    logs = [
        (math.log(weight) if weight else -math.inf)
        - F.cross_entropy(logits, labels, reduction="none")
        for weight, logits in ((alpha, current), (1 - alpha, previous))
    ]
    return -torch.logaddexp(*logs)


def selection_probabilities(
    weights: torch.Tensor, group: torch.Tensor, groups: int, rule: str = "share"
) -> torch.Tensor:
    """Probability of each sample to be drawn from its group (FedVCK, Eq. 8).

    Args:
        weights: (N,) importances, positive.
        group: (N,) int64 in 0..groups-1.
        rule: "share", w / sum w, as in the paper; "softmax", exp(w) / sum exp(w), as released: with w in
            (0, 1) no probability is more than e times another.

    Returns: (N,), the sum of each group is one. Raises InputError for another rule.
    """
    if rule not in RULES:
        raise unknown("rule of selection", rule, RULES)
    weights = at_least_float32(weights)
    if rule == "softmax":
        highest = weights.new_full((groups,), -math.inf).scatter_reduce(0, group, weights, "amax")
        weights = torch.exp(weights - highest[group])
    totals = weights.new_zeros(groups).index_add(0, group, weights)
    return weights / totals[group]


def draw(
    probabilities: torch.Tensor, group: torch.Tensor, groups: int, uniform: torch.Tensor
) -> torch.Tensor:
    """Rows drawn from every group, with replacement, by the inverse of the distribution function.

    Args:
        probabilities: (N,), not negative; only their ratios within a group matter.
        group: (N,) int64, ascending; every group 0..groups-1 has a row of positive probability.
        uniform: (G, count) numbers in [0, 1): each becomes one row, so who draws them decides the
            random stream.

    Returns: (G, count) int64 positions in `probabilities`; row g belongs to group g.
    """
    # in float64, since the running sum goes over all groups
    running = probabilities.double().cumsum(0)
    each = torch.arange(groups, device=group.device)
    first = torch.searchsorted(group, each)
    last = torch.searchsorted(group, each, right=True) - 1
    high = running[last, None]
    low = torch.cat([running.new_zeros(1), running])[first, None]
    rows = torch.searchsorted(running, low + uniform.double() * (high - low), right=True)
    return torch.minimum(torch.maximum(rows, first[:, None]), last[:, None])


def draw_different(
    group: torch.Tensor, groups: int, keys: torch.Tensor, count: int
) -> torch.Tensor:
    """Rows drawn from every group without replacement: those with the lowest keys.

    Args:
        group: (N,) int64, ascending; every group 0..groups-1 has a row.
        keys: (N,) numbers in [0, 1), one for each row.

    Returns: (G, count) int64 positions; row g belongs to group g. A group with fewer than `count`
    rows is passed again and again, in the same order; the last pass may end early.
    """
    # float64 keeps the key beside the group's number
    order = torch.argsort(group + keys.double())
    each = torch.arange(groups, device=group.device)
    # not bincount, for which a GPU would be waited
    first = torch.searchsorted(group, each)
    sizes = torch.searchsorted(group, each, right=True) - first
    place = torch.arange(count, device=group.device) % sizes[:, None]
    return order[first[:, None] + place]


def initial_images(
    kind: str,
    images: torch.Tensor,
    group: torch.Tensor,
    counts: torch.Tensor,
    normalise: Callable[[torch.Tensor], torch.Tensor],
    generator: torch.Generator,
) -> torch.Tensor:
    """Images to start condensation from, as network inputs: counts.sum() images, those of group 0
    first.

    Args:
        kind: "noise", every value from N(0, 1), as in FedVCK, so that no pixel comes from a
            real image; "real", random real images of the group: none twice until all have been
            used; "real_average", each the mean of five random real images of the group: five
            different ones where the group has as many.
        images: real images (N, C, H, W) uint8; group: (N,) int64, ascending, their groups.
        counts: (G,) int64, condensed images per group.
        normalise: from uint8 images to network inputs, as `Dataset.normalise`.
        generator: numbers are drawn where it is, then copied to the device of the images.

    Returns: (counts.sum(), C, H, W) float32. Raises InputError for an unknown kind, and for a group
    without real images, unless they start from noise.
    """
    if kind not in STARTS:
        raise unknown("initialisation of condensed images", kind, STARTS)
    total = int(counts.sum())
    if kind == "noise":
        noise = torch.randn(total, *images.shape[1:], generator=generator, device=generator.device)
        return noise.to(images.device)
    sizes = torch.bincount(group, minlength=len(counts))
    if bool(((sizes == 0) & (counts > 0)).any()):
        raise InputError("a group without real images can only start from noise")
    owner = torch.repeat_interleave(torch.arange(len(counts), device=group.device), counts)
    first = (sizes.cumsum(0) - sizes)[owner]
    if kind == "real":
        rank = torch.arange(total, device=group.device) - (counts.cumsum(0) - counts)[owner]
        return normalise(images[_shuffled(group, generator)[first + rank % sizes[owner]]])
    rows = first[:, None] + _different(sizes[owner], AVERAGED, generator)
    summed = normalise(images[rows[:, 0]])
    for column in rows.T[1:]:  # one image at a time, to save memory
        summed = summed + normalise(images[column])
    return summed / AVERAGED


def _shuffled(group: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Rows (N,) in a random order within each group, the groups themselves in order."""
    # float64 keeps the random part beside the group's number
    keys = torch.rand(len(group), generator=generator, device=generator.device, dtype=torch.float64)
    return torch.argsort(group + keys.to(group.device))


def _different(sizes: torch.Tensor, number: int, generator: torch.Generator) -> torch.Tensor:
    """(M, number) whole numbers below `sizes` (M,), different in a row where sizes allow: the k-th is one
    of size - k places, and goes up by one for every earlier pick at or before.
    """
    uniform = torch.rand(
        len(sizes), number, generator=generator, device=generator.device, dtype=torch.float64
    )
    uniform, enough = uniform.to(sizes.device), sizes >= number
    picks = sizes.new_empty(len(sizes), 0)
    for k in range(number):
        left = torch.where(enough, sizes - k, sizes)
        pick = (uniform[:, k] * left).long().minimum(left - 1)
        for earlier in picks.sort(1).values.unbind(1):
            pick = pick + (enough & (pick >= earlier)).long()
        picks = torch.cat([picks, pick[:, None]], 1)
    return picks
