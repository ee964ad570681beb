"""Whole runs as released code writes them: client by client, in float32, with a new copy of every
batch and a loss that is printed. They are what `benchmarks.runs` compares
with, written here from the papers, and do the work of one round with its server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.bilevel import plain_round
from core.condensation import ExtractionProblem, siamese_augment
from core.condensation.shift import uncertain_shift
from core.federation import Client, Task
from core.models import FeatureGenerator, ImageGenerator, PatchDiscriminator, build, fresh
from core.rng import Rng
from core.server import Projector

AUGMENTATION = "color_crop_cutout_flip_scale_rotate"


def _model(task: Task, seed: int = 0) -> nn.Module:
    return task.new_model(Rng(seed)).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]


def _fit(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    batch: int,
    epochs: int,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    """Epochs over a DataLoader, by SGD."""
    loader = DataLoader(
        TensorDataset(images, labels), batch, shuffle=True, generator=Rng(1).generator()
    )
    optimiser = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9, weight_decay=1e-6)
    model.train()
    for _ in range(epochs):
        for some, theirs in loader:
            value = loss(some, theirs)
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
            value.item()


def fedavg(task: Task, clients: Sequence[Client], batch: int, epochs: int) -> None:
    """Local epochs, then the mean of the state dictionaries."""
    states = []
    for client in clients:
        model = _model(task)
        images = task.dataset.normalise(client.images)
        _fit(model, images, client.labels, batch, epochs, lambda x, y: F.cross_entropy(model(x), y))  # noqa: B023
        states.append(model.state_dict())
    {name: sum(state[name] for state in states) / len(states) for name in states[0]}


def _embedded(
    model: nn.Module, images: Sequence[torch.Tensor] | torch.Tensor, changes: Sequence[Rng]
) -> torch.Tensor:
    """Features (classes, n, D) of the images of every class, each under an augmentation of its own."""
    changed = [
        siamese_augment(of, AUGMENTATION, one) for of, one in zip(images, changes, strict=True)
    ]
    return model.embed(torch.cat(changed)).unflatten(0, (len(changed), -1))  # type: ignore[operator]


def _matched(
    client: Client,
    task: Task,
    iterations: int,
    condensed: int,
    real_batch: int,
    network: Callable[[int], nn.Module],
    shifted: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Distribution matching of one client by frozen networks, with fresh real images at each step:
    augmented class by class, embedded together.
    """
    images, draw = task.dataset.normalise(client.images), Rng(2).generator()
    rows = [torch.nonzero(client.labels == c).flatten() for c in client.labels.unique()]
    made = torch.randn(len(rows), condensed, *images.shape[1:], generator=draw).requires_grad_()
    optimiser = torch.optim.SGD([made], lr=1.0, momentum=0.5)
    for step in range(iterations):
        model, loss = network(step).requires_grad_(False), torch.zeros(())
        changes = [Rng(3).at(step, place) for place in range(len(rows))]
        real = [
            images[mine[torch.randint(len(mine), (real_batch,), generator=draw)]] for mine in rows
        ]
        ways = [real]
        if shifted:
            ways.append(
                [uncertain_shift(x, 0.5, one) for x, one in zip(real, changes, strict=True)]
            )
        for inputs in ways:
            target, found = (_embedded(model, each, changes) for each in (inputs, made))
            loss = loss + (target.mean(1) - found.mean(1)).square().sum()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_([made], 30.0)
        optimiser.step()
        loss.item()
    labels = client.labels.unique().repeat_interleave(condensed)
    return made.detach().flatten(0, 1), labels


