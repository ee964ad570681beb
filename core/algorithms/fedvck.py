"""FedVCK: federated learning via valuable condensed knowledge.

Yan, Xie, Gao, Zhang, Shen, Fang, Wu. FedVCK: Non-IID Robust and Communication-Efficient Federated
Learning via Valuable Condensed Knowledge for Medical Image Analysis. AAAI 2025, Eq. 4-16.

The defaults are those of the paper, but for two: the cosine and the mean in Eq. 15.
`Settings.released()` follows the authors' code; nearly every difference is one named setting. Three
settings switch parts off, for the paper's ablations.

From a client's data to the server's model it is read in eight files: this one, `families.condensing`,
`condensation.selection`, `.engine`, `.matching` and `.latent`, `server.update` and `training`; beside
the contract (`federation.algorithm`, `.task`, `.client`) and the transforms (`condensation.augment`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import attrs
import torch

from core import condensation, server
from core.checks import number, on_or_off, one_of, whole
from core.condensation import LatentEncoder, LatentStatistics
from core.condensation.engine import (
    Condensation,
    Draws,
    MatchingObjective,
    RealData,
    condense,
    condensed_counts,
    milestones,
    progress,
    strategy,
)
from core.condensation.latent import Normalisation, RunningAverage, Separate
from core.condensation.selection import BLENDS, RULES
from core.errors import InputError
from core.families import condensing
from core.families.condensing import Condensing, Knowledge
from core.federation import Client, Field, Format, Message, State, Task, pack
from core.federation.tensors import take, unpack, weights
from core.models import Classifier
from core.rng import Rng
from core.server.update import FORMS, SIMILARITIES, TRAININGS

#: what the released code multiplies con_beta by, half way through every round
FADE = 0.1
AUGMENTATION = "color_crop_cutout_flip_scale_rotate"


def switch() -> Any:
    """A setting that is off unless it is turned on."""
    return attrs.field(default=False, validator=on_or_off)


@attrs.frozen(kw_only=True)
class Settings(condensing.ServerSide, Condensation):
    """Hyper-parameters of FedVCK. Values that the paper leaves open are those of its released code's
    command for CIFAR-10 (`run.sh`), but for `iterations`, the code's default.
    """

    #: b of Eq. 5
    b: float = attrs.field(default=0.3, validator=number(-100, 80))
    #: alpha of Eq. 7, lambda in the book
    alpha: float = attrs.field(default=0.5, validator=number(0, 1))
    #: K of Eq. 13
    negatives: int = attrs.field(default=5, validator=whole(1))
    #: tau of Eq. 15
    temperature: float = attrs.field(default=0.1, validator=number(0, above=True))
    #: weight of L_rc in Eq. 16
    contrast: float = attrs.field(default=1.0, validator=number(0))

    # ablations (Tables 4 and 14)
    #: without relational contrastive learning
    wo_lrc: bool = switch()
    #: without model-guided selection: uniform probabilities
    wo_pw: bool = switch()
    #: without latent distribution constraints: condensed images are normalised by their own batch
    wo_latent: bool = switch()

    # differences of the released code; the default is the paper's
    #: Eq. 4: statistics of the current real "batch", or a "running" average over batches (momentum
    #: 0.1)
    statistics: str = attrs.field(
        default="batch", validator=one_of("kind of statistics", "batch", "running")
    )
    #: Eq. 7: blend "probabilities" or "logits" of the two models
    blend: str = attrs.field(default="probabilities", validator=one_of("blend", *BLENDS))
    #: Eq. 8: P is the "share" of the weight, or a "softmax" of the weights within a class
    selection: str = attrs.field(default="share", validator=one_of("selection", *RULES))
    #: Eq. 9: every iteration draws a "fresh" batch, or one that shares all images but one with the
    #: last ("sliding"); the exact means of an "expectation" have no batches
    batches: str = attrs.field(
        default="fresh", validator=one_of("kind of batches", "fresh", "sliding")
    )
    #: round 0: M_0 comes from the "server", or every client draws its "own"; the code's errors there
    #: blend the logits of both, here they are those of its own alone
    first_model: str = attrs.field(
        default="server", validator=one_of("first model", "server", "own")
    )
    #: start from new noise every round, or go on with the last round's images
    warm_start: bool = switch()
    #: Eq. 13: the class itself is never a hard negative, or forced among them (allowed in round 0)
    own_negative: str = attrs.field(
        default="never", validator=one_of("own negative", "never", "forced")
    )
    #: Eq. 15: the "printed" ratio, or the "released" one, with the positive in the denominator
    contrast_form: str = attrs.field(
        default="printed", validator=one_of("form of the loss", *FORMS)
    )
    #: Eq. 15: "cosine" similarity, as in SimSiam, which the paper follows, or the "dot" product as
    #: printed, under which the loss has no lower bound
    similarity: str = attrs.field(default="cosine", validator=one_of("similarity", *SIMILARITIES))
    #: Eq. 15: the projector is "kept" from round to round, or "fresh" in every round
    projector: str = attrs.field(
        default="kept", validator=one_of("kind of projector", "kept", "fresh")
    )
    #: Eq. 15: the projector learns "together" with the model, or from gradients "accumulated" in a round
    projector_training: str = attrs.field(
        default="together", validator=one_of("training of the projector", *TRAININGS)
    )
    #: Eq. 16: con_beta falls to a tenth half way through every round and is never restored
    fading_contrast: bool = switch()
    #: Eq. 15 and 16: train on the condensed images of the last so many rounds; 1: on those of this
    #: round, the narrower interpretation of the text
    keep_rounds: int = attrs.field(default=1, validator=whole(1))
    #: siamese augmentation of what the server's cross-entropy sees
    server_augmentation: str = attrs.field(default="none", validator=strategy)
    #: its parameters are drawn for a "batch", or for every "image"; its kind always for a batch
    server_draws: str = attrs.field(
        default="batch", validator=one_of("unit of a draw", "batch", "image")
    )
    #: with it the server embeds the plain images too, which updates running statistics: where Eq. 15
    #: needs them ("contrast"), or "always", also in round 0
    plain_pass: str = attrs.field(
        default="contrast", validator=one_of("time of the plain pass", "contrast", "always")
    )
    #: clients also upload how their loss fell, for the record: nothing is computed from it
    tell_loss: bool = switch()
    #: the wire: one byte a pixel, or the float32 of the released code's memory
    wire: str = attrs.field(default="uint8", validator=one_of("wire format", *condensing.WIRE))

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if not (self.replacement or self.wo_pw):
            raise InputError("P_w plays no part without replacement: take wo_pw too")
        if self.batches == "sliding" and not self.replacement:
            raise InputError("without replacement no batches can be 'sliding': take 'fresh' ones")

    @classmethod
    def released(cls) -> Self:
        """The authors' code, CIFAR-10 (`run.sh`); above 20 rounds it keeps rounds / 2, not 10."""
        return cls(
            share=0.02,
            iterations=10_000,
            image_lr=1.0,
            clip_norm=30.0,
            augmentation=AUGMENTATION,
            b=0.3,
            alpha=0.5,
            negatives=5,
            temperature=0.1,
            contrast=0.1,
            server_lr=5e-3,
            server_weight_decay=1e-6,
            server_epochs=1000,
            statistics="running",
            blend="logits",
            selection="softmax",
            batches="sliding",
            first_model="own",
            warm_start=True,
            own_negative="forced",
            contrast_form="released",
            projector="fresh",
            projector_training="accumulated",
            fading_contrast=True,
            keep_rounds=10,
            server_augmentation=AUGMENTATION,
            server_draws="image",
            plain_pass="always",
            wire="float32",
        )


