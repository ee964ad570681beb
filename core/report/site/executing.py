"""All notebooks of the book, executed: what nothing has changed since is kept."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from core import data
from core.errors import InputError
from core.report import notebooks


def surroundings() -> str:
    """A hash of all that every executed notebook depends on: `core`, the tables, the records, the
    claims, the benches, which data sets are here, Python.
    """
    digest = hashlib.sha256(f"{sys.version}{sorted(data.present_names())}".encode())
    files = [
        notebooks.ROOT / "requirements.lock",
        *notebooks.ROOT.glob("core/**/*.py"),
        *notebooks.ROOT.glob("core/**/*.cpp"),
        *notebooks.ROOT.glob("book/tables/**/*"),
        *notebooks.ROOT.glob("book/results/**/*.json"),
        *notebooks.ROOT.glob("book/claims/*"),
        *notebooks.ROOT.glob("book/bench/*"),
    ]
    for file in sorted(files):
        if file.is_file() and "adhoc" not in file.parts:
            digest.update(f"{file.relative_to(notebooks.ROOT)}\0".encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def fingerprint(source: Path, around: str) -> str:
    """A hash of an executed notebook's text and its surroundings."""
    return hashlib.sha256(f"{around}{notebooks.paired(source)}".encode()).hexdigest()


def execute_all(sources: Iterable[Path], folder: Path, jobs: int = 2) -> list[Path]:
    """Execute notebooks at their defaults, some at a time, into `folder`; those that nothing
    changed are kept.

    Returns the executed .ipynb files. Raises InputError that names the notebook and its error when
    a cell fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    around = surroundings()
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(lambda source: _execute(source, folder, jobs, around), sources))


def _execute(source: Path, folder: Path, jobs: int, around: str) -> Path:
    target, stamp = folder / f"{source.stem}.ipynb", folder / f"{source.stem}.sha256"
    key = fingerprint(source, around)
    if target.is_file() and stamp.is_file() and stamp.read_text() == key:
        print(f"  {source.stem}: unchanged", flush=True)
        return target
    stamp.unlink(missing_ok=True)
    raw = folder / f"{source.stem}.input.ipynb"
    raw.write_text(notebooks.paired(source), encoding="utf-8")
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": threads,
        "PYTHONPATH": str(notebooks.ROOT),
        "TQDM_DISABLE": "1",
    }
    command = [
        sys.executable,
        "-m",
        "papermill",
        str(raw),
        str(target),
        "--cwd",
        str(source.parent),
        "-k",
        "python3",
        "--no-progress-bar",
        "--log-level",
        "ERROR",
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    raw.unlink()
    if done.returncode:
        raise InputError(f"the notebook {source.name} failed: {_failure(target, done.stderr)}")
    stamp.write_text(key)
    print(f"  {source.stem}: {seconds(target):.0f} s", flush=True)
    return target


def _failure(target: Path, log: str) -> str:
    """The error of an executed notebook in one line."""
    if target.is_file():
        for cell in json.loads(target.read_text(encoding="utf-8"))["cells"]:
            for output in cell.get("outputs", []):
                if output["output_type"] == "error":
                    return f"{output['ename']}: {output['evalue']} (see {target})"
    return (log.strip().splitlines() or ["no message"])[-1]


def seconds(executed: Path) -> float:
    """How long an executed notebook ran, in seconds, as papermill noted it."""
    return float(
        json.loads(executed.read_text(encoding="utf-8"))["metadata"]["papermill"]["duration"]
    )
