"""The server's side of FedIOD's second stage: generator and student, their losses and their
optimisers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from core import distillation
from core.algorithms.fediod.clients import AnswerGradients, Answers
from core.algorithms.fediod.settings import Settings
from core.families import conditional, generative
from core.families.conditional import LabelMaps
from core.federation import Task, pack
from core.federation.tensors import pack_optimiser, unpack, unpack_optimiser
from core.models import ImageGenerator, LabelToImage
from core.rng import Rng
from core.training import adam

#: momentum of the student's SGD in the released code
MOMENTUM = 0.9


def new_generator(task: Task, settings: Settings, rng: Rng) -> ImageGenerator | LabelToImage:
    """A fresh generator on the task's device: from noise, or from label maps for dense tasks."""
    if task.kind != "classification":
        return conditional.generator(task, rng, width=settings.generator_width)
    released = settings.generator_form == "released"
    made = generative.image_generator(
        task,
        rng,
        noise=settings.noise,
        width=settings.generator_width,
        first=4 if released else 2,
        smooth=released,
        running=True,
    )
    return made.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def generator_from(
    task: Task, settings: Settings, tensors: Mapping[str, torch.Tensor]
) -> ImageGenerator | LabelToImage:
    """The generator that a state holds."""
    return unpack(new_generator(task, settings, Rng(0)), tensors, "generator/")


