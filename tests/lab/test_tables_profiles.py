"""Tables at their profiles: what each of them reduces, and what stands in for what."""

from __future__ import annotations

import re

import pytest

from core.data import drawn, monuseg, sites
from core.errors import InputError
from lab.experiment import PROFILES, Experiment
from lab.grid import TableSpec
from lab.profiles import Profile, apply


def test_laptop_reduces_what_it_says():
    spec = TableSpec.find("reference", 1)
    runs = {(cell.row, cell.column): cell.experiments[0] for cell in spec.cells("laptop")}
    assert runs["FedAvg", "mnist-0.05"] == Experiment(
        algorithm="fedavg",
        dataset="mnist",
        model="convnet",
        model_options={"width": 64},
        clients=10,
        rounds=10,
        partition={"name": "dirichlet", "alpha": 0.05},
        evaluate_every=2,
        settings={"local_steps": 10, "lr": 0.003},
        profile="laptop",
    )
    assert runs["Standalone", "mnist-0.05"].evaluate_every == 10
    paper = TableSpec.find_cell("fedvck/2/fedavg/pathmnist-0.05", "paper").experiments[0]
    laptop = TableSpec.find_cell("fedvck/2/fedavg/pathmnist-0.05", "laptop").experiments[0]
    assert (paper.rounds, laptop.rounds) == (100, 10)
    assert paper.settings == paper.model_options == {}


def test_quick_keeps_the_concentration_and_nothing_else_of_the_data(cells):
    for cell in cells["quick"]:
        run = cell.experiments[0]
        if run.dataset.endswith("_drawn"):  # no digit has a mask
            assert (run.model, run.model_options) == ("unet", {"width": 4})
            assert run.partition == {"name": "natural"}
            continue
        stated = TableSpec.find(cell.paper, cell.table).defaults.fields
        # a row may be about the network, but not about another one than this
        own = cell.place.row.fields.get("model_options", {}) if stated["model"] == "convnet" else {}
        assert (run.dataset, run.model) == ("digits", "convnet")
        assert run.model_options == own | {"width": 16}
        assert run.rounds <= 2
        assert run.partition["name"] in ("dirichlet", "iid", "pathological")
    run = TableSpec.find_cell("fedvck/3/fedvck/octmnist-0.02", "quick").experiments[0]
    assert run.partition == {"name": "dirichlet", "alpha": 0.02, "cap": True}


def test_a_stand_in_is_labelled_and_draws_its_own_partition():
    cell = TableSpec.find_cell("fedvck/3/fedavg/pneumoniamnist_224-0.05", "laptop")
    assert cell.stand_in == "pneumoniamnist in place of pneumoniamnist_224"
    run = cell.experiments[0]
    assert (run.dataset, run.model) == ("pneumoniamnist", "convnet")
    assert run.partition == {"name": "dirichlet", "alpha": 0.05, "cap": True}
    original = TableSpec.find_cell("fedvck/3/fedavg/pneumoniamnist_224-0.05", "paper")
    assert original.stand_in is None
    assert (
        original.experiments[0].partition["file"]
        == "splits/PneumoniaMNIST224_clients10_alpha0.05.json"
    )


def test_by_hand_what_is_stated_holds():
    run = apply(
        "laptop",
        {
            "algorithm": "fedavg",
            "dataset": "pneumoniamnist",
            "clients": 10,
            "partition": {"name": "dirichlet", "alpha": 0.05},
        },
    )
    assert run == Experiment(
        algorithm="fedavg",
        dataset="pneumoniamnist",
        clients=10,
        model_options={"width": 64},
        partition={"name": "dirichlet", "alpha": 0.05},
        evaluate_every=2,
        settings={"local_steps": 10, "lr": 0.003},
        profile="laptop",
    )
    run = apply(
        "laptop",
        {
            "algorithm": "fedavg",
            "dataset": "mnist",
            "model": "lenet",
            "rounds": 30,
            "settings": {"local_steps": 50, "lr": 0.1},
        },
    )
    assert (run.rounds, run.model_options, run.settings) == (30, {}, {"local_steps": 50, "lr": 0.1})
    assert apply("quick", {"algorithm": "fedavg"}).dataset == "digits"
    assert apply("quick", {"algorithm": "fedavg", "dataset": "mnist"}).dataset == "mnist"
    with pytest.raises(InputError, match="profile named"):
        apply("big", {"algorithm": "fedavg", "dataset": "mnist"})
    with pytest.raises(InputError, match="experiment field"):
        apply("paper", {"algorithm": "fedavg", "dataset": "mnist", "round": 3})
    for wrong in ({"rounds": "x"}, {"settings": [1]}, {"algorithm": ["fedavg"]}):
        with pytest.raises(InputError):
            apply("quick", {"algorithm": "fedavg", "dataset": "mnist"} | wrong)


def test_profiles_describe_themselves():
    for name in PROFILES:
        profile = Profile.load(name)
        assert profile.name == name
        assert len(profile.meaning) > 40 and len(profile.description) > 40


@pytest.mark.parametrize("table", [2, 3, 4, 8, 9])
@pytest.mark.parametrize("profile", ["quick", "laptop", "paper"])
def test_tables_of_pixels_are_measured_at_sites_that_their_data_have(table, profile):
    """Clients are sites, also of a stand-in, and a cell asks for no site that is not among them."""
    known = {
        "nuclei_drawn": monuseg.ORGANS,
        "monuseg": monuseg.ORGANS,
        "mri_drawn": tuple(drawn.HEADS),
        **{one.name: one.sites for one in sites.ALL},
    }
    for cell in TableSpec.find("fediod", str(table)).cells(profile):
        run = cell.experiments[0]
        had = known[run.dataset.removesuffix("_64")]
        assert run.partition == {"name": "natural"} and run.clients == len(had), cell.address
        asked = set(re.split("[@:]", cell.record_metric)[1:]) - {"average"}
        assert asked <= set(had), cell.address


def test_epochs_that_are_asked_for_are_not_covered_by_a_profiles_steps():
    asked = {"algorithm": "fedavg", "dataset": "mnist", "settings": {"local_epochs": 3}}
    assert apply("laptop", asked).new_algorithm().settings.steps(640) == 30
    both = asked | {"settings": {"local_epochs": 3, "local_steps": 7}}
    assert apply("laptop", both).new_algorithm().settings.steps(640) == 7
    assert apply("laptop", asked | {"settings": {}}).new_algorithm().settings.steps(640) == 10
    taught = {"algorithm": "fedkd", "dataset": "mnist", "settings": {"distill_epochs": 3}}
    assert apply("laptop", taught).new_algorithm().settings.distill_steps is None
    assert apply("laptop", taught | {"settings": {}}).settings["distill_steps"] == 60
    server = {"algorithm": "fedvck", "dataset": "mnist", "settings": {"server_epochs": 3}}
    assert apply("laptop", server).new_algorithm().settings.training.total(512) == 6


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
    asked = {"algorithm": "fedavg", "dataset": "mnist", "settings": {"local_epochs": 3}}
    assert apply("paper", asked).settings == {"local_epochs": 3}
