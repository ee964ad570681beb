"""MOON: model-contrastive federated learning.

Li, He, Song. Model-Contrastive Federated Learning. CVPR 2021, Eq. 3 and 4, Algorithm 1; code:
QinbinLi/MOON.

The paper puts a projection head of two linear layers between encoder and last layer, 256 numbers
wide at its end. It is part of the network: it is trained, sent, averaged and tested with it, and
the ledger counts it. As in the authors' code the hidden layer is as wide as the features, which the
paper leaves open. Behind FedVCK's ConvNet (2,048 features) that is 4.7 million parameters more, 15
times the network. FedVCK's Tables 5 and 9 report for MOON the upload of FedAvg to the last digit, so
nothing of the kind was sent there; NIID-Bench (Li, Diao, Chen, He, ICDE 2022), whose settings the
baselines share, has no head by default. `projection: 0` is that form: the features themselves are
compared.

The frozen networks are in evaluation mode, as in the code; the paper does not say. A client that
takes part for the first time has no w^{t-1}, and its contrastive term is left out, as in the first
round of the code (there, one drawn first in a later round has an untrained network for it). In the code
batches that are not whole are dropped, and all methods that it compares have the head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
import torch
from torch import nn
from torch.nn import functional as F

from core import models
from core.baselines import fedavg
from core.checks import number, whole
from core.federation import CLASSIFICATION, SERVER, Client, Message, State, Task, pack, train
from core.federation.tensors import put, take, unpack
from core.models import Classifier, at_once
from core.models.tensors import at_least_float32
from core.rng import Rng
from core.training import Objective

#: from a batch's images (N, C, H, W) and their places at the client (N,) to z_glob and z_prev (N, D)
Frozen = Callable[[torch.Tensor, torch.Tensor], Sequence[torch.Tensor]]
#: bytes of features that a client keeps at most
CACHE_BYTES = 2**30


@attrs.frozen(kw_only=True)
class Settings(fedavg.Settings):
    """Local training, and the contrastive term."""

    #: mu, the weight of the contrastive term: 5 on CIFAR-10, 1 on CIFAR-100 and Tiny-ImageNet;
    #: tuned over 0.1, 1, 5, 10
    mu: float = attrs.field(default=1.0, validator=number(0))
    #: tau
    temperature: float = attrs.field(default=0.5, validator=number(0, above=True))
    #: length of the projected features; 0: no projection head
    projection: int = attrs.field(default=256, validator=whole(0))

    @classmethod
    def released(cls) -> Settings:
        """The authors' command for CIFAR-10; their loader crops and flips (and reflects at the edges)."""
        return cls(mu=5.0, local_augmentation="crop_flip")


class Projected(Classifier):
    """A network with a projection head before its last layer; `embed` gives the projected features.
    The weights of the head are not set: call `initialise` or load them.
    """

    def __init__(self, encoder: Classifier, size: int, device: torch.device) -> None:
        super().__init__()
        features, classes = encoder.classifier.in_features, encoder.classifier.out_features

        def linear(inputs: int, outputs: int) -> nn.Linear:
            return nn.utils.skip_init(nn.Linear, inputs, outputs, device=device)

        self.encoder = encoder
        del encoder.classifier
        self.head = nn.Sequential(linear(features, features), nn.ReLU(), linear(features, size))
        self.classifier = linear(size, classes)

    def initialise(self, rng: Rng) -> None:
        """Draw the weights of the head and of the last layer."""
        models.initialise(self.head, rng.at("head"))
        models.initialise(self.classifier, rng.at("classifier"))

    def embed(self, images: torch.Tensor) -> torch.Tensor:
        """R_w(x), (N, size), of normalised images (N, C, H, W)."""
        return self.head(self.encoder.embed(images))


