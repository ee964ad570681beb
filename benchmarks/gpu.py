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
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch
from tqdm.auto import tqdm

from core import algorithms, replay
from core.data.drawn import ALWAYS_HERE
from core.federation import Runtime
from core.metrics import headline
from lab import profiles, queue
from lab.experiment import Experiment
from lab.record import REPOSITORY
from lab.running import run

#: share of the time after which no algorithm is begun any more, the tests are ended, and the benches
ALGORITHMS, TESTED, BENCHES = 0.35, 0.55, 0.85
#: what methods learn from that are not for classification
PIXELS: dict[str, dict[str, Any]] = {
    learns: {
        "dataset": ALWAYS_HERE[learns],
        "model": "unet",
        "model_options": {"width": 4},
        "partition": {"name": "natural"},
        "clients": clients,
    }
    for learns, clients in (("segmentation", 4), ("reconstruction", 3))
}
#: tests that run on a GPU where there is one
TESTS = REPOSITORY / "tests" / "test_same_on_a_gpu.py"
#: every bench, those first that take the least time
MEASURED = (
    *("condensation", "bilevel", "distillation", "local-training"),
    *("shadows", "clients", "run", "precision"),
)
#: a check's bar: its parts take so different times that the rest cannot be told
BAR = "{desc}: part {n_fmt} of {total_fmt} |{bar}| {elapsed}"
#: runs every algorithm in a process of its own, which says of each what it gave once it has ended
EACH = """
import sys
from benchmarks.gpu import every_algorithm
from core.federation import Runtime
every_algorithm(Runtime.choose(*sys.argv[1:]))
"""
#: runs a bench in a process of its own
MEASURE = """
import json, sys
from benchmarks import BENCHES
from core.federation import Runtime
print(json.dumps(BENCHES[sys.argv[1]](Runtime.choose(*sys.argv[2:]))))
"""


def check(
    runtime: Runtime, minutes: float = 3.0, keep: Callable[[dict[str, Any]], None] = lambda _: None
) -> dict[str, Any]:
    """Run a small round of every algorithm, the tests of `TESTS`, benches and the beginning of one
    run at the paper's budget.

    What fails is told under its name and stops nothing else; nor does what never ends, as all but the
    last part runs in processes that are ended when their time is up. `keep` is given what is found so
    far after every part: a machine that is lent may be taken back before the end.

    Returns plain data: the machine; for each algorithm its seconds, accuracy and, on a GPU, how often
    the host waited for it; for each test, bench and the run what it gave; and a `summary`: how many
    of each were "ok", and which "failed", were "skipped", or were "cut" because their time was up.
    """
    start = time.monotonic()
    found: dict[str, Any] = {"environment": runtime.describe(), "summary": {}}

    def left(share: float) -> float:
        return start + share * 60 * minutes - time.monotonic()

    def add(kind: str, part: dict[str, Any]) -> None:
        found[kind] = part["run"] if kind == "paper" else part
        found["summary"][kind], found["seconds"] = _summary(part), time.monotonic() - start
        keep(found)

    with tqdm(total=3 + len(MEASURED), bar_format=BAR, leave=False) as bar:

        def timed(what: str, share: float, work: Callable[[float], dict[str, Any]]) -> dict:
            """A part, where there is time to begin it."""
            bar.set_description(what)
            part = work(left(share)) if left(share) > 0 else {}
            bar.update()
            return part

        add("algorithms", timed("algorithms", ALGORITHMS, partial(_algorithms, runtime)))
        add("tests", timed("tests", TESTED, _tests))
        add("benches", benches := dict[str, Any]())
        for what in MEASURED:
            if one := timed(what, BENCHES, partial(_bench, what, runtime)):
                add("benches", benches := benches | {what: one})
        bar.set_description("a run")
        add("paper", {"run": _told(lambda: _paper(runtime, start + 60 * minutes))})
    return found


