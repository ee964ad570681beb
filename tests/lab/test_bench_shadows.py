"""All ways to train the shadow models of an attack give the same networks."""

import attrs
import pytest
import torch

from benchmarks import shadows
from benchmarks.timing import random_task
from core.federation import LocalTraining, Runtime
from lab import bench


@pytest.fixture
def small(monkeypatch):
    """Three networks of width 4, two steps of eight images."""
    sizes = {
        "NETWORKS": 3,
        "WIDTH": 4,
        "STEPS": 2,
        "PAIRS": 2,
        "PLAN": LocalTraining(lr=0.05, batch_size=8, local_steps=2),
    }
    for name, value in sizes.items():
        monkeypatch.setattr(shadows, name, value)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield Runtime(torch.device("cpu"))
    torch.set_num_threads(before)


def test_all_ways_train_the_same_networks(small):
    task = attrs.evolve(random_task(small, 16, 3, 16, 5), model_options={"width": 4})
    alone, *others = (
        [dict(model.named_parameters()) for model in way(task)] for way in shadows.WAYS.values()
    )
    assert len({one["classifier.weight"].norm().item() for one in alone}) == 3
    for other in others:
        torch.testing.assert_close(other, alone, rtol=1e-4, atol=1e-6)


def test_the_bench_says_how_long_an_attack_takes(small):
    found = shadows.measure(small)
    for one in found["contestants"].values():
        assert one["attack_hours"] == pytest.approx(64 * 5000 * 10 / one["rate"] / 3600)
    assert found["contestants"]["stacked"]["ratio"]["median"] > 0
    described = {"device_name": "x", "threads": 1, "precision": "float32"}
    assert (
        bench.report({"bench": "shadows", "environment": described, **found}).count("x one by one")
        == 2
    )