class MOON(fedavg.FedAvg):
    """FedAvg with l = l_sup + mu l_con: features near the global model's, far from the last own one's."""

    Settings = Settings
    network_parts = ("embed", "classifier.in_features", "classifier.out_features")
    task_kinds = CLASSIFICATION
    evaluators = SERVER

    def initialise(self, task: Task, rng: Rng) -> State:
        """A fresh model; its encoder is the one that FedAvg starts from."""
        if not self.settings.projection:
            return super().initialise(task, rng)
        model = self._projected(task, rng.at("model"))
        model.initialise(rng.at("projection"))
        return State(task, pack(model))

    def network(self, task: Task, tensors: Mapping[str, torch.Tensor]) -> nn.Module:
        """The network, with the projection head if there is one."""
        if not self.settings.projection:
            return super().network(task, tensors)
        return unpack(self._projected(task, Rng(0)), tensors)

    def _projected(self, task: Task, rng: Rng) -> Projected:
        return Projected(task.new_model(rng), self.settings.projection, task.runtime.device)

    def client_update(self, client: Client, message: Message, rng: Rng) -> Message:
        """Local training; the client remembers its model as w_i^{t-1} of its next round."""
        model = self.start(client, message)
        # in place of labels the loop hands on which images a batch has
        places = torch.arange(len(client), device=client.labels.device)
        objective = self.contrastive(client, message)
        train(model, client.images, places, self.settings, objective, rng)
        answer = self.answer(client, model)
        client.memory = put("previous/", answer.tensors)
        return answer

    def contrastive(self, client: Client, received: Message) -> Objective:
        """l of a batch, by its images and their places at the client: the loss of the data and, from a
        client's second round on, mu times the contrastive term.
        """
        task, settings = client.task, self.settings
        data_loss = settings.data_loss(task, client.labels)
        previous = take("previous/", client.memory)
        frozen = self._frozen(client, [received.tensors, previous]) if previous else None

        def objective(
            model: Classifier, images: torch.Tensor, places: torch.Tensor
        ) -> torch.Tensor:
            with task.runtime.autocast():
                # z = R_{w_i^t}(x)
                z = model.embed(task.inputs(images))
                outputs = model.classifier(z)
            # l_sup(w_i^t; (x, y))
            loss = data_loss(outputs, client.labels[places])
            if frozen is None:
                return loss
            z_glob, z_prev = frozen(images, places)
            # l = l_sup(w_i^t; (x, y)) + mu l_con(w_i^t; w_i^{t-1}; w^t; x)
            return loss + settings.mu * contrast(z, z_glob, z_prev, settings.temperature)

        return objective  # type: ignore[return-value]

    def _frozen(self, client: Client, weights: Sequence[Mapping[str, torch.Tensor]]) -> Frozen:
        """z_glob = R_{w^t}(x) and z_prev = R_{w_i^{t-1}}(x), in evaluation mode; computed once in a round
        where images come again unchanged and all fit into memory.
        """
        task, settings = client.task, self.settings
        networks = [self.network(task, w).eval().requires_grad_(False) for w in weights]

        @torch.no_grad()
        def features(images: torch.Tensor) -> list[torch.Tensor]:
            inputs = task.inputs(images)
            with task.runtime.autocast():
                return [network.embed(inputs) for network in networks]  # type: ignore[operator]

        first = features(client.some(torch.zeros(1, dtype=torch.int64)))
        room = len(client) * sum(each.nbytes for each in first)
        repeated = settings.views(len(client)) > len(client)
        if not repeated or settings.local_augmentation != "none" or room > CACHE_BYTES:
            return lambda images, places: features(images)
        images = client.images
        parts = [features(batch) for batch in images.split(at_once(images))]
        cached = [torch.cat(each) for each in zip(*parts, strict=True)]
        return lambda images, places: [each[places] for each in cached]


def contrast(
    z: torch.Tensor, z_glob: torch.Tensor, z_prev: torch.Tensor, temperature: float
) -> torch.Tensor:
    """l_con = -log(exp(sim(z, z_glob)/tau) / (exp(sim(z, z_glob)/tau) + exp(sim(z, z_prev)/tau))) (Eq. 3),
    the mean over features (N, D), in float32 or wider; sim is the cosine.
    """
    z, z_glob, z_prev = (at_least_float32(each) for each in (z, z_glob, z_prev))
    nearer = F.cosine_similarity(z, z_prev) - F.cosine_similarity(z, z_glob)
    return F.softplus(nearer / temperature).mean()
