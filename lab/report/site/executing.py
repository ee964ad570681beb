"""All notebooks of the book, executed: what nothing has changed since is kept."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

from core import data
from lab.record import ADHOC
from lab.report import notebooks
from lab.report.site import kernels

#: the command line, which no notebook imports
COMMANDS = notebooks.ROOT / "core" / "cli"


def surroundings() -> str:
    """A hash of what executed notebooks depend on: `core` without its command line, the tables, the
    records, the findings, the claims, the benches, the names of the data sets that are here, Python.
    """
    digest = hashlib.sha256(f"{sys.version}{sorted(data.present_names())}".encode())
    files = [
        notebooks.ROOT / "requirements.lock",
        *notebooks.ROOT.glob("core/**/*.py"),
        *notebooks.ROOT.glob("core/**/*.cpp"),
        *notebooks.ROOT.glob("core/**/*.h"),
        *notebooks.ROOT.glob("book/*.yaml"),
        *notebooks.ROOT.glob("book/tables/**/*"),
        *notebooks.ROOT.glob("book/results/**/*.json"),
        *notebooks.ROOT.glob("book/claims/*"),
        *notebooks.ROOT.glob("book/bench/*"),
    ]
    for file in sorted(files):
        inside = file.relative_to(notebooks.ROOT)
        if file.is_file() and ADHOC not in inside.parts and file.parent != COMMANDS:
            digest.update(f"{inside}\0".encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def fingerprint(source: Path, around: str) -> str:
    """A hash of an executed notebook's text and its surroundings."""
    return hashlib.sha256(f"{around}{notebooks.paired(source)}".encode()).hexdigest()


def execute_all(sources: Iterable[Path], folder: Path, jobs: int = 2) -> list[Path]:
    """Execute notebooks at their defaults, some at a time, into `folder`; those that nothing
    changed are kept.

    Returns the executed .ipynb files in the order of `sources`. Raises InputError that names the
    notebook and its error when a cell fails, or a package that is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    targets = {source: folder / f"{source.stem}.ipynb" for source in sources}
    around = surroundings()
    keys = {source: fingerprint(source, around) for source in targets}
    changed = [source for source in targets if not _is_current(targets[source], keys[source])]
    for source in targets:
        if source not in changed:
            print(f"  {source.stem}: unchanged", flush=True)
    with (
        kernels.environment(max(1, (os.cpu_count() or 1) // jobs)),
        ProcessPoolExecutor(jobs, kernels.PROCESSES) as papermills,
        ThreadPoolExecutor(jobs) as pool,
    ):
        for line in pool.map(lambda one: _run(one, targets[one], keys[one], papermills), changed):
            print(line, flush=True)
    return list(targets.values())


def _run(source: Path, target: Path, key: str, papermills: Executor) -> str:
    """Execute a notebook, and say how long it took."""
    _stamp(target).unlink(missing_ok=True)
    with kernels.kernel(source.parent) as started:
        papermills.submit(_execute, source, target, started).result()
    _stamp(target).write_text(key)
    return f"  {source.stem}: {seconds(target):.0f} s"


def _execute(source: Path, target: Path, started: tuple[str, int] | None) -> None:
    with kernels.manager(*started) if started else nullcontext() as kernel:
        notebooks.execute(notebooks.read(source), source, target, {}, kernel)


def _stamp(target: Path) -> Path:
    return target.with_suffix(".sha256")


def _is_current(target: Path, key: str) -> bool:
    """Whether an executed notebook is what executing it again would give."""
    stamp = _stamp(target)
    return target.is_file() and stamp.is_file() and stamp.read_text() == key


def seconds(executed: Path) -> float:
    """How long an executed notebook ran, in seconds, as papermill noted it."""
    return float(
        json.loads(executed.read_text(encoding="utf-8"))["metadata"]["papermill"]["duration"]
    )
