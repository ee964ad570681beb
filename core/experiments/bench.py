"""Speed, measured in pairs in one run: ours beside a plain loop, and both beside the machine's ceiling."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

from core.data import Dataset, Split
from core.errors import unknown
from core.experiments.record import REPOSITORY, code_version
from core.federation import LocalTraining, Runtime, Task, supervised, train
from core.rng import Rng

#: where bench records lie
BENCH = REPOSITORY / "book" / "bench"
STEPS, PAIRS, BATCH = 12, 5, 64


def _seconds(work: Callable[[], Any], device: torch.device) -> float:
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def ceiling(runtime: Runtime, size: int = 2048) -> float:
    """Multiply-add operations per second (FLOP/s) that a large matrix product reaches on this machine."""
    dtype = torch.bfloat16 if runtime.precision == "bfloat16" else torch.float32
    a = torch.ones(size, size, device=runtime.device, dtype=dtype)
    best = min(_seconds(lambda: a @ a, runtime.device) for _ in range(5))
    return 2 * size**3 / best


def _task(runtime: Runtime) -> Task:
    """CIFAR-10's shape, random pixels: speed does not depend on what the images show."""
    draw = Rng(0).generator()
    images = torch.randint(0, 256, (STEPS * BATCH, 3, 32, 32), generator=draw, dtype=torch.uint8)
    labels = torch.randint(0, 10, (len(images),), generator=draw)
    split = Split(images, labels)
    data = Dataset(name="random", train=split, val=split, test=split, classes=tuple("0123456789"),
                   mean=(0.5,) * 3, std=(0.5,) * 3, fingerprint="")
    return Task(data, "convnet", {}, runtime)


def _plain_loop(task: Task) -> Callable[[], None]:
    """Local training as most code writes it: a DataLoader over float32 images, a copy a batch, an `.item()`."""
    split, device = task.dataset.train, task.runtime.device
    loader = DataLoader(TensorDataset(task.dataset.normalise(split.images), split.labels), BATCH, shuffle=True,
                        generator=Rng(1).generator())
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


def _ours(task: Task) -> Callable[[], None]:
    """The package's own loop on data that lie on the device."""
    model, objective = task.new_model(Rng(0)), supervised(task)
    images = task.dataset.train.images.to(task.runtime.device)
    labels = task.dataset.train.labels.to(task.runtime.device)
    return lambda: train(model, images, labels, LocalTraining(batch_size=BATCH), STEPS, objective, Rng(1))


def measure(what: str, runtime: Runtime) -> dict[str, Any]:
    """Run a bench and keep its record in `book/bench`.

    Returns: samples per second (medians) of both loops, the ratio pair by pair (median, lowest, highest), and the share
    of the machine's matrix-product ceiling that ours reaches.
    """
    if what != "local-training":
        raise unknown("bench", what, ["local-training"])
    task = _task(runtime)
    plain, ours = _plain_loop(task), _ours(task)
    plain(), ours()  # warm-up
    pairs = [(_seconds(plain, runtime.device), _seconds(ours, runtime.device)) for _ in range(PAIRS)]
    ratios = sorted(a / b for a, b in pairs)
    samples = STEPS * BATCH
    counter = FlopCounterMode(display=False)
    with counter:
        ours()
    fast = samples / statistics.median(b for _, b in pairs)
    result = {
        "bench": what, "samples_per_second": fast,
        "plain_samples_per_second": samples / statistics.median(a for a, _ in pairs),
        "ratio": {"median": statistics.median(ratios), "lowest": ratios[0], "highest": ratios[-1]},
        "ceiling_share": counter.get_total_flops() / samples * fast / ceiling(runtime),
        "environment": runtime.describe(), "code": code_version(),
    }
    path = BENCH / f"{what}-{runtime.device.type}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result | {"path": path}


def report(result: dict[str, Any]) -> str:
    """A few lines for the terminal."""
    ratio = result["ratio"]
    place = Path(result["path"]).relative_to(REPOSITORY)
    return (f"{result['bench']} on {result['environment']['device_name']} ({result['environment']['precision']})\n"
            f"  plain loop   {result['plain_samples_per_second']:10,.0f} samples/s\n"
            f"  ours         {result['samples_per_second']:10,.0f} samples/s, "
            f"{100 * result['ceiling_share']:.0f}% of the matrix-product ceiling\n"
            f"  ratio        {ratio['median']:10.2f} (from {ratio['lowest']:.2f} to {ratio['highest']:.2f})\n"
            f"record: {place}")
