"""Does the accuracy hang on the precision? Every method that classifies, in float32 and in bfloat16:
the same data, the same budget, the same seeds.
"""

from __future__ import annotations

import time
from typing import Any

import attrs
from tqdm.auto import tqdm

from core import algorithms, data
from core.errors import InputError
from core.federation import Runtime, Task
from core.federation.runtime import cpu_has_bfloat16
from lab.experiment import Experiment
from lab.profiles import apply
from lab.running import make_task, rounds

#: seeds; and more of them, where two runs of a seed lie farther apart than so many points
SEEDS, MORE, APART = (0, 1, 2), (3, 4, 5, 6, 7, 8, 9), 2.0
#: share of the training images that are handed out; clients; rounds; channels of a ConvNet
SHARE, CLIENTS, ROUNDS, WIDTH = 0.05, 4, 2, 32
PROFILE = "laptop"
#: the networks of the tables that a method stands in, where these are not the ConvNet
NETWORKS = {"fedmk": "lenet", "fedensemble": "lenet", "feddistill": "lenet", "fediod": "resnet8"}
#: methods whose run at the profile is long, with less of it
SHORTER: dict[str, dict[str, Any]] = {
    "fediod": {"distill_steps": 200, "scored_images": 0},
    "fedkd": {"distill_steps": 20},
    "desa": {"iterations": 30},
    **{name: {"iterations": 30} for name in ("dm", "gddfl")},
    **{name: {"iterations": 10} for name in ("dc", "dsa")},
    "dfrd": {"iterations": 2},
}


def methods() -> list[str]:
    """All that tell what an image shows."""
    names = algorithms.names()
    return [name for name in names if "classification" in algorithms.find(name).serves()]


def experiment(name: str, dataset: str, seed: int) -> Experiment:
    """A short run of a method."""
    stated = {
        "algorithm": name,
        "dataset": dataset,
        "model": NETWORKS.get(name, "convnet"),
        "partition": {"name": "dirichlet", "alpha": 0.5},
        "train_fraction": SHARE,
        "clients": CLIENTS,
        "rounds": ROUNDS,
        "seed": seed,
        "settings": SHORTER.get(name, {}),
    }
    run = attrs.evolve(apply(PROFILE, stated), evaluate_every=ROUNDS)
    return attrs.evolve(run, model_options={"width": WIDTH}) if run.model == "convnet" else run


def measure(runtime: Runtime) -> dict[str, Any]:
    """For each method the accuracies in percent, seed by seed, in bfloat16 ("ours") and in float32
    ("theirs"). Raises InputError where bfloat16 is not multiplied in hardware: what emulates it has
    the same numbers, but takes hours.
    """
    if runtime.device.type == "cpu" and not cpu_has_bfloat16():
        raise InputError("this processor does not multiply bfloat16: there is nothing to compare")
    here = {info.name for info in data.available() if info.present}
    dataset = "mnist" if "mnist" in here else "digits"
    tasks: dict[tuple[str, str], Task] = {}

    def accuracy(name: str, seed: int, precision: str) -> float:
        run = experiment(name, dataset, seed)
        key = run.model, precision
        if key not in tasks:
            tasks[key] = make_task(run, attrs.evolve(runtime, precision=precision))
        *_, last = rounds(run, task=tasks[key])
        return 100 * last.metrics["accuracy"]

    found = {}
    for name in tqdm(methods(), unit="method", leave=False):
        start, plain, fast = time.perf_counter(), list[float](), list[float]()
        for seed in (*SEEDS, *MORE):
            near = all(abs(a - b) <= APART for a, b in zip(plain, fast, strict=True))
            if len(plain) == len(SEEDS) and near:
                break
            plain.append(accuracy(name, seed, "float32"))
            fast.append(accuracy(name, seed, "bfloat16"))
        each = (time.perf_counter() - start) / (2 * len(plain))
        both = {"theirs": plain, "ours": fast}
        found[name] = {"beside": "float32", "rate": 3600 / each, "accuracy": both}
    return {
        "what": f"bfloat16 beside float32: {ROUNDS} rounds at the budget of the profile {PROFILE}, "
        f"{CLIENTS} clients with a share of {SHARE:g} of {dataset}, {len(SEEDS)} seeds, or "
        f"{len(SEEDS) + len(MORE)} where one of them lies more than {APART:g} points apart",
        "unit": "runs/hour",
        "contestants": found,
    }
