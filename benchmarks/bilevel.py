"""A bi-level round beside a plain loop over clients, at equal numbers of iterations and images.

What a LeNet's kernels take is mostly not arithmetic: convolutions of six channels and the
element-wise passes of twice-differentiated normalisation are far from the machine's ceiling. By
default clients stand alongside each other with the images last in memory
(`core.condensation.alongside`), where convolutions have kernels of their own. One batch by vmap
saves the starting of kernels only, which is what a GPU waits for.
"""

from __future__ import annotations

import statistics
from typing import Any

import attrs
import torch
from torch.func import functional_call
from torch.nn import functional as F

from benchmarks.timing import (
    ceilings,
    compared,
    eagerly,
    in_turn,
    operations,
    random_task,
)
from core.condensation import Extraction, ExtractionProblem, extract
from core.federation import Runtime, Task
from core.rng import Rng

CLIENTS, CLASSES, PER_CLASS, REAL = 10, 10, 20, 1500
ITERATIONS, PAIRS = 5, 5
SETTINGS = Extraction(iterations=ITERATIONS, inner_batch=64, real_batch=64)


def problems(task: Task) -> list[ExtractionProblem]:
    """Random clients of MNIST's size in FedMK: 1,500 images, and knowledge of 20 per class."""
    device, found = task.runtime.device, []
    labels = torch.arange(CLASSES, device=device).repeat_interleave(PER_CLASS)
    for number in range(CLIENTS):
        start = (
            torch.rand(
                len(labels), 1, 28, 28, generator=Rng(number).generator(device), device=device
            )
            * 2
            - 1
        )
        rows = slice(number * REAL, (number + 1) * REAL)
        train = task.dataset.train
        found.append(
            ExtractionProblem(
                train.images[rows].to(device),
                train.labels[rows].to(device),
                torch.ones(REAL, device=device),
                start,
                labels,
                Rng(number),
            )
        )
    return found


def plain_round(task: Task, clients: list[ExtractionProblem], iterations: int = ITERATIONS) -> None:
    """A round as most code writes it: client by client, a graph of the inner step, training mode, a
    loss printed.
    """
    for client in clients:
        model = task.new_model(Rng(0)).train()
        real = task.inputs(client.images)
        knowledge = client.knowledge.clone().requires_grad_()
        weights: dict[str, torch.Tensor] = dict(model.named_parameters())
        draws = client.rng.generator()
        for _ in range(iterations):
            mine = torch.randperm(len(knowledge), generator=draws)[: SETTINGS.inner_batch].to(
                knowledge.device
            )
            here = torch.randperm(len(real), generator=draws)[: SETTINGS.real_batch].to(real.device)
            loss = F.cross_entropy(
                functional_call(model, weights, (knowledge[mine],)), client.knowledge_labels[mine]
            )
            slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            moved = {
                name: weight - SETTINGS.inner_lr * slope
                for (name, weight), slope in zip(weights.items(), slopes, strict=True)
            }
            outer = F.cross_entropy(
                functional_call(model, moved, (real[here],)), client.labels[here]
            )
            (gradient,) = torch.autograd.grad(outer, knowledge)
            with torch.no_grad():
                knowledge -= SETTINGS.image_lr * gradient
            weights = {name: weight.detach().requires_grad_() for name, weight in moved.items()}
            outer.item()


def measure(runtime: Runtime) -> dict[str, Any]:
    """Rounds per hour of 100 iterations: the plain loop, and ours client by client and as one
    batch.

    Ours with real images normalised as in training mode ("batch") does the same arithmetic as the
    plain loop, as does "alongside", which is how they run by default; the default itself, which
    normalises them by the knowledge, is the last row.
    """
    task = attrs.evolve(random_task(runtime, CLIENTS * REAL, 1, 28, CLASSES), model="lenet")
    clients, model = problems(task), task.new_model(Rng(0))
    same = attrs.evolve(SETTINGS, statistics="batch")
    work = {
        "plain": eagerly(lambda: plain_round(task, clients)),
        "one by one": lambda: extract(model, clients, same, task.inputs, batched=False),
        "one batch": lambda: extract(model, clients, same, task.inputs, batched=True),
        "alongside": lambda: extract(model, clients, same, task.inputs),
        "default": lambda: extract(model, clients, SETTINGS, task.inputs),
    }
    times = in_turn(work, runtime.device, PAIRS)
    contestants = compared(times, amount=3600 * ITERATIONS / 100)
    for name, took in times.items():
        contestants[name]["seconds_per_round"] = statistics.median(took) * 100 / ITERATIONS
    best, own = ceilings(runtime), "one by one"
    reached = operations(work[own]) / statistics.median(times[own])
    contestants[own]["ceiling_share"] = reached / best["float32"]
    return {
        "what": f"100 iterations of one inner step, {CLIENTS} clients, {SETTINGS.inner_batch} made-up and "
        f"{SETTINGS.real_batch} real images an iteration, LeNet, 1x28x28, float32",
        "unit": "rounds/hour",
        "ceilings": best,
        "contestants": contestants,
    }
