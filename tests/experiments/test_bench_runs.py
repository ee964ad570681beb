"""The bench of whole runs at a size that takes no time: all loops run and are compared."""

import sys
import time
from pathlib import Path
from unittest.mock import patch

import attrs
import pytest
import torch

from core.algorithms.fediod import FedIOD
from core.errors import InputError
from core.experiments import bench
from core.experiments.bench import (
    authors,
    bilevel,
    clients,
    distillation,
    equal,
    precision,
    runs,
)
from core.experiments.bench.whole import whole_run
from core.federation import Runtime


def test_every_algorithm_is_timed_beside_a_plain_loop(monkeypatch):
    sizes = {"PAIRS": 2, "IMAGES": 20, "REAL": 2, "CONDENSED": 1, "ITERATIONS": 1}
    sizes |= {"WIDTH": 8, "BATCH": 4, "BILEVEL": 1, "SERVER": 1}
    for name, value in sizes.items():
        monkeypatch.setattr(runs, name, value)
    monkeypatch.setattr(runs, "ceiling", lambda runtime: 1e12)
    monkeypatch.setattr(bilevel, "REAL", 64)
    # the authors' code is theirs: something that takes as long as it likes stands in its place
    monkeypatch.setattr(runs.authors, "fedvck", lambda *_: lambda: time.sleep(0.05))
    monkeypatch.setattr(equal, "measure", lambda *_: {})
    found = runs.measure(Runtime(torch.device("cpu")), Path("checkout"))
    for name in ("fedavg", "fedvck", "gddfl", "fediod", "fedmk", runs.AUTHORS):
        one = found["contestants"][name]
        assert 0 < one["ratio"]["lowest"] <= one["ratio"]["median"] <= one["ratio"]["highest"]
        assert one["ceiling_share"] > 0 and one["rate"] * one["seconds"] == pytest.approx(3600)
    described = {"device_name": "x", "threads": 1, "precision": "float32"}
    text = bench.report({"bench": "run", "environment": described, **found})
    assert text.count("x plain") == 5 and text.count("x the authors' code") == 1


def test_both_sides_of_fedmk_learn_generator_and_model_by_as_many_steps(monkeypatch):
    monkeypatch.setattr(runs, "BILEVEL", 1)
    monkeypatch.setattr(runs, "SERVER", 3)
    monkeypatch.setattr(bilevel, "REAL", 64)
    taken = []
    for optimiser in (torch.optim.Adam, torch.optim.SGD):
        step, name = optimiser.step, optimiser.__name__

        def counted(self, *rest, step=step, name=name):
            taken[-1].append(name)
            return step(self, *rest)

        monkeypatch.setattr(optimiser, "step", counted)
    for side in runs._contestants(Runtime(torch.device("cpu")))["fedmk"]:
        taken.append([])
        side()
    assert taken[0] == taken[1] == ["Adam"] * 50 + ["SGD"] * 3


def test_the_step_of_fediod_is_timed_side_by_side_and_one_by_one(monkeypatch):
    for name, value in {"CLIENTS": 2, "SIZE": 8, "PAIRS": 2}.items():
        monkeypatch.setattr(distillation, name, value)
    seen: list[list[int]] = []
    plain = distillation.Stacked.run_together

    def run_together(self, positions, *rest):
        seen.append(list(positions))
        return plain(self, positions, *rest)

    monkeypatch.setattr(distillation.Stacked, "run_together", run_together)
    found = distillation.measure(Runtime(torch.device("cpu")))
    assert found["contestants"]["side by side"]["ratio"]["lowest"] > 0
    # teachers, generated and real images: a first step of each side, a warm-up and two pairs
    assert seen == [[0, 1]] * 15


def test_both_sides_start_alike_and_are_tested_on_the_same_images(monkeypatch):
    """Where the authors' program is replaced by ours the accuracies are the same, seed by seed."""
    here = Runtime(torch.device("cpu"), precision="float32")
    sizes = {"SEEDS": (0, 1), "CLIENTS": 2, "ROUNDS": 1, "IMAGES": 60, "TESTED": 200}
    small = {"iterations": 5, "condensed": 4, "real_batch": 8, "batch": 16, "epochs": 20}
    for name, value in (sizes | {"BUDGET": small}).items():
        monkeypatch.setattr(equal, name, value)
    monkeypatch.setattr(equal.data, "available", lambda: [])  # digits, which everybody has
    seeds = iter(sizes["SEEDS"])

    def stand_in(checkout, task, clients, iterations, condensed, real_batch, batch, epochs, rounds):
        plan = {"iterations": iterations, "real_batch": real_batch, "share": 0.001}
        plan |= {"min_images": condensed, "server_batch": batch, "server_epochs": epochs}
        plan |= equal.EXACT
        seed = next(seeds)
        return lambda: whole_run(task, clients, "fedvck", plan, "released", rounds, seed)

    monkeypatch.setattr(equal.authors, "fedvck", stand_in)
    found = equal.measure(here, Path("checkout"))
    same, fewer = found.values()
    assert same["accuracy"]["theirs"] == same["accuracy"]["ours"] == fewer["accuracy"]["theirs"]
    assert len(set(same["accuracy"]["ours"])) == 2
    assert fewer["accuracy"]["ours"] != same["accuracy"]["ours"]
    assert same["data"] == "digits" and same["ratio"]["lowest"] > 0
    described = {"device_name": "x", "threads": 1, "precision": "float32"}
    result = {"bench": "run", "what": "", "unit": "runs/hour", "contestants": found}
    assert bench.report({"environment": described, **result}).count("% beside ") == 2


