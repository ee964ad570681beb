"""All ways to train the shadow models of an attack give the same networks."""

import attrs
import pytest
import torch

from core.experiments import bench
from core.experiments.bench import shadows
from core.experiments.bench.timing import random_task
from core.federation import LocalTraining, Runtime


@pytest.fixture
def small(monkeypatch):
    """Three networks of width 4, two steps of eight images."""
    sizes = {
        "NETWORKS": 3,
        "WIDTH": 4,
        "STEPS": 2,
        "PAIRS": 2,
        "PLAN": LocalTraining(lr=0.05, batch_size=8),
    }
    for name, value in sizes.items():
        monkeypatch.setattr(shadows, name, value)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield Runtime(torch.device("cpu"))
    torch.set_num_threads(before)


def test_one_program_trains_the_same_networks_as_many(small):
    task = attrs.evolve(random_task(small, 16, 3, 16, 5), model_options={"width": 4})
    alone, beside, stacked = (
        [model.state_dict() for model in way(task)]
        for way in (shadows.one_by_one, shadows.side_by_side, shadows.by_vmap)
    )
    model = shadows.grouped(task)
    names = [name for name in alone[0] if "norm.running" not in name and "batches" not in name]
    assert len({one["classifier.weight"].norm().item() for one in alone}) == 3
    for one, two, three in zip(alone, beside, stacked, strict=True):
        for name in names:
            torch.testing.assert_close(two[name], one[name], rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(three[name], one[name], rtol=1e-4, atol=1e-6)
    for number, one in enumerate(alone):
        torch.testing.assert_close(
            model.weight[number], one["classifier.weight"], rtol=1e-4, atol=1e-6
        )
        for place, block in enumerate(model.blocks):
            for name in ("conv.weight", "norm.weight", "norm.running_var"):
                ours = block.state_dict()[name].unflatten(0, (3, -1))[number]
                wanted = one[f"blocks.{place}.{name}"]
                torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-6)


def test_the_bench_says_how_long_an_attack_takes(small):
    found = shadows.measure(small)
    for one in found["contestants"].values():
        assert one["attack_hours"] == pytest.approx(64 * 5000 * 10 / one["rate"] / 3600)
    assert found["contestants"]["vmap"]["ratio"]["median"] > 0
    described = {"device_name": "x", "threads": 1, "precision": "float32"}
    assert (
        bench.report({"bench": "shadows", "environment": described, **found}).count("x plain") == 3
    )
