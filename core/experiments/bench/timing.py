"""What every bench needs: a clock, the machine's ceiling, data of a given shape."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from core.data import Dataset, Split
from core.federation import Runtime, Task
from core.federation.runtime import finish
from core.models import kernels
from core.rng import Rng


def seconds(work: Callable[[], Any], device: torch.device) -> float:
    """Wall time of one call, waiting for a GPU to finish."""
    start = time.perf_counter()
    work()
    finish(device)
    return time.perf_counter() - start


def ceiling(runtime: Runtime, size: int = 2048) -> float:
    """Operations per second (FLOP/s) that a large matrix product reaches on this machine in the
    runtime's precision.
    """
    dtype = torch.bfloat16 if runtime.precision == "bfloat16" else torch.float32
    a = torch.ones(size, size, device=runtime.device, dtype=dtype)
    return 2 * size**3 / min(seconds(lambda: a @ a, runtime.device) for _ in range(5))


def operations(work: Callable[[], Any]) -> int:
    """Multiplications and additions (FLOP) that PyTorch's kernels take for some work. Convolutions count
    by their definition, also where this machine takes fewer.
    """
    with kernels.eager(), FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


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


def spread(ratios: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest."""
    return {"median": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}
