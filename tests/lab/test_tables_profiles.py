"""Tables at their profiles: what each of them reduces, and what stands in for what."""

from __future__ import annotations

import re

import pytest

from core.data import drawn, monuseg
from core.data.catalogue import SOURCES
from lab.experiment import Experiment
from lab.profiles import apply
from lab.table import TableSpec

LAPTOP = {
    "model_options": {"width": 64},
    "partition": {"name": "dirichlet", "alpha": 0.05},
    "evaluate_every": 2,
    "settings": {"local_steps": 10, "lr": 0.003},
    "profile": "laptop",
}


def test_laptop_reduces_what_it_says():
    run = TableSpec.find_cell("reference/1/FedAvg/mnist-0.05", "laptop").experiments[0]
    assert run == Experiment(algorithm="fedavg", dataset="mnist", **LAPTOP)
    alone = TableSpec.find_cell("reference/1/Standalone/mnist-0.05", "laptop").experiments[0]
    assert alone.evaluate_every == 10
    paper, laptop = (
        TableSpec.find_cell("fedvck/2/fedavg/pathmnist-0.05", profile).experiments[0]
        for profile in ("paper", "laptop")
    )
    assert (paper.rounds, laptop.rounds) == (100, 10)
    assert paper.settings == paper.model_options == {}


def test_quick_keeps_the_concentration_and_nothing_else_of_the_data(cells):
    for cell in cells["quick"]:
        run = cell.experiments[0]
        if run.dataset.endswith("_drawn"):  # no digit has a mask
            assert (run.model, run.model_options) == ("unet", {"width": 4})
            assert run.partition == {"name": "natural"}
            continue
        # a row may be about the network, but not about another one than this
        own = cell.row_entry.fields.get("model_options", {})
        own = own if cell.spec.defaults["model"] == "convnet" else {}
        assert (run.dataset, run.model) == ("digits", "convnet")
        assert run.model_options == own | {"width": 16}
        assert run.rounds <= 2
        assert run.partition["name"] in ("dirichlet", "iid", "pathological")
    run = TableSpec.find_cell("fedvck/3/fedvck/octmnist-0.02", "quick").experiments[0]
    assert run.partition == {"name": "dirichlet", "alpha": 0.02, "cap": True}


def test_a_stand_in_is_labelled_and_draws_its_own_partition():
    address = "fedvck/3/fedavg/pneumoniamnist_224-0.05"
    cell, original = (TableSpec.find_cell(address, one) for one in ("laptop", "paper"))
    assert cell.substitute == "pneumoniamnist in place of pneumoniamnist_224"
    run, of_print = cell.experiments[0], original.experiments[0]
    assert (run.dataset, run.model) == ("pneumoniamnist", "convnet")
    assert run.partition == {"name": "dirichlet", "alpha": 0.05, "cap": True}
    file = "splits/PneumoniaMNIST224_clients10_alpha0.05.json"
    assert original.substitute is None and of_print.partition["file"] == file


# --- by hand

MNIST = {"algorithm": "fedavg", "dataset": "mnist"}


def test_a_budget_may_be_called_as_pages_call_it():
    asked = {"algorithm": "fedavg", "dataset": "digits"}
    assert apply("reduced", asked) == apply("converged", asked)
    assert TableSpec.find("fedvck", 11).cells("reduced")[0].command().endswith("--profile reduced")


def test_by_hand_what_is_stated_holds():
    asked = MNIST | {"partition": LAPTOP["partition"], "seed": 3}
    assert apply("laptop", asked) == Experiment(**MNIST, **LAPTOP, seed=3)
    other = {"model": "lenet", "rounds": 30, "settings": {"local_steps": 50, "lr": 0.1}}
    run = apply("laptop", MNIST | other)
    assert (run.rounds, run.model_options, run.settings) == (30, {}, other["settings"])
    assert apply("quick", {"algorithm": "fedavg"}).dataset == "digits"
    assert apply("quick", MNIST).dataset == "mnist"


@pytest.mark.parametrize("table", [2, 3, 4, 8, 9])
@pytest.mark.parametrize("profile", ["quick", "laptop", "paper"])
def test_tables_of_pixels_are_measured_at_sites_that_their_data_have(table, profile):
    """Clients are sites, also of a substitute, and a cell asks for no site that is not among them."""
    known = {
        "nuclei_drawn": monuseg.ORGANS,
        "monuseg": monuseg.ORGANS,
        "mri_drawn": tuple(drawn.HEADS),
        **{name: source.sites for name, source in SOURCES.items() if source.answer},
    }
    for cell in TableSpec.find("fediod", str(table)).cells(profile):
        run = cell.experiments[0]
        had = known[run.dataset.removesuffix("_64")]
        assert run.partition == {"name": "natural"} and run.clients == len(had), cell.address
        asked = set(re.split("[@:]", cell.record_metric)[1:]) - {"average"}
        assert asked <= set(had), cell.address


@pytest.mark.parametrize(
    ("algorithm", "settings", "steps"),
    [
        ("fedavg", {"local_epochs": 3}, lambda used: used.steps(640) == 30),
        ("fedavg", {"local_epochs": 3, "local_steps": 7}, lambda used: used.steps(640) == 7),
        ("fedavg", {}, lambda used: used.steps(640) == 10),
        ("fedkd", {"distill_epochs": 3}, lambda used: used.distill_steps is None),
        ("fedkd", {}, lambda used: used.distill_steps == 60),
        ("fedvck", {"server_epochs": 3}, lambda used: used.training.total(512) == 6),
    ],
)
def test_epochs_that_are_asked_for_are_not_covered_by_a_profiles_steps(algorithm, settings, steps):
    asked = {"algorithm": algorithm, "dataset": "mnist", "settings": settings}
    assert steps(apply("laptop", asked).new_algorithm().settings)


@pytest.mark.parametrize("profile", ["paper", "laptop"])
@pytest.mark.parametrize(
    ("algorithm", "variant", "part"),
    [("fedmk", "printed", "server"), ("fedgen", "released", "local")],
)
def test_nor_by_the_steps_that_an_algorithm_has_by_itself(profile, algorithm, variant, part):
    asked = {"algorithm": algorithm, "dataset": "mnist", "variant": variant}
    usual = apply(profile, asked).new_algorithm().settings
    assert getattr(usual, f"{part}_steps") is not None
    chosen = apply(profile, asked | {"settings": {f"{part}_epochs": 3}}).new_algorithm().settings
    assert getattr(chosen, f"{part}_steps") is None and getattr(chosen, f"{part}_epochs") == 3


def test_what_hides_no_epochs_is_not_stated():
    """Else a run by hand would have another id than the same one in a table."""
    asked = MNIST | {"settings": {"local_epochs": 3}}
    assert apply("paper", asked).settings == {"local_epochs": 3}
