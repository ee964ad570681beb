"""FedGen: data-free knowledge distillation for heterogeneous federated learning.

Zhu, Hong, Zhou. Data-Free Knowledge Distillation for Heterogeneous Federated Learning. ICML 2021,
Eq. 4 and 5, Algorithm 1; code: zhuangdizhu/FedGen.

The server trains a generator of features against the last layers of the clients' models (see
`core.server.generator`) and sends it with the next model; a client trains its last layer on
generated features as well. Only the model and the numbers of samples per class go up, so that the
upload is FedAvg's, as FedVCK's Table 9 prints it, but for 8 bytes a class; its Table 10 has "Model,
G" coming down.

Two terms are in the code and not in the equations, and are taken from there: the divergence of a
client's outputs on its own images from those on features generated for their labels (`beta`), and
the generator's diversity (`eta`); an adversarial third one has weight 0 there and is left out. Eq.
4 averages the clients' logits with equal weights; weights by label counts, as in the code, are the
default, because a client without a class has nothing to say on it: `ensemble_weights: uniform` is
Eq. 4 to the letter. As in the code the first round has no generated features, and alpha, beta and
the generator's learning rate shrink by `decay` in a round. The generator goes on with its optimiser
from round to round. Its labels are distributed as those of the round's clients; the code counts
those of their batches (`counted`). The code has generated features in the first 20 "epochs" of a round only,
each of one batch; its commands take no more than these, and here all have them. For CIFAR the
code lists a generator with 512 hidden units and noise of length 64, of which it has no run; here they
are 256 and 32 for all data. Before January 2022 its clients took their images in the stored order,
class by class: `order: by_class`, where what is counted matters, too (`counted: batches`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import torch
from torch import nn

from core import server
from core.baselines import fedavg
from core.checks import number, one_of, part, whole
from core.distillation import kl_divergence
from core.families import generative
from core.federation import CLASSIFICATION, Client, Format, Message, State, Task, pack
from core.federation.local_training import LocalLoss
from core.federation.tensors import put, take, unpack, weights
from core.models import FeatureGenerator
from core.rng import Rng
from core.server.generator import ENSEMBLES, NOISES

#: local training of the methods in zhuangdizhu/FedGen: 20 local batches of 32 by plain SGD (its decay of
#: the learning rate, 0.99 a round, is left out; there passes go on from round to round, and since January
#: 2022, when that code began to shuffle, batches that are not whole are dropped)
LOCAL: dict[str, Any] = {
    "batch_size": 32,
    "local_steps": 20,
    "momentum": 0.0,
    "weight_decay": 0.0,
}
WEIGHTS = ("counts", "uniform")
#: a client's memory of how many images of each class its last round had
SEEN = "labels/seen"


@attrs.frozen(kw_only=True)
class Settings(fedavg.Settings):
    """Local training, the terms of the clients, and the generator."""

    #: alpha, weight of the cross-entropy on generated features: 10 in the code, Eq. 5 has 1
    alpha: float = attrs.field(default=10.0, validator=number(0))
    #: beta, weight of the divergence from the outputs on generated features
    beta: float = attrs.field(default=10.0, validator=number(0))
    #: eta, weight of the generator's diversity
    eta: float = attrs.field(default=1.0, validator=number(0))
    #: what alpha, beta and the generator's learning rate are multiplied by after every round
    decay: float = attrs.field(default=0.98, validator=number(0, 1, above=True))
    generator_lr: float = attrs.field(default=3e-4, validator=number(0, above=True))
    #: features drawn for a step of the generator
    generator_batch: int = attrs.field(default=128, validator=whole(2))
    #: steps of the generator in a round
    generator_steps: int = attrs.field(default=50, validator=whole(0))
    #: units of the generator's hidden layer, and length of its noise
    generator_hidden: int = attrs.field(default=256, validator=whole(1))
    generator_noise: int = attrs.field(default=32, validator=whole(1))
    #: "normal", N(0, 1), as in the paper; "uniform", U(0, 1), in the code
    noise: str = attrs.field(default="normal", validator=one_of("noise", *NOISES))
    #: "logits": cross-entropy of averaged logits (Eq. 4); "losses": average of cross-entropies, in
    #: the code
    ensemble: str = attrs.field(
        default="logits", validator=one_of("form of the ensemble", *ENSEMBLES)
    )
    #: of that average: "counts", a client's share of the samples of a class, in the code;
    #: "uniform", 1/K (Eq. 4)
    ensemble_weights: str = attrs.field(
        default="counts", validator=one_of("weights of the ensemble", *WEIGHTS)
    )
    #: labels of generated features: "counts", y ~ p(y), as in the paper; "uniform" over the classes that
    #: exist, in the code
    labels: str = attrs.field(
        default="counts", validator=one_of("distribution of labels", *WEIGHTS)
    )

    #: what a client counts for p(y) and for the weights of the ensemble: its "images", or those of the
    #: "batches" of its round, in the code
    counted: str = attrs.field(default="images", validator=one_of("count", "images", "batches"))

    @classmethod
    def released(cls) -> Settings:
        """Values of zhuangdizhu/FedGen for MNIST: its local training, and 32 features in a step of the
        generator, which does not use the `ensemble_batch_size` of 128. Three things are not as there. It
        multiplies weights (N, 1) by losses (N,), so that each image's loss has the mean weight of all;
        here it has its own. Its clients always draw from all classes that the data have. And they count
        the images of each class from one, so that who lacks a class keeps a small weight in it.
        """
        return cls(
            **LOCAL,
            generator_batch=32,
            noise="uniform",
            ensemble="losses",
            labels="uniform",
        )


class FedGen(fedavg.FedAvg):
    """FedAvg whose clients also train on features of all classes, made by the server's generator."""

    Settings = Settings
    network_parts = ("classifier.weight", "classifier.bias")
    task_kinds = CLASSIFICATION

    def initialise(self, task: Task, rng: Rng) -> State:
        """A fresh model and a fresh generator."""
        tensors = super().initialise(task, rng).tensors
        generator = self._fresh_generator(
            task, tensors["parameters/classifier.weight"].shape[1], rng.at("generator")
        )
        return State(task, tensors | pack(generator, "generator/"), {"round": 0})

    def _fresh_generator(self, task: Task, size: int, rng: Rng) -> FeatureGenerator:
        """A fresh generator of features of length `size`."""
        return generative.feature_generator(
            task,
            size,
            rng,
            noise=self.settings.generator_noise,
            hidden=self.settings.generator_hidden,
        )

    def generator(self, task: Task, tensors: Mapping[str, torch.Tensor]) -> FeatureGenerator:
        """G with the weights `generator/...` of a state's or a message's tensors."""
        size = len(tensors["generator/parameters/out.weight"])
        return unpack(self._fresh_generator(task, size, Rng(0)), tensors, "generator/")

    def broadcast(self, state: State, client_id: int) -> Message:
        """The global model; from round 2 also generator and p(y), FedVCK's Table 10."""
        tensors = weights(state.tensors)
        if state.meta["round"]:
            for kind in ("generator/", "labels/"):
                tensors |= put(kind, take(kind, state.tensors))
        return Message(tensors, {"round": state.meta["round"]})

    def upload_format(self, state: State) -> Format:
        """A model, the number of samples behind it, and that of each class."""
        tensors, meta = super().upload_format(state)
        most = self.settings.views if self.settings.counted == "batches" else None
        return tensors | {"labels/counts": state.task.counts(most)}, meta

    def batches(self, client: Client, rng: Rng) -> Iterator[torch.Tensor]:
        """The batches of a client's round; their labels are counted, where these are wanted."""
        drawn = super().batches(client, rng)
        return drawn if self.settings.counted == "images" else counting(client, drawn)

    def loss(self, client: Client, received: Message, rng: Rng) -> LocalLoss:
        """The loss of the data, and with a generator its two terms (Eq. 5 and the code)."""
        if "labels/distribution" not in received.tensors:
            return super().loss(client, received, rng)
        task, settings = client.task, self.settings
        generator = self.generator(task, received.tensors).eval().requires_grad_(False)
        distribution = received.tensors["labels/distribution"]
        draws = rng.generator(distribution.device)
        data_loss = settings.data_loss(task, client.labels)
        shrink = settings.decay ** received.whole("round")

        def loss(model: nn.Module, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            samples = len(labels)
            # y^ ~ p(y), z ~ G(y, e) for the labels of the batch and for y^
            wanted = torch.cat([labels, server.draw_labels(distribution, samples, draws)])
            noise = server.draw_noise(settings.noise, (2 * samples, generator.noise), draws)
            features = generator(noise, wanted)
            with task.runtime.autocast():
                on_generated = model.classifier(features)  # type: ignore[operator]
            # KL(sigma(h(z; theta^p)) || sigma(f(x; theta))), z ~ G(y, e)
            divergence = kl_divergence(outputs.float(), on_generated[:samples].detach().float())
            # E_{y ~ p(y), z ~ G(y, e)} l(h(z; theta^p), y)
            generated = task.loss(on_generated[samples:], wanted[samples:])
            terms = shrink * (settings.alpha * generated + settings.beta * divergence)
            return data_loss(outputs, labels) + terms

        return loss

    def answer(self, client: Client, model: nn.Module) -> Message:
        """The trained model; the numbers of samples per class go along."""
        answer = super().answer(client, model)
        counts = client.memory[SEEN] if self.settings.counted == "batches" else client.class_counts
        return Message(answer.tensors | {"labels/counts": counts}, answer.meta)

    def server_update(self, state: State, uploads: Mapping[int, Message], rng: Rng) -> State:
        """The average of the models, and a generator trained against all of them."""
        state, settings = super().server_update(state, uploads, rng), self.settings
        counts = torch.stack([upload.tensors["labels/counts"] for upload in uploads.values()])
        heads = server.Heads.of([upload.tensors for upload in uploads.values()])
        shares = server.label_shares(counts) if settings.ensemble_weights == "counts" else None
        total = counts.sum(0)
        distribution = (
            total / total.sum() if settings.labels == "counts" else (total > 0) / (total > 0).sum()
        )

        def loss(features: torch.Tensor, labels: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
            # J(w) = E_{y ~ p(y)} E_{z ~ G(y, e)} l(sigma(1/K sum_k g(z; theta_k^p)), y) (Eq. 4),
            # and the diversity
            agreed = server.ensemble_cross_entropy(
                heads.logits(features), labels, settings.ensemble, shares
            )
            return agreed + settings.eta * server.diversity(features, noise)

        generator, t = self.generator(state.task, state.tensors), state.meta["round"]
        training = part(
            settings,
            server.GeneratorTraining,
            "generator_",
            lr=settings.generator_lr * settings.decay**t,
            batch_size=settings.generator_batch,
        )
        new = generative.trained(
            generator,
            state.tensors,
            loss,
            distribution,
            training,
            rng.at("generator"),
            settings.noise,
        )
        new["labels/distribution"] = distribution
        return attrs.evolve(state, tensors=state.tensors | new, meta={"round": t + 1})


def counting(client: Client, drawn: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Batches as they are; the client remembers how many images of each class they have, (C,) int64."""
    seen = client.memory[SEEN] = torch.zeros_like(client.class_counts)
    for batch in drawn:
        seen.index_add_(0, client.labels[batch], torch.ones_like(batch))
        yield batch
