"""The cells of all tables: their runs, their commands, their order and their names."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InputError
from lab import queue
from lab.experiment import PROFILES, Experiment
from lab.table import TableSpec, slug


def test_every_cell_names_a_command_that_leads_back_to_it(cells):
    for profile, step in (("laptop", 4), ("quick", 20), ("paper", 20)):
        addresses = [cell.address.lower() for cell in cells[profile]]
        assert len(set(addresses)) == len(addresses)
        for cell in cells[profile][::step]:
            words = shlex.split(cell.command())
            assert words == cell.command().split(" ")
            assert words[:3] == ["fedcon", "run", "--cell"]
            assert TableSpec.find_cell(words[3], words[5]) is cell
            # and so do the names that a table shows, but for one with a stroke of its own
            shown = (cell.paper, cell.table, *cell.names)
            if "/" not in "".join(shown):
                assert TableSpec.find_cell("/".join(shown), words[5]) is cell


def test_the_runs_of_a_cell_have_the_seeds_that_its_table_states(cells):
    for profile in PROFILES:
        for cell in cells[profile]:
            seeds = [run.seed for run in cell.experiments]
            assert seeds == (cell.column_entry.seeds or cell.spec.seeds)
            # the book's own tables, for example of switches, may have one seed
            assert seeds[:3] == [0, 1, 2] or not cell.published
            assert all(Experiment.from_dict(run.to_dict()) == run for run in cell.experiments)


@pytest.mark.parametrize("name", ["fedvck/2 3 7 11 14", "fedmk/1 4 5 7", "fediod/1 5 6"])
def test_cells_of_one_table_are_different_runs(name):
    paper, _, tables = name.partition("/")
    for number in tables.split():
        cells = TableSpec.find(paper, number).cells("paper")
        found = [run.id for cell in cells for run in cell.experiments]
        assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("paper", "number", "pairs"),
    [
        (
            *("fedvck", 4),
            [
                ("w.o. all", "w.o. L_rc + P_w"),
                ("w.o. L_rc + P_w", "w.o. L_rc"),
                ("w.o. L_rc", "FedVCK"),
            ],
        ),
        ("fedmk", 5, [("tau=1", "tau=5"), ("tau=10", "tau=5")]),
        ("fedmk", 7, []),  # a description
    ],
)
def test_comparisons(paper, number, pairs):
    assert TableSpec.find(paper, number).pairs() == pairs


def test_by_default_each_row_that_the_paper_prints_is_compared_with_each_other():
    pairs = TableSpec.find("fedvck", 3).pairs()
    assert ("FedAvg", "FedVCK") in pairs and len(pairs) == 45


# --- names


@given(st.text())
def test_a_slug_needs_no_quotes(text):
    name = slug(text)
    assert name == "" or shlex.quote(name) == name
    assert "/" not in name


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("fedvck/3/FedAvg", "PAPER/TABLE/ROW/COLUMN"),
        ("fedvk/3/FedAvg/x", "fedvck"),
        ("fedvck/8/FedAvg/x", "table of"),
        ("fedvck/3/FedAv/pathmnist-0.05", "FedAvg"),
        ("fedvck/3/FedAvg/pathmnist-0.5", "pathmnist-0.05"),
        ("fedvck/6/FedAvg/organsmnist-0.05/mia_auc", "mia_auc_max"),
        ("fedmk/2/FedMK/cifar10-0.5/accuracy/x", "mean 'FedMK/cifar10-0.5'"),
        ("", "PAPER/TABLE/ROW/COLUMN"),
    ],
)
def test_an_unknown_cell_is_met_with_near_names(text, hint):
    with pytest.raises(InputError, match=hint):
        TableSpec.find_cell(text, "laptop")


@pytest.mark.parametrize("metric", ["", "/accuracy"])
def test_a_cell_is_found_by_the_names_that_its_table_shows(metric):
    found = TableSpec.find_cell(f"fedmk/2/w/o iteration/cifar10-0.5{metric}", "paper")
    assert found.address == "fedmk/2/w-o-iteration/cifar10-0.5"


# --- what waits


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dgits", "there is no data set named 'dgits'; did you mean 'digits'?"),
        ("svhn", "the data set svhn is not here"),
        ("mnist_7", "mnist comes at 28 pixels, not 7"),
    ],
)
def test_a_data_set_that_nobody_has_is_told_from_one_that_is_not_here(name, said):
    one = Experiment(algorithm="fedavg", dataset=name)
    assert queue._missing(one, {"digits"}).startswith(said)


def test_a_run_whose_split_file_is_missing_cannot_run_here(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCON_DATA", str(tmp_path))
    monkeypatch.setattr("core.data.present_names", lambda: {"cifar10"})
    missing = [one.missing for one in queue.pending("converged", tmp_path) if one.missing]
    assert any("splits/CIFAR10_clients10_alpha0.05.json is not here" in said for said in missing)
