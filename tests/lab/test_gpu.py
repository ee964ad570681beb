"""The GPU check, on the CPU and with failures put in: it needs no GPU to be right about the rest."""

import json
import time

import attrs
import pytest
import torch

from core import algorithms
from core.federation import Runtime
from lab import gpu
from lab.__main__ import main

HERE = Runtime(torch.device("cpu"))
TWO = """
from core import algorithms
algorithms.names = lambda: ("fedavg", "no_such_algorithm")
"""
BENCH = """
import json, subprocess, sys
if sys.argv[1] == "condensation":
    print(json.dumps({"unit": "rounds/hour", "given": sys.argv[2:]}))
elif sys.argv[1] == "bilevel":
    sys.exit("no such kernel")
else:
    subprocess.run(["sleep", "60"])
"""
CASES = """
import pytest
def test_right(): pass
def test_wrong(): assert 1 == 2
@pytest.mark.skip("no such GPU")
def test_elsewhere(): pass
"""


@pytest.fixture
def two(monkeypatch, tmp_path):
    """Two algorithms, three benches, three tests: of each some fail, one bench takes too long and one
    test is skipped.
    """
    monkeypatch.setattr(gpu, "EACH", TWO + gpu.EACH)
    monkeypatch.setattr(gpu, "MEASURED", ("condensation", "bilevel", "run"))
    monkeypatch.setattr(gpu, "MEASURE", BENCH)
    monkeypatch.setattr(gpu.queue, "pending", lambda profile: [])
    file = tmp_path / "test_it.py"
    file.write_text(CASES)
    monkeypatch.setattr(gpu, "TESTS", file)


def test_what_fails_is_told_and_counted_and_stops_nothing(two, monkeypatch):
    bench = gpu._bench
    limits = {"condensation": 60, "bilevel": 60, "run": 2}
    monkeypatch.setattr(gpu, "_bench", lambda what, runtime, _: bench(what, runtime, limits[what]))
    start = time.monotonic()
    found = gpu.check(HERE, minutes=10)
    assert 0 <= found["algorithms"]["fedavg"]["accuracy"] <= 1
    assert "no_such_algorithm" in found["algorithms"]["no_such_algorithm"]["error"]
    assert found["benches"] == {
        "condensation": {"unit": "rounds/hour", "given": ["cpu", "float32"]},
        "bilevel": {"error": "status 1: no such kernel"},
        "run": {"cut": "not done within 2 s"},
    }
    assert "error" not in found["tests"]["test_right"]
    assert "assert 1 == 2" in found["tests"]["test_wrong"]["error"]
    assert found["tests"]["test_elsewhere"]["skipped"] == "no such GPU"
    assert found["tests"].keys() == {"test_right", "test_wrong", "test_elsewhere"}
    assert "data are missing" in found["paper"]["skipped"]
    assert found["environment"]["device"] == "cpu"
    assert found["summary"] == {
        "algorithms": {"ok": 1, "failed": ["no_such_algorithm"], "skipped": [], "cut": []},
        "tests": {"ok": 1, "failed": ["test_wrong"], "skipped": ["test_elsewhere"], "cut": []},
        "benches": {"ok": 1, "failed": ["bilevel"], "skipped": [], "cut": ["run"]},
        "paper": {"ok": 0, "failed": [], "skipped": ["run"], "cut": []},
    }
    assert time.monotonic() - start < 55  # nobody waits for the bench that was cut


@pytest.mark.parametrize("bad", ["", "fedavg", "test_right", "bilevel", "run"])
def test_the_verb_ends_with_status_1_where_something_failed(bad, monkeypatch, tmp_path, capsys):
    kinds = {"algorithms": "fedavg", "tests": "test_right", "benches": "bilevel", "paper": "run"}
    summary = {
        kind: {
            "ok": int(name != bad),
            "failed": [name] if name == bad else [],
            "skipped": [],
            "cut": [],
        }
        for kind, name in kinds.items()
    }
    monkeypatch.setattr(gpu, "check", lambda *_: {"summary": summary})
    told = ["gpu-check", "--device", "cpu", "--out", str(tmp_path / "found.json")]
    assert main(told) == (1 if bad else 0)
    said = capsys.readouterr().out
    assert (f"failed: {bad}" in said) == bool(bad) and "found.json" in said


