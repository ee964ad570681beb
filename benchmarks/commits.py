"""The package beside itself at an earlier commit: in pairs in one run, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import trange

from benchmarks.timing import compared
from core.errors import InputError
from core.federation import Runtime
from lab.record import REPOSITORY

#: pairs, and how often each process does the work; the fastest counts
PAIRS, REPEATS = 5, 5
#: how much there is to do, by the bench whose work it is: constants of its module
SIZES = {
    "condensation": {
        "CLIENTS": 5,
        "CLASSES": 2,
        "PER_GROUP": 30,
        "CONDENSED": 6,
        "REAL_BATCH": 30,
        "ITERATIONS": 10,
    },
    "local-training": {"STEPS": 3, "BATCH": 64},
}


def measure(what: str, revision: str, runtime: Runtime) -> dict[str, Any]:
    """Pieces of work an hour at that commit and now, and the ratio of their times (on a CPU processor
    time) pair by pair.

    Raises InputError for a bench that is not of this kind, for a commit that git does not find here,
    and where the package of that commit cannot do the work.
    """
    if what not in SIZES:
        raise InputError(f"--against-commit is for {' and '.join(SIZES)}, not for {what!r}")
    try:
        commit = _git("rev-parse", "--short", "--verify", f"{revision}^{{commit}}").decode().strip()
    except InputError:
        raise InputError(f"git finds no such commit here: {revision}") from None
    given = {
        "bench": what,
        "sizes": SIZES[what],
        "device": str(runtime.device),
        "precision": runtime.precision,
        "threads": torch.get_num_threads(),
        "repeats": REPEATS,
    }
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=BytesIO(_git("archive", commit, "core"))) as archive:
            archive.extractall(folder, filter="data")
        trees = Path(folder), REPOSITORY
        pairs = [
            [_seconds(tree, given) for tree in trees]
            for _ in trange(PAIRS, unit="pair", leave=False)
        ]
    then, now = zip(*pairs, strict=True)
    told = ", ".join(
        f"{name.lower().replace('_', ' ')} {size}" for name, size in SIZES[what].items()
    )
    return {
        "what": f"now beside commit {commit}, by processor time on a CPU: 3x32x32, {told}",
        "unit": "runs/hour",
        "contestants": compared({commit: then, "now": now}, beside=commit),
    }


def _seconds(tree: Path, given: dict[str, Any]) -> float:
    """How long the work takes by the package in that folder."""
    script = Path(__file__).with_name("one_step.py")
    ran = subprocess.run(
        [sys.executable, "-P", str(script), json.dumps(given)],
        env=os.environ | {"PYTHONPATH": str(tree)},
        cwd=tree,
        capture_output=True,
        text=True,
    )
    if ran.returncode:
        said = (ran.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise InputError(f"the package of that commit cannot do this work: {said}")
    return float(ran.stdout)


def _git(*told: str) -> bytes:
    """What git answers."""
    try:
        return subprocess.run(
            ["git", "-C", str(REPOSITORY), *told], check=True, capture_output=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        raise InputError(f"git cannot do this here: git {' '.join(told)}") from None
