"""Steps of training replayed as one CUDA graph, PyTorch's `torch.cuda.CUDAGraph`.

A step on a batch of a small network is some two hundred operations, each of which takes longer to
start from Python than to compute. A CUDA graph holds all of them: it is recorded once and then
started as one, with other images in the same places. What a step does must not depend on anything
that Python decides anew: it may differ in the batch and in what the GPU draws or counts by itself,
no more. `tests/test_replay.py` asks that of every algorithm and lists those of which it does not hold.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

#: steps taken one by one before a recording: optimisers make their state in the first
WARM = 3
#: steps from which a recording pays: it takes as long as some twenty-five
WORTH = 100


def record(work: Callable[[], None], draws: Sequence[torch.Generator]) -> torch.cuda.CUDAGraph:
    """The graph of `work` on the current GPU, recorded, not run; `draws` are its generators. RuntimeError
    where it waits for the GPU or takes something from the host.
    """
    graph, mode = torch.cuda.CUDAGraph(), torch.cuda.get_sync_debug_mode()
    for generator in draws:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch calls the mode below a prototype
        torch.cuda.set_sync_debug_mode("error")  # else CUDA would end the recording half-way
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    return graph


class GeneratorsInUse(TorchFunctionMode):
    """Collects, while it is entered, the generators of GPUs that are drawn from."""

    def __init__(self) -> None:
        super().__init__()
        self.generators: list[torch.Generator] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        used = (kwargs or {}).get("generator")
        if used is not None and used.device.type == "cuda" and used not in self.generators:
            self.generators.append(used)
        return func(*args, **(kwargs or {}))


class Steps:
    """Steps of training, replayed where that pays: `step` takes one on indices (n,) on `device`, `total` of
    `size` are to come. `able`: a step counts and decides nothing on the host.
    """

    def __init__(
        self,
        step: Callable[[torch.Tensor], None],
        total: int,
        size: int,
        device: torch.device,
        able: bool = True,
    ) -> None:
        self.step, self.batch = step, torch.zeros(size, dtype=torch.int64, device=device)
        self.worth = able and device.type == "cuda" and total >= WORTH
        self.warm, self.draws = 0, GeneratorsInUse()
        self.recorded: torch.cuda.CUDAGraph | None = None

    def take(self, batch: torch.Tensor) -> None:
        """A step on a batch."""
        if not self.worth or len(batch) != len(self.batch):
            self.step(batch)
        elif self.warm < WARM:
            self.warm += 1
            with self.draws:
                self.step(batch)
        else:
            self.batch.copy_(batch)
            try:
                work = functools.partial(self.step, self.batch)
                self.recorded = self.recorded or record(work, self.draws.generators)
            except RuntimeError as error:
                self.worth = False
                say_once(str(error.__context__ or error).strip().partition("\n")[0])
            self.recorded.replay() if self.recorded else self.step(batch)

    def forget(self) -> None:
        """Record anew after one more step from Python: a rate or weight that it holds has changed."""
        self.recorded, self.warm = None, min(self.warm, WARM - 1)


@functools.cache
def say_once(reason: str) -> None:
    """Print why nothing is replayed."""
    print(f"steps of training are started one by one, slower: {reason}", file=sys.stderr)
