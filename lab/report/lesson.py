"""Runs of one setting that the pages of the book share, and a look inside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import attrs
import pandas as pd
import torch
from torch import nn

import lab
from core import distillation
from core.algorithms.fediod.teachers import teachers, train_teacher
from core.condensation import LatentEncoder, engine, initial_images
from core.condensation.engine import Condensation, Draws, MatchingObjective, RealData
from core.condensation.latent import Normalisation, Separate
from core.families.condensing import to_wire
from core.federation import Client, LocalTraining, RoundResult, State, Task, train
from core.models import Classifier, Stacked
from core.rng import Rng
from core.server import ServerTraining, update_model
from lab import Experiment, Record
from lab.profiles import apply
from lab.report.charts import MB, partition_plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_Settings = Mapping[str, Mapping[str, Any]]
#: settings with which a method does something on 8 x 8 digits within seconds
SMALL: dict[str, dict[str, Any]] = {
    "fedvck": {"image_lr": 1.0, "clip_norm": 30.0, "pool": 1, "server_lr": 0.02},
    "fedmk": {
        "inner_lr": 0.2,
        "horizon": 25,
        "image_lr": 30.0,
        "inner_batch": 32,
        "real_batch": 32,
        "server_lr": 0.2,
        "server_steps": 25,
        "generator_steps": 20,
    },
    "fediod": {
        "local_steps": 50,
        "distill_batch": 32,
        "generator_width": 16,
        "discriminator_width": 8,
        "gan_lr": 0.002,
        "student_lr": 0.01,
    },
}
#: FedIOD whose generator has the adversarial loss only, as in the authors' script for skewed data
ADVERSARIAL: dict[str, Any] = {
    "mimic": 0,
    "confidence": 0,
    "uniqueness": 0,
    "importance": "class_ratio",
    "scored_images": 0,
}


@attrs.frozen(eq=False)
class Run:
    """One run of a lesson: what was asked for, its record, the result of every round, and the clients with
    what they remember after the last.
    """

    experiment: Experiment
    record: Record
    results: list[RoundResult]
    clients: list[Client]

    @property
    def states(self) -> list[State]:
        """The server's state after every round."""
        return [result.state for result in self.results]

    @property
    def state(self) -> State:
        """The server's state after the last round."""
        return self.results[-1].state

    @property
    def accuracy(self) -> float:
        """Test accuracy after the last round, in percent."""
        return 100 * self.record.metrics["accuracy"]

    def per_round(self) -> pd.DataFrame:
        """A row for every round: accuracy in percent (missing where it was not tested), and MB of 2^20 bytes
        that all clients sent up and were sent down.
        """
        rows = [
            (each.round, 100 * each.metrics.get("accuracy", math.nan), each.up / MB, each.down / MB)
            for each in self.results
        ]
        names = ["round", "accuracy (%)", "up (MB)", "down (MB)"]
        return pd.DataFrame(rows, columns=names).set_index("round")


