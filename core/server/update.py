"""The server trains the global model on the condensed images it received (FedVCK, AAAI 2025, Eq.
16; FedDM).

Eq. 15 and 16 most likely mean the images of all rounds so far (page Errata); the released code takes
the last max(10, rounds / 2) rounds. Which are handed in is the caller's choice.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import attrs
import torch
from torch import nn

from core.checks import number, one_of, whole
from core.errors import InputError
from core.rng import Rng
from core.server.contrastive import Projector, relational_contrastive_loss
from core.training import cross_entropy, scale_rates, sgd, train

#: a weight of the contrastive term below float32's rounding of the cross-entropy's weight, 1
NEGLIGIBLE = 2.0**-24
#: values of `Contrast.projector_training`
TRAININGS = ("together", "accumulated")

#: a function of a batch of images (N, C, H, W)
Transform = Callable[[torch.Tensor], torch.Tensor]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@attrs.frozen(kw_only=True)
class ServerTraining:
    """Hyper-parameters of the server's training in a round.

    FedVCK prints a range of learning rates (0.001 to 0.01) and no more; the defaults are its
    released values, those for CIFAR10 where they differ. The released loop counts from 0 to 1,000
    and so takes 1,001 passes.
    """

    lr: float = attrs.field(default=0.005, validator=number(0, above=True))
    momentum: float = attrs.field(default=0.9, validator=number(0, 1))
    weight_decay: float = attrs.field(default=1e-6, validator=number(0))
    batch_size: int = attrs.field(default=256, validator=whole(1))
    #: passes over the condensed images in a round
    epochs: int = attrs.field(default=1000, validator=whole(1))
    #: batches in a round; when given it takes the place of `epochs`
    steps: int | None = attrs.field(default=None, validator=whole(1, optional=True))
    #: factor of the learning rates in the second half of a round
    decay: float = attrs.field(default=0.1, validator=number(0, above=True))

    def total(self, samples: int) -> int:
        """Batches that the server takes in a round with so many condensed images."""
        return self.steps or self.epochs * -(-samples // self.batch_size)


@attrs.frozen(kw_only=True, eq=False)
class Contrast:
    """Projector, prototypes and settings of the contrastive term of Eq. 15 in one round.

    Three differences of the released code are settings here; a fourth, a fresh projector in every
    round, is the caller's: hand in a new `Projector`, or the one of the round before with the
    weights it has learnt.
    """

    #: h; it is trained along with the model
    projector: Projector
    #: (C, D) from `feature_prototypes`
    prototypes: torch.Tensor
    #: (C, k) from `hard_negatives`
    negatives: torch.Tensor
    temperature: float
    #: (C,) bool, classes that have a prototype
    present: torch.Tensor | None = None
    #: factor of L_rc in Eq. 16: 1 as printed
    weight: float = attrs.field(default=1.0, validator=number(0))
    #: what the weight is multiplied by half way through the round. The released code has 0.1 and
    #: never restores the weight, so its round r (from 0) starts with `weight * 0.1**r`
    fade: float = attrs.field(default=1.0, validator=number(0))
    #: see `relational_contrastive_loss`, which checks them and the temperature
    form: str = "printed"
    similarity: str | None = None
    #: "together": by the model's SGD; "accumulated": as released, by an Adam of its own with
    #: learning rate 0.01, whose gradients are never set back to zero within a round, so that each
    #: step follows the sum of all gradients so far
    projector_training: str = attrs.field(
        default="together", validator=one_of("training of the projector", *TRAININGS)
    )

    def loss(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """L_rc of projected features (N, D), not yet weighted."""
        return relational_contrastive_loss(
            features,
            labels,
            self.prototypes,
            self.negatives,
            self.temperature,
            self.form,
            self.similarity,
            self.present,
        )


class _AccumulatingAdam(torch.optim.Adam):
    """The released code clears the projector's gradients before the first step of a round only."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Keep the gradients."""


def update_model(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    settings: ServerTraining,
    rng: Rng,
    *,
    prepare: Transform | None = None,
    autocast: Callable[[], AbstractContextManager] = nullcontext,
    loss: Loss = cross_entropy,
    augment: Transform | None = None,
    contrast: Contrast | None = None,
    plain_pass: bool = False,
) -> None:
    """Train a model, and the projector of `contrast`, in place on condensed images: L_update = L_ce
    + L_rc (Eq. 16).

    Args:
        model: a network of `core.models`.
        images: (N, C, H, W) on the model's device; labels: (N,) int64; N >= 1.
        rng: where the order of the images is drawn from.
        prepare: from a batch of `images` to float32 input of the network; without it they are
            normalised already.
        autocast: makes the context in which networks are applied; losses are always float32.
        loss: from logits and labels to a scalar.
        augment: applied, as in the released code, to the prepared input of `loss` only. The
            contrastive term then embeds the images a second time, without augmentation; else both
            terms share one pass.
        contrast: the contrastive term; without it this is FedDM's update. Where its weight has faded
            below what float32 holds beside 1 it is left out.
        plain_pass: with `augment`, embed the images without augmentation also where no contrastive
            term needs it. The released code does: such a pass moves the running statistics of batch
            normalisation, and nothing else.

    Raises InputError when there are no images.
    """
    if not len(labels):
        raise InputError(
            "the server has no condensed images to train on: did any client upload some?"
        )
    weight = 0.0 if contrast is None else contrast.weight
    optimisers, steps = optimisers_of(model, contrast, settings), settings.total(len(labels))

    def halfway() -> None:
        nonlocal weight
        weight *= 1.0 if contrast is None else contrast.fade
        scale_rates(optimisers, settings.decay)

    def objective(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        term = contrast if weight > NEGLIGIBLE else None
        plain = plain_pass or contrast is not None
        with autocast():
            inputs = images if prepare is None else prepare(images)
            logits, projected = outputs_of(model, inputs, augment, term, plain)
        total = loss(logits, labels)
        return total if term is None else total + weight * term.loss(projected, labels)

    train(model, images, labels, settings, steps, objective, rng, optimisers, halfway)


def optimisers_of(
    model: nn.Module, contrast: Contrast | None, settings: ServerTraining
) -> list[torch.optim.Optimizer]:
    """Optimisers of the model and of the projector, which is put into training mode."""
    optimisers: list[torch.optim.Optimizer] = [sgd(model.parameters(), settings)]
    if contrast is None:
        return optimisers
    projector = contrast.projector.train()
    parameters = list(projector.parameters())
    if contrast.projector_training == "together":
        return [*optimisers, sgd(parameters, settings)]
    projector.zero_grad(set_to_none=True)
    # on a GPU the count of steps, which changes the rate, must be there too: see `core.replay`
    capturable = parameters[0].is_cuda
    return [*optimisers, _AccumulatingAdam(parameters, lr=0.01, capturable=capturable)]


def outputs_of(
    model: nn.Module,
    inputs: torch.Tensor,
    augment: Transform | None,
    contrast: Contrast | None,
    plain_pass: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (N, C) for the loss and projected features (N, D) for the contrast (without one, an
    empty tensor).

    Plain and augmented images take a pass each: batch normalisation keeps them apart, and at 256
    images one pass over both was no faster.
    """
    if contrast is None:
        if plain_pass and augment is not None:
            with torch.no_grad():
                model.embed(inputs)  # type: ignore[operator]
        return model(inputs if augment is None else augment(inputs)), inputs.new_empty(0)
    features = model.embed(inputs)  # type: ignore[operator]
    logits = model.classifier(features) if augment is None else model(augment(inputs))  # type: ignore[operator]
    return logits, contrast.projector(features)
