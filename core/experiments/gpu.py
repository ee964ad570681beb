"""A look at a GPU in a few minutes: does every algorithm run there, how fast, and does it wait."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch

from core import algorithms
from core.errors import InputError
from core.experiments import profiles, queue
from core.experiments.record import REPOSITORY
from core.experiments.running import run
from core.federation import Runtime
from core.metrics import headline

#: share of the time after which no algorithm is begun any more, the tests are ended, and the benches
ALGORITHMS, TESTED, BENCHES = 0.35, 0.55, 0.85
#: what methods learn from that are not for classification
PIXELS: dict[str, dict[str, Any]] = {
    learns: {
        "dataset": dataset,
        "model": "unet",
        "model_options": {"width": 4},
        "partition": {"name": "natural"},
        "clients": clients,
    }
    for learns, dataset, clients in (
        ("segmentation", "nuclei_drawn", 4),
        ("reconstruction", "mri_drawn", 3),
    )
}
#: tests that run on a GPU where there is one
TESTS = REPOSITORY / "tests" / "test_same_on_a_gpu.py"
#: every bench, those first that take the least time
MEASURED = (
    *("condensation", "bilevel", "distillation", "local-training"),
    *("shadows", "clients", "run", "precision"),
)
#: runs a bench in a process of its own
MEASURE = """
import json, sys
from core.experiments.bench import BENCHES
from core.federation import Runtime
print(json.dumps(BENCHES[sys.argv[1]](Runtime.choose(*sys.argv[2:]))))
"""


def check(runtime: Runtime, minutes: float = 3.0) -> dict[str, Any]:
    """Run a small round of every algorithm, the tests of `TESTS`, benches and the beginning of one
    run at the paper's budget.

    What fails is told under its name and stops nothing else. Returns plain data: the machine; for
    each algorithm its seconds, accuracy and, on a GPU, how often the host waited for it; for each
    test, bench and the run what it gave; and a `summary`: how many of each were "ok", and which
    "failed" or were "cut" because their time was up.
    """
    start = time.monotonic()

    def left(share: float) -> float:
        return start + share * 60 * minutes - time.monotonic()

    found: dict[str, Any] = {"algorithms": {}, "tests": {}, "benches": {}}
    for name in algorithms.names():
        if left(ALGORITHMS) > 0:
            found["algorithms"][name] = _told(lambda: _small(name, runtime))  # noqa: B023
    if TESTS.exists() and left(TESTED) > 0:
        found["tests"] = _told(lambda: _tests(left(TESTED)), TESTS.name)
    for what in MEASURED:
        if left(BENCHES) > 0:
            found["benches"][what] = _told(lambda: _bench(what, runtime, left(BENCHES)))  # noqa: B023
    paper = _told(lambda: _paper(runtime, start + 60 * minutes))
    summary = {kind: _summary(each) for kind, each in (found | {"paper": {"run": paper}}).items()}
    found |= {"paper": paper, "summary": summary, "environment": runtime.describe()}
    return found | {"seconds": time.monotonic() - start}


def _told(work: Callable[[], dict[str, Any]], name: str | None = None) -> dict[str, Any]:
    """What `work` gives, or, under a name where it has one, how it failed: whatever goes wrong on a
    new machine is a finding.
    """
    try:
        return work()
    except subprocess.TimeoutExpired as late:
        found = {"cut": f"not done within {late.timeout:.0f} s"}
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}"}
    return found if name is None else {name: found}


def _summary(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """How many of these went well, and the names of those that did not or were cut short."""
    failed, cut = ([name for name in found if mark in found[name]] for mark in ("error", "cut"))
    return {"ok": len(found) - len(failed) - len(cut), "failed": failed, "cut": cut}


def _output(told: list[str], limit: float) -> str:
    """What a Python process prints that is ended, with all that it began, when its time is up.

    Raises TimeoutExpired then, and RuntimeError with its last line where it fails.
    """
    with subprocess.Popen(
        [sys.executable, *told],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, errors = process.communicate(timeout=limit)
        except BaseException:
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
            raise
    if process.returncode:
        raise RuntimeError((errors.strip() or said.strip() or "it said nothing").splitlines()[-1])
    return said


def _bench(what: str, runtime: Runtime, limit: float) -> dict[str, Any]:
    """What a bench measures."""
    return json.loads(_output(["-c", MEASURE, what, str(runtime.device), runtime.precision], limit))


def _tests(limit: float) -> dict[str, Any]:
    """How each test of `TESTS` ended, by its name."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        try:
            _output(["-m", "pytest", "-q", f"--junitxml={report}", str(TESTS)], limit)
        except RuntimeError:
            if not report.exists():
                raise
        cases = ElementTree.parse(report).iter("testcase")
        return {case.get("name", ""): _case(case) for case in cases}


def _case(case: ElementTree.Element) -> dict[str, Any]:
    """How long a test took, and what it failed with."""
    took: dict[str, Any] = {"seconds": float(case.get("time", 0))}
    wrong = [each.get("message", "") for kind in ("failure", "error") for each in case.iter(kind)]
    return took | ({"error": wrong[0]} if wrong else {})


def _small(name: str, runtime: Runtime) -> dict[str, Any]:
    """One round of an algorithm at the quick profile."""
    began = time.monotonic()
    fields = {"algorithm": name, "rounds": 1} | PIXELS.get(algorithms.find(name).serves()[0], {})
    with _waits(runtime) as waits:
        record = run(profiles.apply("quick", fields), runtime=runtime)
    name = headline(record.metrics) or "accuracy"
    found = {"seconds": time.monotonic() - began, name: record.metrics[name]}
    return found | ({"waits": len(waits)} if runtime.device.type == "cuda" else {})


@contextlib.contextmanager
def _waits(runtime: Runtime) -> Iterator[list[Any]]:
    """Gather a warning for every time that the host waits for the GPU."""
    on_gpu = runtime.device.type == "cuda"
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        if on_gpu:
            torch.cuda.set_sync_debug_mode("warn")
        waits: list[Any] = []
        try:
            yield waits
        finally:
            if on_gpu:
                torch.cuda.set_sync_debug_mode("default")
            waits += [one for one in seen if "synchroniz" in str(one.message)]


def _paper(runtime: Runtime, deadline: float) -> dict[str, Any]:
    """The most urgent run at the paper's budget whose data are here: one round of it at least, more
    until the deadline.
    """
    items = [item for item in queue.pending("paper") if not item.missing]
    if not items:
        raise InputError("no run at the paper's budget can be begun here: data are missing")
    record = run(items[0].experiment, runtime=runtime, deadline=deadline)
    return {
        "cell": items[0].cells[0],
        "rounds": len(record.rounds),
        "of": items[0].experiment.rounds,
        "seconds": record.seconds,
        "peak_memory": record.peak_memory,
    }
