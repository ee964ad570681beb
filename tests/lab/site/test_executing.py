"""Executed notebooks: kept until something changes, in kernels that are copies of a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.report import notebooks
from lab.report.site import executing

pytest.importorskip("papermill")
pytest.importorskip("jupytext")
copied = pytest.mark.skipif(not executing.COPIED, reason="kernels are no copies on this system")

TEXT = """# %%
import os
import sys

import pandas as pd
from IPython.display import display

assert "notebook_that_marks" not in os.environ
os.environ["notebook_that_marks"] = "here"
print(os.path.basename(os.getcwd()), sys.modules["__main__"].__name__)

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
    """What the cells gave; printed text may come in parts, so it is put together."""
    found = []
    for cell in json.loads(path.read_text())["cells"]:
        found += [sorted(one["data"].items()) for one in cell["outputs"] if "data" in one]
        printed = "".join(line for one in cell["outputs"] for line in one.get("text", []))
        found += [printed] if printed else []
    return found


def test_a_copy_gives_what_a_kernel_of_its_own_gives(tmp_path):
    """And the second notebook finds nothing of the first."""
    sources = [tmp_path / "one.py", tmp_path / "two.py"]
    for source in sources:
        source.write_text(TEXT)
    alone = notebooks.run_notebook(sources[0], {}, tmp_path / "alone.ipynb")
    before = dict(os.environ)
    copies = executing.execute_all(sources, tmp_path / "executed", jobs=1)
    assert dict(os.environ) == before
    assert len(outputs(alone)) == 5
    assert outputs(copies[0]) == outputs(copies[1]) == outputs(alone)


@copied
def test_no_kernel_outlives_who_asked_for_it():
    code = (
        "import multiprocessing, pathlib, time\n"
        "from lab.report.site import executing\n"
        "executing.PRELOADED.clear()\n"
        "with executing.kernel(pathlib.Path('.')):\n"
        "    (process,) = multiprocessing.active_children()\n"
        "    print(process.pid, flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as asking:
        kernel = int(asking.stdout.readline())
        os.kill(kernel, 0)
        asking.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{kernel}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{kernel}").exists()


@copied
def test_kernels_share_no_socket_and_clients_are_closed():
    """A heartbeat that went on after its notebook reached the next kernel that had its port."""
    with executing.kernel(Path()) as one, executing.kernel(Path()) as two:
        assert one.transport == two.transport == "ipc" and one.ip != two.ip
        client = one.client()
        client.start_channels()
        deadline = time.monotonic() + 20  # a thread makes the socket; closed before, it fails
        while client.hb_channel.socket is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert client.channels_running
    assert not client.channels_running


def test_an_executed_notebook_is_kept_until_something_changes(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    tiny.write_text("# %%\nprint(41 + 1)\n")
    (first,) = executing.execute_all([tiny], tmp_path / "executed")
    stamp = first.stat().st_mtime_ns
    assert "42" in first.read_text() and executing.note(first)["seconds"] > 0
    executing.execute_all([tiny], tmp_path / "executed")
    assert first.stat().st_mtime_ns == stamp
    tiny.write_text("# %%\nprint(42 + 1)\n")
    executing.execute_all([tiny], tmp_path / "executed")
    assert "43" in first.read_text()


READ = (
    "book/results/fedvck/0123.json",
    "book/conclusions.yaml",
    "core/rng.py",
    "requirements.lock",
)
UNREAD = ("book/results/adhoc/0123.json", "lab/cli/tools.py", "book/intro.md")


@pytest.mark.parametrize("name", [*READ, *UNREAD])
def test_the_key_knows_what_pages_read(tmp_path, monkeypatch, name):
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    before = executing.surroundings()
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("{}")
    assert (executing.surroundings() != before) == (name in READ)


def test_the_key_knows_the_data_and_the_text(tiny, monkeypatch):
    before = executing.surroundings(), executing.key(tiny, "here")
    monkeypatch.setattr(executing.data, "present_names", lambda: ["digits", "new"])
    tiny.write_text(f"{TEXT}\n1\n")
    assert executing.surroundings() != before[0]
    assert executing.key(tiny, "here") != before[1]
