"""Workers of this machine: this process, or some that keep their libraries from run to run."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from core.errors import one_line
from lab.ray import Lost


class ThisProcess:
    """This process, which does a job at once."""

    capacity = 1

    def submit(self, job: Callable) -> Future:
        """Do a job."""
        done: Future = Future()
        done.set_result(job())
        return done

    def finished(self, handles: Sequence[Future], seconds: float) -> list[tuple[Future, Any]]:
        """Outcomes of jobs."""
        return [(handle, handle.result()) for handle in handles]

    def stop(self) -> None:
        """Do nothing: no job is under way."""


class LocalWorkers:
    """A number of processes. Each is a pool of its own, so that the loss of one is not that of all."""

    def __init__(self, number: int) -> None:
        self.capacity = number
        forks = "forkserver" in multiprocessing.get_all_start_methods()
        self._context: Any = multiprocessing.get_context("forkserver" if forks else "spawn")
        if forks:  # from a process that has imported PyTorch and done nothing with it
            self._context.set_forkserver_preload(["lab.ray"])
        self._pools = [self._pool() for _ in range(number)]
        self._busy: dict[Future, int] = {}

    def _pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, self._context, _begin, (self.capacity,))

    def submit(self, job: Callable) -> Future:
        """Begin a job on a worker that is free."""
        free = min(set(range(self.capacity)) - set(self._busy.values()))
        try:
            future = self._pools[free].submit(job)
        except BrokenProcessPool as lost:  # while it had nothing to do
            future = Future()
            future.set_exception(lost)
        self._busy[future] = free
        return future

    def finished(self, handles: Sequence[Future], seconds: float) -> list[tuple[Future, Any]]:
        """Jobs that ended; a worker that was lost has a new one in its place."""
        done, _ = concurrent.futures.wait(handles, seconds, concurrent.futures.FIRST_COMPLETED)
        outcomes: list[tuple[Future, Any]] = []
        for future in done:
            place, error = self._busy.pop(future), future.exception()
            if isinstance(error, BrokenProcessPool):
                self._pools[place].shutdown(wait=False)
                self._pools[place] = self._pool()
            lost = Lost() if isinstance(error, BrokenProcessPool) else error and one_line(error)
            outcomes.append((future, lost or future.result()))
        return outcomes

    def stop(self) -> None:
        """End all processes: those that are busy at once."""
        busy = {place for future, place in self._busy.items() if not future.done()}
        for place, pool in enumerate(self._pools):
            for process in list((pool._processes or {}).values()) if place in busy else ():
                process.terminate()
            pool.shutdown(cancel_futures=True)


def _begin(workers: int) -> None:
    """Prepare a worker: its share of the threads, no interruptions, an end with its caller's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import torch
    from tqdm import tqdm

    tqdm.set_lock(threading.RLock())  # its own is a semaphore, which a worker that is ended leaves
    torch.set_num_threads(max(1, torch.get_num_threads() // workers))
    caller = multiprocessing.parent_process()
    assert caller is not None

    def follow() -> None:
        caller.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
