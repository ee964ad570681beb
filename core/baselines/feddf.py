"""FedDF: ensemble distillation for model fusion.

Lin, Kong, Stich, Jaggi. Ensemble Distillation for Robust Model Fusion in Federated Learning.
NeurIPS 2020, Algorithm 1 (homogeneous clients). The paper stops early by the accuracy on labelled
images that the server holds. Here the server has no labels: it stops by the divergence from the
ensemble on auxiliary images that it keeps apart. As in the released code the student ends with the
weights that were best there; who never looks ends with the last ones. Two more differences: the code
(epfml/federated-learning-public-code) crops and flips all images of CIFAR, those of the clients
(`local_augmentation` does so here) and in each batch those of the distillation, for teachers and student
alike; and its student begins with the mean of the models in which all count equally.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import attrs
import torch
from attrs.validators import optional
from torch import nn

from core.baselines import fedavg
from core.checks import number, whole
from core.distillation import kl_divergence
from core.errors import InputError
from core.families import public_images as public
from core.federation import CLASSIFICATION, SERVER, Message, State, Task, pack
from core.federation.tensors import unpack
from core.rng import Rng

#: share of the auxiliary images that the student does not learn from, and is compared on
HELD_OUT = 0.1


@attrs.frozen(kw_only=True)
class Settings(public.PublicData, fedavg.Settings):
    """Local SGD without momentum, weight decay or falling rate; then distillation on the server."""

    lr: float = attrs.field(default=0.1, validator=number(0, above=True))
    local_epochs: int = attrs.field(default=40, validator=whole(1))
    momentum: float = attrs.field(default=0.0, validator=number(0, 1))
    weight_decay: float = attrs.field(default=0.0, validator=number(0))
    #: N: batches of distillation in a round, at most; with 0 the method is FedAvg
    distill_steps: int = attrs.field(default=10_000, validator=whole(0))
    distill_batch: int = attrs.field(default=128, validator=whole(1))
    #: of Adam at the start; it falls to 0 along a cosine
    distill_lr: float = attrs.field(default=1e-3, validator=number(0, above=True))
    temperature: float = attrs.field(default=1.0, validator=number(0, above=True))
    #: stop when so many batches brought nothing; with `distill_steps` or more it is never looked at
    patience: int = attrs.field(default=1_000, validator=whole(1))
    #: batches between two looks
    check_every: int = attrs.field(default=100, validator=whole(1))
    #: auxiliary images in a round, drawn anew; None: all
    pool: int | None = attrs.field(default=None, validator=whole(2, optional=True))
    #: bound on the norm of the student's gradient
    clip_norm: float | None = attrs.field(default=None, validator=optional(number(0, above=True)))

    @classmethod
    def released(cls) -> Self:
        """The authors' code: bounded gradients, cropped and flipped CIFAR images, batches of 64."""
        return cls(clip_norm=5.0, distill_batch=64, local_augmentation="crop_flip")


class FedDF(fedavg.FedAvg):
    """FedAvg, whose average learns from its clients' ensemble on unlabelled images of the server."""

    Settings = Settings
    task_kinds = CLASSIFICATION
    evaluators = SERVER

    def initialise(self, task: Task, rng: Rng) -> State:
        """FedAvg's. Raises InputError before any training where there is nothing to distil on."""
        if self.settings.distill_steps:
            public.public_images(task, self.settings, anew=True)
        return super().initialise(task, rng)

    def server_update(self, state: State, uploads: Mapping[int, Message], rng: Rng) -> State:
        """Average, then distil (Algorithm 1, lines 6 to 10)."""
        # x_{t,0} = sum_k |X_k| / sum_k |X_k| x_t^k
        fused = super().server_update(state, uploads, rng)
        if not self.settings.distill_steps:
            return fused
        task, student = state.task, self.network(state.task, fused.tensors)
        images = public.drawn(task, self.settings, self.settings.pool, rng.at("pool"))
        teachers = [self.network(task, upload.tensors) for upload in uploads.values()]
        # 1/|S_t| sum_k f(x_t^k, d)
        ensemble = public.answers(task, teachers, images).mean(0)
        self._distil(task, student, images, ensemble, rng.at("distil"))
        return State(task, pack(student))

    def _divergence(self, outputs: torch.Tensor, ensemble: torch.Tensor) -> torch.Tensor:
        """KL(sigma(1/|S_t| sum_k f(x_t^k, d)), sigma(f(x_{t,j-1}, d))), sigma the softmax."""
        return kl_divergence(outputs, ensemble, self.settings.temperature)

    def _distil(
        self, task: Task, student: nn.Module, images: torch.Tensor, ensemble: torch.Tensor, rng: Rng
    ) -> None:
        """x_{t,j} = x_{t,j-1} - eta d KL / d x_{t,j-1}, j = 1 .. N or while the divergence falls; the
        weights of the smallest one. Raises InputError for a single image.
        """
        settings = self.settings
        optimiser = public.adam(
            student, settings.distill_lr, settings.distill_steps, settings.clip_norm
        )

        def learn(apart: int, done: int, steps: int) -> None:
            public.mimic(
                task,
                student,
                images[apart:],
                ensemble[apart:],
                self._divergence,
                optimiser,
                settings.distill_batch,
                steps,
                rng.at("from", done),
            )

        if settings.patience >= settings.distill_steps:
            learn(0, 0, settings.distill_steps)
            return
        if len(images) < 2:
            raise InputError(
                "FedDF learns from some auxiliary images and looks at others: give it two"
            )
        apart = min(max(1, int(HELD_OUT * len(images))), len(images) - 1)
        best, best_at, weights = float("inf"), 0, pack(student)
        for done in range(0, settings.distill_steps, settings.check_every):
            steps = min(settings.check_every, settings.distill_steps - done)
            learn(apart, done, steps)
            seen = task.outputs(student, images[:apart])
            divergence = float(self._divergence(seen, ensemble[:apart]))
            if divergence < best:
                best, best_at, weights = divergence, done + steps, pack(student)
            if done + steps - best_at >= settings.patience:
                break
        unpack(student, weights)
