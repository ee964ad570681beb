"""A script that times some of the package's own work, by whichever commit of the package is on the
path: it uses only what all commits since the first bench have. `benchmarks.commits` starts
it with one argument, JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks import condensation, local_training
from benchmarks.timing import random_task, seconds
from core.federation import Runtime


def condense(runtime: Runtime) -> Callable[[], Any]:
    """A round of condensation with the exact mean of all real images, of CIFAR's shape."""
    groups = condensation.CLIENTS * condensation.CLASSES
    task = random_task(runtime, groups * condensation.PER_GROUP, 3, 32, condensation.CLASSES)
    return lambda: condensation.our_round(task, "expectation", condensation.ITERATIONS)


def learn(runtime: Runtime) -> Callable[[], Any]:
    """A pass of local training."""
    samples = local_training.STEPS * local_training.BATCH
    return local_training.our_loop(random_task(runtime, samples, 3, 32, 10))


def took(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds of one call: of the processor, which others on the machine disturb least, or of the
    clock where a GPU works.
    """
    start = time.process_time()
    elapsed = seconds(work, device)
    return elapsed if device.type == "cuda" else time.process_time() - start


def main(given: dict[str, Any]) -> float:
    """Seconds of the fastest of some `repeats` of the work of a `bench`, whose module gets these
    `sizes`, on a `device` in a `precision` with so many `threads`.
    """
    module, work_of = {
        "condensation": (condensation, condense),
        "local-training": (local_training, learn),
    }[given["bench"]]
    vars(module).update(given["sizes"])
    torch.set_num_threads(given["threads"])
    runtime = Runtime.choose(given["device"], given["precision"])
    work = work_of(runtime)
    work()  # warm-up
    return min(took(work, runtime.device) for _ in range(given["repeats"]))


if __name__ == "__main__":
    print(main(json.loads(sys.argv[1])))
