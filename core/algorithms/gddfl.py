"""GDD-FL: one-shot federated learning by generalizable dataset distillation.

Tian, Wang, Jin, Wang. Communication-Efficient Federated Skin Lesion Classification with
Generalizable Dataset Distillation. MICCAI 2023, Eq. 1 and 2, Algorithm 1, Sec. 2.2 to 3.2; code:
Yearsflow/GDD-FL, whose first version is younger than the paper.

It is DM with a second loss, towards real images whose statistics are shifted at random. Where the
paper is silent or contradicts itself:

* Sec. 2.2 prints one objective, with U_p only; Algorithm 1 adds the one without. The sum is taken.
* "300 epochs" are 300 iterations: both the text's epoch and the algorithm's iteration draw one
  random network.
* The momentum of SGD is not given; DM's is taken. So are DM's augmentations.
* How U_p is meant, and where it acts: see `core.condensation.shift`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import attrs
import torch

from core.baselines import dm
from core.checks import number, one_of, whole
from core.condensation import LatentEncoder
from core.condensation.engine import MatchingObjective, RealData
from core.condensation.shift import FORMS, Shift, ShiftedMatching
from core.errors import InputError
from core.federation import Task
from core.models import Classifier, initialise
from core.rng import Rng

#: the settings of the shift
SHIFTING = ("shift", "shift_probability", "shift_layer")


@attrs.frozen(kw_only=True)
class Settings(dm.Settings):
    """Hyper-parameters of GDD-FL."""

    iterations: int = attrs.field(default=300, validator=whole(1))
    real_batch: int = attrs.field(default=64, validator=whole(1))
    #: the line after Eq. 2: "dsu", or "as_printed" with mean and deviation the other way round
    shift: str = attrs.field(default="dsu", validator=one_of("form of the shift", *FORMS))
    #: p: how often a batch is shifted
    shift_probability: float = attrs.field(default=0.5, validator=number(0, 1))
    #: where: 0 the channels of the image (Algorithm 1), n the maps after block n of the encoder
    shift_layer: int = attrs.field(default=0, validator=whole(0))
    #: what is matched: the features of "one" network with both losses, as in the paper, or the logits of
    #: "two" networks with one loss, as released (see `TwoNetworks`)
    encoders: str = attrs.field(default="one", validator=one_of("number of encoders", "one", "two"))

    def __attrs_post_init__(self) -> None:
        fields = attrs.fields_dict(type(self))
        if self.encoders == "two" and any(getattr(self, s) != fields[s].default for s in SHIFTING):
            raise InputError(
                f"with encoders: two nothing is shifted: leave out {', '.join(SHIFTING)}"
            )
        if self.shift_layer > self.encoder_depth:
            raise InputError(
                f"shift_layer must be at most the number of blocks, {self.encoder_depth}, "
                f"not {self.shift_layer}"
            )

    @classmethod
    def released(cls) -> Self:
        """The authors' code, but for its networks, two ResNet-18s where ConvNets are used here, and for
        what its server does beside the 100 epochs: `server_cosine`, `last_client_chooses` and a network
        with instance normalisation are to be stated. Its seed of 42 makes the one draw of the
        augmentation one of colours, in each run; there it differs between real images, on a GPU, and
        condensed ones, on the CPU, here it does not. That seed is set anew on the way from client to client,
        so that there all but the first begin with the same noise; here each has its own. Its images
        keep float32 and are normalised by ImageNet's statistics; here they are bytes, and noise is as
        wide as the pixels' range.
        """
        return cls(
            iterations=100,
            encoders="two",
            networks="fixed",
            augmentation="color",
            augmentation_draws="constant",
            replacement=False,
            server_epochs=100,
        )


class TwoNetworks(Classifier):
    """Two random networks, whose logits side by side the code of GDD-FL (`ResNetGDD`) matches: with
    two classes a class is matched in four numbers.

    Its second network has U_p after every convolution. There an instance normalisation follows, which
    subtracts each map's mean and divides by its deviation, so that it undoes U_p (up to the sign, in
    the rare case that the drawn deviation is negative): U_p(x) = sigma^ (x - mu) / sigma + mu^ and x
    have the same normal form. So the second network is here what it is there, another random network.
    """

    def __init__(self, first: Classifier, second: Classifier) -> None:
        super().__init__()
        self.first, self.second = first, second

    def embed(self, images: torch.Tensor) -> torch.Tensor:
        """Logits of both, (N, 2 C)."""
        return torch.cat([self.first(images).float(), self.second(images).float()], 1)


class GDDFL(dm.DM):
    """Condensed images match real ones as they are (L_{S,T}) and under shifted statistics (L_U)."""

    Settings = Settings

    def encoder(self, task: Task, networks: Rng, rngs: Sequence[Rng]) -> LatentEncoder:
        """One random network, or two."""
        if self.settings.encoders == "one":
            return super().encoder(task, networks, rngs)
        source = self.drawn_from(networks, rngs)
        first, second = (self.settings.encoder(task, rng) for rng in (source, source.at("second")))
        both = LatentEncoder(TwoNetworks(first, second))

        def resample(number: int) -> None:
            initialise(both.model.first, networks.at("network", number))  # type: ignore[arg-type]
            initialise(both.model.second, networks.at("second", number))  # type: ignore[arg-type]

        both.resample = resample if self.settings.networks == "fresh" else None
        return both

    def matching_objective(
        self, task: Task, real: RealData, networks: Rng, rngs: Sequence[Rng]
    ) -> MatchingObjective:
        """O_c^S with O_c^T and with O_c^U; or the logits of two networks."""
        settings: Settings = self.settings
        plain = super().matching_objective(task, real, networks, rngs)
        if settings.encoders == "two":
            return plain
        shift = Shift(settings.shift, settings.shift_probability, settings.shift_layer)
        return ShiftedMatching(**attrs.asdict(plain, recurse=False), shift=shift)
