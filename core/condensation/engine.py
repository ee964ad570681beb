"""Condensation of all clients' knowledge as one batch.

The encoder is shared and frozen within a round, so the condensed images of all clients can be
embedded together: the convolutions are common to all, only the statistics of the normalisation
layers differ from client to client. What a round is given stands in `core.condensation.problem`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch

from core.condensation.augment import Augmentation
from core.condensation.descent import Descent
from core.condensation.latent import LatentStatistics
from core.condensation.problem import (
    ESTIMATORS,
    Condensation,
    Problem,
    Target,
    augmented,
)
from core.models import at_once
from core.progress import counted

#: from a step to its real side and the augmentation that the condensed images share with it
RealSide = Callable[[int], tuple[Target, Augmentation | None]]


def minibatch_side(problem: Problem) -> RealSide:
    """A fresh batch at every iteration, as printed (Eq. 9)."""

    def side(step: int) -> tuple[Target, Augmentation | None]:
        augmentation = problem.augmented(step)
        return Target(*problem.batch("batch", step, augmentation)), augmentation

    return side


@torch.no_grad()
def embed_all(
    problem: Problem, entry: int
) -> tuple[torch.Tensor, LatentStatistics, Augmentation | None]:
    """Features (N, D) of all real images under one augmentation per group.

    The statistics of Eq. 4 come from one batch drawn by P_w, as in a minibatch, and are then fixed
    for all images; a network without batch normalisation needs no such batch, nor does one whose
    statistics are given.
    """
    if problem.disturb:
        problem.disturb(entry)
    real, augmentation = problem.real, problem.augmented(entry)
    statistics = problem.fixed or LatentStatistics((), ())
    if problem.encoder.normalisations and problem.fixed is None:
        _, statistics = problem.batch("statistics", entry, augmentation)
    parts = []
    most = at_once(real.images)
    for images, group in zip(real.images.split(most), real.group.split(most), strict=True):
        inputs = augmented(problem.prepare(images), augmentation, group)
        parts.append(problem.embed(inputs, real.owner[group], statistics)[0])
    return torch.cat(parts), statistics, augmentation


class Pool:
    """What is stored of the real side, by the step: made when it is first asked for, and anew where
    the draw is another one.
    """

    def __init__(self, problem: Problem, make: Callable[[int], Any]) -> None:
        self.problem, self.make = problem, make
        self.kept: dict[int, tuple[int, Any]] = {}

    def __getitem__(self, step: int) -> Any:
        entry = self.problem.entry(step)
        place = entry % self.problem.entries
        if place not in self.kept or self.kept[place][0] != entry:
            self.kept[place] = entry, self.make(entry)
        return self.kept[place][1]


def _feature_bank(problem: Problem) -> RealSide:
    """Batches of stored features: the encoder is frozen, so an image's features need not be
    computed twice.
    """
    bank = Pool(problem, lambda entry: embed_all(problem, entry))

    def side(step: int) -> tuple[Target, Augmentation | None]:
        features, statistics, augmentation = bank[step]
        return Target(features[problem.rows("batch", step)], statistics), augmentation

    return side


def expectation_side(problem: Problem) -> RealSide:
    """The exact importance-weighted mean of all features, E_{P_w}[psi(T)] of Eq. 10: what batches
    estimate.
    """
    real = problem.real

    def expected(entry: int) -> tuple[Target, Augmentation | None]:
        features, statistics, augmentation = embed_all(problem, entry)
        mean = features.new_zeros(real.groups, features.shape[1])
        mean.index_add_(0, real.group, features * real.probabilities[:, None])
        return Target(mean[:, None], statistics), augmentation

    return Pool(problem, expected).__getitem__


REAL_SIDES: dict[str, Callable[[Problem], RealSide]] = dict(
    zip(ESTIMATORS, (minibatch_side, _feature_bank, expectation_side), strict=True)
)


def condensed_counts(sizes: torch.Tensor, settings: Condensation) -> torch.Tensor:
    """Condensed images per group, (G,): p times its real images, rounded up, and at least
    `min_images`.
    """
    # in float64, less its rounding: in float32 0.3 of 50 images would be a little above 15, and so
    # 16
    return torch.ceil(sizes.double() * settings.share - 1e-9).long().clamp(min=settings.min_images)


def condense(
    problem: Problem,
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
    settings, real = problem.settings, problem.real
    images, owner = start.clone(), real.owner[group]
    descent = Descent(images, group, owner, settings)
    blocks = blocks_of(problem, group)
    real_side = REAL_SIDES[settings.estimator](problem)
    trace = torch.zeros(settings.iterations, real.groups, device=images.device)
    moving, images.grad = problem.moving, torch.empty_like(images)
    for step in counted(range(settings.iterations), "condensation", settings.iterations):
        if watch:
            watch(step, images)
        if problem.disturb:
            problem.disturb(problem.entry(step))
        target, augmentation = real_side(step)
        if moving is not None:
            moving = moving.blend(target.statistics, 0.1)
        statistics = None if problem.free else moving or target.statistics
        for block in blocks:
            images.grad[block.rows], trace[step, block.groups] = block.descend(
                problem, images[block.rows], target.features[block.groups], statistics, augmentation
            )
        if settings.clip_norm is not None:
            clip_by_client(images.grad, owner, problem.clients, settings.clip_norm)
        descent.step()
        if descent.over(trace[: step + 1], real.owner):
            return images, trace[: step + 1]
    return images, trace


@attrs.frozen(eq=False)
class _Block:
    """The condensed images of a few clients, which are embedded at once: clients have nothing to do
    with each other.

    `group` (M,) and `owner` (M,) of its images, the owner counted from its first client; `slots`
    and `weights`: see `_slots`.
    """

    clients: slice
    groups: slice
    rows: slice
    group: torch.Tensor
    owner: torch.Tensor
    slots: torch.Tensor
    weights: torch.Tensor

    def descend(
        self,
        problem: Problem,
        images: torch.Tensor,
        target: torch.Tensor,
        statistics: LatentStatistics | None,
        augmentation: Augmentation | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradient of the loss with respect to the images (M, C, H, W), and the loss of every
        group (g,).
        """
        images = images.requires_grad_()
        given = None if statistics is None else statistics[self.clients]
        features, _ = problem.embed(
            augmented(images, augmentation, self.group),
            self.owner,
            given,
            self.clients.stop - self.clients.start,
        )
        padded = features.new_zeros(self.weights.numel(), features.shape[1]).index_copy(
            0, self.slots, features
        )
        loss = problem.loss(target, padded.view(*self.weights.shape, -1), self.weights)
        (gradient,) = torch.autograd.grad(loss.sum(), [images])
        return gradient, loss.detach()


def blocks_of(problem: Problem, group: torch.Tensor) -> list[_Block]:
    """The condensed images with these groups (M,) in blocks."""
    counts = torch.bincount(group, minlength=problem.real.groups)
    first, found = [0, *counts.cumsum(0).tolist()], []
    for clients, groups in problem.blocks(counts.tolist()):
        rows = slice(first[groups.start], first[groups.stop])
        some = group[rows]
        found.append(
            _Block(
                clients,
                groups,
                rows,
                some,
                problem.real.owner[some] - clients.start,
                *_slots(some - groups.start, groups.stop - groups.start),
            )
        )
    return found


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
