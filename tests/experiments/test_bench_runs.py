"""The bench of whole runs at a size that takes no time: all loops run and are compared."""

import pytest
import torch

from core.experiments import bench
from core.experiments.bench import bilevel, clients, runs
from core.federation import Runtime


def test_every_algorithm_is_timed_beside_a_plain_loop(monkeypatch):
    sizes = {"PAIRS": 2, "IMAGES": 20, "REAL": 2, "CONDENSED": 1, "ITERATIONS": 1}
    for name, value in (sizes | {"WIDTH": 8, "BATCH": 4}).items():
        monkeypatch.setattr(runs, name, value)
    monkeypatch.setattr(runs, "ceiling", lambda runtime: 1e12)
    monkeypatch.setattr(bilevel, "REAL", 64)
    monkeypatch.setattr(bilevel, "ITERATIONS", 1)
    found = runs.measure(Runtime(torch.device("cpu")))
    for name in ("fedavg", "fedvck", "gddfl", "fediod", "fedmk"):
        one = found["contestants"][name]
        assert 0 < one["ratio"]["lowest"] <= one["ratio"]["median"] <= one["ratio"]["highest"]
        assert one["ceiling_share"] > 0 and one["rate"] * one["seconds"] == pytest.approx(3600)
    described = {"device_name": "x", "threads": 1, "precision": "float32"}
    text = bench.report({"bench": "run", "environment": described, **found})
    assert text.count("x plain") == 5


def test_rounds_with_many_clients_are_timed(monkeypatch):
    monkeypatch.setattr(clients, "alone", lambda function, *given: function(*given))
    found = clients.measure(Runtime(torch.device("cpu")), "digits", (30,), width=4)
    assert found["contestants"].keys() == {"fedavg, 30 clients", "fedvck, 30 clients"}
    for one in found["contestants"].values():
        assert one["data"] == "digits" and one["peak_memory"] > 0
        assert one["rate"] * one["seconds"] == pytest.approx(3600)
    described = {"device_name": "x", "threads": 1, "precision": "float32"}
    text = bench.report({"bench": "clients", "environment": described, **found})
    assert text.count("MB at most") == 2