def _told(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `work` gives, or how it failed: whatever goes wrong on a new machine is a finding."""
    try:
        return work()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _summary(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """How many of these went well, and the names of those that did not, by how they ended."""
    marks = {"failed": "error", "skipped": "skipped", "cut": "cut"}
    rest = {how: [name for name in found if mark in found[name]] for how, mark in marks.items()}
    return {"ok": len(found) - sum(map(len, rest.values())), **rest}


def _output(told: list[str], limit: float) -> tuple[str, dict[str, str]]:
    """What a Python process prints that is ended, with all that it began, when its time is up; and
    that it was "cut" then, or with which "error" it failed.
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
        except subprocess.TimeoutExpired:
            _end(process)
            return process.communicate()[0], {"cut": f"not done within {limit:.0f} s"}
        except BaseException:
            _end(process)
            raise
    last = (errors.strip() or said.strip() or "it said nothing").splitlines()[-1]
    return said, {"error": f"status {process.returncode}: {last}"} if process.returncode else {}


def _end(process: subprocess.Popen[str]) -> None:
    """End a process and all that it began."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


def _algorithms(runtime: Runtime, limit: float) -> dict[str, Any]:
    """What a round of each algorithm gave that was begun in time; the last one may have been cut."""
    said, wrong = _output(["-c", EACH, str(runtime.device), runtime.precision], limit)
    found: dict[str, Any] = {}
    for line in said.splitlines():
        # what a library prints, or half a line of a process that was ended, is no answer
        with contextlib.suppress(ValueError, TypeError):
            found |= json.loads(line)
    under_way = next((name for name in algorithms.names() if name not in found), None)
    return found | ({under_way or "the process": wrong} if wrong else {})


def every_algorithm(runtime: Runtime) -> None:
    """Run a round of each algorithm at the quick profile, and print of each one line of JSON."""
    replay.WORTH = 1  # these few steps are replayed as many are
    for name in algorithms.names():
        found = _told(lambda: _small(name, runtime))  # noqa: B023
        print(json.dumps({name: found}), flush=True)


def _bench(what: str, runtime: Runtime, limit: float) -> dict[str, Any]:
    """What a bench measures."""
    said, wrong = _output(["-c", MEASURE, what, str(runtime.device), runtime.precision], limit)
    return wrong or _told(lambda: json.loads(said))


def _tests(limit: float) -> dict[str, Any]:
    """How each test of `TESTS` ended, by its name; under that of the file, why none could be run.
    Nothing where the tests are not there.
    """
    if not TESTS.exists():
        return {}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        wrong = _output(["-m", "pytest", "-q", f"--junitxml={report}", str(TESTS)], limit)[1]
        if not report.exists():
            return {TESTS.name: wrong}
        cases = ElementTree.parse(report).iter("testcase")
        return {case.get("name", ""): _case(case) for case in cases}


def _case(case: ElementTree.Element) -> dict[str, Any]:
    """How long a test took, and what it failed with, or why it was skipped."""
    found: dict[str, Any] = {"seconds": float(case.get("time", 0))}
    for kind, mark in (("failure", "error"), ("error", "error"), ("skipped", "skipped")):
        if (each := case.find(kind)) is not None:
            return found | {mark: each.get("message", "")}
    return found


def small(name: str) -> Experiment:
    """One round of an algorithm at the quick profile."""
    fields = {"algorithm": name, "rounds": 1} | PIXELS.get(algorithms.find(name).serves()[0], {})
    return profiles.apply("quick", fields)


def _small(name: str, runtime: Runtime) -> dict[str, Any]:
    """How such a round went."""
    began = time.monotonic()
    with _waits(runtime) as waits:
        record = run(small(name), runtime=runtime)
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
    until the deadline. Where data are missing it is "skipped".
    """
    items = [item for item in queue.pending("paper") if not item.missing]
    if not items:
        return {"skipped": "no run at the paper's budget can be begun here: data are missing"}
    record = run(items[0].experiment, runtime=runtime, deadline=deadline)
    return {
        "cell": items[0].cells[0],
        "rounds": len(record.rounds),
        "of": items[0].experiment.rounds,
        "seconds": record.seconds,
        "peak_memory": record.peak_memory,
    }
