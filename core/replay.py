"""Steps of training as one piece of work for a GPU.

A step on a batch of a small network is some two hundred operations, each of which takes longer to
start from Python than to compute. A CUDA graph holds all of them: it is recorded once and then
started as one, with other images in the same places. What a step does must not depend on anything
that Python decides anew: it may differ in the batch and in what is drawn from generators on the GPU,
no more. `tests/test_replay.py` asks that of every algorithm; the two of which it does not hold say so.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Protocol

import torch

from core.rng import on_device

#: steps taken one by one before a recording: optimisers make their state in the first
WARM = 3
#: steps from which a recording pays: it takes as long as some twenty-five
WORTH = 100


class Replayable(Protocol):
    """Work on a GPU that was recorded."""

    def replay(self) -> None:
        """Do it again."""


def record(work: Callable[[], None], device: torch.device) -> Replayable:
    """What `work` starts on a GPU, recorded and not done. Raises RuntimeError where it waits for the
    GPU or takes something from the host.
    """
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(device)
    for generator in on_device(device):
        graph.register_generator_state(generator)
    try:
        with torch.cuda.device(device), torch.cuda.graph(graph):
            work()
    finally:
        torch.cuda.set_stream(stream)  # an error leaves the stream of the recording behind
    return graph


class Steps:
    """Steps of training, replayed where that pays.

    Args:
        step: takes a step on the batch with these indices (n,).
        total: how many steps will be taken.
        size: indices in all batches but those that end a pass over the data.
        device: where the indices are.
        able: whether nothing that a step needs is counted or decided on the host.
    """

    def __init__(
        self,
        step: Callable[[torch.Tensor], None],
        total: int,
        size: int,
        device: torch.device,
        able: bool = True,
    ) -> None:
        self.step, self.size, self.device = step, size, device
        self.worth = able and device.type == "cuda" and total >= WORTH
        self.taken = 0
        self.batch = torch.zeros(size, dtype=torch.int64, device=device)
        self.recorded: Replayable | None = None

    def take(self, batch: torch.Tensor) -> None:
        """A step on a batch."""
        if not self.worth or self.taken < WARM or len(batch) != self.size:
            self.taken += 1
            self.step(batch)
            return
        self.batch.copy_(batch)
        if self.recorded is None:
            try:
                self.recorded = record(lambda: self.step(self.batch), self.device)
            except RuntimeError as error:
                self.worth = False
                _tell(str(error).strip().splitlines()[0])
                self.step(batch)
                return
        self.recorded.replay()

    def forget(self) -> None:
        """Record anew: a rate or a weight has changed, which a recording holds as a number."""
        self.recorded = None


@functools.cache
def _tell(reason: str) -> None:
    """Say once why nothing is replayed."""
    print(f"steps of training are started one by one, slower: {reason}", file=sys.stderr)
