"""The hash of the code sees every file that computes, and no run begins with code that changed."""

import sys

import pytest
import torch

from core.federation import Runtime
from core.files import FileError
from lab import run, source
from tests.lab.small_runs import small


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


def test_no_run_begins_with_code_that_changed_since_the_process_began(tmp_path, monkeypatch):
    """Its record would have the name of one version and the numbers of another."""
    before = source.source()
    changed = {name: text + b"# another version" for name, text in before.items()}
    monkeypatch.setattr(source, "source", lambda: changed)
    with pytest.raises(FileError, match="program changed since this process began"):
        run(small(), record=tmp_path / "record.json")
    assert source.code_version("fedavg") == source.version(before, "fedavg")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can forget a peak")
def test_the_peak_of_a_run_is_its_own():
    runtime = Runtime(torch.device("cpu"))
    torch.ones(2**27).sum()  # half a gigabyte
    high = runtime.peak_memory()
    runtime.forget_peak_memory()
    assert high - runtime.peak_memory() > 2**28
