"""A run that is killed at any point and started again leaves the record of a run that was not."""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.forkserver
import os
import pkgutil
import random
import re
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

COMMAND = shlex.split(
    "run --algorithm fedavgm --dataset digits --alpha 0.5 --clients 4 --active 3 --rounds 9 "
    "--set local_steps=3 --model-set width=8 --profile quick --device cpu"
)
#: points of a run, by name: a function, whether the kill comes before or after it, and the last of
#: its calls that a process comes by
POINTS = {
    "before the data are loaded": ("core.data:load", "before", 1),
    "before a round": ("core.federation.algorithm:Algorithm.round", "before", 6),
    "after a client": ("core.baselines.fedavg:FedAvg.answer", "after", 6),
    "before uploads are looked at": ("core.federation.algorithm:Algorithm.validate", "before", 6),
    "after the server": ("core.baselines.fedavgm:FedAvgM.server_update", "after", 6),
    "before a test": ("core.federation.task:Task.evaluate", "before", 6),
    "before a file is written": ("core.files:write_whole", "before", 6),
    "after a checkpoint is written beside its place": ("core.files:create", "after", 6),
    "between a file and its place": ("pathlib:Path.replace", "before", 6),
    "after a file is in its place": ("pathlib:Path.replace", "after", 6),
    "before a file is removed": ("pathlib:Path.unlink", "before", 1),
    "after a file is removed": ("pathlib:Path.unlink", "after", 1),
}


def _quietly(out: str, point: str | None, count: int) -> None:
    """The command line, in a process that kills itself when it comes by the point so often."""
    import torch

    from lab.__main__ import main

    torch.set_num_threads(1)
    said = os.open(f"{out}.said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    if point:
        where, when, _ = POINTS[point]
        owner, name = re.split(r"[.:](?=\w+$)", where)
        _mine(pkgutil.resolve_name(owner), name, when, count)
    raise SystemExit(main([*COMMAND, "--out", out]))


def _mine(owner: Any, name: str, when: str, count: int) -> None:
    """Have a function kill this process at its count-th call."""
    true, calls = getattr(owner, name), 0

    def killing(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = true(*given, **named)
        if calls == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    for module in [owner, *(m for n, m in list(sys.modules.items()) if n.startswith("core"))]:
        if getattr(module, name, None) is true:
            setattr(module, name, killing)


#: what a run imports, on its way or at its end
PRELOADED = [
    *("lab.__main__", "lab.report", "lab.queue", "core.baselines.fedavgm", "torch._dynamo"),
    *("sklearn.datasets", "sklearn.metrics", "rich.table", "pydantic", "filelock", "pytest"),
]


def processes() -> Any:
    """Processes that start with the package loaded, so that a kill costs no second import.

    They come from a server of their own: one that another test left has less loaded, and keeps it so.
    """
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def result(out: Path) -> dict[str, Any]:
    """The record, without what may differ: the time and the memory that a run took."""
    (path,) = (out / "adhoc").glob("*.json")
    record = json.loads(path.read_text())
    assert record.pop("peak_memory") > 0
    for row in record["rounds"]:
        row["seconds"] = None
    return record


def run(context: Any, out: Path, point: str | None = None, count: int = 0) -> bool:
    """One process, to its end. Returns whether it was killed; raises AssertionError where it failed
    otherwise.
    """
    process = context.Process(target=_quietly, args=(str(out), point, count))
    process.start()
    process.join(200)
    if process.exitcode not in (0, -signal.SIGKILL):
        said = Path(f"{out}.said").read_text()[-1000:]
        raise AssertionError(f"{point}, call {count}: exit {process.exitcode}: {said}")
    return process.exitcode != 0


@pytest.mark.timeout(600)
def test_killed_at_any_point_and_gone_on_is_the_same_record_bit_for_bit(tmp_path):
    """Once at every point, in an order and at calls drawn at random; each run goes on until it is
    complete, and leaves no checkpoint.
    """
    draw, left, runs, context = random.Random(0), sorted(POINTS), 0, processes()
    draw.shuffle(left)
    assert not run(context, tmp_path / "whole")
    whole = result(tmp_path / "whole")
    while left:
        out, runs = tmp_path / f"killed{runs}", runs + 1
        # early calls, so that a run is killed many times before it is complete
        while left and run(context, out, left[-1], draw.randint(1, POINTS[left[-1]][2])):
            left.pop()
        run(context, out)
        assert result(out) == whole
        # nor a file that a writer was at
        files = [path for path in (out / "checkpoints").rglob("*") if path.is_file()]
        assert {path.suffix for path in files} <= {".lock"}
        assert [path.suffix for path in (out / "adhoc").iterdir()] == [".json"]
    assert runs < len(POINTS) / 2  # most were killed more than once
