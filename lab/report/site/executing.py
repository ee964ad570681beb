"""All notebooks of the book, executed by papermill: what nothing has changed since is kept.

Kernels are copies of one process that has imported PyTorch and this package: on its own each would
spend seconds of processor time on imports.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

from core import data
from lab.report import notebooks

#: what executed notebooks depend on, beside their own text, and what of it no notebook reads
SURROUNDINGS = (
    *("requirements.lock", "core/**/*.py", "lab/**/*.py", "lab/**/*.css", "book/*.yaml"),
    *("book/tables/**/*", "book/results/**/*", "book/claims/*", "book/bench/*"),
)
APART = ("lab/cli", "lab/flower", "lab/ray", "lab/report/site", "book/results/adhoc")
#: copies of a process are safe on Linux; elsewhere a library's threads may be missing in them
COPIED = sys.platform == "linux"
PROCESSES: Any = multiprocessing.get_context("forkserver" if COPIED else "spawn")
#: what the notebooks import, by name or on the way of training
PRELOADED = [
    *("lab.report", "lab.running", "ipykernel.kernelapp", "scipy.stats", "seaborn"),
    *("sklearn.datasets", "sklearn.metrics", "torch._dynamo", __name__),
]


def surroundings() -> str:
    """Hash of what notebooks depend on: code, tables, records, claims, data at hand, Python."""
    root = notebooks.ROOT
    digest = hashlib.sha256(f"{sys.version}{sorted(data.present_names())}".encode())
    for file in sorted(file for pattern in SURROUNDINGS for file in root.glob(pattern)):
        inside = file.relative_to(root)
        if file.is_file() and not any(inside.is_relative_to(part) for part in APART):
            digest.update(f"{inside}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def key(source: Path, around: str) -> str:
    """Hash a notebook's text and its surroundings: what its outputs follow from."""
    return hashlib.sha256(f"{around}{notebooks.paired(source)}".encode()).hexdigest()


def keep(executed: Path, key: str, seconds: float) -> None:
    """Note of an executed notebook what it followed from, and how long it took."""
    executed.with_suffix(".json").write_text(json.dumps({"key": key, "seconds": seconds}))


def note(executed: Path) -> dict[str, Any]:
    """Return what was noted of an executed notebook; an empty key where nothing was."""
    stamp = executed.with_suffix(".json")
    noted = executed.is_file() and stamp.is_file()
    return json.loads(stamp.read_text()) if noted else {"key": "", "seconds": 0.0}


def execute_all(sources: Iterable[Path], folder: Path, jobs: int = 2) -> list[Path]:
    """Execute notebooks at their defaults, some at a time, where something changed; the .ipynb files in the
    order of `sources`. InputError, naming it, where one fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    targets = {source: folder / f"{source.stem}.ipynb" for source in sources}
    around = surroundings()

    def execute(source: Path) -> str:
        target, wanted = targets[source], key(source, around)
        if note(target)["key"] == wanted:
            return f"  {source.stem}: unchanged"
        target.with_suffix(".json").unlink(missing_ok=True)
        started = time.perf_counter()
        with kernel(source.parent) as manager:
            notebooks.execute(notebooks.read(source), source, target, {}, manager)
        seconds = time.perf_counter() - started
        keep(target, wanted, seconds)
        return f"  {source.stem}: {seconds:.0f} s"

    environment = {
        **notebooks.environment(),
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs)),
        "TQDM_DISABLE": "1",
        # as every kernel has it; matplotlib reads it when it is imported
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }
    # papermill changes this process's folder for kernels of its own
    with patch.dict(os.environ, environment), ThreadPoolExecutor(jobs if COPIED else 1) as pool:
        for line in pool.map(execute, targets):
            print(line, flush=True)
    return list(targets.values())


@contextlib.contextmanager
def kernel(folder: Path) -> Iterator[Any]:
    """A new kernel that works in a folder and ends with the context, as a manager for papermill, which
    neither starts nor ends it. None where kernels are no copies: papermill starts its own there.
    """
    if not COPIED:
        yield None
        return
    from jupyter_client.connect import write_connection_file
    from jupyter_client.manager import AsyncKernelManager

    PROCESSES.set_forkserver_preload(PRELOADED)
    clients = []

    class Running(AsyncKernelManager):
        has_kernel = True

        def client(self, **options: Any) -> Any:
            clients.append(super().client(**options))
            return clients[-1]

        async def _async_is_alive(self) -> bool:
            return process.is_alive()

    with tempfile.TemporaryDirectory() as place:
        # sockets in a folder of its own: a free port may be somebody else's before a kernel has it
        connection, _ = write_connection_file(
            str(Path(place, "kernel.json")), ip=str(Path(place, "kernel")), transport="ipc"
        )
        process = PROCESSES.Process(target=_serve, args=(connection, folder))
        process.start()
        manager = Running(connection_file=connection)
        manager.load_connection_file()
        try:
            yield manager
        finally:
            for client in clients:
                client.stop_channels()
            process.kill()
            process.join()


def _serve(connection: str, folder: Path) -> None:
    """Be a kernel until the process that asked for it ends."""
    import pandas as pd
    from ipykernel.kernelapp import launch_new_instance

    def end_with(parent: Any) -> None:
        parent.join()
        os._exit(1)

    parent = multiprocessing.parent_process()
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()
    os.chdir(folder)
    # pandas has looked for a notebook when it was imported
    pd.set_option("display.max_columns", 20)
    quiet = ["--log-level=CRITICAL", "--HistoryManager.enabled=False"]
    launch_new_instance(["-f", connection, *quiet])