class FedVCK(Condensing):
    """Clients condense what the global model does not know yet; the server learns from the
    condensed images.

    Client k, round t: weigh the images by the error of M_t and M_{t-1} (Eq. 5-8), condense a batch
    drawn by these weights under the latent statistics of real images (Eq. 4, 9), upload the images
    and logit prototypes (Eq. 11). Server: aggregate the prototypes (Eq. 12), find hard negatives
    (Eq. 13), take feature prototypes of the knowledge gathered so far (Eq. 14), train with
    cross-entropy and the relational contrastive loss (Eq. 15, 16).
    """

    Settings = Settings
    network_parts = ("embed", "classifier")

    def initialise(self, task: Task, rng: Rng) -> State:
        """M_0; no knowledge yet."""
        return State(
            task,
            pack(task.new_model(rng.at("model"))),
            {"round": 0, "contrast": self.settings.contrast},
        )

    def broadcast(self, state: State, client_id: int) -> Message:
        """The global model M_t; the round too, where clients draw their own model in round 0."""
        own = self.settings.first_model == "own"
        return Message(weights(state.tensors), {"round": state.meta["round"]} if own else {})

    def upload_format(self, state: State) -> Format:
        """Condensed images, labels, logit prototypes, their samples; the loss with `tell_loss`."""
        classes = state.task.dataset.num_classes
        progress_form = {
            "progress/loss": Field((len(milestones(self.settings.iterations)),), torch.float32)
        }
        return condensing.upload_format(state, self.settings, self.settings.wire) | {
            "prototypes/logits": Field((classes, classes), torch.float32),
            "prototypes/samples": state.task.counts(),
        } | (progress_form if self.settings.tell_loss else {}), {}

    def client_updates(
        self, clients: Sequence[Client], messages: Mapping[int, Message], rngs: Sequence[Rng]
    ) -> dict[int, Message]:
        """Condense all clients as one batch; where each has its own model, one after the other."""
        message = messages[clients[0].id]
        if self.settings.first_model == "server" or message.whole("round") > 0:
            return self.condense(clients, clients[0].task.model_from(message.tensors), rngs)
        answers: dict[int, Message] = {}
        for client, rng in zip(clients, rngs, strict=True):
            answers |= self.condense([client], client.task.new_model(rng.at("own model")), [rng])
        return answers

    def condense(
        self, clients: Sequence[Client], model: Classifier, rngs: Sequence[Rng]
    ) -> dict[int, Message]:
        """Return what clients with the same model M_t upload (Eq. 4-11)."""
        settings, task = self.settings, clients[0].task
        real, sizes = condensing.gather(clients, rngs, settings.candidates)
        logits = task.outputs(model, real.images)
        if not settings.wo_pw:
            real = attrs.evolve(real, probabilities=self.draw_probabilities(clients, real, logits))
        group = torch.repeat_interleave(condensed_counts(sizes, settings))
        start = self.start_images(clients, real, group, rngs)
        objective = self.matching_objective(task, model, real, rngs)
        images, trace = condense(objective, start, group)
        # M_{t-1} of the next round, the same tensors for all, with the running statistics that were
        # received; in the released code condensation has changed them
        previous = pack(model, "previous/")
        for position, client in enumerate(clients):
            client.memory = dict(previous)
            if settings.warm_start:  # the images to go on with
                client.memory["images"] = images[real.owner[group] == position]
        answers = self.uploads_of(clients, real, logits, images, group)
        if settings.tell_loss:
            losses = progress(trace, real.owner, len(clients))
            for client, loss in zip(clients, losses, strict=True):
                answers[client.id].tensors["progress/loss"] = loss
        return answers

    def matching_objective(
        self, task: Task, model: Classifier, real: RealData, rngs: Sequence[Rng]
    ) -> MatchingObjective:
        """Features of the received model under latent constraints (Eq. 4, 9); a hook of subclasses."""
        settings, normalisation = self.settings, Normalisation()
        if settings.wo_latent:
            normalisation = Separate()
        elif settings.statistics == "running":
            normalisation = RunningAverage(start=LatentStatistics.running(model, len(rngs)))
        return MatchingObjective(
            LatentEncoder(model),
            real,
            settings,
            Draws(rngs, real.owner, sliding=settings.batches == "sliding"),
            task.inputs,
            task.runtime.autocast,
            normalisation,
        )

    def start_images(
        self, clients: Sequence[Client], real: RealData, group: torch.Tensor, rngs: Sequence[Rng]
    ) -> torch.Tensor:
        """S, (M, C, H, W); with `warm_start` the images of each client's last round, if any."""
        start = condensing.starts(self.settings.init, real, group, clients[0].task, rngs)
        if self.settings.warm_start:
            for position, client in enumerate(clients):
                if "images" in client.memory:
                    start[real.owner[group] == position] = client.memory["images"]
        return start

    def uploads_of(
        self,
        clients: Sequence[Client],
        real: RealData,
        logits: torch.Tensor,
        images: torch.Tensor,
        group: torch.Tensor,
    ) -> dict[int, Message]:
        """Condensed images and labels of each client, its logit prototypes (Eq. 11) and |T_{c,k}|."""
        answers = condensing.uploads(clients, real, images, group, self.settings.wire)
        owner, label = real.owner[real.group], real.label[real.group]
        for position, client in enumerate(clients):
            own, classes = owner == position, client.task.dataset.num_classes
            prototypes, _ = server.logit_prototypes(logits[own], label[own], classes)
            # |T_{c,k}| of Eq. 12: all images of a class, also where the client looked at some only
            answers[client.id].tensors.update(
                {"prototypes/logits": prototypes, "prototypes/samples": client.class_counts}
            )
        return answers

    def draw_probabilities(
        self, clients: Sequence[Client], real: RealData, logits: torch.Tensor
    ) -> torch.Tensor:
        """P_w (Eq. 5-8), (N,); M_{t-1} is the model of the client's last round, its own in the first."""
        settings, label, owner = self.settings, real.label[real.group], real.owner[real.group]
        previous = logits.clone()
        for position, client in enumerate(clients):
            if client.memory:
                before = client.task.model_from(client.memory, "previous/")
                previous[owner == position] = client.task.outputs(
                    before, real.images[owner == position]
                )
        # err_t(x) = L_ce(y, alpha M_t(x) + (1 - alpha) M_{t-1}(x))
        error = condensation.smoothed_error(logits, previous, label, settings.alpha, settings.blend)
        # w(x) = 1 / (1 + exp(-err + b)), P_w(x) = w(x) / sum w
        w = condensation.importance(error, settings.b)
        return condensation.selection_probabilities(w, real.group, real.groups, settings.selection)

    def server_update(self, state: State, uploads: Mapping[int, Message], rng: Rng) -> State:
        """Learn from the uploads; round 0 has no earlier knowledge, so no contrastive term (Eq. 14)."""
        settings, task, t = self.settings, state.task, state.meta["round"]
        before = Knowledge.of(state)
        contrast = None
        if before is not None and not settings.wo_lrc and settings.contrast:
            contrast = self._contrast(state, before, uploads, rng)
        knowledge = Knowledge.extended(before, *condensing.collect(uploads), t)
        model = condensing.learn(
            task,
            state,
            knowledge.since(t + 1 - settings.keep_rounds),
            settings,
            rng,
            contrast,
            condensing.augmenter(
                settings.server_augmentation,
                task.dataset.size,
                rng,
                task.runtime.device,
                settings.server_draws,
            ),
            settings.plain_pass == "always",
        )
        tensors = pack(model) | knowledge.tensors()
        if contrast is not None:
            tensors |= pack(contrast.projector, "projector/")
        if settings.tell_loss:
            losses = [upload.tensors["progress/loss"] for upload in uploads.values()]
            tensors["progress/loss"] = torch.stack(losses).mean(0)
        fade = FADE if settings.fading_contrast else 1.0
        return State(task, tensors, {"round": t + 1, "contrast": state.meta["contrast"] * fade})

    def measures(self, state: State) -> dict[str, float]:
        """Measures of `Condensing`, and with `tell_loss` `loss_at_<iterations>`, the clients' mean loss."""
        steps = milestones(self.settings.iterations)
        losses = state.tensors.get("progress/loss", torch.zeros(0)).tolist()
        fell = {f"loss_at_{step}": loss for step, loss in zip(steps, losses, strict=False)}
        return super().measures(state) | fell

    @torch.no_grad()
    def _contrast(
        self, state: State, before: Knowledge, uploads: Mapping[int, Message], rng: Rng
    ) -> server.Contrast:
        """The prototypes, hard negatives and projector of this round (Eq. 12-15)."""
        settings, task, classes = self.settings, state.task, state.task.dataset.num_classes
        samples = torch.stack([upload.tensors["prototypes/samples"] for upload in uploads.values()])
        # p_c^t = sum_k |T_{c,k}| p_c^{k,t} / |T_c|
        logits = server.aggregate_prototypes(
            torch.stack([upload.tensors["prototypes/logits"] for upload in uploads.values()]),
            samples,
        )
        # HN(c) = argtopK_{j != c} p_c[j]
        negatives = server.hard_negatives(
            logits, settings.negatives, samples.sum(0) > 0, settings.own_negative
        )
        # f_c^t = mean of psi^{t-1}(s) over all earlier rounds
        features = before.features(task, task.model_from(state.tensors).eval())
        prototypes, present = server.feature_prototypes(
            features, before.labels, classes, normalise=settings.contrast_form == "released"
        )
        projector = server.Projector(prototypes.shape[1], rng.at("projector")).to(
            task.runtime.device
        )
        if settings.projector == "kept" and take("projector/", state.tensors):
            unpack(projector, state.tensors, "projector/")
        return server.Contrast(
            projector=projector,
            prototypes=prototypes,
            negatives=negatives,
            temperature=settings.temperature,
            present=present,
            weight=state.meta["contrast"],
            fade=FADE if settings.fading_contrast else 1.0,
            form=settings.contrast_form,
            similarity=settings.similarity,
            projector_training=settings.projector_training,
        )
