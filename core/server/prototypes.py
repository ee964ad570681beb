"""Class prototypes: mean logits from the clients, the classes they are confused with, mean features
on the server.

FedVCK (AAAI 2025), Eq. 11-14. The two copies of the paper's text differ in Eq. 14-16: one writes
S^t, the other S^{:t}. Below Eq. 14 both define S^{t-1} (or S^{:t-1}) as the accumulated set, and
both sum over S^{0..t-1}, so the feature prototypes are means over all earlier rounds. The functions
here take the images' features and leave the choice to the caller.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from core.checks import check_whole
from core.errors import InputError, unknown

OWN = ("never", "forced")


def logit_prototypes(
    logits: torch.Tensor, labels: torch.Tensor, classes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """A client's mean logits per class, p_c^{k,t} = 1/N_{c,k} sum_i f_{M_{t-1}}(x_{i,c,k}) (FedVCK,
    Eq. 11).

    Args:
        logits: (N, C') outputs of the received model, without softmax; N may be 0.
        labels: (N,) int64 in [0, classes).

    Returns: prototypes (classes, C') float32 or wider, with zero rows for classes the client does
    not hold, and counts (classes,) int64.
    """
    return _means(logits, labels, classes)


def aggregate_prototypes(prototypes: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Global logit prototypes, p_c^t = sum_k |T_{c,k}| p_c^{k,t} / |T_c| (FedVCK, Eq. 12).

    Args:
        prototypes: (K, C, C'), one slice per client; counts: (K, C), samples of each class on each
            client.

    Returns: (C, C') float32 or wider. A class that no client holds gets a row of zeros;
    `counts.sum(0) > 0` tells it from the others and is the mask `hard_negatives` takes.

    Raises InputError when the shapes do not fit or a count is negative.
    """
    if prototypes.ndim != 3 or counts.shape != prototypes.shape[:2]:
        raise InputError(
            f"prototypes of shape (clients, classes, classes) need counts of shape (clients, classes), "
            f"not {tuple(prototypes.shape)} with {tuple(counts.shape)}"
        )
    if bool((counts < 0).any()):
        raise InputError("the numbers of samples behind prototypes must not be negative")
    # float64, because a sum of many clients' products would lose digits that one client's mean
    # still has
    weights = counts.double()
    total = torch.einsum("kc,kcd->cd", weights, prototypes.double())
    mean = total / weights.sum(0).clamp(min=1).unsqueeze(1)
    return mean.to(torch.promote_types(prototypes.dtype, torch.float32))


def hard_negatives(
    prototypes: torch.Tensor, k: int, present: torch.Tensor | None = None, own: str = "never"
) -> torch.Tensor:
    """The classes each class is most confused with, HN(c) = argtopK_{j != c} p_c[j] (FedVCK, Eq.
    13).

    Args:
        prototypes: (C, C) global logit prototypes.
        k: K, at least 1. It is capped at the number of classes there are to choose from, C - 1 (C
            where `own` is "forced"): the paper's Table 13 goes up to K = 9 on 9 classes.
        present: (C,) bool, the classes that some client holds; the others are never chosen and have
            no negatives.
        own: "never" chooses among the other classes, as printed. From round 1 on the released
            code puts c itself in the place of the K-th of all classes unless it is among them
            ("forced"; here c then stands first), which leaves K - 1 negatives. In round 0, which has no
            contrastive term, it takes the first K of all classes.

    Returns: (C, min(k, C - 1 or C)) int64, hardest first; of equal logits the lower class first.
    Where fewer classes are left to choose from, the row ends in -1, which
    `relational_contrastive_loss` skips.

    Raises InputError for k below 1, prototypes that are not square and an unknown `own`.
    """
    if prototypes.ndim != 2 or prototypes.shape[0] != prototypes.shape[1]:
        raise InputError(
            f"hard negatives need square prototypes (classes, classes), not {tuple(prototypes.shape)}"
        )
    check_whole("the number of hard negatives", k, 1)
    if own not in OWN:
        raise unknown("treatment of the own class", own, OWN)
    classes = len(prototypes)
    diagonal = torch.eye(classes, dtype=torch.bool, device=prototypes.device)
    barred = diagonal if own == "never" else torch.zeros_like(diagonal)
    if present is not None:
        barred = barred | ~present.unsqueeze(0) | ~present.unsqueeze(1)
    scores = prototypes.masked_fill(diagonal, math.inf) if own == "forced" else prototypes
    # a stable sort, because topk leaves the order of equal values open
    order = scores.masked_fill(barred, -math.inf).argsort(dim=1, descending=True, stable=True)
    chosen = order[:, : min(k, classes - 1 if own == "never" else classes)]
    return chosen.masked_fill(barred.gather(1, chosen), -1)


def feature_prototypes(
    features: torch.Tensor, labels: torch.Tensor, classes: int, normalise: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean features per class, f_c^t = 1/|S_c| sum_{s in S_c^{0..t-1}} psi^{t-1}(s) (FedVCK, Eq.
    14).

    Args:
        features: (N, D) of the condensed images of all rounds before this one, embedded by the
            global model as it is at the start of the round, in evaluation mode.
        labels: (N,) int64 in [0, classes).
        normalise: scale each prototype to length 1, as the released code does.

    Returns: prototypes (classes, D) float32 or wider, with zero rows for classes without images,
    and the mask (classes,) bool of the classes that have some.
    """
    prototypes, counts = _means(features, labels, classes)
    return F.normalize(prototypes, dim=1) if normalise else prototypes, counts > 0


def _means(
    values: torch.Tensor, labels: torch.Tensor, classes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean rows (classes, D) per class and numbers of rows (classes,); sums run in float64."""
    if values.ndim != 2 or labels.shape != values.shape[:1]:
        raise InputError(
            f"prototypes need values (samples, D) and as many labels, "
            f"not {tuple(values.shape)} with {tuple(labels.shape)}"
        )
    counts = torch.zeros(classes, dtype=torch.int64, device=labels.device)
    counts.index_add_(0, labels, torch.ones_like(labels))
    sums = torch.zeros(classes, values.shape[1], dtype=torch.float64, device=values.device)
    sums.index_add_(0, labels, values.double())
    means = sums / counts.clamp(min=1).unsqueeze(1)
    return means.to(torch.promote_types(values.dtype, torch.float32)), counts
