"""The attack on a federation: who can tell from its uploads what the clients' data were?

The attacker is a server that follows the protocol. It knows the method, what it sent, and all but
some images: of these, the targets, half are in the client's data and half are not. It draws
shadow data sets (the images it knows, and half of the targets), lets the method make uploads of
them, and compares.

Every shadow run is a program of its own, and a CPU has several of them under way
(`Runtime.in_parallel`): stacked, they take as much time of the processor, or more.

What the attacker makes of one upload is what the server of the method makes of it when it is alone:
of a model that is the model itself, of condensed images a model that is trained on them. So one
program attacks every method that uploads once in a round.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from torch import nn

from core import models
from core.errors import InputError
from core.families.condensing import inputs
from core.federation import Algorithm, Client, Ledger, Message, Runtime, State, Task, select
from core.federation.tensors import put_each, take_each
from core.files import read_tensors, write_tensors
from core.privacy import membership
from core.privacy.leakage import nearest_upload
from core.privacy.membership import Evidence, LikelihoodRatio, Verdicts
from core.progress import counted
from core.rng import Rng

#: what a run says of the targets: confidences in the upload of each client, by its number as text, and
#: in the server's model; of uploads with images also scores by the nearest, as "pixels/0", "features/0"
Scores = dict[str, torch.Tensor]
SERVER, SPACES = "server", ("pixels", "features")


class OutOfTime(Exception):
    """Signal that there was no time for all runs of an attack; the results so far are saved."""


@attrs.frozen(eq=False)
class Targets:
    """The images of one client that the attacker asks about, and the others, which it knows."""

    client: Client
    #: T images, with the labels (T,) and the truth (T,)
    images: torch.Tensor
    labels: torch.Tensor
    member: torch.Tensor
    #: rows of the client's data that are no targets
    known: torch.Tensor

    def shadow(self, inside: torch.Tensor) -> Client:
        """The client with another data set: what is known, and which targets (T,) are inside."""
        of = self.client
        inside = inside.to(of.labels.device)
        images = torch.cat([of.some(self.known), self.images[inside]])
        labels = torch.cat([of.labels[self.known], self.labels[inside]])
        return attrs.evolve(of.copy(), images=images, labels=labels)


@attrs.frozen(eq=False)
class Outcome:
    """The attack's results: on the upload of each client, by id, and on the server's model."""

    clients: dict[int, Verdicts]
    server: Verdicts
    #: scores (T,) by the nearest upload, by space and client; none for uploads without images
    nearest: dict[str, dict[int, np.ndarray]] = attrs.field(factory=dict)
    #: wall time, with that of the parts of an attack that was cut
    seconds: float = 0.0

    def together(self) -> Verdicts:
        """The verdicts on all clients' uploads as one list."""
        each = list(self.clients.values())

        def joined(name: str, of: Sequence[object]) -> np.ndarray:
            return np.concatenate([getattr(part, name) for part in of], axis=-1)

        names = [field.name for field in attrs.fields(Evidence)]
        seen = Evidence(*(joined(name, [verdicts.evidence for verdicts in each]) for name in names))
        return Verdicts(seen, joined("online", each), joined("offline", each))

    def metrics(self) -> dict[str, float]:
        """Metrics of a record: `mia_tpr_0.01`, the share of members found at 1% false accusations, over
        all uploads; `mia_server_...`, on the server's model; `mia_nearest_pixels_...`, by the nearest
        upload; `mia_auc/3`, of client 3.
        """
        together, each = self.together(), self.clients.values()
        offline = [membership.auc(judged.offline, judged.member) for judged in each]
        metrics = membership.defence([judged.auc for judged in each])
        metrics |= {"mia_auc": together.auc, "mia_offline_auc_mean": sum(offline) / len(offline)}
        metrics["mia_server_auc"] = self.server.auc
        for kind, judged in (("", together), ("server_", self.server)):
            for rate in membership.RATES:
                share = membership.true_positives(judged.online, judged.member, rate)
                metrics[f"mia_{kind}tpr_{rate:g}"] = share
        for space, near in self.nearest.items():
            aucs = [
                membership.auc(near[id_], judged.member) for id_, judged in self.clients.items()
            ]
            scores = np.concatenate([near[id_] for id_ in self.clients])
            share = membership.true_positives(scores, together.member, 0.01)
            metrics[f"mia_nearest_{space}_auc_mean"] = membership.defence(aucs)["mia_auc_mean"]
            metrics[f"mia_nearest_{space}_tpr_0.01"] = share
        for id_, judged in self.clients.items():
            metrics[f"mia_auc/{id_}"] = judged.auc
            metrics[f"mia_members/{id_}"] = float(judged.member.sum())
        return metrics


