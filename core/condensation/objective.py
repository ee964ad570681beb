"""Matching objective of a round of condensation: settings, real data, draws, network and loss.

A *group* is one class of one client; groups are ordered by client, then by class.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import attrs
import torch
from attrs.validators import optional

from core.checks import beta_1, number, on_or_off, one_of, whole
from core.condensation.augment import UNIFORMS, Augmentation, augment, parts_of
from core.condensation.descent import OPTIMISERS
from core.condensation.initial import KINDS
from core.condensation.latent import LatentEncoder, LatentStatistics, Normalisation
from core.condensation.matching import KERNELS, Loss, compares_means, kernel_loss
from core.condensation.selection import draw, draw_different
from core.errors import InputError
from core.models import at_once
from core.rng import Rng

#: where the real side of an iteration comes from
ESTIMATORS = ("minibatch", "feature_bank", "expectation")


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
    #: what condensed images start from: "noise", so that no pixel is a client's, random "real" images,
    #: or each from the mean of several ("real_average")
    init: str = attrs.field(default="noise", validator=one_of("initialisation", *KINDS))
    #: at least so many condensed images per class and client
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
    kernel: str = attrs.field(default="linear", validator=one_of("kernel", *KERNELS))
    #: where the real side of each iteration comes from: a fresh `minibatch`, a batch of stored
    #: features (`feature_bank`), or the exact weighted mean (`expectation`, for the linear kernel)
    estimator: str = attrs.field(default="minibatch", validator=one_of("estimator", *ESTIMATORS))
    #: siamese augmentation, for example "color_crop_cutout_flip_scale_rotate", or "none"
    augmentation: str = attrs.field(default="none", validator=strategy)
    #: draws (of augmentations, of network weights) that a bank or an expectation holds
    pool: int = attrs.field(default=8, validator=whole(1))
    #: bound of the gradient's norm per client; None: no bound
    clip_norm: float | None = attrs.field(default=None, validator=optional(number(0, above=True)))
    #: optimiser of the images; see `core.condensation.descent`
    image_optimiser: str = attrs.field(default="sgd", validator=one_of("optimiser", *OPTIMISERS))
    #: a client's images stay as they are once its loss has fallen by this factor; None: never
    stop_factor: float | None = attrs.field(default=None, validator=optional(number(1, above=True)))
    #: iterations after which each draw of the pool is replaced by a new one; None: never
    refresh: int | None = attrs.field(default=None, validator=whole(1, optional=True))

    def __attrs_post_init__(self) -> None:
        check_estimator(self.estimator, kernel_loss(self.kernel))


def check_estimator(estimator: str, loss: Loss) -> None:
    """Raise InputError where a loss of more than means shall be computed from exact means."""
    if estimator == "expectation" and not compares_means(loss):
        raise InputError(
            "estimator 'expectation' needs a loss of mean features, as the linear kernel has it: "
            "take 'feature_bank'"
        )


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


@attrs.frozen(eq=False)
class Target:
    """The real side of one iteration: features (G, n, D), the statistics of Eq. 4, and the
    augmentation that condensed images share with it.
    """

    features: torch.Tensor
    statistics: LatentStatistics
    augmentation: Augmentation | None


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

    def of(self, clients: slice) -> Draws:
        """The draws of the groups of consecutive clients alone: the same numbers."""
        some = copy.copy(self)
        some.rngs, some.sizes = self.rngs[clients], self.sizes[clients]
        some.image_counts = None if self.image_counts is None else self.image_counts[clients]
        return some

    def draw_each(
        self,
        function: Callable[..., torch.Tensor],
        sizes: list[int],
        shape: Sequence[int],
        *purpose: str | int,
    ) -> torch.Tensor:
        """Numbers (sum of sizes, *shape), those of each client from its own stream."""
        return torch.cat(
            [
                function(
                    size,
                    *shape,
                    generator=rng.at(*purpose).generator(self.device),
                    device=self.device,
                )
                for rng, size in zip(self.rngs, sizes, strict=True)
            ]
        )

    def uniform(self, count: int, *purpose: str | int) -> torch.Tensor:
        """(G, count) uniform numbers."""
        return self.draw_each(torch.rand, self.sizes, [count], *purpose)

    def normal(self, count: int, *purpose: str | int) -> torch.Tensor:
        """(G, count) standard normal numbers."""
        return self.draw_each(torch.randn, self.sizes, [count], *purpose)

    def augmentation(self, strategy: str, size: int, *purpose: str | int) -> Augmentation:
        """One augmentation per group."""
        if self.constant is not None:
            return self.constant
        return Augmentation.of(self.uniform(UNIFORMS, *purpose), strategy, size)

    def rows(
        self, real: RealData, count: int, replacement: bool, *purpose: str | int
    ) -> torch.Tensor:
        """Real images (G, count) drawn by P_w, or without replacement. The last purpose is the number
        of the batch.
        """
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
class MatchingObjective:
    """Data, network and loss, which stay fixed during the iterations of one round.

    Three objects make a method. `encoder` says what is compared and at which weights,
    `normalisation` whose statistics batch normalisation takes, and `loss` how features are compared:
    from real features (G, n, D), condensed ones (G, m, D) and the weights of these, (G, m), 0 for a
    gap, to (G,). `prepare` turns uint8 images into network inputs.

    Raises InputError where the estimator is not valid for the loss.
    """

    encoder: LatentEncoder
    real: RealData
    settings: Condensation
    draws: Draws
    prepare: Callable[[torch.Tensor], torch.Tensor]
    autocast: Callable[[], AbstractContextManager]
    normalisation: Normalisation = attrs.field(factory=Normalisation)
    loss: Loss = attrs.field()

    @loss.default
    def _loss(self) -> Loss:
        return kernel_loss(self.settings.kernel)

    def __attrs_post_init__(self) -> None:
        check_estimator(self.settings.estimator, self.loss)

    @property
    def clients(self) -> int:
        """K."""
        return len(self.draws.rngs)

    def embed(
        self,
        inputs: torch.Tensor,
        owner: torch.Tensor,
        statistics: LatentStatistics | None,
        clients: int | None = None,
    ) -> tuple[torch.Tensor, LatentStatistics]:
        """Features to match, (N, D) float32, and the statistics that were used; `owner` counts up to
        `clients` (all).
        """
        with self.autocast():
            features, used = self.encoder(inputs, owner, statistics, clients or self.clients)
        return features.float(), used

    def resample(self, entry: int) -> None:
        """Move the encoder to its weights of draw number `entry`, where it has several."""
        if self.encoder.resample:
            self.encoder.resample(entry)

    @property
    def entries(self) -> int:
        """Number of draws that a stored real side holds: one, where nothing is augmented or
        resampled.
        """
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
        name, size = self.settings.augmentation, self.real.images.shape[-1]
        return None if name == "none" else self.draws.augmentation(name, size, "augment", entry)

    def rows(self, purpose: str, step: int) -> torch.Tensor:
        """Real images (G, B) of one batch."""
        settings = self.settings
        return self.draws.rows(self.real, settings.real_batch, settings.replacement, purpose, step)

    @torch.no_grad()
    def batch(self, purpose: str, step: int, augmentation: Augmentation | None) -> Target:
        """Features (G, B, D) of a batch from every group, and its statistics per client."""
        rows, features, statistics = self.rows(purpose, step), [], []
        for clients, groups in self.blocks([self.settings.real_batch] * self.real.groups):
            embedded, used = self.block(rows[groups], clients, step, augmentation)
            features.append(embedded)
            statistics.append(used)
        return Target(
            torch.cat(features).view(*rows.shape, -1),
            LatentStatistics.concatenate(statistics),
            augmentation,
        )

    def block(
        self, rows: torch.Tensor, clients: slice, step: int, augmentation: Augmentation | None
    ) -> tuple[torch.Tensor, LatentStatistics]:
        """Features (g * B, D) of the real images `rows` (g, B) of consecutive clients, and these
        clients' statistics.
        """
        group = self.real.group[rows.flatten()]
        inputs = augmented(self.prepare(self.real.images[rows.flatten()]), augmentation, group)
        owner = self.real.owner[group] - clients.start
        given = self.normalisation.real
        return self.embed(
            inputs,
            owner,
            None if given is None else given[clients],
            clients.stop - clients.start,
        )

    @torch.no_grad()
    def embed_all(self, entry: int) -> Target:
        """Features (N, D) of all real images under one augmentation per group.

        The statistics of Eq. 4 come from one batch drawn by P_w, as in a minibatch, and are then
        fixed for all images; a network without batch normalisation needs no such batch, nor does one
        whose statistics are given.
        """
        self.resample(entry)
        real, augmentation = self.real, self.augmentation(entry)
        statistics = self.normalisation.real or LatentStatistics((), ())
        if self.encoder.normalisations and self.normalisation.real is None:
            statistics = self.batch("statistics", entry, augmentation).statistics
        parts = []
        most = at_once(real.images)
        for images, group in zip(real.images.split(most), real.group.split(most), strict=True):
            inputs = augmented(self.prepare(images), augmentation, group)
            parts.append(self.embed(inputs, real.owner[group], statistics)[0])
        return Target(torch.cat(parts), statistics, augmentation)

    def losses(
        self, target: torch.Tensor, features: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """L of every group, (G,); arguments as those of `loss`."""
        # L = sum_c K_BB + K_SS - 2 K_BS, for every client
        return self.loss(target, features, weights)

    def blocks(self, counts: Sequence[int]) -> Iterator[tuple[slice, slice]]:
        """Runs of clients, and their groups, whose images are embedded at once: as many as
        `at_once` says, or one client, whose images may share statistics. `counts` are the images of
        each group.
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


def augmented(
    images: torch.Tensor, augmentation: Augmentation | None, group: torch.Tensor
) -> torch.Tensor:
    """Images (M, C, H, W) under the augmentation of their groups (M,), or as they are."""
    return images if augmentation is None else augment(images, augmentation, group)
