"""Local training beside a plain PyTorch loop with a DataLoader."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from core.experiments.bench.timing import ceiling, operations, random_task, seconds, spread
from core.federation import LocalTraining, Runtime, Task, supervised, train
from core.rng import Rng

STEPS, PAIRS, BATCH = 12, 5, 64


def plain_loop(task: Task) -> Callable[[], None]:
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


def our_loop(task: Task) -> Callable[[], None]:
    """The package's own loop on data that lie on the device."""
    model, objective = task.new_model(Rng(0)), supervised(task)
    images = task.dataset.train.images.to(task.runtime.device)
    labels = task.dataset.train.labels.to(task.runtime.device)
    return lambda: train(
        model, images, labels, LocalTraining(batch_size=BATCH), STEPS, objective, Rng(1)
    )


def measure(runtime: Runtime) -> dict[str, Any]:
    """Samples per second at batch 64 on images of CIFAR-10's shape."""
    samples = STEPS * BATCH
    task = random_task(runtime, samples, 3, 32, 10)
    plain, ours = plain_loop(task), our_loop(task)
    plain(), ours()  # warm-up
    pairs = [(seconds(plain, runtime.device), seconds(ours, runtime.device)) for _ in range(PAIRS)]
    slow, fast = (samples / statistics.median(times) for times in zip(*pairs, strict=True))
    return {
        "what": "one client's SGD, ConvNet-128, 3x32x32, batch 64",
        "unit": "samples/s",
        "contestants": {
            "plain": {"rate": slow},
            "ours": {
                "rate": fast,
                "ratio": spread([a / b for a, b in pairs]),
                "ceiling_share": operations(ours) / samples * fast / ceiling(runtime),
            },
        },
    }
