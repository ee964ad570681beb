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

from core.experiments.bench import authors, bilevel, equal, plain
from core.experiments.bench.timing import ceilings, compared, in_turn, operations, random_task
from core.experiments.bench.whole import whole_run
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


def _contestants(runtime: Runtime, checkout: Path | None = None) -> dict[str, Sides]:
    """For each algorithm the plain run and ours; for FedVCK the authors' too, from a checkout."""
    task = random_task(runtime, CLIENTS * IMAGES, 3, 32, 5)
    task = attrs.evolve(task, model_options={"width": WIDTH})
    small = attrs.evolve(task, model="resnet8", model_options={"width": WIDTH // 4})
    return _by_matching(task, checkout) | {"fediod": _fediod(small)} | {"fedmk": _fedmk(runtime)}


def _ours(task: Task, clients: list[Client], *what: Any) -> Callable[[], Any]:
    """A run of the package: `what` are the arguments of `whole_run` after the clients."""
    return lambda: whole_run(task, clients, *what)


def _by_matching(task: Task, checkout: Path | None) -> dict[str, Sides]:
    """FedAvg, and the methods that match distributions on the same clients."""
    clients = clients_of(task, CLIENTS)
    matching = {"iterations": ITERATIONS, "real_batch": REAL, "server_batch": BATCH}
    exact = matching | {"min_images": CONDENSED, "estimator": "expectation", "pool": 2}
    exact |= {"server_epochs": 4, "first_model": "server"}
    once = matching | {"images_per_class": CONDENSED, "server_epochs": 4}
    once["encoder_width"] = WIDTH
    numbers = (ITERATIONS, CONDENSED, REAL, BATCH, 4)
    fedvck = _ours(task, clients, "fedvck", exact, "released")
    beside = {}
    if checkout is not None:
        beside[AUTHORS] = (authors.fedvck(checkout, task, clients, *numbers), fedvck)
    return beside | {
        "fedavg": (
            lambda: plain.fedavg(task, clients, BATCH, 1),
            _ours(task, clients, "fedavg", {"local_epochs": 1, "batch_size": BATCH}),
        ),
        "fedvck": (lambda: plain.fedvck(task, clients, *numbers), fedvck),
        "gddfl": (
            lambda: plain.gddfl(task, clients, *numbers),
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


def measure(runtime: Runtime, checkout: Path | None = None) -> dict[str, Any]:
    """Runs per hour of each algorithm and the ratio to its plain loop, pair by pair; and the share
    of the machine's ceiling. With a checkout of the authors' code, FedVCK beside that too.
    """
    best, found, both = ceilings(runtime), {}, _contestants(runtime, checkout)
    for name, (slow, fast) in tqdm(both.items(), unit="algorithm", leave=False):
        other = "the authors' code" if name == AUTHORS else "plain"
        times = in_turn({other: slow, name: fast}, runtime.device, PAIRS)
        took = statistics.median(times[name])
        found[name] = compared(times, beside=other)[name] | {
            "seconds": took,
            "plain_seconds": statistics.median(times[other]),
            "ceiling_share": operations(fast) / took / best[runtime.precision],
        }
    if checkout is not None:
        found |= equal.measure(runtime, checkout)
    return {
        "what": f"one round with its server, {CLIENTS} clients, {ITERATIONS} iterations, {REAL} real "
        "images a class and step, random pixels of 3x32x32 (fedmk: "
        f"1x28x28, {BILEVEL} iterations), against a plain loop "
        "in float32; fedvck: released settings with exact expectations",
        "unit": "runs/hour",
        "ceilings": best,
        "contestants": found,
    }
