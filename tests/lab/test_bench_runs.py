"""The bench of whole runs at a size that takes no time: all loops run and are compared."""

import sys
import time
from pathlib import Path
from unittest.mock import patch

import attrs
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import (
    authors,
    bilevel,
    clients,
    condensation,
    distillation,
    equal,
    local_training,
    precision,
    runs,
    timing,
)
from benchmarks.whole import whole_run
from core.algorithms.fediod import FedIOD
from core.baselines.fedavg import FedAvg
from core.errors import InputError
from core.federation import Runtime, runtime
from core.models import kernels
from lab import bench


def test_every_algorithm_is_timed_beside_a_plain_loop(monkeypatch):
    sizes = {"PAIRS": 2, "IMAGES": 20, "REAL": 2, "CONDENSED": 1, "ITERATIONS": 1}
    sizes |= {"WIDTH": 8, "BATCH": 4, "BILEVEL": 1, "SERVER": 1}
    for name, value in sizes.items():
        monkeypatch.setattr(runs, name, value)
    monkeypatch.setattr(runs, "ceilings", lambda runtime: {"float32": 1e12, "bfloat16": 2e12})
    monkeypatch.setattr(bilevel, "REAL", 64)
    # the authors' code is theirs: something that takes as long as it likes stands in its place
    monkeypatch.setattr(runs.authors, "fedvck", lambda *_: lambda: time.sleep(0.05))
    monkeypatch.setattr(equal, "measure", lambda *_: {})
    here = Runtime(torch.device("cpu"))
    found, theirs = runs.measure(here), runs.against_authors(here, Path("checkout"))
    assert list(theirs["contestants"]) == [runs.AUTHORS] and "that code" in theirs["what"]
    found["contestants"] |= theirs["contestants"]
    for name in ("fedavg", "fedvck", runs.GREY, "gddfl", "fediod", "fedmk", runs.AUTHORS):
        one = found["contestants"][name]
        assert 0 < one["ratio"]["lowest"] <= one["ratio"]["median"] <= one["ratio"]["highest"]
        assert one["ceiling_share"] > 0 and one["rate"] * one["seconds"] == pytest.approx(3600)
    described = {"device_name": "x", "threads": 1, "precision": "float32"}
    text = bench.report({"bench": "run", "environment": described, **found})
    assert text.count("x plain") == 6 and text.count("x the authors' code") == 1
    assert "reaches float32 1,000, bfloat16 2,000 GFLOP/s" in text


def test_a_plain_loop_has_pytorchs_own_kernels(monkeypatch):
    """Those of the package would make it another program."""
    seen = []
    monkeypatch.setattr(runs.plain, "fedavg", lambda *_: seen.append(kernels.off()))
    plain, _ = runs._contestants(Runtime(torch.device("cpu")))["fedavg"]
    plain()
    assert seen == [True]


def test_condensation_says_what_share_of_which_ceiling_it_reaches(monkeypatch):
    sizes = {"CLIENTS": 2, "PER_GROUP": 4, "REAL_BATCH": 2, "CONDENSED": 1}
    for name, value in (sizes | {"ITERATIONS": 4, "PLAIN_ITERATIONS": 1, "PAIRS": 1}).items():
        monkeypatch.setattr(condensation, name, value)
    monkeypatch.setattr(condensation, "ceilings", lambda runtime: {"float32": 1e6})
    counted = []

    def operations(work):
        counted.append(timing.operations(work))
        return counted[-1]

    monkeypatch.setattr(condensation, "operations", operations)
    found = condensation.measure(Runtime(torch.device("cpu")))
    ours = {name: one for name, one in found["contestants"].items() if name != "plain"}
    for flops, (name, one) in zip(counted, ours.items(), strict=True):
        whole = flops * (4 if name == "minibatch" else 1)  # one iteration of four was run
        reached = whole / one["seconds_per_round"]
        assert one["ceiling_share"] == pytest.approx(reached / 1e6)
    assert found["ceilings"] == {"float32": 1e6}


def test_operations_are_those_that_pytorch_counts():
    """The same number for a step of training; a gradient for images only, which are a leaf, is two
    products a layer.
    """
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(72, 2)
    )
    images = torch.randn(4, 3, 5, 5)

    def step():
        model(images).sum().backward()

    with FlopCounterMode(display=False) as counter:
        step()
    assert timing.operations(step) == counter.get_total_flops() > 0
    model.requires_grad_(False)
    leaf = images.clone().requires_grad_()
    forward = 2 * 4 * (8 * 9 * 27 + 72 * 2)
    assert timing.operations(lambda: torch.autograd.grad(model(leaf).sum(), leaf)) == 2 * forward