def test_only_a_checkout_of_the_authors_code_is_timed(tmp_path):
    here = Runtime(torch.device("cpu"))
    with pytest.raises(InputError, match="is no checkout of the authors' FedVCK: it has no src"):
        bench.measure("run", here, tmp_path)
    with pytest.raises(InputError, match="only `bench run`"):
        bench.measure("clients", here, tmp_path)
    for name in authors.MODULES:
        module = tmp_path / f"{name.replace('.', '/')}.py"
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text("import a_library_that_nobody_has")
    with pytest.raises(InputError, match="does not load: No module named 'a_library"):
        authors.modules(tmp_path)
    assert str(tmp_path) not in sys.path


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


def test_precisions_are_compared_on_the_same_runs(monkeypatch):
    """Every method that classifies, by pairs that share data, split and seed. Where bfloat16 is not
    asked for after all, both sides are the same, so nothing else differs.
    """
    monkeypatch.setattr(precision, "cpu_has_bfloat16", lambda: True)
    monkeypatch.setattr(precision.data, "available", lambda: [])  # digits, which everybody has
    for name, value in {"SEEDS": (0, 1), "PROFILE": "quick", "WIDTH": 4}.items():
        monkeypatch.setattr(precision, name, value)
    assert {"fedvck", "fedmk", "gddfl", "fediod", "fedavg"} <= set(precision.methods())
    assert not {"asyndgan", "fedad", "flmrcm"} & set(precision.methods())
    monkeypatch.setattr(precision, "methods", lambda: ["fedavg", "fedvck"])
    asked = []
    plain = precision.make_task

    def in_float32(run, runtime):
        asked.append(runtime.precision)
        return plain(run, attrs.evolve(runtime, precision="float32"))

    monkeypatch.setattr(precision, "make_task", in_float32)
    found = precision.measure(Runtime(torch.device("cpu")))["contestants"]
    assert found.keys() == {"fedavg", "fedvck"} and set(asked) == {"float32", "bfloat16"}
    for one in found.values():
        assert one["accuracy"]["ours"] == one["accuracy"]["theirs"]
        assert len(one["accuracy"]["ours"]) == 2 and one["rate"] > 0
    given = iter([50.0, 50.0, 50.0, 53.0, 50.0, 50.0])  # the second seed is 3 points apart
    last = attrs.make_class("Last", ["metrics"])
    monkeypatch.setattr(
        precision, "rounds", lambda run, task: [last({"accuracy": next(given) / 100})]
    )
    monkeypatch.setattr(precision, "MORE", (7,))
    monkeypatch.setattr(precision, "methods", lambda: ["fedavg"])
    (one,) = precision.measure(Runtime(torch.device("cpu")))["contestants"].values()
    assert one["accuracy"] == {"theirs": [50, 50, 50], "ours": [50, 53, 50]}
    monkeypatch.setattr(precision, "cpu_has_bfloat16", lambda: False)
    with pytest.raises(InputError, match="does not multiply bfloat16"):
        precision.measure(Runtime(torch.device("cpu")))


def test_a_round_is_the_whole_run():
    """FedIOD cuts its steps into as many parts as there are rounds: the one that is timed has them all."""
    task = runs.random_task(Runtime(torch.device("cpu")), 40, 3, 8, 5)
    task = attrs.evolve(task, model_options={"width": 4})
    members, steps = runs.clients_of(task, 2), []
    with patch.object(FedIOD, "step", lambda *_: steps.append(1) or []):
        small = {"local_steps": 1, "distill_steps": 7, "distill_batch": 2, "generator_width": 4}
        with pytest.raises(KeyError):  # nothing was made that could be measured
            runs.whole_run(task, members, "fediod", small | {"discriminator_width": 4})
    assert len(steps) == 7
