"""Condensed knowledge: how much of it there is, and how much it changes from round to round."""

from __future__ import annotations

import pandas as pd
import torch

from core.condensation import mmd
from core.condensation.engine import condensed_counts
from core.condensation.objective import Condensation
from core.errors import InputError


def adjacent_mmd(
    features: torch.Tensor,
    labels: torch.Tensor,
    rounds: torch.Tensor,
    kernel: str = "linear",
) -> pd.DataFrame:
    """Squared MMD between the condensed knowledge of a round and of the round before, class by
    class.

    This is what FedVCK's Figures 1b and 3 show. The paper names neither the encoder nor the kernel.
    All features must come from one encoder: then a distance says that the images differ, and not
    that the model has moved.

    Args:
        features: (N, D) of condensed images of all clients; labels: (N,) classes; rounds: (N,)
            whole numbers.
        kernel: as in `core.condensation.mmd`.

    Returns: a row for every round and class that has images in this round and in the one before it:
    `round`, `class`, `mmd`. Raises InputError when lengths differ or no class has images in two
    adjacent rounds.
    """
    if not len(features) == len(labels) == len(rounds):
        raise InputError(
            f"{len(features)} features need as many labels and rounds, "
            f"not {len(labels)} and {len(rounds)}"
        )
    sets = {
        (number, cls): features[(rounds == number) & (labels == cls)]
        for number, cls in sorted({*zip(rounds.tolist(), labels.tolist(), strict=True)})
    }
    rows = [
        {"round": number, "class": cls, "mmd": float(mmd(images, sets[number - 1, cls], kernel))}
        for (number, cls), images in sets.items()
        if (number - 1, cls) in sets
    ]
    if not rows:
        raise InputError("no class has condensed images in two adjacent rounds")
    return pd.DataFrame(rows)


def condensed_total(
    sizes: pd.DataFrame, share: float, min_images: int = 5, listed_only: bool = True
) -> int:
    """Condensed images of all clients in a round: the share of every client's class, rounded up, at
    least so many.

    Args:
        sizes: `images` and `listed` of every client's class, as in `split_sizes.csv`.
        share: p as a fraction.
    """
    kept = sizes[sizes["listed"]] if listed_only else sizes
    counts = condensed_counts(
        torch.tensor(kept["images"].to_numpy()), Condensation(share=share, min_images=min_images)
    )
    return int(counts.sum())