class Server:
    """Generator G and student S, and what they minimise."""

    def __init__(
        self,
        task: Task,
        settings: Settings,
        tensors: Mapping[str, torch.Tensor],
        counts: torch.Tensor,
        rng: Rng,
        maps: Sequence[torch.Tensor] = (),
    ) -> None:
        """`counts` (K, classes): the clients' samples; `rng`: root of all draws; `maps`: the clients'
        label maps, (N_k, S, S) each, for dense tasks.
        """
        self.maps = maps
        self.task, self.settings, self.counts, self.rng = task, settings, counts, rng
        # pi_k = |X'_k| / sum_k' |X'_k'|
        self.weights = (counts.sum(1) / counts.sum()).float()
        self.generator = generator_from(task, settings, tensors).train()
        self.student = task.model_from(tensors, "student/").train()
        self.generator_optimiser = adam(
            self.generator.parameters(), settings.gan_lr, settings.gan_beta
        )
        self.student_optimiser = self._student_optimiser()
        for kind, network, optimiser in self._parts():
            unpack_optimiser(optimiser, network, tensors, f"{kind}/optimiser/")
        #: what the last step saw, for `measures`
        self.seen: dict[str, torch.Tensor] = {}

    def _student_optimiser(self) -> torch.optim.Optimizer:
        s = self.settings
        if s.student_optimiser == "sgd":
            return torch.optim.SGD(
                self.student.parameters(),
                lr=s.student_lr,
                momentum=MOMENTUM,
                weight_decay=s.student_weight_decay,
            )
        return adam(self.student.parameters(), s.student_lr, weight_decay=s.student_weight_decay)

    def _parts(self) -> tuple[tuple[str, nn.Module, torch.optim.Optimizer], ...]:
        """Both networks with their optimisers, by the name they have in a state."""
        return (
            ("generator", self.generator, self.generator_optimiser),
            ("student", self.student, self.student_optimiser),
        )

    def tensors(self) -> dict[str, torch.Tensor]:
        """Both networks and what their optimisers remember, for a state."""
        tensors: dict[str, torch.Tensor] = {}
        for kind, network, optimiser in self._parts():
            tensors |= pack(network, f"{kind}/")
            tensors |= pack_optimiser(optimiser, network, f"{kind}/optimiser/")
        return tensors

    def label_maps(self, step: int, part: int = 0) -> LabelMaps | None:
        """w of a batch where the generator is given label maps; None where w is noise."""
        if not self.maps:
            return None
        return conditional.draw(
            self.maps, self.settings.distill_batch, self.rng.at("told", step, part)
        )

    def images(self, step: int, part: int = 0) -> torch.Tensor:
        """x = G(w) of fresh noise, or of label maps: (N, C, S, S) in [0, 1]."""
        device = self.task.runtime.device
        if maps := self.label_maps(step, part):
            with self.task.runtime.autocast():
                return self.generator(maps.labels).float()
        draws = self.rng.at("noise", step, part).generator(device)
        noise = torch.randn(
            self.settings.distill_batch, self.settings.noise, generator=draws, device=device
        )
        with self.task.runtime.autocast():
            return self.generator(noise).float()

    def mimic(self, answers: Answers, images: torch.Tensor) -> torch.Tensor:
        """L_mimic(G, S) <- z^, {z_k}: the student against the ensemble (Eq. 8 to 10)."""
        logits, judged = self.task.rows(answers.logits), answers.generated
        if judged is not None:  # an image's judgement is that of each of its pixels
            judged = judged.repeat_interleave(logits.shape[1] // judged.shape[1], 1)
        importance = distillation.class_input_importance(
            self.counts, judged, answers.real, class_ratio=self.settings.class_ratio
        )
        ensemble = distillation.ensemble_logits(logits, importance)
        inputs = self.task.dataset.standardise(images).contiguous(memory_format=torch.channels_last)
        with self.task.runtime.autocast():
            outputs = self.task.rows(self.student(inputs))
        tau = self.settings.tau
        return distillation.mimic_loss(outputs, ensemble, math.inf if tau is None else tau)

    def shaping(self, logits: torch.Tensor) -> torch.Tensor | None:
        """L_conf + L_unique (Eq. 3, 5), which the teachers' answers alone decide. Values of an image have
        no entropy: there the variance of the teachers' values is L_unique, without L_conf.
        """
        s, total = self.settings, []
        if self.task.kind == "reconstruction":
            return -s.uniqueness * distillation.disagreement(self.task.rows(logits), self.weights)
        q = self.task.rows(logits).softmax(-1)
        if s.confidence:
            total.append(s.confidence * distillation.confidence_loss(q, self.weights))
        if s.uniqueness:
            # L_unique(G) = E[-JSD]
            unique = (
                -distillation.jensen_shannon(q, self.weights)
                if s.uniqueness_form == "printed"
                else distillation.reversed_divergence(q)
            ).mean()
            total.append(s.uniqueness * unique)
        if s.balance:
            total.append(s.balance * distillation.balance_loss(q, self.weights))
        return torch.stack(total).sum() if total else None

    def learn(
        self, answers: Answers, images: torch.Tensor
    ) -> tuple[AnswerGradients, torch.Tensor | None]:
        """One step of the student, and the gradient of the generator's loss L_conf + L_unique -
        L_mimic.

        Args:
            images: (N, C, S, S) that were sent, without the graph of the generator.

        Returns: the gradient with respect to the clients' answers, and that with respect to the
        images through the student (None where the generator does not play against it).
        """
        logits = answers.logits.clone().requires_grad_()
        judged = None if answers.generated is None else answers.generated.clone().requires_grad_()
        images = images.clone().requires_grad_()
        wanted = (
            [logits, images, *([] if judged is None else [judged])] if self.settings.mimic else []
        )
        mimic = self.mimic(Answers(logits, judged, answers.real), images)
        own = list(self.student.parameters()) if self.settings.student_steps == 1 else []
        slopes = torch.autograd.grad(mimic, [*own, *wanted]) if own or wanted else ()
        if own:
            self.student_step(slopes[: len(own)])
        # the generator climbs L_mimic
        climbing: list[torch.Tensor | None] = [
            -self.settings.mimic * slope for slope in slopes[len(own) :]
        ]
        through_logits, through_images, through_judges = climbing + [None] * (3 - len(climbing))
        shaping = self.shaping(logits)
        if shaping is not None:
            (slope,) = torch.autograd.grad(shaping, logits)
            through_logits = slope if through_logits is None else through_logits + slope
        self.seen = {"mimic": mimic.detach(), "logits": answers.logits}
        if answers.generated is not None and answers.real is not None:
            self.seen |= {"judged_generated": answers.generated, "judged_real": answers.real}
        return AnswerGradients(through_logits, through_judges), through_images

    def learn_only(self, answers: Answers, images: torch.Tensor) -> None:
        """One step of the student alone."""
        mimic = self.mimic(answers, images)
        self.student_step(torch.autograd.grad(mimic, list(self.student.parameters())))

    def student_step(self, slopes: tuple[torch.Tensor, ...]) -> None:
        """Update S by descending the gradient of L_mimic."""
        for parameter, slope in zip(self.student.parameters(), slopes, strict=True):
            parameter.grad = slope
        self.student_optimiser.step()

    def generator_step(self, images: torch.Tensor, slope: torch.Tensor) -> None:
        """Update G by descending, given the gradient with respect to the images that it made."""
        self.seen["images"] = images.detach()
        self.generator_optimiser.zero_grad(set_to_none=True)
        images.backward(slope)
        self.generator_optimiser.step()

    def measures(self) -> dict[str, float]:
        """Measures of the last step: terms of Eq. 3, 4 and 10; `synthetic_classes`, the exponential of the
        mean prediction's entropy; `synthetic_spread`, the largest deviation of a pixel over the batch;
        means of D_k(x) and D_k(x'_k), where sent.
        """
        measured = {"synthetic_spread": self.seen["images"].std(0, correction=0).max()}
        if "logits" in self.seen and self.task.kind == "reconstruction":
            rows = self.task.rows(self.seen["logits"])
            measured |= {
                "teacher_variance": distillation.disagreement(rows, self.weights),
                "student_gap": self.seen["mimic"],
            }
        elif "logits" in self.seen:
            q = self.task.rows(self.seen["logits"]).softmax(-1)
            mean = torch.einsum("k,knc->nc", self.weights, q)
            measured |= {
                "teacher_entropy": distillation.confidence_loss(q, self.weights),
                "teacher_jsd": distillation.jensen_shannon(q, self.weights).mean(),
                "student_gap": self.seen["mimic"],
                "synthetic_classes": distillation.entropy(mean.mean(0)).exp(),
            }
        measured |= {
            name: self.seen[name].mean()
            for name in ("judged_generated", "judged_real")
            if name in self.seen
        }
        return {name: float(value) for name, value in measured.items()}
