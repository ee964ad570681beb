"""What the scripts of this folder share: runs in turn, and the file that the book shows."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import nn
from tqdm.auto import trange

from core import data
from core.algorithms import create
from core.data import Split
from core.federation import Client, Ledger, Runtime, Schedule, Task
from core.files import write_json
from core.rng import Rng
from lab.record import REPOSITORY
from lab.source import code_version

#: the records that the book shows
BENCH = REPOSITORY / "book" / "bench"
Side = Callable[[int], Any]


def options(text: str | None, dataset: str, peer: bool = True) -> argparse.ArgumentParser:
    """The options that every script has, with the default data set; beside a peer's code its checkout."""
    parser = argparse.ArgumentParser(description=text)
    if peer:
        parser.add_argument("checkout", type=Path)
        parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--dataset", default=dataset)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto", help="float32 or bfloat16")
    parser.add_argument("--pairs", type=int, default=3)
    return parser


def clock() -> float:
    """Seconds of the processor where PyTorch computes in one thread, so that other programs on the machine
    do not count; else those on the wall, when a GPU has done its work.
    """
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    elif torch.get_num_threads() == 1:
        return time.process_time()
    return time.perf_counter()


def race(
    ours: Side, theirs: Side, beside: str, pairs: int, task: Task | None = None
) -> dict[str, Any]:
    """A contestant of a record: both sides in turn, so that what slows a machine for a while slows both,
    after a first pair that does not count. A side takes a seed and returns a network, which is tested on a
    `task`, or the seconds that count and a network.
    """
    took: dict[str, list[float]] = {"ours": [], "theirs": []}
    scores: dict[str, list[float]] = {"ours": [], "theirs": []}
    for seed in trange(-1, pairs, unit="pair", leave=False):
        for name, side in (("ours", ours), ("theirs", theirs)):
            start = clock()
            result = side(max(seed, 0))
            seconds, model = result if isinstance(result, tuple) else (clock() - start, result)
            if seed >= 0:
                took[name].append(seconds)
                scores[name] += [100 * task.evaluate(model)["accuracy"]] if task else []
    ratios = [slow / fast for slow, fast in zip(took["theirs"], took["ours"], strict=True)]
    fast, slow = (statistics.median(took[name]) for name in ("ours", "theirs"))
    spread = {"median": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}
    one = {"rate": 3600 / fast, "seconds": fast, "plain_seconds": slow, "beside": beside}
    return one | {"ratio": spread} | ({"accuracy": scores} if task else {})


def keep(name: str, what: str, contestants: dict[str, Any], runtime: Runtime) -> None:
    """Print a line for each contestant, and write `book/bench/NAME-KIND.json`, where KIND is the device,
    or the vectors of the processor, and the precision.
    """
    machine = runtime.describe()
    kind = str(machine["cpu" if machine["device"] == "cpu" else "device"]).lower()
    found = {"bench": name, "what": what, "unit": "runs/hour", "contestants": contestants}
    found |= {"environment": machine, "code": code_version()}
    write_json(BENCH / f"{name}-{kind}-{machine['precision']}.json", found)
    print(f"{name}, {machine['device_name']}, {machine['threads']} threads: {what}")
    for label, one in contestants.items():
        text = "{median:5.2f} ({lowest:.2f} to {highest:.2f}) times".format(**one["ratio"])
        text = f"{label:40} {one['seconds']:8.2f} s  {text} as fast as {one['beside']}"
        if "accuracy" in one:
            ours, theirs = (statistics.fmean(values) for values in one["accuracy"].values())
            text += f"  {ours:.2f}% beside {theirs:.2f}%"
        print(text)


def some_of(name: str, images: int, runtime: Runtime, **options: Any) -> Task:
    """So many training images of a data set and at most 2,000 test images; a ConvNet."""
    full, draw = data.load(name), Rng(0).generator()

    def some(split: Split, count: int) -> Split:
        rows = torch.randperm(len(split), generator=draw)[:count]
        return Split(split.images[rows], split.labels[rows])

    train, test = some(full.train, images), some(full.test, 2000)
    kept = attrs.evolve(full, train=train, val=test, test=test, held_out=None)
    return Task(kept, "convnet", options, runtime)


def whole_run(
    clients: list[Client],
    name: str,
    settings: dict[str, Any],
    variant: str = "printed",
    rounds: int = 1,
    seed: int = 0,
) -> nn.Module | list[nn.Module]:
    """The server's network, or one for each client, after rounds of an algorithm by the package."""
    clients = [attrs.evolve(client, memory={}) for client in clients]
    algorithm = create(name, settings, variant, Schedule(clients=len(clients), rounds=rounds))
    ledger, state = Ledger(), algorithm.initialise(clients[0].task, Rng(seed))
    for number in range(1, rounds + 1):
        ledger.open_round()
        state = algorithm.round(state, clients, ledger, Rng(seed).at("round", number))
    return algorithm.model(state)
