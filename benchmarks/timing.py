"""What every bench needs: a clock, the machine's ceiling, data of a given shape."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from tqdm.auto import trange

from core.data import Dataset, Split
from core.federation import LocalTraining, Runtime, Task
from core.federation.abreast import Learner
from core.federation.runtime import PRECISIONS, finish
from core.models import kernels
from core.rng import Rng


def seconds(work: Callable[[], Any], device: torch.device) -> float:
    """Wall time of one call, waiting for a GPU to finish."""
    start = time.perf_counter()
    work()
    finish(device)
    return time.perf_counter() - start


def ceilings(runtime: Runtime, size: int = 2048) -> dict[str, float]:
    """Operations per second (FLOP/s) that a large matrix product reaches on this machine: in float32,
    in the runtime's precision, and in bfloat16 where the hardware multiplies it (where it is emulated
    one product takes minutes).
    """
    best = Runtime.choose(str(runtime.device)).precision
    found = {}
    for precision in dict.fromkeys(("float32", runtime.precision, best)):
        a = torch.ones(size, size, device=runtime.device, dtype=PRECISIONS[precision])
        fastest = min(seconds(lambda: a @ a, runtime.device) for _ in range(5))  # noqa: B023
        found[precision] = 2 * size**3 / fastest
    return found


def eagerly(work: Callable[[], Any]) -> Callable[[], None]:
    """The same by PyTorch's own kernels: what any program would have."""

    def alone() -> None:
        with kernels.eager():
            work()

    return alone


def operations(work: Callable[[], Any]) -> int:
    """Multiplications and additions (FLOP) that PyTorch's kernels take for some work. Convolutions count
    by their definition, also where this machine takes fewer.
    """
    with kernels.eager(), _Operations() as counter:
        work()
    return counter.total


class _Operations(TorchDispatchMode):
    """Counts as PyTorch's `FlopCounterMode`, which also follows modules and cannot do so where a
    module's input is a leaf whose gradient is asked for, as condensed images are.
    """

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if count := flop_registry.get(func._overloadpacket):
            self.total += count(*args, **(kwargs or {}), out_val=result)
        return result


def random_task(runtime: Runtime, samples: int, channels: int, size: int, classes: int) -> Task:
    """A ConvNet-128 on random pixels: speed does not depend on what the images show."""
    draw = Rng(0).generator()
    images = torch.randint(
        0, 256, (samples, channels, size, size), generator=draw, dtype=torch.uint8
    )
    split = Split(images, torch.arange(samples) % classes)
    data = Dataset(
        name="random",
        train=split,
        val=split,
        test=split,
        classes=tuple(map(str, range(classes))),
        mean=(0.5,) * channels,
        std=(0.5,) * channels,
        fingerprint="",
    )
    return Task(data, "convnet", {}, runtime)


def in_turn(
    work: Mapping[str, Callable[[], Any]], device: torch.device, repeats: int
) -> dict[str, list[float]]:
    """Seconds of each piece of work, so many times in turn after one that does not count: what slows a
    machine for a while slows all of them.
    """
    for each in work.values():
        each()  # warm-up
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in trange(repeats, unit="turn", leave=False):
        for name, each in work.items():
            times[name].append(seconds(each, device))
    return times


def compared(
    times: Mapping[str, Sequence[float]], beside: str = "plain", amount: float = 3600
) -> dict[str, dict[str, Any]]:
    """What a bench keeps of times that were taken in turn: `rate`, an amount of work over the median
    of its seconds (3,600: pieces of work an hour), and for all but the one that they stand `beside`
    the `ratio` of times, pair by pair.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, took in times.items():
        found[name] = {"rate": amount / statistics.median(took)}
        if name != beside:
            found[name] |= {"beside": beside, "ratio": spread(times[beside], took)}
    return found


def spread(slow: Sequence[float], fast: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest of how many times as fast the second is, pair by pair."""
    ratios = [before / after for before, after in zip(slow, fast, strict=True)]
    return {"median": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}


def learners(task: Task, numbers: Iterable[int], plan: LocalTraining) -> list[Learner]:
    """Clients of these numbers that train the same network on the same images, each in an order of
    its own.
    """
    data, device = task.dataset.train, task.runtime.device
    images, labels = (each.to(device) for each in (data.images, data.labels))

    def loss(model: nn.Module, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return task.loss(outputs, labels)

    return [
        Learner(task.new_model(Rng(0)), images, labels, loss, plan.drawn(labels, Rng(k)))
        for k in numbers
    ]
