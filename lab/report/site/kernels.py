"""Kernels that start at once: copies of one process that has imported PyTorch and `core`.

A kernel of its own spends seconds of processor time on imports, in every notebook again.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab.report.notebooks import inherited

#: copies of a process are safe on Linux; elsewhere a library's threads may be missing in them
COPIED = sys.platform == "linux"
PROCESSES: Any = multiprocessing.get_context("forkserver" if COPIED else "spawn")
#: what the notebooks import, by name or on the way of training, and the process that runs papermill
PRELOADED = [
    __name__,
    "lab.running",
    "lab.report",
    "ipykernel.kernelapp",
    "matplotlib.pyplot",
    "papermill",
    "scipy.stats",
    "sklearn.datasets",
    "sklearn.metrics",
    "torch._dynamo",
]


@contextlib.contextmanager
def environment(threads: int) -> Iterator[None]:
    """Within it new kernels find their number of threads, the data, no progress bars, and figures in
    cells.
    """
    from core.data.roots import data_root

    given = {
        "FEDCON_DATA": str(data_root().resolve()),
        "OMP_NUM_THREADS": str(threads),
        "TQDM_DISABLE": "1",
        # as every kernel has it; matplotlib reads it when it is imported
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }
    if COPIED:
        PROCESSES.set_forkserver_preload(PRELOADED)
    with inherited(given):
        yield


@contextlib.contextmanager
def kernel(folder: Path) -> Iterator[tuple[str, int] | None]:
    """A new kernel that works in a folder and ends with the context, as the arguments of `manager`.

    None where kernels are no copies: papermill starts its own there.
    """
    if not COPIED:
        yield None
        return
    from jupyter_client.connect import write_connection_file

    with tempfile.TemporaryDirectory() as place:
        # sockets in a folder of its own: a free port may be somebody else's before a kernel has it
        connection, _ = write_connection_file(
            str(Path(place, "kernel.json")), ip=str(Path(place, "kernel")), transport="ipc"
        )
        process = PROCESSES.Process(target=_serve, args=(connection, folder))
        process.start()
        try:
            yield connection, process.pid
        finally:
            process.kill()
            process.join()


@contextlib.contextmanager
def manager(connection: str, process: int) -> Iterator[Any]:
    """Of a kernel that runs already, for papermill: it neither starts nor ends the kernel. Clients that
    it made are closed with the context; who is given a manager leaves that to its owner.
    """
    from jupyter_client.manager import AsyncKernelManager

    clients = []

    class Running(AsyncKernelManager):
        has_kernel = True

        def client(self, **options: Any) -> Any:
            clients.append(super().client(**options))
            return clients[-1]

        async def _async_is_alive(self) -> bool:
            # what a client asks while it waits
            return Path(f"/proc/{process}").exists()

    found = Running(connection_file=connection)
    found.load_connection_file()
    try:
        yield found
    finally:
        for client in clients:
            client.stop_channels()


def _serve(connection: str, folder: Path) -> None:
    """Be a kernel until the process that asked for it ends."""
    import pandas as pd
    from ipykernel.kernelapp import launch_new_instance

    threading.Thread(
        target=_end_with, args=(multiprocessing.parent_process(),), daemon=True
    ).start()
    os.chdir(folder)
    # pandas has looked for a notebook when it was imported
    pd.set_option("display.max_columns", 20)
    quiet = ["--log-level=CRITICAL", "--HistoryManager.enabled=False"]
    launch_new_instance(["-f", connection, *quiet])


def _end_with(process: Any) -> None:
    process.join()
    os._exit(1)
