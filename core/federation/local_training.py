"""Local training by stochastic gradient descent, which all model-centric algorithms share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Self

import attrs
import torch
from torch import nn
from torch.nn import functional as F

from core import training
from core.checks import number, one_of, whole
from core.data.crops import crop_and_flip
from core.errors import InputError
from core.federation.task import Task
from core.rng import Rng
from core.training import Objective, batches

#: from outputs and labels of a batch to their mean loss
DataLoss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

#: from a model, its outputs for a batch and the labels (N,) to the loss that is minimised
LocalLoss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


@attrs.frozen(kw_only=True)
class LocalTraining:
    """Local training; the defaults are NIID-Bench's and FedVCK's ten local epochs."""

    lr: float = attrs.field(default=0.01, validator=number(0, above=True))
    batch_size: int = attrs.field(default=64, validator=whole(1))
    #: passes over the client's data in a round
    local_epochs: int = attrs.field(default=10, validator=whole(1))
    #: batches in a round; when given it takes the place of `local_epochs`
    local_steps: int | None = attrs.field(default=None, validator=whole(1, optional=True))
    momentum: float = attrs.field(default=0.9, validator=number(0, 1))
    weight_decay: float = attrs.field(default=1e-5, validator=number(0))
    #: of what a client trains on: "crop_flip", as the loaders of FedIOD and FedKD have it for CIFAR
    #: (MOON's reflects at the edges), or "none"
    local_augmentation: str = attrs.field(
        default="none", validator=one_of("local augmentation", "none", "crop_flip")
    )

    @classmethod
    def released(cls) -> Self:
        """The values of the authors' code, where a method has some on record that differ."""
        return cls()

    def steps(self, samples: int) -> int:
        """Batches that a client with so many samples takes in a round."""
        return self.local_steps or self.local_epochs * -(-samples // self.batch_size)

    def drawn(self, labels: torch.Tensor, rng: Rng) -> Iterator[torch.Tensor]:
        """The batches of a round of who has these labels (N,), as index tensors: drawn at random."""
        samples = len(labels)
        steps = self.steps(samples)
        return batches(samples, self.batch_size, steps, rng.at("batches"), labels.device)

    def views(self, samples: int) -> int:
        """Samples that such a client sees in a round at most, each as often as it comes."""
        return self.steps(samples) * min(self.batch_size, samples)


@attrs.frozen(kw_only=True)
class SupervisedTraining(LocalTraining):
    """Local training whose loss may weigh the classes."""

    #: of the classes in the loss: all alike ("none"), or "balanced", which gives a class that has n_c of n
    #: images the weight n / (C n_c), as GDD-FL's code does in FedAvg and in centralized training
    class_weights: str = attrs.field(
        default="none", validator=one_of("class weights", "none", "balanced")
    )

    def data_loss(self, task: Task, labels: torch.Tensor) -> DataLoss:
        """The loss of who has these labels (N,): the mean over a batch, by the weights of the classes.
        Raises InputError where classes are to be weighed and the task is no classification.
        """
        if self.class_weights == "none":
            return task.loss
        if task.kind != "classification":
            raise InputError(f"class_weights must be none: {task.dataset.name} has no classes")
        counts = task.class_counts(labels).float()
        # n / (C n_c); what a server generates may be of a class that no image here has: it weighs 1
        balance = torch.where(counts > 0, len(labels) / (len(counts) * counts), 1.0)
        return lambda outputs, labels: weighed(outputs, labels, balance)


def weighed(outputs: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """sum_i sum_c w_c y_ic (-log p_ic) / sum_i sum_c w_c y_ic of logits (N, C), by class weights (C,).
    Labels are class numbers (N,) or probabilities (N, C).
    """
    y = labels if labels.is_floating_point() else F.one_hot(labels, len(weights))
    weight = weights * y
    return -(weight * F.log_softmax(outputs.float(), 1)).sum() / weight.sum()


def supervised(task: Task, loss: DataLoss | None = None) -> Objective:
    """The plain objective: a loss of the model's outputs, by default the task's."""
    chosen = loss or task.loss
    return OutputObjective(task, lambda model, outputs, labels: chosen(outputs, labels))


@attrs.frozen(eq=False)
class OutputObjective:
    """An objective that is a loss of the model's outputs, which are computed in the runtime's precision:
    by the model itself, or, for several clients, by all their models as one program.
    """

    task: Task
    loss: LocalLoss

    def __call__(
        self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        """Return the loss of a batch."""
        with self.task.runtime.autocast():
            outputs = model(self.task.inputs(images))
        return self.loss(model, outputs, labels)


def train(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    settings: LocalTraining,
    objective: Objective,
    rng: Rng,
    *,
    steps: int | None = None,
    optimisers: Sequence[torch.optim.Optimizer] | None = None,
    steady: bool = True,
    drawn: Iterable[torch.Tensor] | None = None,
) -> None:
    """Train a client's model in place by `core.training.train`: as many steps as the settings say, or
    `steps`, on newly augmented batches. InputError for crops of images with masks.
    """
    if settings.local_augmentation == "crop_flip":
        if labels.ndim > 1:
            raise InputError(
                "local_augmentation crop_flip moves images and not their masks: set it to none"
            )
        objective = _cropped(objective, rng.at("crop_flip").generator(labels.device))
    steps = settings.steps(len(labels)) if steps is None else steps
    training.train(
        model, images, labels, settings, steps, objective, rng, optimisers, None, steady, drawn
    )


def _cropped(objective: Objective, draws: torch.Generator) -> Objective:
    return lambda model, images, labels: objective(model, crop_and_flip(images, draws), labels)
