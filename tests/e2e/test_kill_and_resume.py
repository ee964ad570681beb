"""A run that is killed at any moment and started again leaves the record of a run that was not."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "core", "run", "--algorithm", "fedavgm", "--dataset", "digits", "--alpha", "0.5",
           "--clients", "4", "--active", "3", "--rounds", "12", "--set", "local_steps=3", "--model-set", "width=8",
           "--profile", "quick", "--device", "cpu"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def start(out: Path) -> subprocess.Popen:
    return subprocess.Popen([*COMMAND, "--out", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                            env=ENVIRONMENT)


def result(out: Path) -> dict:
    (path,) = (out / "adhoc").glob("*.json")
    record = json.loads(path.read_text())
    for row in record["rounds"]:
        row["seconds"] = None  # the only thing that may differ
    return record


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[dict, float]:
    out = tmp_path_factory.mktemp("whole")
    began = time.monotonic()
    assert start(out).wait(120) == 0
    return result(out), time.monotonic() - began


def test_the_record_is_the_same_bit_for_bit_after_kills_at_many_moments(whole, tmp_path):
    """Kills at random moments after the first checkpoint shows; the moments need not repeat, the record must."""
    expected, seconds = whole
    draw, kills, finished = random.Random(0), 0, False
    while not finished:
        process = start(tmp_path)
        before = rounds_done(tmp_path)
        while kills < 8 and process.poll() is None and rounds_done(tmp_path) == before:
            time.sleep(0.002)
        if kills < 8 and process.poll() is None:
            time.sleep(draw.uniform(0, 0.05))
            process.send_signal(signal.SIGKILL)
            kills += 1
        finished = process.wait(120) == 0
    assert kills >= 3, "the run was too short to be killed often"
    assert result(tmp_path) == expected
    assert not list((tmp_path / "checkpoints").glob("*"))


def rounds_done(out: Path) -> int:
    """Rounds in the record so far; a record is always whole, never half written."""
    found = list((out / "adhoc").glob("*.json"))
    return len(json.loads(found[0].read_text())["rounds"]) if found else 0
