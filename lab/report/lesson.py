"""What the pages of the book share: runs of one setting, and a look inside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import attrs
import pandas as pd
import torch
from torch import nn

import lab
from core import algorithms, models
from core.condensation import LatentEncoder, engine, initial_images, to_wire
from core.condensation.latent import Normalisation, Separate
from core.condensation.objective import Condensation, Draws, MatchingObjective, RealData
from core.errors import InputError, brief, unknown
from core.federation import Client, RoundResult, State, Task
from core.models import Classifier, Stacked
from core.rng import Rng
from core.server import ServerTraining, update_model
from lab import Experiment, Record
from lab.profiles import apply
from lab.report.charts import partition_plot
from lab.report.verdict import MB

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


@attrs.frozen(eq=False)
class Run:
    """One run of a lesson: what was asked for, its record, the result of every round, and the
    clients with what they remember after the last.
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
        """A row for every round: accuracy in percent (missing where it was not tested), and MB of
        2^20 bytes that all clients sent up and were sent down.
        """
        rows = {
            result.round: {
                "accuracy (%)": 100 * result.metrics.get("accuracy", float("nan")),
                "up (MB)": result.up / MB,
                "down (MB)": result.down / MB,
            }
            for result in self.results
        }
        return pd.DataFrame(rows).T.rename_axis("round")


def follow(experiment: Experiment, task: Task, clients: Sequence[Client] | None = None) -> Run:
    """Run an experiment and keep all that it goes through; for runs of seconds."""
    people = list(lab.make_clients(experiment, task) if clients is None else clients)
    record = lab.new_record(experiment, task)
    results = []
    for result in lab.rounds(experiment, task=task, clients=people):
        record.add(result)
        results.append(result)
    return Run(experiment, record, results, people)


def _on_top(below: _Settings, above: _Settings) -> _Settings:
    """Settings by algorithm, some on top of others. Raises InputError where it is not that."""
    for name, settings in above.items():
        if name not in algorithms.names():
            raise unknown("algorithm", name, algorithms.names())
        if not isinstance(settings, Mapping):
            raise InputError(f"own must give {name} a mapping of settings, not {brief(settings)}")
    return {**below, **{name: {**below.get(name, {}), **of} for name, of in above.items()}}


class Lesson:
    """The runs of one page: they share data, split and schedule, and differ in algorithm and
    settings.

    Args:
        profile: fills in what is not stated.
        algorithm: the one that the page is about.
        alpha: concentration of a Dirichlet split; else state `partition`.
        settings: hyper-parameters of every run.
        own: hyper-parameters of the runs of an algorithm, by its name.
        fields: of `Experiment`: dataset, clients, rounds, seed and the like.

    Raises InputError where `own` is about no algorithm.
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
        self.settings, self.own, self.fields = dict(settings or {}), _on_top({}, own or {}), fields
        if alpha is not None:
            self.fields["partition"] = {"name": "dirichlet", "alpha": alpha}

    def experiment(self, algorithm: str | None = None, **settings: Any) -> Experiment:
        """The experiment of an algorithm, by default the page's own, with these settings on top.

        Raises InputError as `lab.profiles.apply` does.
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

    def but(self, **changes: Any) -> Lesson:
        """The same lesson with other arguments, those in `own` on top of what it has. Raises
        InputError for other data or another model.
        """
        if "own" in changes:
            changes["own"] = _on_top(self.own, changes["own"])
        kept = {name: getattr(self, name) for name in ("profile", "algorithm", "settings", "own")}
        other = type(self)(**{**kept, **self.fields, **changes})
        mine, theirs = self.experiment(), other.experiment()
        for field in ("dataset", "model", "model_options"):
            if getattr(mine, field) != getattr(theirs, field):
                raise InputError(f"{field} is one for all runs of a lesson: make another lesson")
        other.__dict__["task"] = self.task
        return other

    def members(self) -> list[Client]:
        """The clients that have data, with nothing in their memory."""
        everyone = lab.make_clients(self.experiment(), self.task)
        return [client for client in everyone if len(client)]

    def run(
        self,
        algorithm: str | None = None,
        clients: Sequence[Client] | None = None,
        **settings: Any,
    ) -> Run:
        """Run an algorithm, by default the page's own, with these settings on top."""
        return follow(self.experiment(algorithm, **settings), self.task, clients)

    def start(self, algorithm: str | None = None, **settings: Any) -> State:
        """The server's state before the first round of `run` with the same arguments."""
        experiment = self.experiment(algorithm, **settings)
        rng = Rng(experiment.seed).at("initialise")
        return experiment.new_algorithm().initialise(self.task, rng)

    def as_images(self, inputs: torch.Tensor) -> torch.Tensor:
        """Network inputs (N, C, H, W) as the 8-bit images that they stand for; what lies beyond
        black or white is cut off.
        """
        data = self.task.dataset
        return to_wire(inputs.float(), data.mean, data.std)

    def partition_plot(self) -> Figure:
        """Who holds what, with all clients."""
        everyone = lab.make_clients(self.experiment(), self.task)
        labels = torch.cat([client.labels for client in everyone]).cpu()
        parts = torch.arange(len(labels)).split([len(client) for client in everyone])
        return partition_plot(labels, parts, self.task.dataset.classes, title=self.title)