def test_ceilings_are_measured_in_both_precisions_where_both_are_multiplied(monkeypatch):
    best = Runtime(torch.device("cpu"), "bfloat16")
    monkeypatch.setattr(timing.Runtime, "choose", lambda device: best)
    found = timing.ceilings(Runtime(torch.device("cpu"), "float32"), size=16)
    assert found.keys() == {"float32", "bfloat16"} and min(found.values()) > 0
    monkeypatch.setattr(timing.Runtime, "choose", lambda device: Runtime(torch.device("cpu")))
    assert timing.ceilings(Runtime(torch.device("cpu")), size=16).keys() == {"float32"}


def test_local_training_is_timed_with_each_kind_of_kernels(monkeypatch):
    for name, value in {"STEPS": 1, "BATCH": 2, "PAIRS": 2, "CLIENTS": 2, "SMALL_STEPS": 1}.items():
        monkeypatch.setattr(local_training, name, value)
    monkeypatch.setattr(local_training, "ceilings", lambda runtime: {"float32": 1e12})
    asked = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: asked.append(kernels.in_use()))
    found = local_training.measure(Runtime(torch.device("cpu")))["contestants"]
    compiled = kernels.library() is not None
    assert ("compiled" in found) == bool(asked) == compiled
    assert found.keys() >= {"plain", "ours", "eager", "LeNets one by one", "LeNets side by side"}
    assert found["LeNets side by side"]["beside"] == "LeNets one by one"
    monkeypatch.setattr(kernels, "library", lambda: None)
    assert "compiled" not in local_training.measure(Runtime(torch.device("cpu")))["contestants"]


def test_clients_side_by_side_learn_what_each_learns_alone(monkeypatch):
    for name, value in {"CLIENTS": 3, "SMALL_STEPS": 5, "SMALL_BATCH": 8}.items():
        monkeypatch.setattr(local_training, name, value)
    task = runs.random_task(Runtime(torch.device("cpu")), 20, 1, 8, 5)  # batches of 8, 8 and 4
    task = attrs.evolve(task, model="lenet")
    alone, together = (
        [dict(network.state_dict()) for network in way(task)]
        for way in (local_training.one_by_one, local_training.side_by_side)
    )
    for one, other in zip(alone, together, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            torch.testing.assert_close(other[name], value, msg=name)
    assert not torch.allclose(alone[0]["conv1.weight"], alone[1]["conv1.weight"])


def test_a_machine_with_units_for_matrices_has_records_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "BENCH", tmp_path)
    monkeypatch.setitem(bench.BENCHES, "clients", lambda runtime: {"contestants": {}})
    names = {}
    for units in (True, False):
        monkeypatch.setattr(runtime, "has_tiles", lambda units=units: units)
        bench.measure("clients", Runtime(torch.device("cpu")))
        (names[units],) = {path.name for path in tmp_path.iterdir()} - set(names.values())
    plain = torch.backends.cpu.get_cpu_capability().lower()
    assert names == {True: "clients-amx-float32.json", False: f"clients-{plain}-float32.json"}


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
    clock = iter([1.0, 2.0, 8.0, 4.0, 5.0, 2.0])  # theirs, the same, and fewer epochs; two seeds
    monkeypatch.setattr(equal, "seconds", lambda work, device: (work(), next(clock))[1])
    found = equal.measure(here, Path("checkout"))
    same, fewer = found.values()
    assert same["accuracy"]["theirs"] == same["accuracy"]["ours"] == fewer["accuracy"]["theirs"]
    assert len(set(same["accuracy"]["ours"])) == 2
    assert fewer["accuracy"]["ours"] != same["accuracy"]["ours"]
    assert same["data"] == "digits" and (same["seconds"], same["plain_seconds"]) == (3.5, 2.5)
    assert same["ratio"] == {"median": 0.65, "lowest": 0.5, "highest": 0.8}
    assert fewer["ratio"]["lowest"] == 1 / 8 and fewer["ratio"]["highest"] == 2
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


def test_precisions_are_compared_for_what_a_method_says_of_itself(monkeypatch):
    """The tasks that a class states are not those of the classes made from it."""

    class Own(FedAvg):
        pass

    class ForPixels(Own):
        learns = ("segmentation",)

    class Again(ForPixels):
        pass

    kinds = {"own": Own, "pixels": ForPixels, "again": Again}
    monkeypatch.setattr(precision.algorithms, "names", lambda: list(kinds))
    monkeypatch.setattr(precision.algorithms, "find", kinds.__getitem__)
    assert precision.methods() == ["own", "again"]


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
