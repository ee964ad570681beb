"""Shadow models of an attack on FedAvg: one after the other, in parallel, and as one program of
stacked networks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
from torch import nn

from benchmarks.timing import compared, in_turn, learners, random_task
from core.federation import LocalTraining, Runtime, Task, learn, through
from core.federation.abreast import learn_abreast
from core.rng import Rng

NETWORKS, WIDTH, STEPS, PAIRS = 8, 64, 1, 3
PLAN = LocalTraining(lr=0.003, local_steps=STEPS)
#: what an attack trains: so many shadow models, each on half of 10,000 images, ten times over
SHADOWS, SAMPLES = 64, 5000 * PLAN.local_epochs


def one(task: Task, number: int) -> nn.Module:
    """A shadow model, trained by the package's own loop."""
    (own,) = learners(task, [number], PLAN)
    objective = through(task, own.loss)
    learn(own.model, own.images, own.labels, PLAN, objective, Rng(number), drawn=own.batches)
    return own.model


def one_by_one(task: Task) -> list[nn.Module]:
    """All shadow models, one after the other."""
    return [one(task, number) for number in range(NETWORKS)]


def in_parallel(task: Task) -> list[nn.Module]:
    """The same, as many at once as there are threads."""
    return list(task.runtime.in_parallel(partial(one, task), range(NETWORKS)))


def stacked(task: Task) -> list[nn.Module]:
    """The same in one program, with the batches that each has alone."""
    networks = learners(task, range(NETWORKS), PLAN)
    learn_abreast(task, networks, PLAN)
    return [one.model for one in networks]


WAYS: dict[str, Callable[[Task], Any]] = {
    "one by one": one_by_one,
    "in parallel": in_parallel,
    "stacked": stacked,
}


def measure(runtime: Runtime) -> dict[str, Any]:
    """Samples per second of every way, and the hours that an attack with 64 shadow models takes."""
    task = random_task(runtime, STEPS * PLAN.batch_size, 3, 32, 10)
    task = attrs.evolve(task, model_options={"width": WIDTH})
    work = {name: partial(way, task) for name, way in WAYS.items()}
    times = in_turn(work, runtime.device, PAIRS)
    found = compared(times, beside="one by one", amount=NETWORKS * STEPS * PLAN.batch_size)
    for one in found.values():
        one["attack_hours"] = SHADOWS * SAMPLES / one["rate"] / 3600
    return {
        "what": f"{NETWORKS} shadow models of FedAvg, ConvNet-{WIDTH}, 3x32x32, batch "
        f"{PLAN.batch_size}",
        "unit": "samples/s",
        "contestants": found,
    }