def fedvck(
    task: Task,
    clients: Sequence[Client],
    iterations: int,
    condensed: int,
    real_batch: int,
    batch: int,
    epochs: int,
) -> None:
    """Condensation in training mode; then epochs with an augmented pass and one for the contrast."""
    model, frozen = _model(task), _model(task).train()
    found = [
        _matched(client, task, iterations, condensed, real_batch, lambda _: frozen, False)
        for client in clients
    ]
    images, labels = (torch.cat(each) for each in zip(*found, strict=True))

    projector = Projector(model.feature_size, Rng(5))  # type: ignore[arg-type]
    with torch.no_grad():
        features = model.embed(images)  # type: ignore[operator]
    prototypes = torch.stack(
        [features[labels == c].mean(0) for c in range(task.dataset.num_classes)]
    )

    def loss(some: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
        logits = model(siamese_augment(some, AUGMENTATION, Rng(4)))
        mine = F.normalize(projector(model.embed(some)), dim=1)  # type: ignore[operator]
        likeness = mine @ F.normalize(prototypes, dim=1).T / 0.1
        return F.cross_entropy(logits, theirs) + 0.1 * F.cross_entropy(likeness, theirs)

    _fit(model, images, labels, batch, epochs, loss)


def gddfl(
    task: Task,
    clients: Sequence[Client],
    iterations: int,
    condensed: int,
    real_batch: int,
    batch: int,
    epochs: int,
) -> None:
    """The same at a new random network in every iteration, with a shifted batch beside each one."""
    data = task.dataset

    def network(step: int) -> nn.Module:
        options = {**task.model_options, "norm": "instance"}
        return build("convnet", data.channels, data.size, data.num_classes, Rng(step), **options)

    found = [
        _matched(client, task, iterations, condensed, real_batch, network, True)
        for client in clients
    ]
    images, labels = (torch.cat(each) for each in zip(*found, strict=True))
    model = _model(task)
    _fit(model, images, labels, batch, epochs, lambda x, y: F.cross_entropy(model(x), y))


def _teachers(task: Task, clients: Sequence[Client], batch: int, local: int) -> list[nn.Module]:
    """A network of each client after so many batches of its images."""
    teachers = []
    for client in clients:
        teacher, images = _model(task), task.dataset.normalise(client.images)
        _fit(
            teacher,
            images[: local * batch],
            client.labels[: local * batch],
            batch,
            1,
            lambda x, y: F.cross_entropy(teacher(x), y),  # noqa: B023
        )
        teachers.append(teacher.eval())
    return teachers


def fediod(task: Task, clients: Sequence[Client], batch: int, local: int, steps: int) -> None:
    """Teachers; then steps in which generator, student and discriminators learn, client by client."""
    data, teachers = task.dataset, _teachers(task, clients, batch, local)
    student, generator = (
        _model(task, 1),
        fresh(ImageGenerator, data.channels, data.size, rng=Rng(2)),
    )
    judges = [fresh(PatchDiscriminator, data.channels, rng=Rng(3)) for _ in clients]
    of_student, of_generator = (torch.optim.Adam(n.parameters()) for n in (student, generator))
    of_judges = [torch.optim.Adam(judge.parameters()) for judge in judges]
    draws = Rng(5).generator()
    for _ in range(steps):
        made = generator(torch.randn(batch, 100, generator=draws))
        inputs, fooled, answers = data.standardise(made), torch.zeros(()), []
        for teacher, judge in zip(teachers, judges, strict=True):
            answers.append(teacher(inputs))
            fooled = fooled - judge(inputs).sigmoid().mean()
        mean = torch.stack(answers).softmax(-1).mean(0)
        sure = -(mean * mean.log()).sum(1).mean()
        mimic = F.mse_loss(student(inputs), torch.stack(answers).mean(0))
        of_generator.zero_grad()
        (fooled + sure - mimic).backward()
        of_generator.step()
        of_student.zero_grad()
        target = torch.stack([teacher(inputs.detach()) for teacher in teachers]).mean(0).detach()
        value = F.mse_loss(student(inputs.detach()), target)
        value.backward()
        of_student.step()
        value.item()
        for client, judge, optimiser in zip(clients, judges, of_judges, strict=True):
            real = data.normalise(client.images[:batch])
            judged = judge(inputs.detach()).sigmoid().mean() - judge(real).sigmoid().mean()
            optimiser.zero_grad()
            judged.backward()
            optimiser.step()
            judged.item()


def fedmk(task: Task, clients: list[ExtractionProblem], iterations: int, steps: int) -> None:
    """Weights of the real samples and the bi-level loop of each client; then a generator of features
    that learns from the last layer, and the model from knowledge and such features.
    """
    model, draw = _model(task), Rng(7).generator()
    with torch.no_grad():
        for client in clients:
            outputs = model.eval()(task.dataset.normalise(client.images))
            F.cross_entropy(outputs, client.labels, reduction="none").mul(5).sigmoid()
    plain_round(task, clients, iterations)
    images, labels = (
        torch.cat([getattr(client, name) for client in clients])
        for name in ("knowledge", "knowledge_labels")
    )
    size = model.feature_size
    generator = fresh(FeatureGenerator, task.dataset.num_classes, size, rng=Rng(8))  # type: ignore[arg-type]

    def judged(count: int) -> torch.Tensor:
        some = labels[torch.randint(len(labels), (count,), generator=draw)]
        features = generator(torch.randn(count, generator.noise, generator=draw), some)
        return F.cross_entropy(model.classifier(features), some)  # type: ignore[operator]

    of_generator = torch.optim.Adam(generator.parameters(), lr=3e-4, weight_decay=1e-2)
    of_model = torch.optim.SGD(model.train().parameters(), lr=0.05)
    for optimiser, count in ((of_generator, 50), (of_model, steps)):
        for _ in range(count):
            loss = judged(128 if optimiser is of_generator else 256)
            if optimiser is of_model:
                rows = torch.randperm(len(labels), generator=draw)[:256]
                loss = loss + F.cross_entropy(model(images[rows]), labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            loss.item()
