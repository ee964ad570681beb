"""Base of the methods of GDD-FL's table: clients upload once, then the server trains a new model
on what they sent.

Tian, Wang, Jin, Wang. Communication-Efficient Federated Skin Lesion Classification with
Generalizable Dataset Distillation. MICCAI 2023, Sec. 2.3 and 3.2.

The server's optimiser is SGD with learning rate 0.01, 50 epochs, batch 64; the paper gives neither
momentum nor weight decay, so those of local training are taken here. It calls this rate and that of the
images *initial* and gives no schedule; here both are constant. Random networks come from a seed
that the server hands out with its only message, so that all clients match at the same networks and
can be computed as one batch; the draws of images, augmentations and shifts stay each client's own.
What is sent are bytes, as the paper counts them: noise is cut to the pixels' range. In the code of
GDD-FL, DC, DSA and DM the server trains on the optimised images in float32, normalised by
the data set's own mean and deviation (ImageNet's in GDD-FL's).

The evaluations of DC, DSA and DM are others: 300 epochs for DC, 1,000 for the others, batches of 256,
a weight decay of 0.0005, a rate that falls to a tenth half way, for DSA and DM augmented images, and
instance normalisation. All their images serve one server here, which trains as GDD-FL's does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Self

import attrs
import torch
from torch import nn

from core import metrics, server
from core.checks import beta_1, number, on_or_off, one_of, whole
from core.condensation.engine import RealData, strategy
from core.condensation.selection import STARTS
from core.errors import InputError
from core.families import condensing
from core.families.condensing import Condensing, Knowledge
from core.federation import Client, Format, Ledger, Message, State, Task, pack, supervised
from core.models import Classifier
from core.rng import Rng


@attrs.frozen(kw_only=True, slots=False)
class OneShotSettings(condensing.ServerSide):
    """Hyper-parameters of a method whose clients upload images once."""

    #: images of each class
    images_per_class: int = attrs.field(default=10, validator=whole(1))
    server_lr: float = attrs.field(default=0.01, validator=number(0, above=True))
    server_weight_decay: float = attrs.field(default=1e-5, validator=number(0))
    server_batch: int = attrs.field(default=64, validator=whole(1))
    server_epochs: int = attrs.field(default=50, validator=whole(1))
    server_decay: float = attrs.field(default=1.0, validator=number(0, 1, above=True))
    #: whether the rate falls by a cosine, epoch by epoch, as in the code of GDD-FL
    server_cosine: bool = attrs.field(default=False, validator=on_or_off)
    #: whether the last client's images choose the epoch whose model is kept, and are not trained on, as
    #: in the code of GDD-FL: by the AUC, by accuracy where all are of one class
    last_client_chooses: bool = attrs.field(default=False, validator=on_or_off)

    @classmethod
    def released(cls) -> Self:
        """The values of the authors' code; the defaults, where there is none to be had."""
        return cls()


@attrs.frozen(kw_only=True, slots=False)
class CondensingSettings(OneShotSettings):
    """Hyper-parameters of a method whose clients condense at random networks."""

    #: initial images: "noise", "real" images, or means of several ("real_average"). Real ones may be
    #: sent as they are: one that is its client's only image of a class has the features and gradients
    #: that it is to match (see `copied_images`)
    init: str = attrs.field(default="noise", validator=one_of("initialisation", *STARTS))
    #: iterations, each with another random network
    iterations: int = attrs.field(default=1000, validator=whole(1))
    image_lr: float = attrs.field(default=1.0, validator=number(0, above=True))
    image_momentum: float = attrs.field(default=0.5, validator=beta_1)
    #: real images per class and client in one batch
    real_batch: int = attrs.field(default=256, validator=whole(1))
    #: whether an image may be in a batch twice. In the code of DC, DSA and DM it may not, and a class
    #: that is smaller than the batch makes it smaller; here its images come again until it is full
    replacement: bool = attrs.field(default=True, validator=on_or_off)
    #: siamese augmentation, or "none"
    augmentation: str = attrs.field(default="none", validator=strategy)
    #: the ConvNet that images are matched at, with instance normalisation as in the code of DC, DSA
    #: and DM
    encoder_width: int = attrs.field(default=128, validator=whole(1))
    encoder_depth: int = attrs.field(default=3, validator=whole(1))

    def encoder(self, task: Task, rng: Rng) -> Classifier:
        """The ConvNet, on the task's device."""
        return condensing.instance_convnet(task, rng, self.encoder_width, self.encoder_depth)


