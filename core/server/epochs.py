"""The server's training epoch by epoch, as in the code of GDD-FL: the rate may fall by a cosine, and
other images may choose the epoch whose model is kept.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import nn

from core.progress import counted
from core.rng import Rng
from core.server.update import ServerTraining
from core.training import Objective, cosine, sgd, train

#: what a cosine leaves of the first rate
LEFT = 0.01


def update_by_epochs(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    settings: ServerTraining,
    objective: Objective,
    rng: Rng,
    *,
    falling: bool = False,
    score: Callable[[nn.Module], float] | None = None,
) -> None:
    """Train a model in place on labelled images.

    Steps that are no multiple of an epoch are rounded up to one: only whole epochs are scored.

    Args:
        images: (N, C, H, W) on the model's device, as `objective` takes them; labels: (N,) int64.
        falling: whether the rate falls along a cosine to `LEFT` of the first.
        score: of the model after an epoch; the model of the best one is kept, the last of these where
            several are. Without it that of the last epoch.
    """
    optimiser = sgd(model.parameters(), settings)
    steps = -(-len(labels) // settings.batch_size)
    epochs = -(-settings.total(len(labels)) // steps)
    best, kept = -math.inf, None
    for epoch in counted(range(epochs), "epochs", epochs):
        share = cosine(1.0, LEFT, epoch, epochs) if falling else 1.0
        share *= settings.decay if 2 * epoch >= epochs else 1.0
        for group in optimiser.param_groups:
            group["lr"] = settings.lr * share
        here = rng.at("epoch", epoch)
        train(model, images, labels, settings, steps, objective, here, [optimiser])
        if score is not None and (found := score(model)) >= best:
            best, kept = found, copy.deepcopy(model.state_dict())
    if kept is not None:
        model.load_state_dict(kept)
