"""Device, precision and threads of a run."""

from __future__ import annotations

import contextlib
import platform
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from contextvars import copy_context
from pathlib import Path
from typing import TypeVar

import attrs
import torch

from core.errors import InputError, unknown

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
#: runs in parallel, at most: each holds data and maps of its own
MOST_RUNS = 8

Item = TypeVar("Item")
Result = TypeVar("Result")


def finish(device: torch.device) -> None:
    """Wait until a GPU has done what it was given; a CPU has done it already."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def vectors() -> str:
    """Name of the units that PyTorch computes with on this CPU: "AVX2", "AVX512", or "AMX" where there are
    units for the products of matrices besides.
    """
    if torch.cpu.get_capabilities().get("amx_tile"):
        return "AMX"
    return torch.backends.cpu.get_cpu_capability()


@attrs.frozen
class Runtime:
    """A device and the precision of its convolutions.

    Parameters, statistics and losses stay in float32; `bfloat16` only changes what autocast
    changes. What is float32 is so on a GPU, too: `choose` turns off its shorter numbers (TF32), which
    PyTorch takes for convolutions by default.
    """

    device: torch.device = attrs.field(factory=lambda: torch.device("cpu"))
    precision: str = "float32"

    @classmethod
    def choose(cls, device: str = "auto", precision: str = "auto") -> Runtime:
        """The runtime of these names; "auto" is CUDA before CPU, and float32, which does not depend on the
        machine. InputError for an absent device or an unknown precision.
        """
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device.lower() == "gpu":
            raise InputError("a GPU is named cuda here: --device cuda")
        if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", device):
            raise unknown("device", device, ("auto", "cpu", "cuda", "cuda:0"))
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise InputError("there is no CUDA device on this machine; choose --device cpu or auto")
        if ":" in device and int(device.split(":")[1]) >= torch.cuda.device_count():
            raise InputError(
                f"there is no device {device}; this machine has {torch.cuda.device_count()} of CUDA"
            )
        precision = "float32" if precision == "auto" else precision
        if precision not in PRECISIONS:
            raise unknown("precision", precision, ("auto", *PRECISIONS))
        if device.startswith("cuda"):
            torch.backends.cudnn.allow_tf32 = False
        if ":" in device:
            torch.cuda.set_device(device)  # what is started without a tensor goes there, too
        return cls(torch.device(device), precision)

    def autocast(self) -> AbstractContextManager:
        """The context in which networks are applied."""
        return torch.autocast(
            self.device.type, dtype=torch.bfloat16, enabled=self.precision == "bfloat16"
        )

    def in_parallel(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[Result]:
        """The function of every item, in order. A CPU runs as many at once as PyTorch has threads (at most
        `MOST_RUNS`), each on one core, so that results do not depend on their number; a GPU one. After an
        error or Ctrl-C nothing else begins, and what is under way still ends.
        """
        threads = torch.get_num_threads()
        if self.device.type != "cpu" or threads == 1:
            yield from map(function, items)
            return
        pool = ThreadPoolExecutor(min(threads, MOST_RUNS), "run", torch.set_num_threads, (1,))
        try:
            # what holds for the caller, such as who listens to progress, holds in the threads
            context = copy_context()
            yield from pool.map(lambda item: context.copy().run(function, item), items)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            torch.set_num_threads(threads)

    def forget_peak_memory(self) -> None:
        """Measure the peak anew from now on, where the system can (CUDA, Linux)."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # see proc(5)

    def peak_memory(self) -> int:
        """The most bytes held at once since `forget_peak_memory` or the start: by tensors on the GPU, or by
        this process on the CPU; 0 where the system does not say (Windows).
        """
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        with contextlib.suppress(OSError, StopIteration):
            lines = Path("/proc/self/status").read_text().splitlines()
            return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
        try:
            import resource
        except ImportError:
            return 0
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS: bytes

    def describe(self) -> dict[str, str | int]:
        """Return what a record says about the machine."""
        name = (
            torch.cuda.get_device_name(self.device)
            if self.device.type == "cuda"
            else platform.machine()
        )
        return {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "device": self.device.type,
            "device_name": name,
            "cpu": vectors(),
            "precision": self.precision,
            "threads": torch.get_num_threads(),
            "kernels": "eager",  # PyTorch's own; older records may have "fused"
            "platform": platform.system(),
        }
