"""Condensation by distribution matching, of all clients' data as one batch.

The encoder is shared and frozen within a round, so the images of all clients can be embedded
together: the convolutions are common to all, only the statistics of the normalisation layers differ
from client to client. A *group* is one class of one client; groups are ordered by client, then by
class.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import attrs
import torch
from attrs.validators import optional

from core.checks import beta_1, number, on_or_off, one_of, whole
from core.condensation.augment import UNIFORMS, Augmentation, augment, parts_of
from core.condensation.latent import LatentEncoder, LatentStatistics, Normalisation
from core.condensation.matching import (
    MatchingLoss,
    is_of_means,
    kernel_or_loss,
    matching_losses,
)
from core.condensation.selection import STARTS, draw, draw_different
from core.errors import InputError, brief
from core.models import at_once
from core.progress import counted
from core.rng import Rng
from core.training import adam

ESTIMATORS = ("minibatch", "feature_bank", "expectation")
OPTIMISERS = ("sgd", "scaled", "adam")


def strategy(instance: Any, attribute: attrs.Attribute, value: Any) -> None:
    """Validator: a strategy of siamese augmentation."""
    if not isinstance(value, str):
        raise InputError(
            f"{attribute.name} must be a text such as 'color_flip' or 'none', not {value!r}"
        )
    try:
        parts_of(value)
    except InputError as error:
        raise InputError(f"{attribute.name}: {error}") from None


@attrs.frozen(kw_only=True, slots=False)
class Condensation:
    """Hyper-parameters of condensation by distribution matching."""

    #: p: condensed images as a share of a client's images of a class
    share: float = attrs.field(default=0.02, validator=number(0, 1, above=True))
    #: initial images: "noise", so that no pixel is a client's, random "real" images, or means of
    #: several ("real_average"); the only image of a class may be sent nearly as it is (see `copied_images`)
    init: str = attrs.field(default="noise", validator=one_of("initialisation", *STARTS))
    #: least number of condensed images per class and client
    min_images: int = attrs.field(default=5, validator=whole(1))
    iterations: int = attrs.field(default=1000, validator=whole(1))
    image_lr: float = attrs.field(default=0.01, validator=number(0, above=True))
    image_momentum: float = attrs.field(default=0.5, validator=beta_1)
    #: real images per class and client in one batch
    real_batch: int = attrs.field(default=256, validator=whole(1))
    #: whether an image may come twice in a batch; False: P_w plays no part, and a class that is smaller
    #: than the batch is passed again
    replacement: bool = attrs.field(default=True, validator=on_or_off)
    #: real images per class that a client uses in a round; None: all
    candidates: int | None = attrs.field(default=None, validator=whole(1, optional=True))
    #: what is matched: by the MMD with this kernel, or by a loss of one's own
    kernel: str | MatchingLoss = attrs.field(default="linear", validator=kernel_or_loss)
    #: source of the real features of each iteration: a fresh `minibatch`, a batch of stored features
    #: (`feature_bank`), or the exact weighted mean (`expectation`, for losses of means: the linear kernel)
    estimator: str = attrs.field(default="minibatch", validator=one_of("estimator", *ESTIMATORS))
    #: siamese augmentation, for example "color_crop_cutout_flip_scale_rotate", or "none"
    augmentation: str = attrs.field(default="none", validator=strategy)
    #: draws (of augmentations, of network weights) that a bank or an expectation stores
    pool: int = attrs.field(default=8, validator=whole(1))
    #: bound of the gradient's norm per client; None: no bound
    clip_norm: float | None = attrs.field(default=None, validator=optional(number(0, above=True)))
    #: optimiser of the images; see `optimiser_of`
    image_optimiser: str = attrs.field(default="sgd", validator=one_of("optimiser", *OPTIMISERS))
    #: iterations after which each draw of the pool is replaced by a new one; None: never
    refresh: int | None = attrs.field(default=None, validator=whole(1, optional=True))

    def __attrs_post_init__(self) -> None:
        if self.estimator == "expectation" and not is_of_means(self.kernel):
            raise InputError(
                "estimator 'expectation' gives mean features, all that the linear kernel needs: for "
                f"the kernel {brief(self.kernel)} take 'feature_bank'"
            )


def condensed_counts(sizes: torch.Tensor, settings: Condensation) -> torch.Tensor:
    """Condensed images per group, (G,), of `sizes` (G,) real ones: `share` of these, rounded up."""
    # less the rounding of float64; in float32 0.3 of 50 images would be a little above 15, and so 16
    return torch.ceil(sizes.double() * settings.share - 1e-9).long().clamp(min=settings.min_images)


@attrs.frozen(eq=False)
class RealData:
    """The real images of a batched program, sorted by group.

    `images` (N, C, H, W) uint8; `group` (N,) ascending; `probabilities` (N,) sum to one in each
    group (Eq. 8); `owner` (G,) is the position of each group's client among the clients of the
    program, `label` (G,) its class.
    """

    images: torch.Tensor
    group: torch.Tensor
    probabilities: torch.Tensor
    owner: torch.Tensor
    label: torch.Tensor

    @property
    def groups(self) -> int:
        """G."""
        return len(self.owner)


class Draws:
    """Random draws per group, each from its client's own stream, so that a client draws the same
    alone.

    Args:
        rngs: one stream per client; owner: (G,) the position of each group's client.
        constant: an augmentation per group that takes the place of all draws of augmentations.
        sliding: consecutive batches share all images but one.
    """

    def __init__(
        self,
        rngs: Sequence[Rng],
        owner: torch.Tensor,
        constant: Augmentation | None = None,
        sliding: bool = False,
    ) -> None:
        self.rngs, self.device = rngs, owner.device
        self.constant, self.sliding = constant, sliding
        #: groups of each client, and its real images, once they were counted
        self.sizes = torch.bincount(owner, minlength=len(rngs)).tolist()
        self.image_counts: list[int] | None = None

    def draw_each(
        self,
        function: Callable[..., torch.Tensor],
        sizes: Sequence[int],
        shape: Sequence[int],
        *purpose: str | int,
    ) -> torch.Tensor:
        """Numbers (sum of sizes, *shape), those of each client from its own stream."""
        device = self.device
        streams = [rng.at(*purpose).generator(device) for rng in self.rngs]
        parts = zip(sizes, streams, strict=True)
        return torch.cat([function(n, *shape, generator=s, device=device) for n, s in parts])

    def uniform(self, count: int, *purpose: str | int) -> torch.Tensor:
        """(G, count) uniform numbers."""
        return self.draw_each(torch.rand, self.sizes, [count], *purpose)

    def normal(self, count: int, *purpose: str | int) -> torch.Tensor:
        """(G, count) standard normal numbers."""
        return self.draw_each(torch.randn, self.sizes, [count], *purpose)

    def augmentation(self, strategy: str, size: int, *purpose: str | int) -> Augmentation | None:
        """One augmentation per group; None for the strategy "none"."""
        if self.constant is not None or strategy == "none":
            return self.constant
        return Augmentation.of(self.uniform(UNIFORMS, *purpose), strategy, size)

    def rows(
        self, real: RealData, count: int, replacement: bool, *purpose: str | int
    ) -> torch.Tensor:
        """Real images (G, count), by P_w or without replacement, of batch purpose[-1]."""
        if not replacement:
            if self.image_counts is None:  # once: a GPU is waited for
                owners = real.owner[real.group]
                self.image_counts = torch.bincount(owners, minlength=len(self.rngs)).tolist()
            keys = self.draw_each(torch.rand, self.image_counts, [], *purpose)
            return draw_different(real.group, real.groups, keys, count)
        if self.sliding:
            # a window over a sequence in which each block of `count` draws follows the last
            *name, step = purpose
            block, shift = divmod(int(step), count)
            both = [self.uniform(count, *name, block + following) for following in (0, 1)]
            uniform = torch.cat(both, 1)[:, shift : shift + count].contiguous()
        else:
            uniform = self.uniform(count, *purpose)
        return draw(real.probabilities, real.group, real.groups, uniform)


@attrs.frozen(eq=False)
class Target:
    """The real side of an iteration: features (G, n, D), statistics (Eq. 4), shared augmentation."""

    features: torch.Tensor
    statistics: LatentStatistics
    augmentation: Augmentation | None


@attrs.frozen(eq=False)
class MatchingObjective:
    """Data, network and loss, which stay fixed during the iterations of one round.

    What makes a method: the `encoder` says which features are compared and at which weights, the
    `normalisation` whose statistics batch normalisation takes, `settings.kernel` the loss.
    `prepare` turns uint8 images into network inputs, `autocast` makes the context of networks.
    """

    encoder: LatentEncoder
    real: RealData
    settings: Condensation
    draws: Draws
    prepare: Callable[[torch.Tensor], torch.Tensor]
    autocast: Callable[[], AbstractContextManager]
    normalisation: Normalisation = attrs.field(factory=Normalisation)

    @property
    def clients(self) -> int:
        """K."""
        return len(self.draws.rngs)

    def losses(
        self, target: torch.Tensor, features: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """L of every group, (G,), of real (G, n, D) and condensed (G, m, D) features; weights (G, m)."""
        return matching_losses(self.settings.kernel, target, features, weights)

    def embed(
        self,
        inputs: torch.Tensor,
        owner: torch.Tensor,
        statistics: LatentStatistics | None,
        clients: int | None = None,
    ) -> tuple[torch.Tensor, LatentStatistics]:
        """Features (N, D) float32 to match, and the statistics used; `owner` counts up to `clients`."""
        with self.autocast():
            features, used = self.encoder(inputs, owner, statistics, clients or self.clients)
        return features.float(), used

    def resample(self, entry: int) -> None:
        """Give the encoder its weights of draw number `entry`, where it has several."""
        if self.encoder.resample:
            self.encoder.resample(entry)

    @property
    def entries(self) -> int:
        """Number of draws that are stored: one, where nothing is augmented or resampled."""
        drawn = self.settings.augmentation != "none" or self.encoder.resample
        return self.settings.pool if drawn else 1

    def entry(self, step: int) -> int:
        """Number of the augmentation and of the weights of a step: a new one, or a stored one."""
        if self.settings.estimator == "minibatch":
            return step
        renewed = step // self.settings.refresh if self.settings.refresh else 0
        return renewed * self.entries + step % self.entries

    def augmentation(self, entry: int) -> Augmentation | None:
        """One siamese augmentation per group, or None."""
        size = self.real.images.shape[-1]
        return self.draws.augmentation(self.settings.augmentation, size, "augment", entry)

    def rows(self, purpose: str, step: int) -> torch.Tensor:
        """Real images (G, B) of one batch."""
        settings = self.settings
        return self.draws.rows(self.real, settings.real_batch, settings.replacement, purpose, step)

    @torch.no_grad()
    def batch(self, purpose: str, step: int, augmentation: Augmentation | None) -> Target:
        """Features (G, B, D) of a batch from every group, and its statistics per client."""
        rows, features, statistics = self.rows(purpose, step), [], []
        for clients, groups in self.blocks([self.settings.real_batch] * self.real.groups):
            embedded, used = self.block(rows[groups], clients, groups, step, augmentation)
            features.append(embedded)
            statistics.append(used)
        return Target(
            torch.cat(features).view(*rows.shape, -1),
            LatentStatistics.concatenate(statistics),
            augmentation,
        )

    def block(
        self,
        rows: torch.Tensor,
        clients: slice,
        groups: slice,
        step: int,
        augmentation: Augmentation | None,
    ) -> tuple[torch.Tensor, LatentStatistics]:
        """Features (g * B, D) of real images `rows` (g, B) of consecutive clients, and statistics."""
        group, given = self.real.group[rows.flatten()], self.normalisation.real
        return self.embed(
            augment(self.prepare(self.real.images[rows.flatten()]), augmentation, group),
            self.real.owner[group] - clients.start,
            None if given is None else given[clients],
            clients.stop - clients.start,
        )

    @torch.no_grad()
    def embed_all(self, entry: int) -> Target:
        """Features (N, D) of all real images under one augmentation per group. The statistics of Eq. 4,
        if the network has any and none are given, are those of one batch drawn by P_w.
        """
        self.resample(entry)
        real, augmentation = self.real, self.augmentation(entry)
        statistics = self.normalisation.real or LatentStatistics(())
        if self.encoder.norms and self.normalisation.real is None:
            statistics = self.batch("statistics", entry, augmentation).statistics
        parts, most = [], at_once(real.images)
        for images, group in zip(real.images.split(most), real.group.split(most), strict=True):
            inputs = augment(self.prepare(images), augmentation, group)
            parts.append(self.embed(inputs, real.owner[group], statistics)[0])
        return Target(torch.cat(parts), statistics, augmentation)

    def blocks(self, counts: Sequence[int]) -> Iterator[tuple[slice, slice]]:
        """Runs of clients and their groups that are embedded at once, as many as `at_once` allows, or one
        client; `counts` are the images of each group.
        """
        most = at_once(self.real.images)
        groups = list(itertools.accumulate(self.draws.sizes, initial=0))
        before = list(itertools.accumulate(counts, initial=0))
        images = [before[group] for group in groups]
        client = 0
        while client < self.clients:
            stop = client + 1
            while stop < self.clients and images[stop + 1] - images[client] <= most:
                stop += 1
            yield slice(client, stop), slice(groups[client], groups[stop])
            client = stop


#: from a step to its real side
RealSide = Callable[[int], Target]


def minibatches(objective: MatchingObjective) -> RealSide:
    """A fresh batch at every iteration, as in the paper (Eq. 9)."""
    return lambda step: objective.batch("batch", step, objective.augmentation(step))


def feature_bank(objective: MatchingObjective) -> RealSide:
    """Batches of stored features: of a frozen encoder they need not be computed twice."""
    bank = stored(objective, objective.embed_all)

    def target(step: int) -> Target:
        features = bank(step).features[objective.rows("batch", step)]
        return attrs.evolve(bank(step), features=features)

    return target


def expectations(objective: MatchingObjective) -> RealSide:
    """The exact weighted mean of all features, E_{P_w}[psi(T)] of Eq. 10, which batches estimate."""
    real = objective.real

    def expectation(entry: int) -> Target:
        target = objective.embed_all(entry)
        mean = target.features.new_zeros(real.groups, target.features.shape[1])
        mean.index_add_(0, real.group, target.features * real.probabilities[:, None])
        return attrs.evolve(target, features=mean[:, None])

    return stored(objective, expectation)


def stored(objective: MatchingObjective, make: Callable[[int], Target]) -> RealSide:
    """A pool of real sides: each is made when first needed, and anew where the step wants another."""
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

    Returns: the images (M, C, H, W) and the loss of every iteration and group, (iterations, G).
    """
    settings, real = objective.settings, objective.real
    images, owner = start.clone(), real.owner[group]
    optimiser, sizes = optimiser_of(images, settings), torch.bincount(group)[group]
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
            images.grad[block.rows], trace[step, block.groups] = block.gradient(
                objective, images[block.rows], target, statistics
            )
        if settings.clip_norm is not None:
            clip_by_client(images.grad, owner, objective.clients, settings.clip_norm)
        if settings.image_optimiser == "scaled":
            images.grad *= sizes.to(images.dtype).view(-1, 1, 1, 1)
        optimiser.step()
    return images, trace


