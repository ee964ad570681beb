"""DM: condensation by distribution matching, in one communication.

Zhao, Bilen. Dataset Condensation with Distribution Matching. WACV 2023, Eq. 5 and Algorithm 1. The
defaults are those of the authors' code, but that it starts from real images and draws batches without
replacement (`released`): here images start from noise, as in GDD-FL, unless `init` says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import attrs
import torch

from core.checks import one_of, part, whole
from core.condensation import LatentEncoder, draw_augmentation
from core.condensation.engine import condense
from core.condensation.problem import Condensation, Draws, Problem, RealData, strategy
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
    """Condensed images have the mean feature of the real ones, at a new random network in every
    iteration.
    """

    Settings = Settings

    def parts(
        self, task: Task, real: RealData, networks: Rng, rngs: Sequence[Rng]
    ) -> dict[str, Any]:
        """The fields of a `Problem`: data, budget, and an encoder that is another one in every
        iteration.
        """
        settings: Settings = self.settings
        encoder = LatentEncoder(settings.encoder(task, self.drawn_from(networks, rngs)))
        constant = None
        if settings.augmentation_draws == "constant" and settings.augmentation != "none":
            draws, device = networks.at("augment").generator(), real.images.device
            one = draw_augmentation(settings.augmentation, 1, task.dataset.size, draws, device)
            constant = one.select(torch.zeros(real.groups, dtype=torch.int64, device=device))

        def redraw(number: int) -> None:
            # theta ~ P_theta
            initialise(encoder.model, networks.at("network", number))

        return {
            "encoder": encoder,
            "real": real,
            "settings": part(settings, Condensation),
            "draws": Draws(rngs, real.owner),
            "prepare": task.inputs,
            "autocast": task.runtime.autocast,
            "free": True,
            "disturb": redraw if settings.networks == "fresh" else None,
            "constant": constant,
        }

    def drawn_from(self, networks: Rng, rngs: Sequence[Rng]) -> Rng:
        """What networks are drawn from: all clients' stream, or that of the one that is served."""
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

    def problem(self, task: Task, real: RealData, networks: Rng, rngs: Sequence[Rng]) -> Problem:
        """What is matched: mean features of every class and client."""
        return Problem(**self.parts(task, real, networks, rngs))

    def condense(
        self, task: Task, real: RealData, start: torch.Tensor, networks: Rng, rngs: Sequence[Rng]
    ) -> torch.Tensor:
        """S <- S - eta grad sum_c || mean psi(A(T_c)) - mean psi(A(S_c)) ||^2."""
        group = torch.arange(real.groups, device=start.device).repeat_interleave(start.shape[1])
        images, _ = condense(self.problem(task, real, networks, rngs), start.flatten(0, 1), group)
        return images.view_as(start)
