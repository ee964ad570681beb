"""FedMK: clients condense meta knowledge, and the server learns from it.

Liu, Yu, Zhou. Meta Knowledge Condensation for Federated Learning. ICLR 2023, Algorithm 1, Eq. 3-11.
There is no released code.

Followed as described: knowledge in image space, U[-1, 1] in the first round, the last knowledge of
another client afterwards; weights of samples from the loss at w^c (Eq. 7), outer loss at w* (Eq.
6); a generator from labels to features trained against the global classifier (Eq. 10); beta =
|pseudo| / |uploaded| (Eq. 11).

Where the paper is silent:
* U[-1, 1] is taken in the range of normalised inputs (of MNIST just that; of CIFAR-10 -2.4 to
  2.8), and knowledge travels as the float32 that the paper counts.
* A client makes knowledge of the classes that it has (`classes`); for a class that the other client
  lacks it starts from U[-1, 1]. "Another client" is one of the clients of the last round: only they
  have "the previous round's".
* Algorithm 1 says `elif t == 1`; knowledge is shared in every round from the second on.
* How often the inner loop starts at w^c again, how many steps it takes, what batch normalisation
  does in it, the numbers of iterations, batches and all learning rates: see
  `core.condensation.bilevel` and `Settings`.
* As many pseudo samples as uploaded ones. They are features, so they enter at the classifier.
* Table 7 compares knowledge of two sizes. With `compare_size` a second federation of the same clients
  with so many images per class runs along, outside the ledger, and the distance of the two sets is
  measured after the last round. It has the same first networks, and shares between the same clients; its
  other draws are its own: from the same noise the smaller set would be a part of the larger one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import torch
from torch import nn
from torch.nn import functional as F

from core import server
from core.checks import number, on_or_off, one_of, part, whole
from core.condensation import (
    Extraction,
    ExtractionProblem,
    class_balanced_weights,
    dynamic_weights,
    extract,
    initial_images,
)
from core.condensation.selection import STARTS
from core.errors import InputError
from core.families import condensing, generative
from core.federation import (
    Client,
    Format,
    Ledger,
    Message,
    Schedule,
    State,
    Task,
    pack,
)
from core.federation.tensors import (
    put,
    put_each,
    take,
    take_each,
    unpack,
    weights,
)
from core.metrics import earth_movers_distance
from core.metrics.transport import solver
from core.models import Classifier, FeatureGenerator
from core.rng import Rng
from core.training import batches, scale_rates, sgd, train

WEIGHTS = ("dynamic", "class_balanced", "uniform")


@attrs.frozen(kw_only=True)
class Settings(condensing.ServerSide, Extraction):
    """Hyper-parameters of FedMK, with the paper's values for MNIST where it gives any.

    Knowledge is made for a stretch of `horizon` plain steps of `inner_lr` from the received model.
    The server's training is such a stretch: longer ones and larger steps overshoot what the
    knowledge was made for. With `round_decay` its steps are smaller from the second round on.
    """

    #: meta knowledge per class and client: 20 on MNIST, 100 on SVHN and CIFAR-10, 40 on CIFAR-100
    images_per_class: int = attrs.field(default=20, validator=whole(1))
    #: tau of Eq. 7
    tau: float = attrs.field(default=5.0, validator=number(0, above=True))
    #: of real samples in the outer loss: "dynamic" (Eq. 7), "class_balanced" (Table 6) or "uniform"
    #: (Table 2)
    weights: str = attrs.field(default="dynamic", validator=one_of("weights", *WEIGHTS))
    #: start from another client's knowledge; without it from U[-1, 1] in every round (Table 2)
    sharing: bool = attrs.field(default=True, validator=on_or_off)
    #: what knowledge starts from where no other client's is at hand: "noise" from U[-1, 1], "real"
    #: images of the client, or each from the mean of several ("real_average"); with real ones, no
    #: iterations and no sharing, clients send these
    init: str = attrs.field(default="noise", validator=one_of("initialisation", *STARTS))
    #: |pseudo| / |uploaded|, which is beta of Eq. 11; 0: no pseudo knowledge (Table 2)
    pseudo: float = attrs.field(default=1.0, validator=number(0))
    #: classes that a client makes knowledge of: its "own", or "all"
    classes: str = attrs.field(default="own", validator=one_of("choice of classes", "own", "all"))
    #: Table 7: measure the distance to knowledge of so many images per class
    compare_size: int | None = attrs.field(default=None, validator=whole(1, optional=True))
    server_lr: float = attrs.field(default=0.05, validator=number(0, above=True))
    server_momentum: float = attrs.field(default=0.0, validator=number(0, 1))
    server_weight_decay: float = attrs.field(default=0.0, validator=number(0))
    server_steps: int | None = attrs.field(default=50, validator=whole(1, optional=True))
    #: factor of the learning rate in the second half of a round
    server_decay: float = attrs.field(default=1.0, validator=number(0, 1, above=True))
    #: factor of the learning rate from round to round, and the rate below which it does not fall
    round_decay: float = attrs.field(default=1.0, validator=number(0, 1, above=True))
    last_lr: float = attrs.field(default=0.0, validator=number(0))
    generator_lr: float = attrs.field(default=3e-4, validator=number(0, above=True))
    #: steps of 128 features in a round
    generator_steps: int = attrs.field(default=50, validator=whole(0))

    @classmethod
    def released(cls) -> Settings:
        """The defaults: there is no released code."""
        return cls()

    def rate(self, round_: int) -> float:
        """The server's learning rate at the start of a round, from 0; at most `server_lr`."""
        falling = max(self.server_lr * self.round_decay**round_, self.last_lr)
        return min(falling, self.server_lr)


