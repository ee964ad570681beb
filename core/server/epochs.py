"""The server's training epoch by epoch, as in the code of GDD-FL: the rate may fall by a cosine, and
other images may select the epoch whose model is returned.
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

#: share of the first rate that a cosine ends at
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
        falling: the rate falls along a cosine to `LEFT` of the first.
        score: of the model after an epoch. The last of the best epochs is taken; without a score the
            last epoch.
    """
    optimiser = sgd(model.parameters(), settings)
    steps = -(-len(labels) // settings.batch_size)
    epochs = -(-settings.total(len(labels)) // steps)
    best, best_state = -math.inf, None
    for epoch in counted(range(epochs), "epochs", epochs):
        share = cosine(1.0, LEFT, epoch, epochs) if falling else 1.0
        share *= settings.decay if 2 * epoch >= epochs else 1.0
        for group in optimiser.param_groups:
            group["lr"] = settings.lr * share
        draws = rng.at("epoch", epoch)
        train(model, images, labels, settings, steps, objective, draws, [optimiser])
        if score is not None and (value := score(model)) >= best:
            best, best_state = value, copy.deepcopy(model.state_dict())
    if best_state is not None:
        model.load_state_dict(best_state)
