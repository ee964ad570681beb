"""A run that is killed at any moment and started again leaves the record of a run that was not.

`python -m tests.e2e.kills 500` kills at many more of the named points.
"""

import json
import os
import random
import time
from pathlib import Path

import pytest

from lab.__main__ import main
from tests.e2e import kills

KILLS = 6


@pytest.fixture(scope="module")
def processes():
    return kills.processes()


def quietly(arguments: list[str], held: int) -> None:
    """What a process does: the command line, with one thread and nothing printed, and so many bytes
    held beside it.
    """
    import torch

    ballast = b"x" * held
    torch.set_num_threads(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    raise SystemExit(main(arguments) + len(ballast) - held)


def start(processes, out: Path, held: int = 0):
    process = processes.Process(target=quietly, args=([*kills.COMMAND, "--out", str(out)], held))
    process.start()
    return process


def record_in(out: Path) -> dict:
    (path,) = (out / "adhoc").glob("*.json")
    return json.loads(path.read_text())


def rounds_done(out: Path) -> int:
    """Rounds in the record so far; a record is always whole, never half written."""
    found = list((out / "adhoc").glob("*.json"))
    return len(json.loads(found[0].read_text())["rounds"]) if found else 0


def test_the_record_is_the_same_bit_for_bit_after_kills_at_many_moments(processes, tmp_path):
    """SIGKILL at random moments, each after some progress; the moments need not repeat, the record
    must. The first process holds 256 MB more than the others, which the record remembers.
    """
    whole = start(processes, tmp_path / "whole")
    whole.join(100)
    assert whole.exitcode == 0
    draw, killed, out = random.Random(0), 0, tmp_path / "killed"
    for part in range(KILLS):
        held = 0 if part else 2**28
        process, before = start(processes, out, held), rounds_done(out)
        while process.is_alive() and rounds_done(out) == before:
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.03))
        killed += process.is_alive()
        process.kill()
        process.join()
    last = start(processes, out)
    last.join(100)
    assert last.exitcode == 0
    assert killed >= 3, "the run was too short to be killed often"
    assert kills.result(out) == kills.result(tmp_path / "whole")
    more = record_in(out)["peak_memory"] - record_in(tmp_path / "whole")["peak_memory"]
    assert 2**27 < more < 2**29
    assert not list((out / "checkpoints").glob("*.safetensors"))


@pytest.mark.timeout(600)
def test_killed_at_any_point_and_gone_on_is_the_same_record_bit_for_bit(processes, tmp_path):
    done = kills.kill_often(processes, 30, tmp_path)
    assert sum(done.values()) == 30 and sum(count > 0 for count in done.values()) >= 6, done