@attrs.frozen(eq=False)
class _Block:
    """Condensed images of consecutive clients that are embedded at once: slices of all `clients`,
    `groups` and images (`rows`); their `group` and `owner` (M,), counted from the first; `_slots`.
    """

    clients: slice
    groups: slice
    rows: slice
    group: torch.Tensor
    owner: torch.Tensor
    slots: torch.Tensor
    weights: torch.Tensor

    def gradient(
        self,
        objective: MatchingObjective,
        images: torch.Tensor,
        target: Target,
        statistics: LatentStatistics | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients with respect to the images (M, C, H, W), and the loss of every group (g,)."""
        images = images.requires_grad_()
        features, _ = objective.embed(
            augment(images, target.augmentation, self.group),
            self.owner,
            None if statistics is None else statistics[self.clients],
            self.clients.stop - self.clients.start,
        )
        padded = features.new_zeros(self.weights.numel(), features.shape[1])
        padded = padded.index_copy(0, self.slots, features).view(*self.weights.shape, -1)
        loss = objective.losses(target.features[self.groups], padded, self.weights)
        (gradient,) = torch.autograd.grad(loss.sum(), [images])
        return gradient, loss.detach()


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
    """Places (M,) of images in a (G, m) table, a row per group, and its weights: 1 or 0."""
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


def optimiser_of(images: torch.Tensor, settings: Condensation) -> torch.optim.Optimizer:
    """The optimiser of condensed images (M, C, H, W).

    GDD-FL states SGD and 300 epochs, FedVCK only a range of rates; SGD is its code's. With the exact
    gradient of the linear kernel (`estimator="expectation"`) there is no noise of batches, so that
    fewer, larger steps may reach the same loss, as long as they do not diverge:

    * "sgd": as in GDD-FL.
    * "scaled": SGD whose step is multiplied by the images of the group, by `condense`. The loss
      compares their mean, so the gradient for one of m images is 1 / m of that for the mean; with
      this factor the mean changes equally in groups of all sizes.
    * "adam": Adam (Kingma and Ba 2015) with PyTorch's defaults; `image_momentum` is its beta_1.
    """
    if settings.image_optimiser == "adam":
        return adam([images], settings.image_lr, settings.image_momentum)
    return torch.optim.SGD([images], lr=settings.image_lr, momentum=settings.image_momentum)


def milestones(iterations: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, ... up to the number of iterations, which is the last."""
    steps = (digit * 10**power for power in range(len(str(iterations))) for digit in (1, 2, 5))
    return [*(step for step in steps if step < iterations), iterations]


def progress(trace: torch.Tensor, owner: torch.Tensor, clients: int) -> torch.Tensor:
    """Each client's loss at the milestones, (K, n), of all groups' losses `trace` (steps, G) and `owner`
    (G,): means over the second half of the steps so far, as augmentations differ.
    """
    losses = trace.new_zeros(clients, len(trace)).index_add_(0, owner, trace.T)
    return torch.stack([losses[:, s // 2 : s].mean(1) for s in milestones(len(trace))], 1)
