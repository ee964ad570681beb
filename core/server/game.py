"""The terms that DFRD's generator plays its game with (Luo et al., NeurIPS 2023, Section 3).

The server trains a generator of images against an ensemble of the clients' models and the global
model. Beside seeing the wanted label in its images, it looks for images on which the two disagree,
and for images that differ.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

#: how the disagreement is averaged, and through which models its gradient flows
FORMS = ("printed", "released")


def transferability_loss(
    ensemble: torch.Tensor,
    own: torch.Tensor,
    labels: torch.Tensor,
    temperature: float = 1.0,
    form: str = "printed",
) -> torch.Tensor:
    """L_tran = -eps KL(sum_i tau_{i,y} f_i(s), f(s)).

    eps is 1 where the ensemble sees the label and the global model does not: such images lie
    between the two decision boundaries. `ensemble` and `own` are logits (N, C) of the ensemble and of
    the global model; both are divided by the temperature.

    "printed" is the mean over all images, and its gradient passes through both models. "released"
    is the mean over the images with eps = 1, 0 where there are none, with f(s) fixed. (The
    code's value is not a number where there are none; its gradient is 0.)
    """
    between = (ensemble.argmax(1) == labels) & (own.argmax(1) != labels)
    if form == "released":
        own = own.detach()
    apart = F.kl_div(
        (ensemble / temperature).log_softmax(1),
        (own / temperature).log_softmax(1),
        log_target=True,
        reduction="none",
    ).sum(1)
    if form == "released":
        return -(between * apart).sum() / between.sum().clamp(min=1)
    return -(between * apart).mean()


def embedding_excess(embeddings: torch.Tensor) -> torch.Tensor:
    """Mean of max(0, ||e|| - sqrt(z)) over embeddings (N, z): sqrt(z) is the length at variance 1."""
    lengths = torch.linalg.vector_norm(embeddings, dim=1)
    return (lengths - math.sqrt(embeddings.shape[1])).clamp(min=0).mean()


def diversity_loss(images: torch.Tensor, merged: torch.Tensor, distance: str) -> torch.Tensor:
    """L_div = exp(-1/Q^2 sum_{i,j} |s_i - s_j| |h_i - h_j|), in (0, 1], of images s (Q, ...) and `merged` h
    (Q, z); |a| by `distance`: the 2-"norm" of the paper, or "mean_square".
    """
    apart = [_distances(each.flatten(1).float(), distance) for each in (images, merged)]
    return torch.exp(-(apart[0] * apart[1]).mean())


def _distances(rows: torch.Tensor, distance: str) -> torch.Tensor:
    """Distances of all pairs of rows, (Q, Q) of (Q, D)."""
    rows = rows - rows.mean(0)
    squares = rows.square().sum(1)
    itself = torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    # the distance to itself is 0, and a square root must not see it
    apart = (squares[:, None] + squares - 2 * rows @ rows.T).clamp_min(0)
    if distance == "mean_square":
        return apart.masked_fill(itself, 0.0) / rows.shape[1]
    return apart.masked_fill(itself, 1.0).sqrt().masked_fill(itself, 0.0)
