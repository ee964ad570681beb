"""Whole runs: one round of an algorithm with its server, beside the same work as released code
writes it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import torch
from tqdm.auto import tqdm

from benchmarks import authors, bilevel, equal, plain
from benchmarks.timing import (
    ceilings,
    compared,
    eagerly,
    in_turn,
    operations,
    random_task,
)
from benchmarks.whole import whole_run
from core.federation import Client, Runtime, Task
from core.rng import Rng

#: pairs; clients, and images of each
PAIRS, CLIENTS, IMAGES = 3, 2, 160
#: channels of the ConvNet; images of a batch
WIDTH, BATCH = 128, 64
#: images of a class that are condensed; real ones in a step; iterations
CONDENSED, REAL, ITERATIONS = 5, 64, 6
#: FedMK's iterations and steps of its server: a stretch from the received model
BILEVEL = SERVER = 50
#: the pair whose other side is the authors' code
AUTHORS = "fedvck, authors' code"
#: FedVCK on images of MNIST's size, which its ConvNet brings to 32x32
GREY = "fedvck, 1x28x28"
#: epochs of a server
EPOCHS = 4
AGAINST = {
    "plain": "a plain loop in float32 by PyTorch's kernels",
    "the authors' code": "that code",
}
#: a round as other code writes it, and by the package
Sides = tuple[Callable[[], Any], Callable[[], Any]]


def clients_of(task: Task, number: int) -> list[Client]:
    """The training images dealt out to so many clients in turn."""
    train, device = task.dataset.train, task.runtime.device
    mix = torch.randperm(len(train.labels), generator=Rng(6).generator())
    return [
        Client(
            k,
            task,
            train.images[mix[k::number]].to(device),
            train.labels[mix[k::number]].to(device),
        )
        for k in range(number)
    ]


def _contestants(runtime: Runtime) -> dict[str, Sides]:
    """For each algorithm the plain run and ours."""
    task = _task(runtime)
    small = attrs.evolve(task, model="resnet8", model_options={"width": WIDTH // 4})
    grey = _task(runtime, 1, 28)
    both = _by_matching(task) | {GREY: _by_matching(grey)["fedvck"]}
    both |= {"fediod": _fediod(small), "fedmk": _fedmk(runtime)}
    return {name: (eagerly(slow), fast) for name, (slow, fast) in both.items()}


def _task(runtime: Runtime, channels: int = 3, size: int = 32) -> Task:
    task = random_task(runtime, CLIENTS * IMAGES, channels, size, 5)
    return attrs.evolve(task, model_options={"width": WIDTH})


def _ours(task: Task, clients: list[Client], *what: Any) -> Callable[[], Any]:
    """A run of the package: `what` are the arguments of `whole_run` after the clients."""
    return lambda: whole_run(task, clients, *what)


def _matching() -> dict[str, int]:
    """Settings of the package's methods that match distributions."""
    sizes = {"iterations": ITERATIONS, "real_batch": REAL, "server_batch": BATCH}
    return sizes | {"server_epochs": EPOCHS}


def _numbers() -> tuple[int, ...]:
    """The same for other code: iterations, condensed and real images, batch and epochs."""
    return ITERATIONS, CONDENSED, REAL, BATCH, EPOCHS


def _fedvck(task: Task, clients: list[Client]) -> Callable[[], Any]:
    """FedVCK as released, against exact means."""
    exact = {
        "min_images": CONDENSED,
        "estimator": "expectation",
        "pool": 2,
        "first_model": "server",
    }
    return _ours(task, clients, "fedvck", _matching() | exact, "released")


def _by_matching(task: Task) -> dict[str, Sides]:
    """FedAvg, and the methods that match distributions on the same clients."""
    clients = clients_of(task, CLIENTS)
    once = _matching() | {"images_per_class": CONDENSED, "encoder_width": WIDTH}
    return {
        "fedavg": (
            lambda: plain.fedavg(task, clients, BATCH, 1),
            _ours(task, clients, "fedavg", {"local_epochs": 1, "batch_size": BATCH}),
        ),
        "fedvck": (lambda: plain.fedvck(task, clients, *_numbers()), _fedvck(task, clients)),
        "gddfl": (
            lambda: plain.gddfl(task, clients, *_numbers()),
            _ours(task, clients, "gddfl", once),
        ),
    }


def _fediod(task: Task) -> Sides:
    """FedIOD, without the images that score its generator."""
    clients = clients_of(task, CLIENTS)
    steps = {"local_steps": 2, "batch_size": BATCH, "distill_batch": BATCH, "distill_steps": 4}
    return (
        lambda: plain.fediod(task, clients, BATCH, 2, 4),
        _ours(task, clients, "fediod", steps | {"scored_images": 0}),
    )


def _fedmk(runtime: Runtime) -> Sides:
    """FedMK on grey images of MNIST's size."""

    def grey(clients: int) -> Task:
        images = random_task(runtime, clients * bilevel.REAL, 1, 28, 10)
        return attrs.evolve(images, model="lenet")

    task = grey(CLIENTS)
    clients, sources = clients_of(task, CLIENTS), bilevel.problems(grey(bilevel.CLIENTS))[:CLIENTS]
    return (
        lambda: plain.fedmk(task, sources, BILEVEL, SERVER),
        _ours(task, clients, "fedmk", {"iterations": BILEVEL, "server_steps": SERVER}),
    )


def measure(runtime: Runtime) -> dict[str, Any]:
    """Runs per hour of each algorithm and the ratio to its plain loop, pair by pair; and the share
    of the machine's ceiling.
    """
    return _measured(runtime, _contestants(runtime), "plain")


def against_authors(runtime: Runtime, checkout: Path) -> dict[str, Any]:
    """FedVCK beside the authors' code from a checkout: the same round, and longer runs with their
    accuracy. Raises InputError for what is no such checkout.
    """
    task = _task(runtime)
    clients = clients_of(task, CLIENTS)
    theirs = authors.fedvck(checkout, task, clients, *_numbers())
    found = _measured(runtime, {AUTHORS: (theirs, _fedvck(task, clients))}, "the authors' code")
    return found | {"contestants": found["contestants"] | equal.measure(runtime, checkout)}


def _measured(runtime: Runtime, both: dict[str, Sides], other: str) -> dict[str, Any]:
    best, found = ceilings(runtime), {}
    for name, (slow, fast) in tqdm(both.items(), unit="algorithm", leave=False):
        times = in_turn({other: slow, name: fast}, runtime.device, PAIRS)
        took = statistics.median(times[name])
        found[name] = compared(times, beside=other)[name] | {
            "seconds": took,
            "plain_seconds": statistics.median(times[other]),
            "ceiling_share": operations(fast) / took / best[runtime.precision],
        }
    return {
        "what": f"one round with its server, {CLIENTS} clients, {ITERATIONS} iterations, {REAL} real "
        "images a class and step, random pixels of 3x32x32 where no size is named (fedmk: "
        f"1x28x28, {BILEVEL} iterations), against {AGAINST[other]}; fedvck: released settings with "
        "exact expectations",
        "unit": "runs/hour",
        "ceilings": best,
        "contestants": found,
    }
