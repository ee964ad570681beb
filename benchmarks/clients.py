"""How runs grow with their clients: time and memory of a round with 10, 100 and 1,000 of them."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

from benchmarks.timing import random_task, seconds
from benchmarks.whole import whole_run
from core import data
from core.federation import Client, Rows, Runtime, Task
from core.rng import Rng

NUMBERS, IMAGES, WIDTH = (10, 100, 1000), 50, 32
#: a round of each, whose work for a client is the same however many there are
ROUNDS: dict[str, dict[str, Any]] = {
    "fedavg": {"local_steps": 1, "batch_size": 32},
    "fedvck": {
        "iterations": 1,
        "min_images": 5,
        "real_batch": 5,
        "estimator": "expectation",
        "pool": 1,
        "server_steps": 1,
    },
}


def task_of(runtime: Runtime, dataset: str, width: int) -> Task:
    """The task on a data set, or on as many random pixels as CIFAR-10 has where it is missing."""
    options = {"width": width}
    if any(info.name == dataset and info.present for info in data.available()):
        return Task(data.load(dataset), "convnet", options, runtime)
    return attrs.evolve(random_task(runtime, 50_000, 3, 32, 10), model_options=options)


def one_round(name: str, number: int, runtime: Runtime, dataset: str, width: int) -> dict[str, Any]:
    """A first round of an algorithm with so many clients of `IMAGES` images each."""
    task = task_of(runtime, dataset, width)
    train, device = task.dataset.train, runtime.device
    order = torch.randperm(len(train), generator=Rng(6).generator())[: number * IMAGES]
    images, labels = train.images.to(device), train.labels.to(device)
    clients = [
        Client(k, task, Rows(images, rows), labels[rows])
        for k, rows in enumerate(order.to(device).chunk(number))
    ]
    whole_run(task, clients[:2], name, ROUNDS[name])  # warm-up
    took = seconds(lambda: whole_run(task, clients, name, ROUNDS[name]), device)
    return {
        "rate": 3600 / took,
        "seconds": took,
        "seconds_per_client": took / number,
        "peak_memory": runtime.peak_memory(),
        "data": task.dataset.name,
    }


def alone(function: Callable, *given: Any) -> Any:
    """What a function gives in a process of its own: what a process has held at most does not fall
    again.
    """
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context) as process:
        return process.submit(function, *given).result()


def measure(
    runtime: Runtime,
    dataset: str = "cifar10",
    numbers: Sequence[int] = NUMBERS,
    width: int = WIDTH,
) -> dict[str, Any]:
    """Seconds and peak memory of every round, each in a process of its own."""
    found = {
        f"{name}, {number} clients": alone(one_round, name, number, runtime, dataset, width)
        for name in ROUNDS
        for number in numbers
    }
    return {
        "what": f"one round with its server, {IMAGES} images a client, ConvNet-{width}; fedavg: one "
        "batch of 32; fedvck: one iteration, 5 condensed images a class",
        "unit": "runs/hour",
        "contestants": found,
    }
