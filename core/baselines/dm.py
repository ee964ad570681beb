"""DM: condensation by distribution matching, in one communication.

Zhao, Bilen. Dataset Condensation with Distribution Matching. WACV 2023, Eq. 5 and Algorithm 1. The
defaults are those of the authors' code, but that it starts from real images and draws batches without
replacement (`released`): here images start from noise, as in GDD-FL, unless `init` says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import attrs
import torch

from core.checks import one_of, part, whole
from core.condensation import LatentEncoder, draw_augmentation
from core.condensation.engine import (
    Condensation,
    Draws,
    MatchingObjective,
    RealData,
    condense,
    strategy,
)
from core.condensation.latent import Separate
from core.condensation.matching import MatchingLoss, kernel_or_loss
from core.families.one_shot import CondensingSettings, OneShotCondensing
from core.federation import Client, Message, Task
from core.models import initialise
from core.rng import Rng


@attrs.frozen(kw_only=True)
class Settings(CondensingSettings):
    """Hyper-parameters of DM."""

    iterations: int = attrs.field(default=20_000, validator=whole(1))
    augmentation: str = attrs.field(
        default="color_crop_cutout_flip_scale_rotate", validator=strategy
    )
    kernel: str | MatchingLoss = attrs.field(default="linear", validator=kernel_or_loss)
    #: "fresh" in every iteration and for every class, or one "constant" draw for all of them, as
    #: in the code of GDD-FL
    augmentation_draws: str = attrs.field(
        default="fresh", validator=one_of("draws of the augmentation", "fresh", "constant")
    )
    #: a "fresh" random network in every iteration, the same for all clients, or a "fixed" one of each
    #: client's own, as in the code of GDD-FL
    networks: str = attrs.field(
        default="fresh", validator=one_of("kind of networks", "fresh", "fixed")
    )

    @classmethod
    def released(cls) -> Self:
        """The authors' code starts from real images, and draws batches without replacement."""
        return cls(init="real", replacement=False)


class DM(OneShotCondensing):
    """Condensed images have the mean feature of real ones, at a new random network per iteration."""

    Settings = Settings

    def encoder(self, task: Task, networks: Rng, rngs: Sequence[Rng]) -> LatentEncoder:
        """A random network, another one in every iteration unless it is fixed."""
        encoder = LatentEncoder(self.settings.encoder(task, self.drawn_from(networks, rngs)))

        def resample(number: int) -> None:
            # theta ~ P_theta
            initialise(encoder.model, networks.at("network", number))

        encoder.resample = resample if self.settings.networks == "fresh" else None
        return encoder

    def drawn_from(self, networks: Rng, rngs: Sequence[Rng]) -> Rng:
        """Return the stream that networks are drawn from: one of all clients, or the served client's."""
        return networks if self.settings.networks == "fresh" else rngs[0].at("networks")

    def client_updates(
        self, clients: Sequence[Client], messages: Mapping[int, Message], rngs: Sequence[Rng]
    ) -> dict[int, Message]:
        """Condensed images with their labels; clients with networks of their own one by one."""
        if self.settings.networks == "fresh":
            return super().client_updates(clients, messages, rngs)
        answers = dict[int, Message]()
        for client, rng in zip(clients, rngs, strict=True):
            answers |= super().client_updates([client], messages, [rng])
        return answers

    def matching_objective(
        self, task: Task, real: RealData, networks: Rng, rngs: Sequence[Rng]
    ) -> MatchingObjective:
        """Mean features of every class and client."""
        settings, constant = self.settings, None
        if settings.augmentation_draws == "constant":
            draws, device = networks.at("augment").generator(), real.images.device
            drawn = draw_augmentation(settings.augmentation, 1, task.dataset.size, draws, device)
            constant = drawn.select(torch.zeros(real.groups, dtype=torch.int64, device=device))
        return MatchingObjective(
            self.encoder(task, networks, rngs),
            real,
            part(settings, Condensation),
            Draws(rngs, real.owner, constant),
            task.inputs,
            task.runtime.autocast,
            Separate(),
        )

    def condense(
        self, task: Task, real: RealData, start: torch.Tensor, networks: Rng, rngs: Sequence[Rng]
    ) -> torch.Tensor:
        """S <- S - eta grad sum_c || mean psi(A(T_c)) - mean psi(A(S_c)) ||^2."""
        group = torch.arange(real.groups, device=start.device).repeat_interleave(start.shape[1])
        objective = self.matching_objective(task, real, networks, rngs)
        images, _ = condense(objective, start.flatten(0, 1), group)
        return images.view_as(start)
