"""DC: condensation by gradient matching, in one communication.

Zhao, Mopuri, Bilen. Dataset Condensation with Gradient Matching. ICLR 2021, Algorithm 1. How often
images and network take turns depends, as in the authors' code, on the images per class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import attrs
import torch

from core.checks import number, part, whole
from core.condensation.engine import Draws, RealData
from core.condensation.gradient import LOOPS, GradientMatching, GradientProblem, match_gradients
from core.errors import InputError
from core.families.one_shot import CondensingSettings, OneShotCondensing
from core.federation import Task
from core.rng import Rng


@attrs.frozen(kw_only=True, slots=False)
class Settings(CondensingSettings):
    """Hyper-parameters of DC."""

    image_lr: float = attrs.field(default=0.1, validator=number(0, above=True))
    #: T: matches at one random network; None: as the authors' code has it for so many images per
    #: class
    matches: int | None = attrs.field(default=None, validator=whole(1, optional=True))
    #: steps of the network between two matches; None: as the authors' code has it
    network_steps: int | None = attrs.field(default=None, validator=whole(1, optional=True))

    def __attrs_post_init__(self) -> None:
        if None in (self.matches, self.network_steps) and self.images_per_class not in LOOPS:
            raise InputError(
                f"for {self.images_per_class} images per class say how many matches and network_steps "
                f"there are; they are known for {', '.join(map(str, LOOPS))} images"
            )

    @classmethod
    def released(cls) -> Self:
        """The authors' code draws batches without replacement."""
        return cls(replacement=False)

    @property
    def matching(self) -> GradientMatching:
        """Return these settings as gradient matching takes them."""
        matches, steps = LOOPS.get(self.images_per_class, (1, 1))
        return part(
            self,
            GradientMatching,
            matches=self.matches or matches,
            network_steps=self.network_steps or steps,
        )


class DC(OneShotCondensing):
    """Condensed images give the gradients of real ones, at random networks and along their training."""

    Settings = Settings

    def condense(
        self, task: Task, real: RealData, start: torch.Tensor, networks: Rng, rngs: Sequence[Rng]
    ) -> torch.Tensor:
        """Match gradients of every class and client."""
        network = self.settings.encoder(task, networks)
        problem = GradientProblem(
            network, real, self.settings.matching, Draws(rngs, real.owner), task.inputs, networks
        )
        return match_gradients(problem, start)[0]
