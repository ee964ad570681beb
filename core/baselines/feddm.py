"""FedDM: iterative distribution matching.

Xiong, Wang, Cheng, Yu, Hsieh. FedDM: Iterative Distribution Matching for Communication-Efficient
Federated Learning. CVPR 2023. The values of `Settings` are those of the paper's image experiments;
images start from noise, as in FedVCK, in whose tables it is. There is no official code.
`Settings.released()` follows a public program (anonymifish/fed-distribution-matching) that shares
the partition, the seed and a function that disturbs weights with the code of FedVCK, which never
calls it. It starts from real images. How many images a class has (10 there), how real batches are
drawn (without replacement there) and what is sent (bytes; there float32) follow FedVCK's comparison in
both.

`statistics` says whose statistics batch normalisation takes while images are matched. By default
each side has its "own". Then scale and offset of condensed images may drift. And as a client's real
batch has equally many images of each class, its condensed one not, even perfect images have a loss.
The program embeds in evaluation mode (`sample_model.eval()` in src/client.py): with "running" both
sides take the running statistics of the received model, which no disturbance changes; those of a
model that has not trained yet are 0 and 1. The program's networks have instance normalisation
(src/models.py), for which the two are the same, so `released()` leaves it at the default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
import torch

from core.checks import number, one_of, whole
from core.condensation import LatentEncoder, LatentStatistics
from core.condensation.engine import (
    Condensation,
    Draws,
    MatchingObjective,
    RealData,
    condense,
    condensed_counts,
)
from core.condensation.latent import Normalisation, Separate
from core.families import condensing
from core.families.condensing import Condensing, Knowledge
from core.federation import Client, Format, Message, State, Task, pack
from core.federation.tensors import weights
from core.models import Classifier
from core.rng import Rng


@attrs.frozen(kw_only=True)
class Settings(condensing.ServerSide, Condensation):
    """Hyper-parameters of FedDM."""

    image_lr: float = attrs.field(default=1.0, validator=number(0, above=True))
    #: rho: radius of the ball around the global model that weights are drawn from
    rho: float = attrs.field(default=5.0, validator=number(0))
    #: what normalises real and condensed images: each batch's "own" statistics, or the "running" ones
    #: of the received model
    statistics: str = attrs.field(
        default="own", validator=one_of("kind of statistics", "own", "running")
    )
    server_lr: float = attrs.field(default=0.01, validator=number(0, above=True))
    server_weight_decay: float = attrs.field(default=0.0, validator=number(0))
    server_epochs: int = attrs.field(default=500, validator=whole(1))
    server_decay: float = attrs.field(default=1.0, validator=number(0, 1, above=True))

    @classmethod
    def released(cls) -> Settings:
        """The public program; its ConvNet has instance normalisation. With batch normalisation its
        evaluation mode is to be stated: `statistics: running`.
        """
        return cls(init="real", server_weight_decay=5e-4)


class FedDM(Condensing):
    """Clients condense images whose mean features and logits of a class match their data's, at weights
    around the global model, which the server trains on the images of the round.
    """

    Settings = Settings
    network_parts = ("embed", "classifier")

    def initialise(self, task: Task, rng: Rng) -> State:
        """A fresh model, and the seed that clients share, so that all resample the model alike."""
        return State(
            task, pack(task.new_model(rng.at("model"))), {"round": 0, "seed": rng.at("disturb").key}
        )

    def broadcast(self, state: State, client_id: int) -> Message:
        """The global model, the round and the shared seed."""
        return Message(
            weights(state.tensors), {"round": state.meta["round"], "seed": state.meta["seed"]}
        )

    def upload_format(self, state: State) -> Format:
        """Condensed images with their labels."""
        return condensing.upload_format(state, self.settings, "uint8"), {}

    def client_updates(
        self, clients: Sequence[Client], messages: Mapping[int, Message], rngs: Sequence[Rng]
    ) -> dict[int, Message]:
        """Return what clients upload, condensed as one batch at the same disturbed weights."""
        task, settings, message = clients[0].task, self.settings, messages[clients[0].id]
        real, sizes = condensing.gather(clients, rngs, settings.candidates)
        group = torch.repeat_interleave(condensed_counts(sizes, settings))
        start = condensing.starts(settings.init, real, group, task, rngs)
        images, _ = condense(self.matching_objective(task, message, real, rngs), start, group)
        return condensing.uploads(clients, real, images, group)

    def matching_objective(
        self, task: Task, message: Message, real: RealData, rngs: Sequence[Rng]
    ) -> MatchingObjective:
        """Features and logits at disturbed weights, for the clients of `rngs`."""
        settings, model = self.settings, task.model_from(message.tensors)
        encoder = LatentEncoder(FeaturesAndLogits(model))
        shared = Rng(message.whole("seed")).at("round", message.whole("round"))
        encoder.resample = disturbance(encoder, settings.rho, shared)
        return MatchingObjective(
            encoder,
            real,
            settings,
            Draws(rngs, real.owner),
            task.inputs,
            task.runtime.autocast,
            Separate()
            if settings.statistics == "own"
            else Normalisation(real=LatentStatistics.running(model, len(rngs))),
        )

    def server_update(self, state: State, uploads: Mapping[int, Message], rng: Rng) -> State:
        """Train on the condensed images of this round."""
        knowledge = Knowledge.extended(None, *condensing.collect(uploads), state.meta["round"])
        model = condensing.learn(state.task, state, knowledge, self.settings, rng)
        tensors = pack(model) | knowledge.tensors()
        return State(state.task, tensors, state.meta | {"round": state.meta["round"] + 1})


class FeaturesAndLogits(Classifier):
    """A network whose features are followed by its logits: FedDM matches both."""

    def __init__(self, network: Classifier) -> None:
        super().__init__()
        self.network = network

    def embed(self, images: torch.Tensor) -> torch.Tensor:
        """Features and logits (N, D + C)."""
        features = self.network.embed(images)
        return torch.cat([features.float(), self.network.classifier(features).float()], 1)


def disturbance(encoder: LatentEncoder, rho: float, rng: Rng) -> Callable[[int], None] | None:
    """A function that moves the encoder to w = w_t + min(1, rho / ||g||) g, g ~ N(0, 1): as ||g|| is far
    above rho, a random point on the sphere of radius rho.
    """
    if not rho:
        return None
    weights = {
        name: value
        for name, value in encoder.model.state_dict().items()
        if value.is_floating_point()
    }
    centre = {name: value.clone() for name, value in weights.items()}

    def resample(draw: int) -> None:
        device = next(iter(weights.values())).device
        generator = rng.at("draw", draw).generator(device)
        noise = {
            name: torch.randn(value.shape, generator=generator, device=device)
            for name, value in weights.items()
        }
        norm = torch.linalg.vector_norm(
            torch.stack([torch.linalg.vector_norm(each) for each in noise.values()])
        )
        scale = (rho / norm).clamp(max=1.0)
        for name, value in weights.items():
            value.copy_(centre[name] + scale * noise[name])

    return resample
