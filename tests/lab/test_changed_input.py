"""A name may stand for other data tomorrow: no run goes on with them, and no old number is given as
theirs.
"""

import json
import os
import shutil
import subprocess
import sys

import attrs
import numpy as np
import pytest

from core.errors import InputError
from core.files import FileError
from core.models import kernels
from lab import Experiment, Record, queue, source
from lab.__main__ import main
from lab.record import REPOSITORY
from lab.running import rounds, run


def dealt(path, samples):
    """A split file that gives so many samples to three clients in turn."""
    parts = [list(range(k, samples, 3)) for k in range(3)]
    path.write_text(json.dumps({"client_idx": parts}))


def of(**fields):
    settings = {"local_steps": 1, "batch_size": 8}
    given = {"dataset": "digits", "clients": 3, "rounds": 2, "model_options": {"width": 4}}
    return Experiment(algorithm="fedavg", settings=settings, **given | fields)


def test_a_run_does_not_go_on_with_another_split(tmp_path):
    split, checkpoint = tmp_path / "split.json", tmp_path / "run.safetensors"
    experiment = of(partition={"name": "file", "file": str(split)})
    dealt(split, 60)
    next(rounds(experiment, checkpoint=checkpoint))
    dealt(split, 30)
    with pytest.raises(FileError):
        next(rounds(experiment, checkpoint=checkpoint))
    dealt(split, 60)
    assert [result.round for result in rounds(experiment, checkpoint=checkpoint)] == [1, 2]


def test_a_run_does_not_go_on_with_other_kernels(tmp_path, monkeypatch):
    checkpoint = tmp_path / "run.safetensors"
    next(rounds(of(), checkpoint=checkpoint))
    other = {"eager": "fused", "fused": "eager"}[kernels.in_use()]
    monkeypatch.setattr(kernels, "in_use", lambda: other)
    with pytest.raises(FileError):
        next(rounds(of(), checkpoint=checkpoint))


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


def test_the_code_of_an_algorithm_is_its_own_and_what_it_builds_on():
    """FedMix is built on FedAvg; neither sees a change of MOON."""

    def others(changed: str) -> set[str]:
        before = source.source()
        after = before | {changed: before[changed] + b"# another version"}
        return {
            name
            for name in ("fedavg", "fedmix", "moon", "fediod")
            if source.version(before, name) != source.version(after, name)
        }

    assert others("core/baselines/moon.py") == {"moon"}
    assert others("core/algorithms/fediod/server.py") == {"fediod"}
    assert {"fedavg", "fedmix"} <= others("core/baselines/fedavg.py")
    for shared in ("core/algorithms/__init__.py", "core/federation/loop.py"):
        assert others(shared) == {"fedavg", "fedmix", "moon", "fediod"}


CHANGING = """
from pathlib import Path
from lab import Experiment, run, source
stated = Experiment(algorithm="fedavg", dataset="digits", rounds=1, settings={"local_steps": 1})
with Path("core/baselines/fedavg.py").open("a") as file:  # nobody has needed it yet
    file.write("# another version")
try:
    run(stated, record=Path("record.json"))
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


def test_a_queue_ends_where_the_code_changed(tmp_path, monkeypatch):
    items = [queue.Pending(of(seed=seed), "adhoc", ("cell",), 0) for seed in (0, 1, 2)]
    running = queue.run_pending(items, 5, tmp_path)
    assert next(running)[1].status == "complete"
    monkeypatch.setattr(source, "source", dict)
    with pytest.raises(FileError, match="program changed"):
        next(running)


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


def test_a_record_of_another_split_is_no_answer(tmp_path):
    split = tmp_path / "split.json"
    experiment = of(partition={"name": "file", "file": str(split)})
    dealt(split, 60)
    first, path, computed = queue.measure(experiment, "adhoc", out=tmp_path)
    assert computed and len(first.split) == 64
    assert queue.measure(experiment, "adhoc", out=tmp_path)[2] is False
    dealt(split, 30)
    with pytest.raises(InputError, match=f"has changed since .* delete {path}"):
        queue.measure(experiment, "adhoc", out=tmp_path)
    split.write_text('{"clients": []}')  # its own mistake says more than that it has changed
    with pytest.raises(InputError, match="client_idx"):
        queue.measure(experiment, "adhoc", out=tmp_path)
    split.unlink()  # nothing to compare with: the record stands
    assert queue.measure(experiment, "adhoc", out=tmp_path)[0] == first


def test_a_record_of_other_images_is_no_answer(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCON_DATA", str(tmp_path))

    def write(seed):
        draw = np.random.default_rng(seed)
        np.savez(
            tmp_path / "hospital.npz",
            **{
                f"{part}_{kind}": draw.integers(0, top, (24, *shape), dtype=np.uint8)
                for part in ("train", "val", "test")
                for kind, top, shape in (("images", 256, (16, 16)), ("labels", 3, (1,)))
            },
        )

    experiment = of(dataset="hospital")
    write(0)
    queue.measure(experiment, "adhoc", out=tmp_path)
    assert queue.measure(experiment, "adhoc", out=tmp_path)[2] is False
    write(1)
    with pytest.raises(InputError, match="the data set hospital has changed"):
        queue.measure(experiment, "adhoc", out=tmp_path)


def test_an_impossible_partition_leaves_no_record(tmp_path):
    with pytest.raises(InputError):
        run(of(clients=5000), record=tmp_path / "record.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("where", [[], ["--on", "local:1"]])
def test_a_queue_in_which_a_run_failed_ends_with_status_1(where, tmp_path, monkeypatch, capsys):
    """After the others had their turn; also when it is not tried again."""
    diverging = attrs.evolve(of(), settings={"local_steps": 20, "lr": 1e30})
    items = [
        queue.Pending(one, "adhoc", (f"cell {seed}",), 0)
        for seed, one in enumerate((diverging, of(seed=1)))
    ]
    monkeypatch.setattr(queue, "pending", lambda profile, only=None: items)
    asked = ["run", "--pending", "--profile", "quick", "--out", str(tmp_path), *where]
    for _ in range(2):
        assert main(asked) == 1
        assert "failed" in capsys.readouterr().out.splitlines()[-1]
    assert Record.load(queue.places(of(seed=1), "adhoc", tmp_path)[0]).status == "complete"


def test_the_queue_counts_what_its_folder_holds(tmp_path, monkeypatch, capsys):
    """The same command again says that nothing is left."""
    items = [queue.Pending(of(seed=seed), "adhoc", (f"cell {seed}",), 0) for seed in (0, 1)]
    monkeypatch.setattr(queue, "pending", lambda profile, only=None: items)
    asked = ["run", "--pending", "--profile", "quick", "--out", str(tmp_path)]
    for line in (
        "2 runs completed, 0 still pending here",
        "0 runs completed, 0 still pending here",
    ):
        assert main(asked) == 0
        assert capsys.readouterr().out.splitlines()[-1] == line
