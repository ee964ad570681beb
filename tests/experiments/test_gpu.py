"""The GPU check, on the CPU and with failures put in: it needs no GPU to be right about the rest."""

import json
import time

import pytest
import torch

from core.__main__ import main
from core.experiments import gpu
from core.federation import Runtime

HERE = Runtime(torch.device("cpu"))
BENCH = """
import json, subprocess, sys
if sys.argv[1] == "condensation":
    print(json.dumps({"unit": "rounds/hour", "given": sys.argv[2:]}))
elif sys.argv[1] == "bilevel":
    sys.exit("no such kernel")
else:
    subprocess.run(["sleep", "60"])
"""


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Two algorithms, three benches, two tests: of each some fail, and one bench takes too long."""
    monkeypatch.setattr(gpu.algorithms, "names", lambda: ["fedavg", "no_such_algorithm"])
    monkeypatch.setattr(gpu, "MEASURED", ("condensation", "bilevel", "run"))
    monkeypatch.setattr(gpu, "MEASURE", BENCH)
    monkeypatch.setattr(gpu.queue, "pending", lambda profile: [])
    file = tmp_path / "test_it.py"
    file.write_text("def test_right(): pass\ndef test_wrong(): assert 1 == 2\n")
    monkeypatch.setattr(gpu, "TESTS", file)


def test_what_fails_is_told_and_counted_and_stops_nothing(small, monkeypatch):
    bench = gpu._bench
    limits = {"condensation": 60, "bilevel": 60, "run": 2}
    monkeypatch.setattr(gpu, "_bench", lambda what, runtime, _: bench(what, runtime, limits[what]))
    start = time.monotonic()
    found = gpu.check(HERE, minutes=10)
    assert 0 <= found["algorithms"]["fedavg"]["accuracy"] <= 1
    assert "no_such_algorithm" in found["algorithms"]["no_such_algorithm"]["error"]
    assert found["benches"] == {
        "condensation": {"unit": "rounds/hour", "given": ["cpu", "float32"]},
        "bilevel": {"error": "RuntimeError: no such kernel"},
        "run": {"cut": "not done within 2 s"},
    }
    assert "error" not in found["tests"]["test_right"]
    assert "assert 1 == 2" in found["tests"]["test_wrong"]["error"]
    assert "data are missing" in found["paper"]["error"]
    assert found["environment"]["device"] == "cpu"
    assert found["summary"] == {
        "algorithms": {"ok": 1, "failed": ["no_such_algorithm"], "cut": []},
        "tests": {"ok": 1, "failed": ["test_wrong"], "cut": []},
        "benches": {"ok": 1, "failed": ["bilevel"], "cut": ["run"]},
        "paper": {"ok": 0, "failed": ["run"], "cut": []},
    }
    assert time.monotonic() - start < 55  # nobody waits for the bench that was cut


@pytest.mark.parametrize("bad", ["", "fedavg", "test_right", "bilevel", "run"])
def test_the_verb_ends_with_status_1_where_something_failed(bad, monkeypatch, tmp_path, capsys):
    kinds = {"algorithms": "fedavg", "tests": "test_right", "benches": "bilevel", "paper": "run"}
    summary = {
        kind: {"ok": int(name != bad), "failed": [name] if name == bad else [], "cut": []}
        for kind, name in kinds.items()
    }
    monkeypatch.setattr(gpu, "check", lambda *_: {"summary": summary})
    told = ["gpu-check", "--device", "cpu", "--out", str(tmp_path / "found.json")]
    assert main(told) == (1 if bad else 0)
    said = capsys.readouterr().out
    assert (f"failed: {bad}" in said) == bool(bad) and "found.json" in said


def test_nothing_is_begun_when_the_time_is_up(small):
    found = gpu.check(HERE, minutes=0)
    assert not found["algorithms"] and not found["benches"] and not found["tests"]


def test_where_there_are_no_tests_none_are_run(small, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu.algorithms, "names", list)
    monkeypatch.setattr(gpu, "MEASURED", ())
    monkeypatch.setattr(gpu, "TESTS", tmp_path / "gone.py")
    assert gpu.check(HERE)["tests"] == {}


def test_tests_that_cannot_be_run_at_all_have_failed(small, monkeypatch):
    gpu.TESTS.write_text("import a_library_that_nobody_has\n")
    assert [("error" in one) for one in gpu._tests(60).values()] == [True]
    monkeypatch.setattr(gpu.sys, "executable", "/bin/false")
    assert "error" in gpu._told(lambda: gpu._tests(60), "tests")["tests"]


def test_the_command_tells_what_failed(monkeypatch, tmp_path, capsys):
    each = {"ok": 1, "failed": ["moon", "dsa"], "cut": []}
    found = {"summary": {"algorithms": each, "benches": {"ok": 2, "failed": [], "cut": ["run"]}}}
    monkeypatch.setattr(gpu, "check", lambda runtime, minutes: found)
    out = tmp_path / "out.json"
    assert main(["gpu-check", "--device", "cpu", "--out", str(out)]) == 1
    said = capsys.readouterr().out
    assert "algorithms: 1 ok; failed: moon, dsa\nbenches: 2 ok; cut: run\n" in said
    assert json.loads(out.read_text()) == found
