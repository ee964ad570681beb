"""FedIOD's distillation step with its clients' networks side by side, beside the same step with one
network after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from benchmarks.timing import compared, in_turn, random_task
from core.algorithms import create
from core.algorithms.fediod import FedIOD
from core.federation import Client, Ledger, Runtime, Schedule, pack
from core.models import Stacked
from core.rng import Rng

#: the step of the profile laptop, and pairs that are timed
CLIENTS, SIZE, PAIRS = 20, 28, 5
SETTINGS = {"generator_width": 32, "discriminator_width": 16, "distill_batch": 16}
STEPS = {"distill_steps": 1500, "scored_images": 0}


def steps(runtime: Runtime, batched: bool | None) -> Callable[[], None]:
    """A step of stage two that can be taken again and again, of clients with fresh teachers."""
    options = {"width": 16, "grid": 1}
    task = random_task(runtime, 20 * CLIENTS, 1, SIZE, 10)
    task = attrs.evolve(task, model="resnet8", model_options=options)
    train, clients = task.dataset.train, []
    for k in range(CLIENTS):
        rows = slice(20 * k, 20 * (k + 1))
        images, labels = (each[rows].to(runtime.device) for each in (train.images, train.labels))
        clients.append(Client(k, task, images, labels))
        clients[k].memory |= pack(task.new_model(Rng(k)), "teacher/")
    algorithm = create(
        "fediod", SETTINGS | STEPS, "printed", Schedule(clients=CLIENTS, rounds=1500)
    )
    assert isinstance(algorithm, FedIOD)
    state = algorithm.round(algorithm.initialise(task, Rng(0)), clients, Ledger.aside(), Rng(0))
    server, side = algorithm.sides(state, clients, Rng(0))
    side.teachers = Stacked(side.teachers.networks, batched)  # type: ignore[attr-defined]
    side.judge = Stacked(side.judges, batched)  # type: ignore[attr-defined]

    def step() -> None:
        for _ in algorithm.step(server, side, 1):
            pass

    return step


def measure(runtime: Runtime) -> dict[str, Any]:
    """Steps per hour one by one and side by side, and their ratio pair by pair."""
    work = {"one by one": steps(runtime, False), "side by side": steps(runtime, None)}
    times = in_turn(work, runtime.device, PAIRS)
    return {
        "what": f"one step of FedIOD's distillation, {CLIENTS} clients, {SETTINGS['distill_batch']} "
        f"images, ResNet-8 of width 16, 1x{SIZE}x{SIZE}",
        "unit": "steps/hour",
        "contestants": compared(times, beside="one by one"),
    }