class FedMK(condensing.Condensing):
    """Client c, round t: start from another client's knowledge, weigh real samples, take bi-level steps.
    Server: train the generator, make pseudo knowledge, train the model on uploads and these.
    """

    Settings = Settings
    network_parts = ("embed", "classifier.weight", "classifier.bias")
    remote_calls = ("client_update", "compared_update")

    def initialise(self, task: Task, rng: Rng) -> State:
        """W_G and G with random weights, no knowledge yet, and the seed from which c' is drawn."""
        model = task.new_model(rng.at("model"))
        generator = generative.feature_generator(
            task, model.classifier.in_features, rng.at("generator")
        )
        tensors = pack(model) | pack(generator, "generator/")
        meta = {"round": 0, "seed": rng.at("sharing").key}
        if self.settings.compare_size is not None:
            solver()  # a sentence now is better than one after the last round
            tensors |= put("compared/", self._compared().initialise(task, rng).tensors)
        return State(task, tensors, meta)

    def broadcast(self, state: State, client_id: int) -> Message:
        """The global model, and the last knowledge of another client c' ~ randint."""
        tensors = weights(state.tensors)
        others = [
            knowledge
            for owner, knowledge in take_each("knowledge/", state.tensors).items()
            if owner != client_id
        ]
        if self.settings.sharing and others:
            draws = (
                Rng(state.meta["seed"])
                .at("round", state.meta["round"], "client", client_id)
                .generator()
            )
            tensors |= others[int(torch.randint(len(others), (), generator=draws))]
        return Message(tensors)

    def upload_format(self, state: State) -> Format:
        """Knowledge in float32 and its labels, one byte each."""
        data, each = state.task.dataset, self.settings.images_per_class
        return condensing.images_format(data, each, data.num_classes * each, "float32"), {}

    def client_updates(
        self, clients: Sequence[Client], messages: Mapping[int, Message], rngs: Sequence[Rng]
    ) -> dict[int, Message]:
        """The knowledge of clients, extracted as one batch."""
        task = clients[0].task
        # w^c <- W_G, the same for all
        model = task.model_from(messages[clients[0].id].tensors)
        problems = [
            self.problem(client, messages[client.id], model, rng)
            for client, rng in zip(clients, rngs, strict=True)
        ]
        extracted, _ = extract(model, problems, self.settings, task.inputs)
        return {
            client.id: Message(
                {"images": images, "labels": problem.knowledge_labels.to(torch.uint8)}
            )
            for client, problem, images in zip(clients, problems, extracted, strict=True)
        }

    def problem(
        self, client: Client, message: Message, model: Classifier, rng: Rng
    ) -> ExtractionProblem:
        """A client's data, the weights of its samples, and the knowledge that it starts from. Raises
        InputError where that is real images of a class that it does not have.
        """
        data = client.task.dataset
        made = torch.arange(data.num_classes, device=client.labels.device)
        if self.settings.classes == "own":
            made = made[client.class_counts > 0]
        elif self.settings.init != "noise" and not bool(client.class_counts.all()):
            raise InputError(
                f"client {client.id} lacks a class, whose images have nothing to start from: take init "
                "'noise' or classes 'own'"
            )
        labels = made.repeat_interleave(self.settings.images_per_class)
        start = self._start(client, labels, rng)
        if "labels" in message.tensors:
            # D^_ini <- D^_{t-1} of client c', class by class
            theirs = message.tensors["labels"].long()
            start[torch.isin(labels, theirs)] = message.tensors["images"][
                torch.isin(theirs, labels)
            ]
        return ExtractionProblem(
            client.images, client.labels, self._weights(client, model), start, labels, rng
        )

    def _start(self, client: Client, labels: torch.Tensor, rng: Rng) -> torch.Tensor:
        """D^_ini (M, C, S, S) of these labels, sorted, where no other client's knowledge is at hand."""
        data, draws = client.task.dataset, rng.at("start").generator(labels.device)
        kind = self.settings.init
        if kind != "noise":
            order = client.labels.argsort(stable=True)
            sorted_, counts = client.labels[order], torch.bincount(labels)
            return initial_images(
                kind, client.some(order), sorted_, counts, client.task.inputs, draws
            )
        # D^_ini ~ U[-1, 1]
        shape = (len(labels), data.channels, data.size, data.size)
        return 2 * torch.rand(shape, generator=draws, device=labels.device) - 1

    def _weights(self, client: Client, model: Classifier) -> torch.Tensor:
        """phi (N,) of a client's samples, from the model that it received."""
        settings, labels = self.settings, client.labels
        if settings.weights == "uniform":
            return torch.ones(len(labels), device=labels.device)
        if settings.weights == "class_balanced":
            return class_balanced_weights(labels, client.task.dataset.num_classes)
        # phi_i = 1 / (1 + exp(-tau l(w^c, x_i, y_i)))   (Eq. 7)
        loss = F.cross_entropy(client.task.outputs(model, client.images), labels, reduction="none")
        return dynamic_weights(loss, settings.tau)

    def server_update(self, state: State, uploads: Mapping[int, Message], rng: Rng) -> State:
        """Train the generator, then the global model; keep this round's knowledge for the next."""
        images, labels = condensing.collect(uploads)
        model = state.task.model_from(state.tensors)
        generator = generative.feature_generator(state.task, model.classifier.in_features, Rng(0))
        unpack(generator, state.tensors, "generator/")
        tensors = self.train_generator(generator, model, labels, state.tensors, rng.at("generator"))
        training = attrs.evolve(self.settings.training, lr=self.settings.rate(state.meta["round"]))
        self.train_model(state.task, model, generator, images, labels, training, rng)
        tensors |= pack(model)
        tensors |= put_each("knowledge/", {id_: upload.tensors for id_, upload in uploads.items()})
        return State(state.task, tensors, state.meta | {"round": state.meta["round"] + 1})

    def upload_fault(self, upload: Message) -> str | None:
        """Fault of an upload that no client could start from: labels unsorted, other counts."""
        wanted = self.settings.images_per_class
        made, counts = torch.unique_consecutive(upload.tensors["labels"], return_counts=True)
        if bool((made.int().diff() <= 0).any()) or bool((counts != wanted).any()):
            return f"it must hold {wanted} images of a class, sorted by class"
        return None

    def train_generator(
        self,
        generator: FeatureGenerator,
        model: Classifier,
        labels: torch.Tensor,
        tensors: Mapping[str, torch.Tensor],
        rng: Rng,
    ) -> dict[str, torch.Tensor]:
        """Tensors of G* = argmax E_y E_{z ~ G(y)} log p(y | z, W_G^C) (Eq. 10), p(y) of the uploads."""
        if not self.settings.pseudo:
            return pack(generator, "generator/")
        training = part(self.settings, server.GeneratorTraining, "generator_")
        head = server.Heads.of([pack(model)])

        def loss(features: torch.Tensor, labels: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
            return server.ensemble_cross_entropy(head.logits(features), labels)

        distribution = torch.bincount(labels, minlength=generator.classes).float()
        return generative.trained(generator, tensors, loss, distribution, training, rng)

    def train_model(
        self,
        task: Task,
        model: Classifier,
        generator: FeatureGenerator,
        images: torch.Tensor,
        labels: torch.Tensor,
        training: server.ServerTraining,
        rng: Rng,
    ) -> None:
        """W_G, in place: L_overall = L(W_G, D^) + beta L(W_G, D^_pseudo) (Eq. 11)."""
        steps = training.total(len(labels))
        features, classes = draw_pseudo(
            generator, labels, round(self.settings.pseudo * len(labels)), rng.at("pseudo")
        )
        # beta = |D^_pseudo| / |D^|
        beta = len(classes) / len(labels)
        order = (
            batches(len(classes), training.batch_size, steps, rng.at("pseudo"), labels.device)
            if beta
            else itertools.repeat(None)
        )

        def objective(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            with task.runtime.autocast():
                logits = model(images)
            loss = task.loss(logits, labels)
            rows = next(order)
            if rows is None:
                return loss
            return loss + beta * task.loss(model.classifier(features[rows]), classes[rows])  # type: ignore[operator]

        optimisers, learn = [sgd(model.parameters(), training)], rng.at("learn")
        slower = partial(scale_rates, optimisers, training.decay)
        given = (model, images, labels, training, steps, objective, learn, optimisers, slower)
        train(*given, steady=not beta)  # the order of pseudo knowledge goes on in Python

    def round(self, state: State, clients: Sequence[Client], ledger: Ledger, rng: Rng) -> State:
        """One round; with `compare_size` also one of the federation that it is compared with."""
        after = super().round(state, clients, ledger, rng)
        if self.settings.compare_size is None:
            return after
        with ledger.timed("compared"):
            before = State(state.task, take("compared/", state.tensors), state.meta)
            compared = self._compared().round(before, clients, Ledger.aside(), rng.at("compared"))
        return attrs.evolve(after, tensors=after.tensors | put("compared/", compared.tensors))

    def compared_update(
        self, clients: Sequence[Client], messages: Mapping[int, Message], rngs: Sequence[Rng]
    ) -> dict[int, Message]:
        """Return what clients upload in the federation that the result is compared with."""
        return self._compared().client_updates(clients, messages, rngs)

    def _compared(self) -> FedMK:
        size = self.settings.compare_size
        settings = attrs.evolve(self.settings, images_per_class=size, compare_size=None)
        return _Compared(settings, self.schedule, self)

    def measures(self, state: State) -> dict[str, float]:
        """`emd`: the earth mover's distance to the knowledge of `compare_size` images (Table 7)."""
        measured = super().measures(state)
        if self.settings.compare_size is None:
            return measured
        first, second = (
            torch.cat([own["images"] for own in take_each(prefix, state.tensors).values()])
            for prefix in ("knowledge/", "compared/knowledge/")
        )
        return measured | {"emd": earth_movers_distance(first, second)}


class _Compared(FedMK):
    """The federation that the result is compared with; its clients are the owner's."""

    def __init__(self, settings: Settings, schedule: Schedule, owner: FedMK) -> None:
        super().__init__(settings, schedule)
        self._owner = owner

    def at_clients(self, call: str, *given: Any) -> dict[int, Message]:
        """Run by the owner, under the name that a client knows the call by."""
        return self._owner.at_clients("compared_update", *given)


@torch.no_grad()
def draw_pseudo(
    generator: FeatureGenerator, labels: torch.Tensor, count: int, rng: Rng
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pseudo knowledge: features (n, D) and labels (n,), in the shares of the uploaded labels."""
    draws = rng.at("draws").generator(labels.device)
    if not count:
        return labels.new_empty(0), labels.new_empty(0)
    distribution = torch.bincount(labels, minlength=generator.classes).float()
    classes = server.draw_labels(distribution, count, draws)
    return generator.eval()(
        server.draw_noise("normal", (count, generator.noise), draws), classes
    ), classes