class Lesson:
    """The runs of one page: they share data, split and schedule, and differ in algorithm and settings.

    Args:
        profile: fills in what is not stated.
        algorithm: the one that the page is about.
        alpha: concentration of a Dirichlet split; else state `partition`.
        settings: hyper-parameters of every run.
        own: hyper-parameters of the runs of an algorithm, by its name.
        fields: of `Experiment`: dataset, clients, rounds, seed and the like.
    """

    def __init__(
        self,
        profile: str,
        algorithm: str,
        *,
        alpha: float | None = None,
        settings: Mapping[str, Any] | None = None,
        own: _Settings | None = None,
        **fields: Any,
    ) -> None:
        self.profile, self.algorithm = profile, algorithm
        self.settings, self.own, self.fields = dict(settings or {}), dict(own or {}), fields
        if alpha is not None:
            self.fields["partition"] = {"name": "dirichlet", "alpha": alpha}

    def experiment(self, algorithm: str | None = None, **settings: Any) -> Experiment:
        """The experiment of an algorithm, by default the page's own, with these settings on top. Raises
        InputError as `lab.profiles.apply` does.
        """
        name = algorithm or self.algorithm
        values = {**self.settings, **self.own.get(name, {}), **settings}
        return apply(self.profile, {"algorithm": name, **self.fields, "settings": values})

    @cached_property
    def task(self) -> Task:
        """Data and model, the same for all runs."""
        return lab.make_task(self.experiment())

    @property
    def title(self) -> str:
        """Data set and split, for the titles of figures."""
        alpha = self.experiment().partition.get("alpha")
        return self.task.dataset.name + (f", alpha = {alpha:g}" if alpha else "")

    def changed(self, **changes: Any) -> Lesson:
        """Copy the lesson with other arguments, those in `own` on top of what it has."""
        own = {
            name: {**self.own.get(name, {}), **settings}
            for name, settings in changes.pop("own", {}).items()
        }
        given = {"profile": self.profile, "algorithm": self.algorithm, "settings": self.settings}
        return type(self)(**{**given, **self.fields, **changes}, own=self.own | own)

    def members(self) -> list[Client]:
        """The clients that have data, with nothing in their memory."""
        return [client for client in lab.make_clients(self.experiment(), self.task) if len(client)]

    def run(
        self,
        algorithm: str | None = None,
        clients: Sequence[Client] | None = None,
        **settings: Any,
    ) -> Run:
        """Run an algorithm, by default the page's own, with these settings on top, and keep all that it
        goes through.
        """
        experiment = self.experiment(algorithm, **settings)
        record, results = lab.new_record(experiment, self.task), []
        for result in lab.rounds(experiment, task=self.task, clients=clients):
            record.add(result)
            results.append(result)
        return Run(experiment, record, results, list(results[-1].clients))

    def start(self, algorithm: str | None = None, **settings: Any) -> State:
        """The server's state before the first round of `run` with the same arguments."""
        experiment = self.experiment(algorithm, **settings)
        rng = Rng(experiment.seed).at("initialise")
        return experiment.new_algorithm().initialise(self.task, rng)

    def as_images(self, inputs: torch.Tensor) -> torch.Tensor:
        """Network inputs (N, C, H, W) as the 8-bit images that they stand for, cut off at black and white."""
        data = self.task.dataset
        return to_wire(inputs.float(), data.mean, data.std)

    def partition_plot(self) -> Figure:
        """Draw each client's classes, with all clients."""
        clients = lab.make_clients(self.experiment(), self.task)
        labels = [client.labels.cpu() for client in clients]
        parts = torch.arange(sum(map(len, labels))).split([len(part) for part in labels])
        return partition_plot(torch.cat(labels), parts, self.task.dataset.classes, title=self.title)


class TaughtLesson(Lesson):
    """A lesson on FedIOD whose runs share their teachers, which do not depend on stage two."""

    @cached_property
    def clients_with_teachers(self) -> list[Client]:
        """The clients that have data after stage one, each with its teacher in its memory."""
        clients = super().members()
        for client in clients:
            rng = Rng(self.experiment().seed, ("fediod",)).at("client", client.id)
            train_teacher(client, self.method.settings, rng)
        return clients

    def members(self) -> list[Client]:
        """Copies of the clients that have data, each with its teacher in its memory."""
        return [client.copy() for client in self.clients_with_teachers]

    def run(
        self,
        algorithm: str | None = None,
        clients: Sequence[Client] | None = None,
        **settings: Any,
    ) -> Run:
        """Run FedIOD with the shared teachers; `settings` must not be about stage one. Another algorithm runs
        as in any lesson.
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

    def pictures(self, source: State | Run, count: int = 200) -> torch.Tensor:
        """Images of the generator of a state, or of a run at its end, (count, C, S, S) in [0, 1], of the same
        noise for all. A run's generator has the form that its own settings say.
        """
        rng = Rng(self.experiment().seed).at("look")
        method, state = self.method, source
        if isinstance(source, Run):
            method, state = source.experiment.new_algorithm(), source.state
        images: torch.Tensor = method.synthetic(state, count, rng)
        return images

    def opinion(self, inputs: torch.Tensor) -> dict[str, float]:
        """Describe the teachers' answers for images as network inputs: their mean `entropy` (Eq. 3) and
        divergence `JSD` (Eq. 4) in nats, and to how many `classes` the images look, the exponential of the
        entropy of the mean answer.
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
        look = self.task.dataset.standardise
        return pd.DataFrame(
            {"step": state.meta.get("step", 0), "label": label}
            | self.opinion(look(self.pictures(state)))
            for label, states in runs.items()
            for state in states
        )

    def judged(self, judges: Sequence[nn.Module]) -> torch.Tensor:
        """E D_k(x'_k), (K,): how generated each client's own images look to its discriminator."""
        own = [
            distillation.generated(answers([judge], self.task.inputs(client.images))).mean()
            for judge, client in zip(judges, self.members(), strict=True)
        ]
        return torch.stack(own)


