"""Local training beside a plain PyTorch loop with a DataLoader: by the package's kernels, by PyTorch's
own, and compiled by PyTorch; and clients with small networks side by side, beside one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.timing import (
    ceilings,
    compared,
    eagerly,
    in_turn,
    learners,
    operations,
    random_task,
)
from core.federation import LocalTraining, Runtime, Task, learn, supervised, through, train
from core.federation.abreast import learn_abreast
from core.models import kernels
from core.rng import Rng

STEPS, PAIRS, BATCH = 12, 5, 64
#: clients side by side; images of a batch and steps of each, as in FedMK's comparison
CLIENTS, SMALL_BATCH, SMALL_STEPS = 10, 32, 20
Work = Callable[[], Any]


def plain_loop(task: Task) -> Work:
    """Local training as most code writes it: a DataLoader over float32 images, a copy a batch, an
    `.item()`.
    """
    split, device = task.dataset.train, task.runtime.device
    loader = DataLoader(
        TensorDataset(task.dataset.normalise(split.images), split.labels),
        BATCH,
        shuffle=True,
        generator=Rng(1).generator(),
    )
    model = task.new_model(Rng(0)).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-5)

    def work() -> None:
        model.train()
        running = 0.0
        for images, labels in loader:
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            running += loss.item()

    return work


def our_loop(task: Task, compiled: bool = False) -> Work:
    """The package's own loop on data that lie on the device; `compiled`: with PyTorch's own kernels,
    as `torch.compile` puts them together.
    """
    model, objective = task.new_model(Rng(0)), supervised(task)
    if compiled:
        model.compile()
    images = task.dataset.train.images.to(task.runtime.device)
    labels = task.dataset.train.labels.to(task.runtime.device)
    plan = LocalTraining(batch_size=BATCH)
    return lambda: train(model, images, labels, plan, STEPS, objective, Rng(1))


def small_plan() -> LocalTraining:
    """Local training of FedMK's comparison."""
    return LocalTraining(batch_size=SMALL_BATCH, local_steps=SMALL_STEPS)


def one_by_one(task: Task) -> list[nn.Module]:
    """The networks of clients that train one after the other."""
    plan = small_plan()
    clients = learners(task, range(CLIENTS), plan)
    for k, one in enumerate(clients):
        objective = through(task, one.loss)
        learn(one.model, one.images, one.labels, plan, objective, Rng(k), drawn=one.batches)
    return [one.model for one in clients]


def side_by_side(task: Task) -> list[nn.Module]:
    """The same as one program."""
    plan = small_plan()
    clients = learners(task, range(CLIENTS), plan)
    learn_abreast(task, clients, plan)
    return [one.model for one in clients]


#: clients with a small network each: what the second stands beside
SMALL = {"LeNets one by one": one_by_one, "LeNets side by side": side_by_side}


def measure(runtime: Runtime) -> dict[str, Any]:
    """Samples per second at batch 64 on images of CIFAR-10's shape, and of clients with a LeNet each
    at batch 32 on those of MNIST's. Where there is no C++ compiler nothing is compiled.
    """
    samples, small = STEPS * BATCH, CLIENTS * SMALL_STEPS * SMALL_BATCH
    task = random_task(runtime, samples, 3, 32, 10)
    lenets = attrs.evolve(random_task(runtime, small // CLIENTS, 1, 28, 10), model="lenet")
    ours = our_loop(task)
    work: dict[str, Work] = {
        "plain": eagerly(plain_loop(task)),
        "ours": ours,
        "eager": eagerly(ours),
    }
    if kernels.library() is not None:
        work["compiled"] = eagerly(our_loop(task, compiled=True))
    work |= {name: partial(way, lenets) for name, way in SMALL.items()}
    times, best = in_turn(work, runtime.device, PAIRS), ceilings(runtime)
    together = {name: times.pop(name) for name in SMALL}
    found = compared(times, amount=samples)
    found |= compared(together, beside=next(iter(SMALL)), amount=small)
    share = operations(ours) / samples * found["ours"]["rate"] / best[runtime.precision]
    found["ours"]["ceiling_share"] = share
    return {
        "what": "one client's SGD, ConvNet-128, 3x32x32, batch 64; compiled and eager: without the "
        f"package's kernels; LeNets: {CLIENTS} clients, 1x28x28, batch {SMALL_BATCH}",
        "unit": "samples/s",
        "ceilings": best,
        "contestants": found,
    }
