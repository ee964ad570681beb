"""Hyper-parameters of FedIOD."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import attrs
from attrs.validators import optional

from core.checks import beta_1, number, on_or_off, one_of, whole
from core.distillation.adversarial import GAN_LOSSES, WEIGHTED
from core.distillation.ensemble import CLASS_RATIOS
from core.errors import InputError
from core.federation import LocalTraining, Task
from core.models.generative import JUDGE_NORMS
from core.privacy.differential import delta_below_one, epsilon_within_full, noise_multiplier
from core.training import cosine


def _architectures(instance: Any, attribute: attrs.Attribute, value: Any) -> None:
    right = isinstance(value, (list, tuple)) and all(
        isinstance(entry, dict) and "model" in entry for entry in value
    )
    if value is not None and not (right and value):
        raise InputError(
            "teacher_models must be a list of entries such as {model: resnet8, width: 16}, "
            f"not {value!r}"
        )


@attrs.frozen(kw_only=True)
class Settings(LocalTraining):
    """Stage one has the settings of local training; all others are of stage two."""

    lr: float = attrs.field(default=0.0025, validator=number(0, above=True))
    batch_size: int = attrs.field(default=16, validator=whole(1))
    local_epochs: int = attrs.field(default=500, validator=whole(1))
    #: architectures of the teachers, dealt out to the clients in turn: a list of {model: NAME,
    #: option: value}; None: the student's
    teacher_models: list[dict[str, Any]] | None = attrs.field(
        default=None, validator=_architectures
    )

    #: where images have one label: length of the noise w
    noise: int = attrs.field(default=100, validator=whole(1))
    generator_width: int = attrs.field(default=64, validator=whole(1))
    discriminator_width: int = attrs.field(default=64, validator=whole(1))
    #: G that makes images from noise, where they have one label: "plain"; "released": its first map has
    #: twice the channels, and its second enlargement is bilinear
    generator_form: str = attrs.field(
        default="plain", validator=one_of("form of the generator", "plain", "released")
    )
    #: what D_k normalises by, where images have one label: an "instance", or a "batch" as released
    discriminator_norm: str = attrs.field(
        default="instance", validator=one_of("normalisation", *JUDGE_NORMS)
    )

    distill_batch: int = attrs.field(default=64, validator=whole(1))
    distill_epochs: int = attrs.field(default=300, validator=whole(1))
    #: steps of stage two; when given they take the place of `distill_epochs`
    distill_steps: int | None = attrs.field(default=None, validator=whole(1, optional=True))
    #: steps before them in which only G and D_k learn; the paper has such for nuclei only
    pretrain_steps: int = attrs.field(default=0, validator=whole(0))
    #: as released: in each step D_k learns first, and then tells G what it thinks of its images
    discriminator_first: bool = attrs.field(default=False, validator=on_or_off)
    #: as released: in an epoch D_k learns until it has seen as many images as its client has. There its
    #: gradient is also divided by the number of those that still learn, its Adam goes on with gradients of
    #: 0 while it rests, it passes its images without replacement, and all D_k begin alike
    discriminator_rests: bool = attrs.field(default=False, validator=on_or_off)
    #: whose data an epoch passes once, that of the "largest" or of the "smallest" client
    epoch_of: str = attrs.field(
        default="largest", validator=one_of("client", "largest", "smallest")
    )

    #: Adam of G and D_k: a cosine from `gan_lr` to 0, and its beta_1
    gan_lr: float = attrs.field(default=1e-3, validator=number(0, above=True))
    gan_beta: float = attrs.field(default=0.9, validator=beta_1)
    #: "adam", or "sgd" with momentum 0.9
    student_optimiser: str = attrs.field(
        default="adam", validator=one_of("optimiser", "adam", "sgd")
    )
    student_lr: float = attrs.field(default=1e-3, validator=number(0, above=True))
    student_last_lr: float = attrs.field(default=0.0, validator=number(0))
    student_weight_decay: float = attrs.field(default=0.0, validator=number(0))
    #: 1: on the generator's own images, as in Alg. 1; more: so many on fresh images after the
    #: generator's step
    student_steps: int = attrs.field(default=1, validator=whole(1))

    #: factors of the terms of the generator's loss, 0: without; the student always minimises
    #: L_mimic
    gan: float = attrs.field(default=1.0, validator=number(0))
    # `confidence` and `balance` ask about classes: not where the answer is an image
    confidence: float = attrs.field(default=1.0, validator=number(0))
    uniqueness: float = attrs.field(default=1.0, validator=number(0))
    mimic: float = attrs.field(default=1.0, validator=number(0))
    #: factor of `core.distillation.balance_loss`, which the paper does not have
    balance: float = attrs.field(default=0.0, validator=number(0))

    #: factor of the perceptual loss beside L_gan, where every pixel has an answer (the paper names it
    #: for segmentation only)
    perceptual: float = attrs.field(default=1.0, validator=number(0))

    #: see `core.distillation.gan_losses`
    gan_loss: str = attrs.field(default="linear", validator=one_of("adversarial loss", *GAN_LOSSES))
    gan_weighted: str = attrs.field(
        default="real", validator=one_of("place of the weights", *WEIGHTED)
    )
    #: pi_k of Eq. 2: "size", the clients' shares of all samples, or "uniform", 1/K
    gan_weights: str = attrs.field(
        default="size", validator=one_of("weighting of Eq. 2", "size", "uniform")
    )
    #: "printed": Eq. 5; "released": see `core.distillation.reversed_divergence`
    uniqueness_form: str = attrs.field(
        default="printed", validator=one_of("form", "printed", "released")
    )
    #: temperature of L_mimic; None: infinity, the squared error of Eq. 10
    tau: float | None = attrs.field(default=None, validator=optional(number(0, above=True)))
    #: "class_and_input": Eq. 8; "class_ratio": its first factor only, read as the * of Tables 6 and 7
    importance: str = attrs.field(
        default="class_and_input", validator=one_of("importance", "class_and_input", "class_ratio")
    )
    #: see `core.distillation.class_input_importance`
    class_ratio: str = attrs.field(default="count", validator=one_of("class ratio", *CLASS_RATIOS))
    #: what a large D_k(x) of Eq. 8 says of x: "generated", as Eq. 2 prints it, or "real"
    input_ratio: str = attrs.field(
        default="generated", validator=one_of("meaning of D_k", "generated", "real")
    )

    #: whether all that leaves a client in a step is clipped and noised
    private: bool = attrs.field(default=False, validator=on_or_off)
    delta: float = attrs.field(default=1e-5, validator=delta_below_one)
    #: what all steps together would spend; it fixes the noise
    full_epsilon: float = attrs.field(default=10.0, validator=number(0, above=True))
    #: stage two stops where this budget would be spent, private or not; None: it runs to its end
    epsilon: float | None = attrs.field(default=None, validator=epsilon_within_full)
    #: bounds on the gradient with respect to one image, and on the logits of one image
    clip_norm: float = attrs.field(default=1.0, validator=number(0, above=True))
    logit_norm: float = attrs.field(default=10.0, validator=number(0, above=True))

    #: synthetic images of one label whose inception scores are taken at the end (Table 7); 0: none
    scored_images: int = attrs.field(default=1000, validator=whole(0))

    def __attrs_post_init__(self) -> None:
        if not (self.gan or self.confidence or self.uniqueness or self.mimic or self.balance):
            raise InputError(
                "the generator has no loss: one of gan, confidence, uniqueness, mimic, balance must be "
                "above 0"
            )
        if self.pretrain_steps and not self.gan:
            raise InputError("pretrain_steps needs an adversarial loss: gan must be above 0")
        if self.private and self.importance != "class_ratio":
            raise InputError(
                "a private client does not send its discriminator's outputs: private needs importance "
                "'class_ratio'"
            )

    @classmethod
    def released(cls) -> Self:
        """The authors' code (lsl001006/FedIOD) for CIFAR-10 at alpha = 1, but for stage one, whose training
        is incomplete there, and its stop at the best test accuracy. At alpha = 0.1 only `gan` counts.
        """
        return cls(
            gan_lr=1e-4,
            gan_beta=0.5,
            student_optimiser="sgd",
            student_lr=5e-3,
            student_last_lr=1e-5,
            student_weight_decay=3e-5,
            student_steps=5,
            distill_epochs=500,
            uniqueness=5.0,
            mimic=0.2,
            balance=10.0,
            gan_loss="non_saturating",
            gan_weighted="generator",
            uniqueness_form="released",
            tau=10001.0,
            importance="class_ratio",
            discriminator_width=128,
            generator_form="released",
            discriminator_norm="batch",
            discriminator_first=True,
            discriminator_rests=True,
        )

    def check(self, task: Task) -> None:
        """Raise InputError, before teachers train, for privacy in dense tasks, whose label maps cross as they
        are; for a budget that cannot be accounted for; and, where the answer is an image, for a
        temperature, and a generator whose only losses are those of classes.
        """
        if task.kind == "reconstruction":
            if self.tau is not None:
                raise InputError(
                    f"the answers of {task.dataset.name} are images, which have no temperature: tau "
                    f"must be null, not {self.tau:g}"
                )
            if not (self.gan or self.uniqueness or self.mimic or self.perceptual):
                raise InputError(
                    "the generator has no loss: where the answer is an image, one of gan, uniqueness, "
                    "mimic, perceptual must be above 0"
                )
        if self.private and task.kind != "classification":
            raise InputError(
                f"FedIOD's clients send the maps of their images as they are where every pixel of "
                f"{task.dataset.name} has an answer, so private must be off"
            )
        if self.private or self.epsilon is not None:
            noise_multiplier(self.full_epsilon, self.delta, 1.0, 1)

    @property
    def sends_judgements(self) -> bool:
        """True where the clients' discriminators tell the server what they think of an image."""
        return self.importance == "class_and_input"

    @property
    def fresh_batches(self) -> int:
        """Batches in a step from which the student alone learns."""
        return self.student_steps if self.student_steps > 1 else 0

    def releases(self, steps: int) -> int:
        """Noisy uploads of a client in `steps` steps: gradients in all, logits after pretraining."""
        return steps + (1 + self.fresh_batches) * max(steps - self.pretrain_steps, 0)

    def all_steps(self, samples: Sequence[int]) -> int:
        """Steps of stage two for clients with so many samples."""
        return self.pretrain_steps + (
            self.distill_steps or self.distill_epochs * self.epoch_steps(samples)
        )

    def epoch_steps(self, samples: Sequence[int]) -> int:
        """Steps of one epoch."""
        return self.passes(max(samples) if self.epoch_of == "largest" else min(samples))

    def passes(self, samples: int) -> int:
        """Batches in which so many samples are seen once."""
        return -(-samples // self.distill_batch)

    def gan_rate(self, step: int, steps: int) -> float:
        """The learning rate of G and D_k in a step of so many."""
        return cosine(self.gan_lr, 0.0, step / steps)
