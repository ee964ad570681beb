"""The hash of the code sees every file that computes, and no run begins with code that changed."""

import os
import shutil
import subprocess
import sys

import pytest

from lab import source
from lab.source import REPOSITORY


@pytest.mark.parametrize("changed", ["core/baselines/a.py", "core/data/a.py", "lab/running.py"])
def test_the_hash_of_the_code_sees_every_file_that_computes(tmp_path, monkeypatch, changed):
    """Wherever the checkout lies, in a folder called report, too."""
    folder = tmp_path / "report"
    for name in (changed, "lab/report/c.py", *(f"lab/{name}" for name in source.DECIDES)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("1")
    monkeypatch.setattr(source, "REPOSITORY", folder)
    found = source.version(source.source())
    (folder / "lab/report/c.py").write_text("2")
    assert source.version(source.source()) == found
    (folder / changed).write_text("2")
    assert source.version(source.source()) != found


@pytest.mark.parametrize(
    ("changed", "others"),
    [
        ("core/baselines/moon.py", {"moon"}),
        ("core/algorithms/fediod/server.py", {"fediod"}),
        ("core/baselines/fedavg.py", {"fedavg", "fedmix"}),  # FedMix is built on FedAvg
        ("core/algorithms/__init__.py", {"fedavg", "fedmix", "moon", "fediod"}),
        ("core/federation/loop.py", {"fedavg", "fedmix", "moon", "fediod"}),
    ],
)
def test_the_code_of_an_algorithm_is_its_own_and_what_it_builds_on(changed, others):
    before = source.source()
    after = before | {changed: before[changed] + b"# another version"}
    names = ("fedavg", "fedmix", "moon", "fediod")
    moved = {name for name in names if source.version(before, name) != source.version(after, name)}
    assert moved >= others and ("fedavg" in others or moved == others)


CHANGING = """
from pathlib import Path
from lab import Experiment, run, source
stated = Experiment(algorithm="fedavg", dataset="digits", rounds=1, settings={"local_steps": 1})
with Path("core/baselines/fedavg.py").open("a") as file:  # nobody has needed it yet
    file.write("# another version")
try:
    run(stated, record="record.json")
except Exception as error:
    print(f"{type(error).__name__}: {error}")
print(source.code_version("fedavg"), Path("record.json").exists())
"""


def test_no_run_begins_with_code_that_changed_since_the_process_began(tmp_path):
    """Its record would have the name of one version and the numbers of another."""
    ignored = shutil.ignore_patterns("__pycache__", "report", "cli")
    for package in ("core", "lab"):
        shutil.copytree(REPOSITORY / package, tmp_path / package, ignore=ignored)
    said = subprocess.run(
        [sys.executable, "-c", CHANGING],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert said.stdout.splitlines() == [
        "FileError: the program changed since this process began; start again",
        f"{source.code_version('fedavg')} False",
    ], said.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can forget a peak")
def test_the_peak_of_a_run_is_its_own():
    """In a process of its own, for the tests before have had theirs."""
    told = """
import torch
from core.federation import Runtime
here = Runtime(torch.device("cpu"))
torch.ones(2**27).sum()
high = here.peak_memory()
here.forget_peak_memory()
print(high - here.peak_memory())
"""
    found = subprocess.run(
        [sys.executable, "-c", told], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert int(found.stdout) > 2**28  # half a gigabyte of ones was held, and is forgotten