def check_can_be_attacked(task: Task, algorithm: Algorithm) -> None:
    """Raise InputError, before a round is computed, for a task whose answers an attack on membership
    cannot judge, and for a method whose clients are never asked for one upload.
    """
    if "client_update" not in algorithm.remote_calls:
        raise _no_single_upload(algorithm)
    if task.kind != "classification":
        raise InputError(
            f"the attack on membership is one on classifiers, and {task.dataset.name} is a data set for "
            f"{task.kind}"
        )


def attack(
    algorithm: Algorithm,
    task: Task,
    clients: Sequence[Client],
    seed: int,
    settings: LikelihoodRatio,
    *,
    file: Path | None = None,
    key: str = "",
    in_time: Callable[[], bool] = lambda: True,
) -> Outcome:
    """Attack the uploads of the first round, those of a run with this seed, and the server's model after
    it.

    Args:
        clients: fresh ones.
        file: keeps what every run gave, so that an attack that was cut goes on there; one that is
            damaged, or has another `key`, counts as none.
        in_time: asked before every run, whether there is time for it.

    Raises OutOfTime where there was not, and InputError for a method whose clients do not upload
    once in a round, or whose server keeps no single model, and where no client has a target.
    """
    algorithm, runs = algorithm.among(clients), Runs.resumed(file, key)
    state = algorithm.initialise(task, Rng(seed).at("initialise"))
    real, draws = Rng(seed).at("round", 1), Rng(seed).at("attack")
    asked = aimed(select(clients, algorithm.schedule.active, real.at("select")), draws)
    masks = {
        id_: membership.draw(target.labels, settings.shadows, draws.at("shadows", id_))
        for id_, target in asked.items()
    }

    def run(number: int) -> Scores | None:
        if not in_time():
            return None
        cast = [
            target.shadow(masks[id_][number - 1]) if number else target.client.copy()
            for id_, target in asked.items()
        ]
        draw = real.at("shadow", number - 1) if number else real
        return scores(algorithm, state, asked, cast, draw)

    runs.complete(settings.shadows + 1, run, task.runtime)
    return _judged(asked, masks, runs, settings.variance)


@attrs.define(eq=False)
class Runs:
    """Results of an attack's runs so far, by number, the real one 0; and the file that keeps them."""

    path: Path | None
    key: str
    done: dict[int, Scores] = attrs.field(factory=dict)
    #: seconds of the parts before this one, and when this one began
    before: float = 0.0
    began: float = attrs.field(factory=lambda: time.perf_counter())

    @classmethod
    def resumed(cls, path: Path | None, key: str) -> Runs:
        """The runs that a file keeps; none where there is no such file, whole and with this key."""
        runs = cls(path, key)
        with contextlib.suppress(KeyError, ValueError):  # FileError is one, too
            tensors, about = read_tensors(path, "state of an attack") if path else ({}, {})
            if about["key"] == key:
                runs.before, runs.done = float(about["seconds"]), take_each("", tensors)
        return runs

    @property
    def seconds(self) -> float:
        """Wall time of all parts."""
        return self.before + time.perf_counter() - self.began

    def complete(self, count: int, run: Callable[[int], Scores | None], runtime: Runtime) -> None:
        """Do those of so many runs that are missing; the real one comes first, and alone. Raises
        OutOfTime where a run gave None, as there was no time for it.
        """
        left = [number for number in range(count) if number not in self.done]
        alone = left.count(0)
        results = chain(map(run, left[:alone]), runtime.in_parallel(run, left[alone:]))
        both = zip(left, results, strict=True)
        for number, result in counted(both, "runs of the attack", len(left)):
            if result is None:
                continue
            self.done[number] = result
            if self.path:
                about = {"key": self.key, "seconds": str(self.seconds)}
                write_tensors(self.path, put_each("", self.done), about)
        if len(self.done) < count:
            raise OutOfTime