def test_nothing_is_begun_when_the_time_is_up(two):
    found = gpu.check(HERE, minutes=0)
    assert not found["algorithms"] and not found["benches"] and not found["tests"]


@pytest.mark.parametrize(
    ("ends", "how", "why"),
    [("time.sleep(60)", "cut", "not done within 3 s"), ("os.abort()", "error", "status -6")],
)
def test_an_algorithm_that_never_ends_or_takes_its_process_along_is_named(
    ends, how, why, monkeypatch
):
    monkeypatch.setattr(gpu.algorithms, "names", lambda: ("fedavg", "moon", "scaffold"))
    said = 'the word of a library\n{"fedavg": {"accuracy": 0.5}}\n1\n{"mo'
    begun = f"import os, time\nprint({said!r}, end='', flush=True)\n"
    monkeypatch.setattr(gpu, "EACH", begun + ends)
    found = gpu._algorithms(HERE, 3)
    assert found.pop("fedavg") == {"accuracy": 0.5}
    assert found.keys() == {"moon"} and why in found["moon"][how]


def test_what_is_found_is_kept_after_every_part(two):
    kept = []
    found = gpu.check(HERE, minutes=0, keep=lambda so_far: kept.append(dict(so_far)))
    parts = ["algorithms", "tests", "benches", "paper"]
    assert [[part for part in parts if part in one] for one in kept] == [
        parts[:count] for count in (1, 2, 3, 4)
    ]
    assert found == kept[-1]


def test_where_there_are_no_tests_none_are_run(two, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "EACH", "")
    monkeypatch.setattr(gpu, "MEASURED", ())
    monkeypatch.setattr(gpu, "TESTS", tmp_path / "gone.py")
    assert gpu.check(HERE)["tests"] == {}


def test_tests_that_cannot_be_run_at_all_have_failed(two, monkeypatch):
    gpu.TESTS.write_text("import a_library_that_nobody_has\n")
    assert [("error" in one) for one in gpu._tests(60).values()] == [True]
    monkeypatch.setattr(gpu.sys, "executable", "/bin/false")
    assert gpu._tests(60) == {"test_it.py": {"error": "status 1: it said nothing"}}


def test_the_command_tells_what_failed(monkeypatch, tmp_path, capsys):
    each = {"ok": 1, "failed": ["moon", "dsa"], "skipped": ["dc"], "cut": []}
    found = {
        "seconds": 1.0,
        "summary": {
            "algorithms": each,
            "benches": {"ok": 2, "failed": [], "skipped": [], "cut": ["run"]},
        },
    }
    out = tmp_path / "out.json"
    monkeypatch.setattr(gpu, "check", lambda runtime, minutes, keep: keep(found) or found)
    assert main(["gpu-check", "--device", "cpu", "--out", str(out)]) == 1
    said = capsys.readouterr().out
    assert "algorithms: 1 ok; failed: moon, dsa; skipped: dc\nbenches: 2 ok; cut: run\n" in said
    assert json.loads(out.read_text()) == found


@pytest.mark.parametrize("name", algorithms.names())
def test_what_is_run_of_an_algorithm_is_small(name):
    """AsynDGAN had its 100,000 steps at the quick profile, and no check on a GPU came past it."""
    settings = gpu.small(name).new_algorithm().settings
    counted = {
        field.name: getattr(settings, field.name)
        for field in attrs.fields(type(settings))
        if field.name.endswith(("steps", "iterations", "epochs", "rounds"))
    }
    for what in [what for what in counted if what.endswith("epochs")]:
        # steps take the place of epochs
        if counted.get(f"{what.removesuffix('epochs')}steps"):
            del counted[what]
    assert all(number is None or number <= 10 for number in counted.values()), counted