class OneShot(Condensing):
    """Clients upload 8-bit images and labels once, in the first round (with `active` not all); the server
    trains the model it began with on them. Later rounds change and send nothing.
    """

    Settings = OneShotSettings

    def initialise(self, task: Task, rng: Rng) -> State:
        """A fresh model, and the seed of random networks. InputError where the only client chooses."""
        if (
            self.settings.last_client_chooses
            and (self.schedule.active or self.schedule.clients) < 2
        ):
            raise InputError("last_client_chooses asks for a second client, to learn from")
        return State(
            task,
            pack(task.new_model(rng.at("model"))),
            {"spoken": False, "seed": rng.at("networks").key},
        )

    def broadcast(self, state: State, client_id: int) -> Message:
        """The seed that clients share; no model crosses the network."""
        return Message({}, {"seed": state.meta["seed"]})

    def upload_format(self, state: State) -> Format:
        """8-bit images and their labels, so many of every class that a client has."""
        data, each = state.task.dataset, self.settings.images_per_class
        return condensing.images_format(data, each, data.num_classes * each), {}

    def server_update(self, state: State, uploads: Mapping[int, Message], rng: Rng) -> State:
        """Train a new model on the merged images (Sec. 2.3); these stay in the state."""
        images, labels = condensing.collect(uploads)
        if self.settings.server_cosine or self.settings.last_client_chooses:
            model = self.learnt_by_epochs(state, uploads, rng)
        else:
            knowledge = Knowledge.extended(None, images, labels, 0)
            model = condensing.learn(state.task, state, knowledge, self.settings, rng)
        counts = [len(upload.tensors["labels"]) for upload in uploads.values()]
        client = torch.repeat_interleave(torch.tensor(list(uploads)), torch.tensor(counts)).to(
            labels.device
        )
        tensors = {"uploaded/images": images, "uploaded/labels": labels, "uploaded/client": client}
        return State(state.task, pack(model) | tensors, state.meta | {"spoken": True})

    def learnt_by_epochs(self, state: State, uploads: Mapping[int, Message], rng: Rng) -> nn.Module:
        """The model of GDD-FL's code, chosen by the last client. InputError where it is the only one."""
        settings, task, score = self.settings, state.task, None
        model = task.model_from(state.tensors)
        if settings.last_client_chooses:
            # of random images some clients may have been asked for none
            *others, last = sorted(
                id_ for id_, upload in uploads.items() if len(upload.tensors["labels"])
            )
            if not others:
                raise InputError("only the client that chooses has sent images: none to learn from")
            held = condensing.collect({last: uploads[last]})
            uploads = {id_: uploads[id_] for id_ in others}
            score = partial(quality, task, *held)
        images, labels = condensing.collect(uploads)
        server.update_by_epochs(
            model,
            images,
            labels,
            settings.training,
            supervised(task),
            rng.at("learn"),
            falling=settings.server_cosine,
            score=score,
        )
        return model

    def round(self, state: State, clients: Sequence[Client], ledger: Ledger, rng: Rng) -> State:
        """The first round is the only one."""
        return state if state.meta["spoken"] else super().round(state, clients, ledger, rng)


def quality(task: Task, images: torch.Tensor, labels: torch.Tensor, model: nn.Module) -> float:
    """Score of a model on uploaded images (M, C, H, W): the AUC, or accuracy where there is none."""
    scores = metrics.classification(task.outputs(model, images).cpu(), labels.cpu())
    return scores.get("auc_macro", scores["accuracy"])


class OneShotCondensing(OneShot):
    """Clients condense so many images of every class that they have."""

    Settings = CondensingSettings

    def condense(
        self, task: Task, real: RealData, start: torch.Tensor, networks: Rng, rngs: Sequence[Rng]
    ) -> torch.Tensor:
        """Condensed images (G, m, C, H, W) of G groups from initial ones; random `networks` are the same for
        all clients, `rngs` is one stream per client.
        """
        raise NotImplementedError

    def client_updates(
        self, clients: Sequence[Client], messages: Mapping[int, Message], rngs: Sequence[Rng]
    ) -> dict[int, Message]:
        """Condensed images with their labels."""
        task, settings = clients[0].task, self.settings
        networks = Rng(messages[clients[0].id].whole("seed"))
        real, _ = condensing.gather(clients, rngs)
        group = torch.arange(real.groups, device=real.group.device)
        group = group.repeat_interleave(settings.images_per_class)
        start = condensing.starts(settings.init, real, group, task, rngs)
        start = start.unflatten(0, (real.groups, settings.images_per_class))
        images = self.condense(task, real, start, networks, rngs)
        return condensing.uploads(clients, real, images.flatten(0, 1), group)
