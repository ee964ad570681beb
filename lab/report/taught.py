"""Lessons on FedIOD: runs that share their teachers, and what these say of images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs
import pandas as pd
import torch
from torch import nn

from core import distillation
from core.algorithms.fediod.teachers import teachers, train_teacher
from core.data import partition
from core.federation import Client, LocalTraining, State, Task, supervised, train
from core.models import Classifier
from core.rng import Rng
from lab.report.lesson import SMALL, Lesson, Run, answers

#: FedIOD whose generator has the adversarial loss only, as in the authors' script for skewed data
ADVERSARIAL: dict[str, Any] = {
    "mimic": 0,
    "confidence": 0,
    "uniqueness": 0,
    "importance": "class_ratio",
    "scored_images": 0,
}


class TaughtLesson(Lesson):
    """A lesson on FedIOD whose runs share their teachers, which do not depend on stage two."""

    @cached_property
    def taught(self) -> dict[int, Client]:
        """The clients after stage one, by their numbers."""
        return {}

    def members(self) -> list[Client]:
        """The clients that have data, each with its teacher in its memory."""
        members = super().members()
        for client in members:
            if client.id not in self.taught:
                rng = Rng(self.experiment().seed, ("fediod",)).at("client", client.id)
                train_teacher(client, self.method.settings, rng)
                self.taught[client.id] = client
        return [self.taught[client.id].copy() for client in members]

    def run(
        self,
        algorithm: str | None = None,
        clients: Sequence[Client] | None = None,
        **settings: Any,
    ) -> Run:
        """Run FedIOD with the shared teachers; `settings` must not be about stage one. Another
        algorithm runs as in any lesson.
        """
        if clients is None and algorithm in (None, self.algorithm):
            clients = self.members()
        return super().run(algorithm, clients, **settings)

    @cached_property
    def method(self) -> Any:
        """FedIOD with the settings of this page."""
        return self.experiment().new_algorithm()

    @cached_property
    def teachers(self) -> list[nn.Module]:
        """The teacher of each client that has data, frozen."""
        return teachers(self.members(), self.method.settings)

    @cached_property
    def counts(self) -> torch.Tensor:
        """n_{k,c}, (K, C): images of a class at each client that has data."""
        return torch.stack([client.class_counts for client in self.members()])

    @property
    def shares(self) -> torch.Tensor:
        """pi_k, (K,): each client's share of all images."""
        return (self.counts.sum(1) / self.counts.sum()).float()

    def pictures(self, made: State | Run, count: int = 200) -> torch.Tensor:
        """Images of the generator of a state, or of a run at its end, (count, C, S, S) in [0, 1]: of
        the same noise for all. A run's generator has the form that its own settings say.
        """
        rng = Rng(self.experiment().seed).at("look")
        method, state = self.method, made
        if isinstance(made, Run):
            method, state = made.experiment.new_algorithm(), made.state
        images: torch.Tensor = method.synthetic(state, count, rng)
        return images

    def opinion(self, inputs: torch.Tensor) -> dict[str, float]:
        """What the teachers say of images in the form of network inputs: their mean `entropy`
        (Eq. 3) and divergence `JSD` (Eq. 4) in nats, and to how many `classes` the images look, the
        exponential of the entropy of the mean answer.
        """
        q = answers(self.teachers, inputs).softmax(-1)
        mean = torch.einsum("k,knc->nc", self.shares, q).mean(0)
        return {
            "entropy": distillation.confidence_loss(q, self.shares).item(),
            "JSD": distillation.jensen_shannon(q, self.shares).mean().item(),
            "classes": distillation.entropy(mean).exp().item(),
        }

    def opinions(self, runs: Mapping[str, Sequence[State]]) -> pd.DataFrame:
        """`opinion` of the images of named runs' states: `step`, `label` and what it returns."""
        rows = [
            {
                "step": state.meta.get("step", 0),
                "label": label,
                **self.opinion(self.task.dataset.standardise(self.pictures(state))),
            }
            for label, states in runs.items()
            for state in states
        ]
        return pd.DataFrame(rows)

    def judged(self, judges: Sequence[nn.Module]) -> torch.Tensor:
        """E D_k(x'_k), (K,): how generated each client's own images look to its discriminator."""
        own = [
            distillation.generated(answers([judge], self.task.inputs(client.images))).mean()
            for judge, client in zip(judges, self.members(), strict=True)
        ]
        return torch.stack(own)


