"""Condensation beside a plain loop over clients and classes, at equal numbers of image updates."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.timing import (
    ceilings,
    compared,
    eagerly,
    in_turn,
    operations,
    random_task,
)
from core.condensation import LatentEncoder
from core.condensation.engine import condense
from core.condensation.problem import Condensation, Draws, Problem, RealData
from core.federation import Runtime, Task
from core.rng import Rng

CLIENTS, CLASSES, PER_GROUP, CONDENSED, REAL_BATCH = 5, 2, 300, 6, 256
#: iterations of a round for ours; the plain loop's cost per iteration does not depend on their
#: number
ITERATIONS, PLAIN_ITERATIONS, PAIRS = 100, 2, 3


def plain_round(task: Task, images: torch.Tensor, iterations: int) -> None:
    """A round as released code runs it: client by client, in every iteration 256 real images per
    class, train mode.

    Args:
        images: real images (clients, classes, n, C, H, W), normalised float32.
    """
    draw = Rng(1).generator()
    for client in images:
        model = task.new_model(Rng(0)).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        model.train().requires_grad_(False)
        shape = (len(client), CONDENSED, *client.shape[2:])
        condensed = torch.randn(shape, generator=draw).to(client.device).requires_grad_()
        optimiser = torch.optim.SGD([condensed], lr=0.01, momentum=0.5)
        for _ in range(iterations):
            loss = torch.zeros((), device=client.device)
            for real, mine in zip(client, condensed, strict=True):
                rows = torch.randperm(len(real), generator=draw)[:REAL_BATCH].to(real.device)
                target = model.embed(real[rows]).detach()
                loss = loss + (target.mean(0) - model.embed(mine).mean(0)).square().sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            loss.item()


def our_round(task: Task, estimator: str, iterations: int) -> None:
    """The same numbers of clients, classes and images as one batch, the storing of features
    included.
    """
    device, groups = task.runtime.device, CLIENTS * CLASSES
    group = torch.arange(groups, device=device).repeat_interleave(PER_GROUP)
    real = RealData(
        task.dataset.train.images.to(device),
        group,
        torch.full(group.shape, 1 / PER_GROUP, device=device),
        torch.arange(groups, device=device) // CLASSES,
        torch.arange(groups, device=device) % CLASSES,
    )
    settings = Condensation(estimator=estimator, iterations=iterations, real_batch=REAL_BATCH)
    problem = Problem(
        LatentEncoder(task.new_model(Rng(0))),
        real,
        settings,
        Draws([Rng(k) for k in range(CLIENTS)], real.owner),
        task.inputs,
        task.runtime.autocast,
    )
    condensed = torch.arange(groups, device=device).repeat_interleave(CONDENSED)
    start = torch.randn(len(condensed), *real.images.shape[1:], generator=Rng(1).generator()).to(
        device
    )
    condense(problem, start, condensed)


def measure(runtime: Runtime) -> dict[str, Any]:
    """Rounds per hour of the plain loop and of ours with each estimator, at 28x28 with
    ConvNet-128.
    """
    task = random_task(runtime, CLIENTS * CLASSES * PER_GROUP, 1, 28, CLASSES)
    images = task.dataset.normalise(task.dataset.train.images).to(runtime.device)
    images = images.view(CLIENTS, CLASSES, PER_GROUP, *images.shape[1:])
    iterations = {
        "plain": PLAIN_ITERATIONS,
        "expectation": ITERATIONS,
        "feature_bank": ITERATIONS,
        "minibatch": PLAIN_ITERATIONS,
    }
    work: dict[str, Callable[[], None]] = {
        name: partial(our_round, task, name, count) for name, count in iterations.items()
    }
    work["plain"] = eagerly(partial(plain_round, task, images, PLAIN_ITERATIONS))
    times = {
        name: [once * ITERATIONS / iterations[name] for once in each]
        for name, each in in_turn(work, runtime.device, PAIRS).items()
    }
    contestants, best = compared(times), ceilings(runtime)
    for name, count in iterations.items():
        took = statistics.median(times[name])
        contestants[name]["seconds_per_round"] = took
        if name != "plain":
            a_second = operations(work[name]) * ITERATIONS / count / took
            contestants[name]["ceiling_share"] = a_second / best[runtime.precision]
    return {
        "what": f"{ITERATIONS} iterations, {CLIENTS} clients, {CLASSES} classes each, "
        f"{CONDENSED} condensed images "
        f"a class, {REAL_BATCH} real ones an iteration, ConvNet-128, 1x28x28",
        "unit": "rounds/hour",
        "ceilings": best,
        "contestants": contestants,
    }
