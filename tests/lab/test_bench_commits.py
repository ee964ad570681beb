"""The package beside itself at another commit, at a size that takes no time."""

import json
import subprocess
import sys

import pytest
import torch

from benchmarks import commits
from core.errors import InputError
from core.federation import Runtime
from lab import bench
from lab.record import REPOSITORY

HERE = Runtime(torch.device("cpu"))
TINY = {
    "condensation": dict.fromkeys(commits.SIZES["condensation"], 1) | {"CLASSES": 2},
    "local-training": {"STEPS": 1, "BATCH": 2},
}


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A history of two commits: no bench, then the package as it is."""

    def git(*told):
        name = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        subprocess.run(["git", *name, *told], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "__init__.py").touch()
    git("add", ".")
    git("commit", "-m", "nothing yet")
    (tmp_path / "core" / "__init__.py").unlink()
    (tmp_path / "core").rmdir()
    (tmp_path / "core").symlink_to(REPOSITORY / "core")
    git("commit", "--allow-empty", "-m", "the package")
    monkeypatch.setattr(commits, "REPOSITORY", tmp_path)
    monkeypatch.setattr(commits, "SIZES", TINY)
    return tmp_path


@pytest.mark.parametrize("what", TINY)
def test_each_pair_is_timed_by_the_package_of_each_commit(what, repository, monkeypatch):
    """The other commit's processes find its files and not ours, and take turns with them."""
    asked, took = [], iter([4.0, 2.0, 6.0, 1.0])
    monkeypatch.setattr(commits, "PAIRS", 2)

    def run(told, env, cwd, **_):
        asked.append((cwd, (cwd / "core" / "experiments").exists()))
        assert env["PYTHONPATH"] == str(cwd) and json.loads(told[-1])["bench"] == what
        return subprocess.CompletedProcess(told, 0, f"{next(took)}\n", "")

    real = subprocess.run
    monkeypatch.setattr(
        commits.subprocess,
        "run",
        lambda told, **rest: (run if told[0] == sys.executable else real)(told, **rest),
    )
    found = commits.measure(what, "HEAD~1", HERE)["contestants"]
    old, new = found.items()
    assert [there for _, there in asked] == [False, True] * 2
    assert asked[0] == asked[2] and asked[1][0] == asked[3][0] == repository
    assert not asked[0][0].exists()
    assert old[1]["rate"] == 3600 / 5 and new[1]["rate"] == 3600 / 1.5
    assert new[1]["ratio"] == {"median": 4, "lowest": 2, "highest": 6}
    assert new[1]["beside"] == old[0]


@pytest.mark.parametrize("what", TINY)
def test_the_work_is_done_by_the_package_on_the_path(what):
    given = {"bench": what, "sizes": TINY[what], "repeats": 1}
    given |= {"device": "cpu", "precision": "float32", "threads": 1}
    assert commits._seconds(REPOSITORY, given) > 0


def test_what_cannot_be_compared_is_said_in_a_sentence(repository):
    with pytest.raises(InputError, match="cannot do this work: ModuleNotFoundError"):
        commits.measure("local-training", "HEAD~1", HERE)
    with pytest.raises(InputError, match="no such commit here: HEAD~9"):
        commits.measure("local-training", "HEAD~9", HERE)
    with pytest.raises(InputError, match="condensation and local-training, not for 'run'"):
        bench.measure("run", HERE, commit="HEAD~1")


def test_its_record_leaves_that_of_the_bench_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "BENCH", tmp_path)
    monkeypatch.setattr(commits, "measure", lambda *_: {"contestants": {}})
    bench.measure("condensation", HERE, commit="HEAD")
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("condensation-since-")
    assert json.loads(path.read_text())["bench"] == "condensation-since"
