"""The GPU check, on the CPU and with a failure put in: it needs no GPU to be right about the rest."""

import pytest
import torch

from core.__main__ import main
from core.experiments import bench, gpu
from core.federation import Runtime


def test_what_fails_is_told_and_stops_nothing(monkeypatch):
    monkeypatch.setattr(gpu.algorithms, "names", lambda: ["fedavg", "no_such_algorithm"])
    monkeypatch.setattr(gpu, "MEASURED", ("bilevel",))
    monkeypatch.setitem(bench.BENCHES, "bilevel", lambda runtime: {"unit": "rounds/hour"})
    monkeypatch.setattr(gpu.queue, "pending", lambda profile: [])
    found = gpu.check(Runtime(torch.device("cpu")), minutes=10)
    assert 0 <= found["algorithms"]["fedavg"]["accuracy"] <= 1
    assert "no_such_algorithm" in found["algorithms"]["no_such_algorithm"]["error"]
    assert found["benches"] == {"bilevel": {"unit": "rounds/hour"}}
    assert "data are missing" in found["paper"]["error"]
    assert found["environment"]["device"] == "cpu"


def test_no_algorithm_is_begun_when_the_time_is_up(monkeypatch):
    monkeypatch.setattr(gpu.queue, "pending", lambda profile: [])
    found = gpu.check(Runtime(torch.device("cpu")), minutes=0)
    assert not found["algorithms"] and not found["benches"]


@pytest.mark.parametrize("bad", ["", "fedavg", "bilevel", "paper"])
def test_the_verb_ends_with_status_1_where_something_failed(bad, monkeypatch, tmp_path, capsys):
    def one(name):
        return {"error": "no"} if name == bad else {"seconds": 1.0}

    parts = {"algorithms": {"fedavg": one("fedavg")}, "benches": {"bilevel": one("bilevel")}}
    monkeypatch.setattr(gpu, "check", lambda *_: parts | {"paper": one("paper")})
    told = ["gpu-check", "--device", "cpu", "--out", str(tmp_path / "found.json")]
    assert main(told) == (1 if bad else 0)
    said = capsys.readouterr().out
    assert f"{len(bad) > 0:d} failed" in said and bad in said and "found.json" in said
