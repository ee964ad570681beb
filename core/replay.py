"""Steps of training as one piece of work for a GPU.

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode

#: steps taken one by one before a recording: optimisers make their state in the first
WARM = 3
#: steps from which a recording pays: it takes as long as some twenty-five
WORTH = 100
#: devices on which a recording failed in a way that leaves PyTorch's graphs unusable
_spoilt: set[torch.device] = set()
_rehearsed: ContextVar[bool] = ContextVar("rehearsed", default=False)


class Replayable(Protocol):
    """Work on a GPU that was recorded."""

    def replay(self) -> None:
        """Do it again."""


@contextmanager
def rehearsal() -> Iterator[None]:
    """Within it a step is taken as it will be recorded."""
    token = _rehearsed.set(True)
    try:
        yield
    finally:
        _rehearsed.reset(token)


def rehearsed() -> bool:
    """Whether what is started now will be replayed, so that many small programs of a GPU take no
    longer to start than a few.
    """
    return _rehearsed.get()


def record(
    work: Callable[[], None], device: torch.device, draws: Sequence[torch.Generator]
) -> Replayable:
    """What `work` starts on a GPU, recorded and not done; `draws` are the generators there that it
    draws from. Raises RuntimeError where it waits for the GPU or takes something from the host.
    """
    with torch.cuda.device(device):
        stream, mode = torch.cuda.current_stream(), torch.cuda.get_sync_debug_mode()
        graph = torch.cuda.CUDAGraph()
        for generator in draws:
            graph.register_generator_state(generator)
        try:
            with torch.cuda.graph(graph, stream=_aside(device)):
                # who waits is told so by PyTorch: CUDA would end the recording, and leave half of it
                _when_waiting("error")
                try:
                    work()
                finally:
                    _when_waiting(mode)
        finally:
            torch.cuda.set_stream(stream)  # an error leaves the stream of the recording behind
    return graph


@functools.cache
def _aside(device: torch.device) -> torch.cuda.Stream:
    """Where recordings are made: PyTorch's own stream for them belongs to one device."""
    return torch.cuda.Stream(device)


def _when_waiting(mode: int | str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that this is a prototype
        torch.cuda.set_sync_debug_mode(mode)


class _Draws(TorchFunctionMode):
    """Notes the generators of a device that are drawn from."""

    def __init__(self, device: torch.device, found: list[torch.Generator]) -> None:
        super().__init__()
        self.device, self.found = device, found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = (kwargs or {}).get("generator")
        # one that was made for "cuda" does not say which GPU that was
        places = (self.device, torch.device(self.device.type))
        here = isinstance(made, torch.Generator) and made.device in places
        if here and not any(made is one for one in self.found):
            self.found.append(made)  # type: ignore[arg-type]
        return func(*args, **(kwargs or {}))


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
        self.worth = able and device.type == "cuda" and total >= WORTH and device not in _spoilt
        self.warm = 0
        self.batch = torch.zeros(size, dtype=torch.int64, device=device)
        self.draws: list[torch.Generator] = []
        self.recorded: Replayable | None = None

    def take(self, batch: torch.Tensor) -> None:
        """A step on a batch."""
        if not self.worth or len(batch) != self.size:
            self.step(batch)
        elif self.warm < WARM:
            self.warm += 1
            with rehearsal(), _Draws(self.device, self.draws):
                self.step(batch)
        else:
            self._replay(batch)

    def forget(self) -> None:
        """Record anew, after one more step from Python: a rate or a weight has changed, which a
        recording holds as a number.
        """
        self.recorded, self.warm = None, min(self.warm, WARM - 1)

    def _replay(self, batch: torch.Tensor) -> None:
        self.batch.copy_(batch)
        if self.recorded is None and (why := self._record()):
            self.worth = False
            _tell(why)
            self.step(batch)
            return
        assert self.recorded is not None
        self.recorded.replay()

    def _record(self) -> str:
        """Record a step; why that cannot be, or nothing."""
        try:
            with rehearsal():
                self.recorded = record(lambda: self.step(self.batch), self.device, self.draws)
        except RuntimeError as error:
            if isinstance(error, torch.AcceleratorError):
                _spoilt.add(self.device)
            first: BaseException = error
            while first.__context__ is not None:
                first = first.__context__
            return str(first).strip().partition("\n")[0] or type(first).__name__
        return ""


@functools.cache
def _tell(reason: str) -> None:
    """Say once why nothing is replayed."""
    print(f"steps of training are started one by one, slower: {reason}", file=sys.stderr)
