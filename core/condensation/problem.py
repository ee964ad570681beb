"""What a round of condensation is given: settings, real data, draws, and what is matched.

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
from core.condensation.latent import LatentEncoder, LatentStatistics
from core.condensation.matching import KERNELS, mmd
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
    #: whether an image may stand in it twice; False: P_w plays no part, and a class that is smaller than
    #: the batch is passed again
    replacement: bool = attrs.field(default=True, validator=on_or_off)
    #: real images per class that a client looks at in a round; None: all
    candidates: int | None = attrs.field(default=None, validator=whole(1, optional=True))
    kernel: str = attrs.field(default="linear", validator=one_of("kernel", *KERNELS))
    #: where the real side of each iteration comes from: a fresh `minibatch`, a batch of stored
    #: features (`feature_bank`), or the exact weighted mean (`expectation`, for the linear kernel)
    estimator: str = attrs.field(default="minibatch", validator=one_of("estimator", *ESTIMATORS))
    #: siamese augmentation, for example "color_crop_cutout_flip_scale_rotate", or "none"
    augmentation: str = attrs.field(default="none", validator=strategy)
    #: draws (of augmentations, of disturbed weights) that a bank or an expectation holds
    pool: int = attrs.field(default=8, validator=whole(1))
    #: bound of the gradient's norm per client; None: no bound
    clip_norm: float | None = attrs.field(default=None, validator=optional(number(0, above=True)))
    #: who moves the images; see `core.condensation.descent`
    image_optimiser: str = attrs.field(default="sgd", validator=one_of("optimiser", *OPTIMISERS))
    #: a client's images stay as they are once its loss has fallen by this factor; None: never
    stop_factor: float | None = attrs.field(default=None, validator=optional(number(1, above=True)))
    #: iterations after which each draw of the pool is replaced by a new one; None: never
    refresh: int | None = attrs.field(default=None, validator=whole(1, optional=True))

    def __attrs_post_init__(self) -> None:
        if self.estimator == "expectation" and self.kernel == "gaussian":
            raise InputError(
                "estimator 'expectation' needs a linear kernel: with 'gaussian' take 'feature_bank'"
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
    """The real side of one iteration: features (G, n, D), and the statistics of Eq. 4."""

    features: torch.Tensor
    statistics: LatentStatistics


class Draws:
    """Random draws per group that depend on the client's own stream only, so that a client draws
    the same alone.
    """

    def __init__(self, rngs: Sequence[Rng], owner: torch.Tensor) -> None:
        self.rngs, self.device = rngs, owner.device
        self.sizes = torch.bincount(owner, minlength=len(rngs)).tolist()
        #: real images of each client, once they were counted
        self._held: list[int] | None = None

    def of(self, clients: slice) -> Draws:
        """Those of the groups of a run of clients alone: the same numbers."""
        some = copy.copy(self)
        some.rngs, some.sizes = self.rngs[clients], self.sizes[clients]
        some._held = None if self._held is None else self._held[clients]
        return some

    def _each(self, *purpose: str | int):
        for rng, size in zip(self.rngs, self.sizes, strict=True):
            yield size, rng.at(*purpose).generator(self.device)

    def uniform(self, count: int, *purpose: str | int) -> torch.Tensor:
        """(G, count) uniform numbers."""
        return torch.cat(
            [
                torch.rand(size, count, generator=generator, device=self.device)
                for size, generator in self._each(*purpose)
            ]
        )

    def normal(self, count: int, *purpose: str | int) -> torch.Tensor:
        """(G, count) standard normal numbers."""
        return torch.cat(
            [
                torch.randn(size, count, generator=generator, device=self.device)
                for size, generator in self._each(*purpose)
            ]
        )

    def each_image(self, real: RealData, *purpose: str | int) -> torch.Tensor:
        """(N,) uniform numbers, one for each real image."""
        if self._held is None:  # once: a GPU is waited for
            owners = real.owner[real.group]
            self._held = torch.bincount(owners, minlength=len(self.rngs)).tolist()
        return torch.cat(
            [
                torch.rand(
                    count, generator=rng.at(*purpose).generator(self.device), device=self.device
                )
                for rng, count in zip(self.rngs, self._held, strict=True)
            ]
        )

    def augmentation(self, strategy: str, size: int, *purpose: str | int) -> Augmentation:
        """One augmentation per group."""
        return Augmentation.of(self.uniform(UNIFORMS, *purpose), strategy, size)


@attrs.frozen(eq=False)
class Problem:
    """Everything that stays fixed during the iterations of one round.

    `prepare` turns uint8 images into network inputs. Condensed images are normalised by the
    statistics of the current real batch; with `free` by those of their own batch; with `moving`,
    which starts the average, by a running average that takes a tenth of every real batch; with
    `fixed` by these statistics, and the real images too. `sliding` lets consecutive batches share
    all images but one. `head` appends logits to the features (FedDM matches both). `disturb` moves
    the encoder's weights to draw number so-and-so. `constant` is one augmentation per group that
    takes the place of all draws.
    """

    encoder: LatentEncoder
    real: RealData
    settings: Condensation
    draws: Draws
    prepare: Callable[[torch.Tensor], torch.Tensor]
    autocast: Callable[[], AbstractContextManager]
    free: bool = False
    sliding: bool = False
    moving: LatentStatistics | None = None
    head: bool = False
    disturb: Callable[[int], None] | None = None
    constant: Augmentation | None = None
    fixed: LatentStatistics | None = None

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
        """What is matched, (N, D) float32, and the statistics that were used; `owner` counts up to
        `clients` (all).
        """
        with self.autocast():
            features, used = self.encoder(inputs, owner, statistics, clients or self.clients)
            if self.head:
                features = torch.cat([features.float(), self.encoder.logits(features).float()], 1)
        return features.float(), used

    @property
    def entries(self) -> int:
        """Draws that a stored real side holds: one, where nothing is augmented or disturbed."""
        return self.settings.pool if self.settings.augmentation != "none" or self.disturb else 1

    def entry(self, step: int) -> int:
        """The number of the augmentation and of the disturbance of a step: a new one, or one of
        those stored.
        """
        if self.settings.estimator == "minibatch":
            return step
        renewed = step // self.settings.refresh if self.settings.refresh else 0
        return renewed * self.entries + step % self.entries

    def augmented(self, entry: int) -> Augmentation | None:
        """One siamese augmentation per group, or None."""
        if self.constant is not None or self.settings.augmentation == "none":
            return self.constant
        return self.draws.augmentation(
            self.settings.augmentation, self.real.images.shape[-1], "augment", entry
        )

    @torch.no_grad()
    def batch(
        self, purpose: str, step: int, augmentation: Augmentation | None
    ) -> tuple[torch.Tensor, LatentStatistics]:
        """Features (G, B, D) of a batch drawn by P_w from every group, and its statistics per
        client.
        """
        rows, features, statistics = self.rows(purpose, step), [], []
        for clients, groups in self.blocks([self.settings.real_batch] * self.real.groups):
            found, used = self.block(rows[groups], clients, groups, step, augmentation)
            features.append(found)
            statistics.append(used)
        return torch.cat(features).view(*rows.shape, -1), LatentStatistics.concatenate(statistics)

    def block(
        self,
        rows: torch.Tensor,
        clients: slice,
        groups: slice,
        step: int,
        augmentation: Augmentation | None,
    ) -> tuple[torch.Tensor, LatentStatistics]:
        """Features (g * B, D) of the real images `rows` (g, B) of some groups, and the statistics
        of their clients.
        """
        real, some = self.real, rows.flatten()
        inputs = augmented(self.prepare(real.images[some]), augmentation, real.group[some])
        owner = real.owner[real.group[some]] - clients.start
        given = None if self.fixed is None else self.fixed[clients]
        return self.embed(inputs, owner, given, clients.stop - clients.start)

    def loss(
        self, target: torch.Tensor, features: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """L of every group, (G,), with the real features (G, n, D), the condensed ones (G, m, D)
        and the weights of these, (G, m), 0 for a gap.
        """
        # L = sum_c K_BB + K_SS - 2 K_BS, for every client
        return mmd(target, features, self.settings.kernel, y_weights=weights)

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

    def rows(self, purpose: str, step: int) -> torch.Tensor:
        """Real images (G, B) drawn by P_w, or without replacement."""
        real, count = self.real, self.settings.real_batch
        if not self.settings.replacement:
            keys = self.draws.each_image(real, purpose, step)
            return draw_different(real.group, real.groups, keys, count)
        if self.sliding:
            # a window over a sequence in which each block of B draws follows the last
            block, shift = divmod(step, count)
            uniform = torch.cat([self.draws.uniform(count, purpose, block + i) for i in (0, 1)], 1)
            return draw(
                real.probabilities,
                real.group,
                real.groups,
                uniform[:, shift : shift + count].contiguous(),
            )
        return draw(
            real.probabilities, real.group, real.groups, self.draws.uniform(count, purpose, step)
        )


def augmented(
    images: torch.Tensor, augmentation: Augmentation | None, group: torch.Tensor
) -> torch.Tensor:
    """Images (M, C, H, W) under the augmentation of their groups (M,), or as they are."""
    return images if augmentation is None else augment(images, augmentation, group)