def _judged(
    asked: Mapping[int, Targets], masks: Mapping[int, torch.Tensor], runs: Runs, variance: str
) -> Outcome:
    """The verdicts from the confidences in the real run, the first, and in the shadow runs."""

    def judged(name: str, ids: Sequence[int]) -> Verdicts:
        target, *shadows = (runs.done[number][name].numpy() for number in sorted(runs.done))
        seen = Evidence(
            target,
            np.stack(shadows),
            torch.cat([masks[id_] for id_ in ids], 1).numpy(),
            torch.cat([asked[id_].member for id_ in ids]).numpy(),
        )
        return membership.likelihood_ratios(seen, variance)

    clients = {id_: judged(str(id_), [id_]) for id_ in asked}
    near = {
        space: {id_: runs.done[0][f"{space}/{id_}"].numpy() for id_ in asked}
        for space in SPACES
        if any(name.startswith(space) for name in runs.done[0])
    }
    return Outcome(clients, judged(SERVER, list(asked)), near, runs.seconds)


def shared_out(clients: Sequence[Client], rng: Rng) -> list[torch.Tensor]:
    """Disjoint rows of the test set that each client may be asked about: of every class as many as it
    has, or its share of them. So a shadow run without an image has it nowhere.
    """
    labels = clients[0].task.dataset.test.labels
    order = torch.randperm(len(labels), generator=rng.generator())
    per_client = [list[torch.Tensor]() for _ in clients]
    for c, held in enumerate(torch.stack([client.class_counts for client in clients]).T.tolist()):
        free, total = order[labels[order] == c], max(sum(held), 1)
        sizes = [n * min(len(free), total) // total for n in held]
        for own, rows in zip(per_client, free[: sum(sizes)].split(sizes), strict=True):
            own.append(rows)
    return [torch.cat(own) for own in per_client]


def aimed(chosen: Sequence[Client], draws: Rng) -> dict[int, Targets]:
    """The targets of each client of a round, by number, if any. InputError where all have none."""
    rows = shared_out(chosen, draws.at("outside"))
    drawn = [
        targets(client, draws.at("targets", client.id), outside)
        for client, outside in zip(chosen, rows, strict=True)
    ]
    asked = {target.client.id: target for target in drawn if len(target.labels)}
    if not asked:
        raise InputError("no client has a class that the test set has, so there are no targets")
    return asked


def targets(client: Client, rng: Rng, rows: torch.Tensor | None = None) -> Targets:
    """Balanced targets, class by class: images of the client, and as many of the test set, or of its
    `rows`. Where a class has more images at the client, the attacker knows the rest.
    """
    test, device = client.task.dataset.test, client.labels.device
    order = torch.randperm(len(client), generator=rng.at("inside").generator()).to(device)
    others = torch.randperm(len(test), generator=rng.at("outside").generator())
    others = others if rows is None else others[torch.isin(others, rows)]
    members, unseen = [], []
    for c in client.labels.unique().tolist():
        own, free = order[client.labels[order] == c], others[test.labels[others] == c]
        size = min(len(own), len(free))
        members.append(own[:size])
        unseen.append(free[:size])
    inside, outside = torch.cat(members), torch.cat(unseen)
    known = torch.ones(len(client), dtype=torch.bool, device=device)
    known[inside] = False
    return Targets(
        client,
        torch.cat([client.some(inside), test.images[outside].to(device)]),
        torch.cat([client.labels[inside], test.labels[outside].to(device)]),
        torch.arange(2 * len(inside)) < len(inside),
        known,
    )


def scores(
    algorithm: Algorithm,
    state: State,
    asked: Mapping[int, Targets],
    members: list[Client],
    rng: Rng,
) -> Scores:
    """Confidence of the attacker's models in the targets of each client, and of its server's model in all of
    them, when these clients answer; and how near the nearest upload comes, in pixels and in the features
    of the server's model (its logits, where it has no `embed`).
    """
    after, (state, uploads, server) = servers_view(algorithm, state, members, rng)
    if refused := sorted(asked.keys() - uploads.keys()):
        raise InputError(
            f"the attack needs the uploads of all clients, and that of client {refused[0]} was refused"
        )

    def sure(model: nn.Module | list[nn.Module], of: Iterable[Targets]) -> torch.Tensor:
        if isinstance(model, list):
            raise InputError("the attack needs a method with one model on the server")
        answers = ((state.task.outputs(model, target.images), target.labels) for target in of)
        return torch.cat([membership.confidence(*pair) for pair in answers]).cpu()

    @torch.no_grad()
    def features(images: torch.Tensor) -> torch.Tensor:
        embed, parts = getattr(whole, "embed", whole), images.split(models.at_once(images))
        with state.task.runtime.autocast():
            return torch.cat([embed(part).float() for part in parts])

    whole: Any = algorithm.model(after)
    by_name = {SERVER: sure(whole, asked.values())}
    for id_, target in asked.items():
        alone, upload = algorithm.server_update(state, {id_: uploads[id_]}, server), uploads[id_]
        by_name[str(id_)] = sure(algorithm.model(alone), [target])
        if "images" in upload.tensors:
            labels = target.labels, upload.tensors["labels"]
            own = state.task.inputs(target.images)
            sent = inputs(state.task, upload.tensors["images"])
            pairs = (own, sent), (features(own), features(sent))
            for space, pair in zip(SPACES, pairs, strict=True):
                originals, uploaded = zip(pair, labels, strict=True)
                by_name[f"{space}/{id_}"] = nearest_upload(originals, uploaded).cpu()
    return by_name


def _no_single_upload(algorithm: Algorithm, also: str = "") -> InputError:
    return InputError(
        f"the attack needs one upload of each client in a round, which {type(algorithm).__name__} "
        f"does not have{also}"
    )


def servers_view(
    algorithm: Algorithm, state: State, clients: list[Client], rng: Rng
) -> tuple[State, tuple[State, Mapping[int, Message], Rng]]:
    """The state after a round, and what the server made it of: the one upload of each client. Raises
    InputError for a method that asks for no such upload, or for images beside it.
    """
    listening, received, large = copy.copy(algorithm), [], []

    def listen(state: State, uploads: Mapping[int, Message], rng: Rng) -> State:
        received.append((state, uploads, rng))
        return algorithm.server_update(state, uploads, rng)

    def listen_to(call: str, *given: Any, **named: Any) -> dict[int, Message]:
        answers = algorithm.call_clients(call, *given, **named)
        tensors = [tensor for answer in answers.values() for tensor in answer.tensors.values()]
        if any(tensor.ndim > 2 for tensor in tensors):  # images, or the weights of a convolution
            large.append(call)
        return answers

    listening.server_update = listen  # type: ignore[method-assign]
    listening.call_clients = listen_to  # type: ignore[method-assign]
    after = listening.round(state, clients, Ledger.aside(), rng)
    if len(received) != 1 or len(large) > 1:
        also = f", as it asks for {' and '.join(large)}" if len(large) > 1 else ""
        raise _no_single_upload(algorithm, also)
    return after, received[0]