def small_lesson(profile: str, settings: Mapping[str, Any], **fields: Any) -> TaughtLesson:
    """FedIOD with networks and rates that do something within seconds.

    Args:
        settings: of FedIOD, on top of `SMALL`.
        fields: other arguments of `Lesson`: dataset, alpha, clients, rounds, seed and the like.
    """
    return TaughtLesson(
        profile,
        "fediod",
        model_options={"depth": 2, "width": 16},
        settings={"lr": 0.05, "batch_size": 32},
        own={"fediod": {**SMALL["fediod"], **settings}},
        **fields,
    )


def slope(images: torch.Tensor, loss: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """The gradient of a loss with respect to images, in their shape."""
    leaf = images.detach().clone().requires_grad_()
    return torch.autograd.grad(loss(leaf), leaf)[0]


def downhill(
    images: torch.Tensor,
    loss: Callable[[torch.Tensor], torch.Tensor],
    steps: int = 20,
    length: float = 0.3,
) -> torch.Tensor:
    """Images (N, C, S, S) after some steps of one length, each image down its own part of the
    gradient of a loss, kept within [0, 1]. An image without a gradient stays.
    """
    for _ in range(steps):
        g = slope(images, loss)
        norms = g.flatten(1).norm(dim=1).clamp_min(1e-12)
        images = (images - length * g / norms[:, None, None, None]).clamp(0, 1)
    return images


def distilled(
    task: Task,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    steps: int,
    rng: Rng,
) -> Classifier:
    """A fresh network after some steps of Adam on answers (N, C) to images in the form of network
    inputs; `loss` takes its logits and the answers of a batch.
    """
    student = task.new_model(rng)
    adam = torch.optim.Adam(student.parameters(), lr=0.01)
    plan = LocalTraining(batch_size=32)
    train(
        student,
        inputs,
        targets,
        plan,
        steps,
        lambda network, x, wanted: loss(network(x), wanted),
        rng.at("learn"),
        [adam],
    )
    return student


def teacher(task: Task, rows: torch.Tensor, steps: int, rng: Rng) -> Classifier:
    """A network that has learned from these rows of a task's training set, frozen."""
    data, plan = task.dataset.train, LocalTraining(lr=0.05, batch_size=32)
    network = task.new_model(rng)
    images, labels = data.images[rows], data.labels[rows]
    train(network, images, labels, plan, steps, supervised(task), rng.at("learn"))
    return network.eval().requires_grad_(False)


@attrs.frozen(eq=False)
class Panel:
    """Teachers, each of which has seen the images of one client only."""

    #: rows of the training set that each client holds; empty clients are left out
    parts: list[torch.Tensor]
    #: n_{k,c}, (K, C)
    counts: torch.Tensor
    networks: list[nn.Module]


def panel(task: Task, clients: int, alpha: float, steps: int, seed: int) -> Panel:
    """A training set, handed out by a Dirichlet split, and a teacher for every client."""
    labels = task.dataset.train.labels
    parts = [
        torch.as_tensor(part)
        for part in partition.dirichlet(labels, clients, alpha, seed)
        if len(part)
    ]
    classes = task.dataset.num_classes
    counts = torch.stack([torch.bincount(labels[part], minlength=classes) for part in parts])
    rng = Rng(seed).at("panel", f"{alpha:g}")
    taught = (teacher(task, part, steps, rng.at(k)) for k, part in enumerate(parts))
    return Panel(parts, counts, list(taught))


def ensembles(logits: torch.Tensor, counts: torch.Tensor) -> dict[str, torch.Tensor]:
    """Scores (N, C) of three ensembles of K teachers.

    Args:
        logits: (K, N, C); counts: n_{k,c}, (K, C).

    The two means have the weights n_k / N; that of probabilities comes back as its logarithm. The
    class-wise weights are n_{k,c} over their sum, the first factor of Eq. 8 of FedIOD.
    """
    pi = (counts.sum(1) / counts.sum()).to(logits.dtype)
    mean = torch.einsum("k,knc->nc", pi, logits.softmax(-1))
    by_class = distillation.class_input_importance(counts)
    return {
        "mean of probabilities": mean.log(),
        "mean of logits": torch.einsum("k,knc->nc", pi, logits),
        "class-wise weights": distillation.ensemble_logits(logits, by_class),
    }