def small_lesson(profile: str, settings: Mapping[str, Any], **fields: Any) -> TaughtLesson:
    """FedIOD with networks and rates that do something within seconds; `settings` of FedIOD on top of
    `SMALL`, `fields` as of `Lesson`.
    """
    return TaughtLesson(
        profile,
        "fediod",
        model_options={"depth": 2, "width": 16},
        settings={"lr": 0.05, "batch_size": 32},
        own={"fediod": {**SMALL["fediod"], **settings}},
        **fields,
    )


def pooled(members: Sequence[Client]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Data of all clients together, which nobody may see but a teacher: images (N, C, H, W), labels (N,),
    and the position of each image's owner in `members` (N,).
    """
    sizes = torch.tensor([len(client) for client in members])
    return (
        torch.cat([client.images for client in members]),
        torch.cat([client.labels for client in members]),
        torch.repeat_interleave(torch.arange(len(members)), sizes),
    )


def share_right(scores: torch.Tensor, labels: torch.Tensor) -> float:
    """Accuracy, in percent, of scores (N, C) against labels (N,)."""
    return 100 * (scores.argmax(1) == labels).float().mean().item()


@torch.no_grad()
def answers(networks: Sequence[nn.Module], inputs: torch.Tensor) -> torch.Tensor:
    """Outputs (K, N, ...) of K networks for N images in the form of network inputs."""
    return Stacked(networks).in_parts(inputs)


def trained(
    task: Task, inputs: torch.Tensor, labels: torch.Tensor, steps: int, rng: Rng
) -> Classifier:
    """A fresh network of a task after some steps on images in the form of network inputs."""
    model = task.new_model(rng)
    plan = ServerTraining(lr=0.05, batch_size=50, steps=steps)
    update_model(model, inputs, labels, plan, rng.at("train"), autocast=task.runtime.autocast)
    return model


def condensed(
    task: Task,
    model: Classifier,
    images: torch.Tensor,
    labels: torch.Tensor,
    per_class: int,
    rng: Rng,
    *,
    kind: str = "noise",
    constrained: bool = True,
    watch: Callable[[int, torch.Tensor], None] | None = None,
    **settings: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The images of one client, condensed under a model that does not change.

    Args:
        images: (N, C, H, W) uint8, labels: (N,); per_class: condensed images of each class held.
        kind: what they start from, as in `initial_images`; constrained: with the latent constraints.
        watch: called in every step with its number and the images so far, at first those of the start.
        settings: of `Condensation`; the real side is its exact mean unless they say else.

    Returns: images as network inputs (M, C, H, W), their labels (M,), and the loss of every step,
    the mean over classes.
    """
    order = labels.argsort(stable=True)
    classes, group = torch.unique(labels[order], return_inverse=True)
    real = RealData(
        images[order],
        group,
        1 / torch.bincount(group)[group].float(),
        owner=torch.zeros_like(classes),
        label=classes,
    )
    counts = torch.full_like(classes, per_class)
    start = initial_images(kind, real.images, group, counts, task.inputs, rng.generator())
    objective = MatchingObjective(
        LatentEncoder(model),
        real,
        Condensation(**{"estimator": "expectation", **settings}),
        Draws([rng], real.owner),
        task.inputs,
        task.runtime.autocast,
        Normalisation() if constrained else Separate(),
    )
    groups = torch.repeat_interleave(counts)
    pictures, losses = engine.condense(objective, start, groups, watch)
    return pictures, classes[groups], losses.mean(1)


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
        lambda network, x, wanted: loss(network(x), wanted),
        rng.at("learn"),
        steps=steps,
        optimisers=[adam],
    )
    return student