class Smooth(nn.Module):
    """A small network that can be differentiated twice everywhere: images (N, C, S, S) to logits."""

    def __init__(self, channels: int, size: int, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 4, 3, stride=2, padding=1)
        self.out = nn.Linear(4 * (-(-size // 2)) ** 2, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.out(self.conv(images).sigmoid().flatten(1))
        return logits


def victim(task: Task, rng: Rng) -> Smooth:
    """A fresh network for attacks on gradients; its weights are drawn three times as large as usual,
    far enough from linear for a gradient to tell images apart.
    """
    data = task.dataset
    network = models.fresh(Smooth, data.channels, data.size, data.num_classes, rng=rng)
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(3)
    return network


def pooled(members: Sequence[Client]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What the clients hold together, which nobody may see but a teacher: images (N, C, H, W),
    labels (N,), and the position of each image's owner in `members` (N,).
    """
    sizes = torch.tensor([len(client) for client in members])
    return (
        torch.cat([client.images for client in members]),
        torch.cat([client.labels for client in members]),
        torch.repeat_interleave(torch.arange(len(members)), sizes),
    )


def clients_apart(features: torch.Tensor, labels: torch.Tensor, owner: torch.Tensor) -> float:
    """How far apart clients are in the features (N, D) of what they sent: the mean distance between
    two clients' mean features of a class, in percent of that between two classes of a client.

    Args:
        labels, owner: (N,) the class of each row, and the client that it is from.
    """
    groups, group = torch.unique(torch.stack([owner, labels]), dim=1, return_inverse=True)
    means = torch.stack([features[group == k].mean(0) for k in range(groups.shape[1])])
    first, second = torch.triu_indices(len(means), len(means), 1)
    same_client, same_class = groups[:, first] == groups[:, second]
    apart = torch.pdist(means)
    return 100 * (apart[same_class].mean() / apart[same_client].mean()).item()


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


def learned(
    task: Task, inputs: torch.Tensor, labels: torch.Tensor, steps: int, rng: Rng, networks: int = 3
) -> dict[str, float]:
    """What images in the form of network inputs teach: how many `images` they are, the mean test
    `accuracy (%)` of fresh networks after some steps on them, and its `std` between networks.
    """
    pupils = (trained(task, inputs, labels, steps, rng.at("pupil", k)) for k in range(networks))
    scores = pd.Series([100 * task.evaluate(pupil)["accuracy"] for pupil in pupils])
    return {"images": len(labels), "accuracy (%)": scores.mean(), "std": scores.std()}


@attrs.frozen(eq=False)
class Matching:
    """One client's images, about to be condensed under a model that does not change."""

    objective: MatchingObjective
    #: network inputs (M, C, H, W) from which the images start
    start: torch.Tensor
    #: (M,) the label of each, and its position among those that the client holds
    labels: torch.Tensor
    group: torch.Tensor


def matching(
    task: Task,
    model: Classifier,
    images: torch.Tensor,
    labels: torch.Tensor,
    per_class: int,
    rng: Rng,
    *,
    kind: str = "noise",
    free: bool = False,
    **settings: Any,
) -> Matching:
    """What `condensed` does, before its first step; arguments are the same."""
    order = labels.argsort(stable=True)
    held, group = torch.unique(labels[order], return_inverse=True)
    real = RealData(
        images[order],
        group,
        1 / torch.bincount(group)[group].float(),
        owner=torch.zeros_like(held),
        label=held,
    )
    counts = torch.full_like(held, per_class)
    start = initial_images(kind, real.images, group, counts, task.inputs, rng.generator())
    objective = MatchingObjective(
        LatentEncoder(model),
        real,
        Condensation(**{"estimator": "expectation", **settings}),
        Draws([rng], real.owner),
        task.inputs,
        task.runtime.autocast,
        Separate() if free else Normalisation(),
    )
    groups = torch.repeat_interleave(counts)
    return Matching(objective, start, held[groups], groups)


def condensed(
    task: Task,
    model: Classifier,
    images: torch.Tensor,
    labels: torch.Tensor,
    per_class: int,
    rng: Rng,
    *,
    kind: str = "noise",
    free: bool = False,
    watch: Callable[[int, torch.Tensor], None] | None = None,
    **settings: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The images of one client, condensed under a model that does not change.

    Args:
        images: (N, C, H, W) uint8, labels: (N,); per_class: condensed images of each class held.
        kind: what they start from, as in `initial_images`; free: without the latent constraints.
        watch: called in every step with its number and the images so far.
        settings: of `Condensation`; the real side is its exact mean unless they say else.

    Returns: images as network inputs (M, C, H, W), their labels (M,), and the loss of every step,
    the mean over classes.
    """
    at = matching(task, model, images, labels, per_class, rng, kind=kind, free=free, **settings)
    pictures, losses = engine.condense(at.objective, at.start, at.group, watch)
    return pictures, at.labels, losses.mean(1)


def switch_table(
    pairs: Mapping[str, tuple[Any, Any]],
    in_print: Mapping[str, str],
    words: Mapping[Any, str],
    names: tuple[str, str] = ("default", "released"),
) -> pd.DataFrame:
    """`switches` as a page shows them, one a row, with what is in print; `words` says how some
    values are written.
    """
    rows = {
        name: {
            "in print": in_print.get(name, ""),
            **{key: words.get(value, str(value)) for key, value in zip(names, pair, strict=True)},
        }
        for name, pair in pairs.items()
    }
    return pd.DataFrame(rows).T
