"""Kernels that are copies of a process: they behave like kernels of their own, and none is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from core.errors import InputError
from lab.report import notebooks
from lab.report.site import executing, kernels

pytest.importorskip("papermill")
pytest.importorskip("jupytext")

TEXT = """# %%
import os
import sys

import pandas as pd
import torch
from IPython.display import display

assert "notebook_that_marks" not in os.environ
os.environ["notebook_that_marks"] = "here"
print(os.path.basename(os.getcwd()), torch.__name__, sys.modules["__main__"].__name__)

# %%
display(pd.DataFrame([range(24)]))

# %%
import matplotlib.pyplot as plt

figure = plt.plot([0, 1])

# %%
print(plt.get_backend())

# %%
import multiprocessing

process = multiprocessing.get_context("spawn").Process(target=len, args=([],))
process.start()
process.join()
print(process.exitcode)
"""


def outputs(path: Path) -> list:
    """What the cells gave, one after the other; printed text may come in parts, so it is put together."""
    found = []
    for cell in json.loads(path.read_text())["cells"]:
        each = cell.get("outputs", [])
        found += [sorted(one["data"].items()) for one in each if "data" in one]
        printed = "".join(line for one in each for line in one.get("text", []))
        found += [printed] if printed else []
    return found


@pytest.fixture
def sources(tmp_path):
    paths = [tmp_path / f"{name}.py" for name in ("one", "two")]
    for path in paths:
        path.write_text(TEXT)
    return paths


def test_a_copy_gives_what_a_kernel_of_its_own_gives(sources, tmp_path):
    """And the second notebook finds nothing of the first."""
    alone = notebooks.run_notebook(sources[0], {}, tmp_path / "alone.ipynb")
    before = dict(os.environ)
    copies = executing.execute_all(sources, tmp_path / "executed", jobs=1)
    assert dict(os.environ) == before
    assert outputs(copies[0]) == outputs(copies[1])
    assert len(outputs(alone)) == 5
    assert outputs(copies[0]) == outputs(alone)


def test_a_kernel_that_dies_is_told_by_name(tmp_path):
    path = tmp_path / "dies.py"
    path.write_text("# %%\nimport os\n\nos._exit(1)\n")
    with pytest.raises(InputError, match=r"dies.py stopped: its kernel died"):
        executing.execute_all([path], tmp_path / "executed")


@pytest.mark.skipif(not kernels.COPIED, reason="kernels are no copies on this system")
def test_no_kernel_outlives_who_asked_for_it():
    code = (
        "import asyncio, pathlib, time\n"
        "from lab.report.site import kernels\n"
        "with kernels.kernel(pathlib.Path('.')) as (connection, process):\n"
        "    with kernels.manager(connection, process) as found:\n"
        "        client = found.client()\n"
        "        client.start_channels()\n"
        "        asyncio.run(client.wait_for_ready(60))\n"
        "        print(process, flush=True)\n        time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as asking:
        kernel = int(asking.stdout.readline())
        os.kill(kernel, 0)
        asking.send_signal(signal.SIGKILL)
    for _ in range(100):
        if not Path(f"/proc/{kernel}").exists():
            break
        time.sleep(0.1)
    assert not Path(f"/proc/{kernel}").exists()


@pytest.mark.skipif(not kernels.COPIED, reason="kernels are no copies on this system")
def test_kernels_share_no_socket_and_clients_are_closed():
    """A heartbeat that went on after its notebook reached the next kernel that had its port."""
    with kernels.kernel(Path()) as one, kernels.kernel(Path()) as two:
        places = [json.loads(Path(connection).read_text()) for connection, _ in (one, two)]
        assert {place["transport"] for place in places} == {"ipc"}
        assert places[0]["ip"] != places[1]["ip"]
        with kernels.manager(*one) as found:
            client = found.client()
            client.start_channels()
            assert client.channels_running
            # its thread makes the socket; where the client is closed before that, the thread fails
            deadline = time.monotonic() + 20
            while client.hb_channel.socket is None and time.monotonic() < deadline:
                time.sleep(0.01)
            assert client.hb_channel.socket is not None
        assert not client.channels_running
