"""Relational supervised contrastive learning with prototypes (FedVCK, AAAI 2025, Eq. 15)."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from core.errors import InputError, unknown
from core.models import initialise
from core.rng import Rng

FORMS = ("printed", "released")
SIMILARITIES = ("dot", "cosine")


def relational_contrastive_loss(
    z: torch.Tensor,
    labels: torch.Tensor,
    prototypes: torch.Tensor,
    negatives: torch.Tensor,
    temperature: float,
    form: str = "printed",
    similarity: str | None = None,
    present: torch.Tensor | None = None,
) -> torch.Tensor:
    """Draws features to the prototype of their class and pushes them off those of its hard
    negatives (Eq. 15).

    As printed, l_i = -log exp(z_i . f_{c_i} / tau) / sum_{j in HN(c_i)} exp(z_i . f_j / tau): the
    positive is not in the denominator, so l_i can be negative. With similarity "dot" it has no lower
    bound in z_i, unless f_{c_i} is a convex combination of its negatives' prototypes: once z_i's
    product with f_{c_i} is larger than those with the others, l_i falls without end as z_i grows,
    and training can diverge. SimSiam, which the paper follows, takes the cosine, which bounds l_i.

    The released code takes the cosine, adds the positive to the denominator, and repeats a
    prototype for every sample of its class in the batch: l_i = -log n_{c_i} e_{c_i} / sum_{j in
    HN(c_i) or j = c_i} n_j e_j, with e_j the exponentials above and n_j the samples of class j in
    this batch.

    Eq. 15 prints the sum over the images. Eq. 16 adds it to the cross-entropy, a mean in every
    implementation. With the sum the weight between the two terms would grow with the size of the
    batch; the mean divides both sums by the same number, keeps the printed weight of 1 for any batch,
    and is what the released code does. So this is the mean over the samples that count: a sample does
    not when its class has no prototype or, as printed, none of its negatives has one. In the released
    form such a sample counts with 0, for its own class is in the denominator.

    Args:
        z: (N, D) projected features h(psi(s_i)); labels: (N,) int64.
        prototypes: (C, D) feature prototypes; no gradient flows into them.
        negatives: (C, k) int64 from `hard_negatives`; -1 means none.
        temperature: tau, above 0.
        form: "printed" or "released"; similarity: "dot" or "cosine", by default "dot" for the
            printed form and "cosine" for the released one.
        present: (C,) bool, classes that have a prototype; without it all have.

    Returns: a scalar in float32 or wider, also under autocast; 0 when no sample counts.
    """
    if not 0 < temperature < math.inf:
        raise InputError(f"the temperature must be a number above 0, not {temperature!r}")
    if form not in FORMS:
        raise unknown("form of the contrastive loss", form, FORMS)
    if similarity is None:
        similarity = "cosine" if form == "released" else "dot"
    elif similarity not in SIMILARITIES:
        raise unknown("similarity", similarity, SIMILARITIES)
    with torch.autocast(z.device.type, enabled=False):
        wide = torch.promote_types(z.dtype, torch.float32)
        z, prototypes = z.to(wide), prototypes.detach().to(wide)
        if similarity == "cosine":
            z, prototypes = F.normalize(z, dim=1), F.normalize(prototypes, dim=1)
        scores = z @ prototypes.T / temperature
        if form == "released":
            # n_j exp(s_j) = exp(s_j + log n_j); a class that is not in the batch drops out with log 0
            counts = scores.new_zeros(len(prototypes))
            scores = scores + counts.index_add(0, labels, scores.new_ones(len(labels))).log()
        mask = _denominators(negatives, present, own=form == "released")[labels]
        mask = mask & ~scores.isneginf()
        counted = mask.any(1) if present is None else mask.any(1) & present[labels]
        # rows without any term would give -inf and a gradient of nan, so they are made harmless
        # before the logarithm
        terms = scores.masked_fill(~mask, -math.inf).masked_fill(~counted[:, None], 0)
        positive = scores.gather(1, labels[:, None]).squeeze(1)
        # l_i = log sum_j exp(s_ij) - s_{i, c_i}
        losses = (terms.logsumexp(1) - positive).masked_fill(~counted, 0)
        return losses.sum() / counted.sum().clamp(min=1)


def _denominators(negatives: torch.Tensor, present: torch.Tensor | None, own: bool) -> torch.Tensor:
    """The mask (C, C) of the classes in the denominator of each class."""
    classes = len(negatives)
    mask = torch.zeros(classes, classes + 1, dtype=torch.bool, device=negatives.device)
    # -1 goes to a spare column, which is cut off
    mask = mask.scatter(1, negatives.where(negatives >= 0, classes), True)[:, :classes]
    if own:
        mask = mask | torch.eye(classes, dtype=torch.bool, device=mask.device)
    return mask if present is None else mask & present


class Projector(nn.Module):
    """The learnable projector h of Eq. 15: linear, batch norm, ReLU, linear, from features (N, D)
    to (N, D).

    This is the predictor of SimSiam (Chen and He 2021) and BYOL (Grill et al. 2020). FedVCK does
    not print its size; 128 hidden units are those of its released code. A batch of one image has no
    statistics of its own, so it is normalised with the running ones.

    Args:
        dimension: D; rng: where the initial weights are drawn from; hidden: units of the hidden
            layer.
    """

    def __init__(self, dimension: int, rng: Rng, hidden: int = 128) -> None:
        super().__init__()
        if min(dimension, hidden) < 1:
            raise InputError(
                f"the sizes of a projector must be at least 1, not {dimension} and {hidden}"
            )
        self.first = _linear(dimension, hidden, rng.at("first"))
        self.norm = nn.BatchNorm1d(hidden)
        self.last = _linear(hidden, dimension, rng.at("last"))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Projected features (N, D)."""
        hidden, norm = self.first(features), self.norm
        if len(hidden) == 1:
            hidden = F.batch_norm(
                hidden, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps
            )
        else:
            hidden = norm(hidden)
        return self.last(hidden.relu())


def _linear(inputs: int, outputs: int, rng: Rng) -> nn.Linear:
    """A linear layer that is made without the global random numbers."""
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
    initialise(layer, rng)
    return layer
