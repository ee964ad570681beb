"""FedKD: one-shot ensemble distillation on public images of another domain.

Gong, Sharma, Karanam, Wu, Chen, Doermann, Innanje. Preserving Privacy in Federated Learning with
Ensemble Cross-Domain Knowledge Distillation. AAAI 2022; code: gong-xuan/FedKD. This is the FedKD of
FedIOD's tables, not that of Wu et al.

Clients train teachers to completion, then answer public images once; a student on the server learns from
the quantised and noisy ensemble of their answers. Settings that the paper leaves open are those of the
code. Differences: the code tells the student's best step on the test set, here the last one stays. It
saves each teacher's best epoch on the test set, too, and a run that finds these files distils from them;
one that trains its teachers goes on with their last epoch, as here. It divides by the largest logit of
all clients for a batch, which none can know, here by the client's own. It crops and flips the clients'
images and cuts a square out of them (`local_augmentation` does the first two), and for CIFAR-10 also
those of the student, which sees a public image otherwise than the teachers have answered it; here it
sees it as they have. The rate of the code's teachers falls along a cosine, and all begin with the same
weights. It cuts levels off towards zero after adding a half, which puts negative answers a level too
high; here they are rounded. Its program leaves out both that and the noise by default (`levels`
and `noise_scale` of 0). Neither quantisation nor the Laplace noise is accounted for as differential
privacy.

`private` is FedIOD's Table 5: what leaves a client is protected by PATE (Papernot et al. ICLR 2017
and 2018). A client votes for one class per public image, noise is added (GNMax), and the student
learns the winners; class counts, which nothing would protect, are not sent. A private client answers
once, with at least the noise of its own settings. Table 5 is read as
FedIOD's row is: the noise is what lets all public images be answered within `full_epsilon`, and a
smaller `epsilon` buys fewer answers, with privacy or without.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import attrs
import torch
from torch import nn
from torch.nn import functional as F

from core.checks import number, on_or_off, one_of, whole
from core.distillation import class_input_importance, ensemble_logits
from core.errors import InputError
from core.families import public_images as public
from core.federation import (
    Algorithm,
    Client,
    Field,
    Format,
    Ledger,
    LocalTraining,
    Message,
    State,
    Task,
    UploadError,
    pack,
    supervised,
    train,
)
from core.federation.tensors import pack_optimiser, unpack_optimiser, weights
from core.privacy.differential import (
    affordable_steps,
    delta_below_one,
    epsilon_within_full,
    noise_multiplier,
    noisy_votes,
    spent_epsilon,
)
from core.progress import counted
from core.rng import Rng
from core.training import sgd

#: where the optimisers of teachers and student go on
TEACHING, DISTILLING = "teaching/", "distilling/"
#: a private client's mark that it has answered, and so spent its budget
SPENT = "spent/queries"
#: the most levels on one side of zero that a signed byte holds
MOST_LEVELS = 127


@attrs.frozen(kw_only=True)
class Settings(public.PublicData, LocalTraining):
    """Local training of the teachers, then distillation on the server."""

    lr: float = attrs.field(default=0.0025, validator=number(0, above=True))
    batch_size: int = attrs.field(default=16, validator=whole(1))
    #: passes over a client's data in each of the rounds in which it trains
    local_epochs: int = attrs.field(default=500, validator=whole(1))
    weight_decay: float = attrs.field(default=3e-4, validator=number(0))
    #: rounds in which teachers train; they answer at the end of the last one. More than one lets a
    #: long run resume; each goes on with the momentum of the one before
    local_rounds: int = attrs.field(default=1, validator=whole(1))
    #: public images that are answered; None: all
    pool: int | None = attrs.field(default=None, validator=whole(1, optional=True))
    #: answers are rounded to so many levels on each side of zero and sent as bytes; 0: float32
    levels: int = attrs.field(default=100, validator=whole(0, high=MOST_LEVELS))
    #: scale of the Laplace noise on the ensemble's logits
    noise_scale: float = attrs.field(default=1.0, validator=number(0))
    #: draw that noise anew in every batch: it then averages out over the passes
    fresh_noise: bool = attrs.field(default=False, validator=on_or_off)
    distill_lr: float = attrs.field(default=1e-3, validator=number(0, above=True))
    distill_batch: int = attrs.field(default=512, validator=whole(1))
    #: passes over the answered images in each round from the answers on
    distill_epochs: int = attrs.field(default=200, validator=whole(1))
    #: batches in each such round; when given it takes the place of `distill_epochs`
    distill_steps: int | None = attrs.field(default=None, validator=whole(1, optional=True))

    # differential privacy (FedIOD, Table 5)
    private: bool = attrs.field(default=False, validator=on_or_off)
    delta: float = attrs.field(default=1e-5, validator=delta_below_one)
    #: what all answers together would spend; it sets the noise
    full_epsilon: float = attrs.field(default=10.0, validator=number(0, above=True))
    #: as many images are answered as this budget buys, private or not; None: all
    epsilon: float | None = attrs.field(default=None, validator=epsilon_within_full)
    #: "sum": each client adds a part of the noise, and epsilon is that of the sum of votes, which
    #: PATE is about (the votes must then be summed by secure aggregation); "upload": epsilon is
    #: that of every single upload
    protects: str = attrs.field(
        default="sum", validator=one_of("kind of protection", "sum", "upload")
    )

    @classmethod
    def released(cls) -> Self:
        """The authors' code draws the noise anew in every batch, and its loader crops and flips."""
        return cls(fresh_noise=True, local_augmentation="crop_flip")


