"""Condensation of all clients' data as one batch.

The encoder is shared and frozen within a round, so the condensed images of all clients can be
embedded together: the convolutions are common to all, only the statistics of the normalisation
layers differ from client to client. What is matched: see `core.condensation.objective`.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import torch

from core.condensation.descent import ImageOptimiser
from core.condensation.latent import LatentStatistics
from core.condensation.objective import Condensation, MatchingObjective, Target, augmented
from core.progress import counted

#: from a step to its real side
RealSide = Callable[[int], Target]


def minibatches(objective: MatchingObjective) -> RealSide:
    """A fresh batch at every iteration, as printed (Eq. 9)."""
    return lambda step: objective.batch("batch", step, objective.augmentation(step))


def feature_bank(objective: MatchingObjective) -> RealSide:
    """Batches of stored features: the encoder is frozen, so an image's features need not be
    computed twice.
    """
    bank = stored(objective, objective.embed_all)

    def target(step: int) -> Target:
        features = bank(step).features[objective.rows("batch", step)]
        return attrs.evolve(bank(step), features=features)

    return target


def expectations(objective: MatchingObjective) -> RealSide:
    """The exact importance-weighted mean of all features, E_{P_w}[psi(T)] of Eq. 10: what batches
    estimate.
    """
    real = objective.real

    def expectation(entry: int) -> Target:
        target = objective.embed_all(entry)
        mean = target.features.new_zeros(real.groups, target.features.shape[1])
        mean.index_add_(0, real.group, target.features * real.probabilities[:, None])
        return attrs.evolve(target, features=mean[:, None])

    return stored(objective, expectation)


def stored(objective: MatchingObjective, make: Callable[[int], Target]) -> RealSide:
    """The pool of a real side, by the step: each draw is made when it is first asked for, and
    replaced where the step asks for a new one.
    """
    pool: dict[int, tuple[int, Target]] = {}

    def target(step: int) -> Target:
        entry = objective.entry(step)
        place = entry % objective.entries
        if place not in pool or pool[place][0] != entry:
            pool[place] = entry, make(entry)
        return pool[place][1]

    return target


REAL_SIDES: dict[str, Callable[[MatchingObjective], RealSide]] = {
    "minibatch": minibatches,
    "feature_bank": feature_bank,
    "expectation": expectations,
}


def condensed_counts(sizes: torch.Tensor, settings: Condensation) -> torch.Tensor:
    """Condensed images per group, (G,): p times its real images, rounded up, and at least
    `min_images`.
    """
    # in float64, less its rounding: in float32 0.3 of 50 images would be a little above 15, and so
    # 16
    return torch.ceil(sizes.double() * settings.share - 1e-9).long().clamp(min=settings.min_images)


def condense(
    objective: MatchingObjective,
    start: torch.Tensor,
    group: torch.Tensor,
    watch: Callable[[int, torch.Tensor], None] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Minimise the condensation loss (Eq. 3; Eq. 9 with P_w) over the condensed images of all
    groups at once.

    Args:
        start: (M, C, H, W) initial images as network inputs; group: (M,) ascending, their groups.
        watch: called with the step and the images before every step, for pictures and films.

    Returns: the images (M, C, H, W) and the loss of every step and group, (steps, G), which are
        fewer than the iterations where all clients have stopped.
    """
    settings, real = objective.settings, objective.real
    images, owner = start.clone(), real.owner[group]
    optimiser = ImageOptimiser(images, group, owner, settings)
    blocks = blocks_of(objective, group)
    real_side = REAL_SIDES[settings.estimator](objective)
    trace = torch.zeros(settings.iterations, real.groups, device=images.device)
    statistics, images.grad = None, torch.empty_like(images)
    for step in counted(range(settings.iterations), "condensation", settings.iterations):
        if watch:
            watch(step, images)
        objective.resample(objective.entry(step))
        target = real_side(step)
        statistics = objective.normalisation.condensed(target.statistics, statistics)
        for block in blocks:
            images.grad[block.rows], trace[step, block.groups] = block.slope(
                objective, images[block.rows], target, statistics
            )
        if settings.clip_norm is not None:
            clip_by_client(images.grad, owner, objective.clients, settings.clip_norm)
        optimiser.step()
        if optimiser.all_stopped(trace[: step + 1], real.owner):
            return images, trace[: step + 1]
    return images, trace


@attrs.frozen(eq=False)
class _Block:
    """The condensed images of consecutive clients, which are embedded at once: clients have nothing
    to do with each other.

    Slices of all `clients`, `groups` and images (`rows`); `group` (M,) and `owner` (M,) of its
    images, the owner counted from its first client; `slots` and `weights` of `_slots`.
    """

    clients: slice
    groups: slice
    rows: slice
    group: torch.Tensor
    owner: torch.Tensor
    slots: torch.Tensor
    weights: torch.Tensor

    def slope(
        self,
        objective: MatchingObjective,
        images: torch.Tensor,
        target: Target,
        statistics: LatentStatistics | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradient of the loss with respect to the images (M, C, H, W), and the loss of every
        group (g,).
        """
        images = images.requires_grad_()
        features, _ = objective.embed(
            augmented(images, target.augmentation, self.group),
            self.owner,
            None if statistics is None else statistics[self.clients],
            self.clients.stop - self.clients.start,
        )
        padded = features.new_zeros(self.weights.numel(), features.shape[1])
        padded = padded.index_copy(0, self.slots, features).view(*self.weights.shape, -1)
        loss = objective.losses(target.features[self.groups], padded, self.weights)
        (slope,) = torch.autograd.grad(loss.sum(), [images])
        return slope, loss.detach()


def blocks_of(objective: MatchingObjective, group: torch.Tensor) -> list[_Block]:
    """The condensed images with these groups (M,) in blocks."""
    counts = torch.bincount(group, minlength=objective.real.groups)
    first, blocks = [0, *counts.cumsum(0).tolist()], []
    for clients, groups in objective.blocks(counts.tolist()):
        rows = slice(first[groups.start], first[groups.stop])
        owner = objective.real.owner[group[rows]] - clients.start
        slots = _slots(group[rows] - groups.start, groups.stop - groups.start)
        blocks.append(_Block(clients, groups, rows, group[rows], owner, *slots))
    return blocks


def _slots(group: torch.Tensor, groups: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Places (M,) of the images in a (G, m) table with a row per group, and its weights: 1 for an
    image, else 0.
    """
    sizes = torch.bincount(group, minlength=groups)
    first = sizes.cumsum(0) - sizes
    longest = int(sizes.max())
    slots = group * longest + torch.arange(len(group), device=group.device) - first[group]
    weights = torch.zeros(groups * longest, device=group.device).index_fill(0, slots, 1.0)
    return slots, weights.view(groups, longest)


def clip_by_client(gradient: torch.Tensor, owner: torch.Tensor, clients: int, bound: float) -> None:
    """Scale each client's gradient, in place, to a norm of at most `bound`."""
    squares = gradient.new_zeros(clients).index_add_(0, owner, gradient.square().sum((1, 2, 3)))
    scale = (bound / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    gradient.mul_(scale[owner].view(-1, 1, 1, 1))