class FedKD(Algorithm):
    """Teachers on the clients, one upload of answers each, a student on the server.

    Rounds before `local_rounds` train teachers and send nothing; rounds after it go on distilling
    and send nothing. Teachers answer that take part in round `local_rounds`: with `active` not all.
    """

    Settings = Settings
    remote_calls = ("teach", "client_update")

    @property
    def private(self) -> bool:
        """True where the settings ask for noise."""
        return self.settings.private

    @property
    def privacy_budget(self) -> tuple[float, float] | None:
        """The budget of a private run, where it is that of each upload."""
        s = self.settings
        each = s.private and s.protects == "upload"
        return (s.epsilon or s.full_epsilon, s.delta) if each else None

    def initialise(self, task: Task, rng: Rng) -> State:
        """The student's first weights; number of images to answer, and noise. Raises InputError where
        teachers train in more rounds than there are, or nobody forms the sum that is protected.
        """
        if self.settings.local_rounds > self.schedule.rounds:
            raise InputError(
                f"local_rounds must be at most {self.schedule.rounds}, the rounds of the run, not "
                f"{self.settings.local_rounds}: the teachers answer at the end of the last one"
            )
        if self.remote and self.settings.private and self.settings.protects == "sum":
            raise InputError(
                "protects must be upload across a network: its server sees every upload, not their sum"
            )
        public.public_images(task, self.settings, anew=True)
        queries, noise = self._budget(task)
        meta = {
            "round": 0,
            "seed": rng.at("public").key,
            "queries": queries,
            "answered": False,
            "noise": noise,
            "sharers": 1,
        }
        return State(task, pack(task.new_model(rng.at("model"))), meta)

    def _budget(self, task: Task) -> tuple[int, float]:
        """Number of public images that a client answers, and the noise multiplier of all its answers."""
        settings = self.settings
        total = len(public.public_images(task, settings))
        queries = min(total, settings.pool or total)
        noise = 0.0
        if settings.private or settings.epsilon is not None:
            noise = noise_multiplier(settings.full_epsilon, settings.delta, 1.0, queries)
        if settings.epsilon is not None:
            queries = affordable_steps(settings.epsilon, settings.delta, noise, 1.0, queries)
            if not queries:
                raise InputError(
                    f"a budget of epsilon {settings.epsilon:g} does not buy one answer"
                )
        # one release of all answers has the multiplier of one answer over the root of their number
        return queries, noise / math.sqrt(queries) if settings.private else 0.0

    def _asked(self, task: Task, meta: Mapping[str, Any]) -> torch.Tensor:
        """The public images to be answered, uint8 (n, C, S, S), the same for server and clients."""
        shared = Rng(meta["seed"]).at("asked")
        return public.drawn(task, self.settings, meta["queries"], shared)

    def broadcast(self, state: State, client_id: int) -> Message:
        """The seed of the public images to answer, and the noise; no model crosses the network."""
        return Message(
            {}, {key: state.meta[key] for key in ("seed", "queries", "noise", "sharers")}
        )

    def upload_format(self, state: State) -> Format:
        """Votes with noise, or answers with the number of samples of each class."""
        classes = state.task.dataset.num_classes
        shape, levels = (state.meta["queries"], classes), self.settings.levels
        if self.settings.private:
            return {"votes/noisy": Field(shape, torch.float32)}, {}
        counts = {"samples/classes": state.task.counts()}
        if levels:
            return counts | {
                "answers/levels": Field(shape, torch.int8, low=-levels, high=levels),
                "answers/scale": Field((1,), torch.float32, low=0),
            }, {}
        return counts | {"answers/logits": Field(shape, torch.float32)}, {}

    def round(self, state: State, clients: Sequence[Client], ledger: Ledger, rng: Rng) -> State:
        """Train teachers, then let them answer, then distil."""
        t = state.meta["round"] + 1
        if t < self.settings.local_rounds:
            self.call_clients("teach", clients, None, ({}, {}), ledger, rng.at("client"))
        elif state.meta["answered"]:
            with ledger.timed("server"):
                state = self._distil(state, rng.at("server"))
        else:
            sharers = len(clients) if self.settings.protects == "sum" else 1
            state = super().round(
                attrs.evolve(state, meta=state.meta | {"sharers": sharers}), clients, ledger, rng
            )
        return attrs.evolve(state, meta=state.meta | {"round": t})

    def teach(
        self, clients: Sequence[Client], messages: Mapping[int, Message], rngs: Sequence[Rng]
    ) -> dict[int, Message]:
        """Train each client's teacher further; a client says no more than that it has."""
        pairs = zip(clients, rngs, strict=True)
        for client, rng in counted(pairs, "clients", len(clients)):
            teacher, optimiser = self._teacher(client, rng)
            client.memory |= pack(teacher) | pack_optimiser(optimiser, teacher, TEACHING)
        return {client.id: Message({}) for client in clients}

    def _teacher(self, client: Client, rng: Rng) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The client's teacher after a further round of training on its data, and who trained it."""
        task, settings, learnt = client.task, self.settings, weights(client.memory)
        model = task.model_from(learnt) if learnt else task.new_model(rng.at("model"))
        optimiser = sgd(model.parameters(), settings)
        unpack_optimiser(optimiser, model, client.memory, TEACHING)
        train(
            model,
            client.images,
            client.labels,
            settings,
            supervised(task),
            rng,
            optimisers=[optimiser],
        )
        return model, optimiser

    def client_update(self, client: Client, message: Message, rng: Rng) -> Message:
        """Train, answer the public images, forget the teacher. InputError beyond a private budget."""
        if self.settings.private:
            self._keep_to_budget(client, message)
        teacher, _ = self._teacher(client, rng)
        client.memory = {name: value for name, value in client.memory.items() if name == SPENT}
        logits = client.task.outputs(teacher, self._asked(client.task, message.meta))
        if self.settings.private:
            votes = F.one_hot(logits.argmax(1), logits.shape[1]).float()
            generator = rng.at("noise").generator(logits.device)
            noise = message.number("noise")
            return Message(
                {"votes/noisy": noisy_votes(votes, noise, generator, message.whole("sharers"))}
            )
        counts = {"samples/classes": client.class_counts}
        if not self.settings.levels:
            return Message({"answers/logits": logits} | counts)
        steps, scale = quantised(logits, self.settings.levels)
        return Message({"answers/levels": steps, "answers/scale": scale} | counts)

    def _keep_to_budget(self, client: Client, message: Message) -> None:
        """Enter that a private client answers. Raises InputError the second time, and where it is asked
        for more answers, less noise, or more sharers than a round has clients.
        """
        settings, (queries, noise) = self.settings, self._budget(client.task)
        round_ = self.schedule.active or self.schedule.clients
        within = (
            SPENT not in client.memory
            and message.whole("queries") <= queries
            and message.number("noise") >= noise * (1 - 1e-6)
            and 1 <= message.whole("sharers") <= (1 if settings.protects == "upload" else round_)
        )
        if not within:
            raise InputError(
                f"client {client.id} is asked for more than its privacy budget of epsilon "
                f"{settings.epsilon or settings.full_epsilon:g} allows"
            )
        client.memory[SPENT] = torch.tensor(message.whole("queries"))

    def server_update(self, state: State, uploads: Mapping[int, Message], rng: Rng) -> State:
        """Build the ensemble once, then distil. UploadError where a share of noise is missing."""
        if self.settings.private and len(uploads) < state.meta["sharers"]:
            raise UploadError(
                f"{len(uploads)} of {state.meta['sharers']} clients answered: with `protects: sum` "
                "each adds its share of the noise, and the privacy promised needs all of them"
            )
        ensemble = self._ensemble([upload.tensors for upload in uploads.values()], rng.at("noise"))
        answered = attrs.evolve(
            state,
            tensors=state.tensors | {"ensemble": ensemble},
            meta=state.meta | {"answered": True},
        )
        return self._distil(answered, rng)

    def _ensemble(self, uploads: Sequence[Mapping[str, torch.Tensor]], rng: Rng) -> torch.Tensor:
        """Logits (n, C) of the ensemble; of private clients the winning classes (n,)."""
        if self.settings.private:
            # argmax_c { sum_k n_k^c + N(0, sigma^2) }
            return torch.stack([upload["votes/noisy"] for upload in uploads]).sum(0).argmax(1)
        logits = torch.stack([self._logits(upload) for upload in uploads])
        # w_k^c = N_k^c / sum_k N_k^c
        importance = class_input_importance(
            torch.stack([upload["samples/classes"] for upload in uploads])
        )
        ensemble = ensemble_logits(logits, importance)
        if not self.settings.fresh_noise:
            ensemble = ensemble + laplace(
                ensemble, self.settings.noise_scale, rng.generator(ensemble.device)
            )
        return ensemble

    def _logits(self, upload: Mapping[str, torch.Tensor]) -> torch.Tensor:
        if not self.settings.levels:
            return upload["answers/logits"]
        return upload["answers/levels"].float() * (upload["answers/scale"] / self.settings.levels)

    def _distil(self, state: State, rng: Rng) -> State:
        """Learn the ensemble's logits by absolute error, or the winning classes by cross-entropy."""
        settings, task, ensemble = self.settings, state.task, state.tensors["ensemble"]
        generator = rng.at("fresh noise").generator(ensemble.device)

        def divergence(outputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
            if settings.private:
                return task.loss(outputs, wanted)
            noise = (
                laplace(wanted, settings.noise_scale, generator) if settings.fresh_noise else 0.0
            )
            return F.l1_loss(outputs, wanted + noise)

        student, batch = self.model(state), settings.distill_batch
        optimiser = public.adam(student, settings.distill_lr)
        unpack_optimiser(optimiser, student, state.tensors, DISTILLING)
        steps = settings.distill_steps or settings.distill_epochs * -(-len(ensemble) // batch)
        public.mimic(
            task,
            student,
            self._asked(task, state.meta),
            ensemble,
            divergence,
            optimiser,
            batch,
            steps,
            rng.at("distil"),
        )
        learnt = pack(student) | pack_optimiser(optimiser, student, DISTILLING)
        return attrs.evolve(state, tensors=state.tensors | learnt)

    def model(self, state: State) -> nn.Module:
        """The student."""
        return state.task.model_from(state.tensors)

    def measures(self, state: State) -> dict[str, float]:
        """Number of public images that were answered, and the epsilon that a private client spent."""
        spent = {"answered_images": float(state.meta["queries"])}
        if self.settings.private:
            spent["spent_epsilon"] = spent_epsilon(state.meta["noise"], 1.0, 1, self.settings.delta)
        return spent


def quantised(logits: torch.Tensor, levels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (n, C) as int8 steps of size / levels, and the size, their largest, (1,)."""
    size = logits.abs().max().clamp_min(torch.finfo(torch.float32).tiny)
    return (logits / size * levels).round().to(torch.int8), size[None]


def laplace(like: torch.Tensor, scale: float, generator: torch.Generator) -> torch.Tensor:
    """Laplace noise in the shape of a tensor: the difference of two exponential numbers."""
    first, second = (torch.empty_like(like).exponential_(generator=generator) for _ in range(2))
    return scale * (first - second)
