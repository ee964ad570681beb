"""The cells of all tables: their runs, their commands, their order and their names."""

from __future__ import annotations

import functools
import shlex

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import core.algorithms
from core.errors import InputError
from lab import grid, queue
from lab.experiment import PROFILES, Experiment
from lab.grid import TableSpec
from lab.lines import slug
from lab.spec import TABLES


def test_every_cell_names_a_command_that_leads_back_to_it(cells):
    for profile in PROFILES:
        for spec in TableSpec.all():
            addresses = [
                slug(cell.address).lower()  # also where a name that is shown has a slash
                for cell in cells[profile]
                if (cell.paper, cell.table) == (spec.paper, spec.table)
            ]
            assert len(set(addresses)) == len(addresses)
    for profile, step in (("laptop", 4), ("quick", 20), ("paper", 20)):
        for cell in cells[profile][::step]:
            words = shlex.split(cell.command())
            assert words == cell.command().split(" ")
            assert words[:5] == ["python", "-m", "lab", "run", "--cell"]
            found = TableSpec.find_cell(words[5], words[7])
            assert (found.paper, found.table, found.row, found.column, found.metric) == (
                cell.paper,
                cell.table,
                cell.row,
                cell.column,
                cell.metric,
            )
            assert [run.id for run in found.experiments] == [run.id for run in cell.experiments]
            # and so do the names that a table shows, but for one with a stroke of its own
            shown = (cell.paper, cell.table, cell.row, cell.column, cell.metric)
            if "/" not in "".join(shown):
                assert TableSpec.find_cell("/".join(shown), words[7]).address == cell.address


@functools.cache
def stated(paper: str, table: str) -> dict[str, list[int]]:
    """The seeds that a table's file states, for each of its columns."""
    file = yaml.safe_load((TABLES / paper / f"{table}.yaml").read_text(encoding="utf-8"))
    names = [column.name for column in TableSpec.find(paper, table).columns]
    of_all = file.get("seeds", [0, 1, 2])
    return {
        name: column.get("seeds", of_all)
        for name, column in zip(names, file["columns"], strict=True)
    }


def test_experiments_exist_at_every_profile(cells):
    for profile in PROFILES:
        for cell in cells[profile]:
            seeds = [run.seed for run in cell.experiments]
            assert seeds == stated(cell.paper, cell.table)[cell.column]
            # the book's own tables, for example of switches, may have one seed
            assert seeds[:3] == [0, 1, 2] or not cell.published
            assert len({run.id for run in cell.experiments}) == len(seeds)
            assert {run.profile for run in cell.experiments} == {profile}
            assert all(Experiment.from_dict(run.to_dict()) == run for run in cell.experiments)


@pytest.mark.parametrize(
    ("paper", "table"),
    [
        ("fedvck", 2),
        ("fedvck", 3),
        ("fedvck", 7),
        ("fedvck", 11),
        ("fedvck", 14),
        ("fedmk", 1),
        ("fedmk", 4),
        ("fedmk", 5),
        ("fedmk", 7),
        ("fediod", 1),
        ("fediod", 5),
        ("fediod", 6),
        ("reference", 1),
    ],
)
def test_cells_of_one_table_are_different_runs(paper, table):
    runs = [
        run.id for cell in TableSpec.find(paper, table).cells("paper") for run in cell.experiments
    ]
    assert len(set(runs)) == len(runs)


def test_settings_of_algorithms_that_are_here_are_valid(cells):
    here = core.algorithms.names()
    for profile in PROFILES:
        for cell in cells[profile]:
            run = cell.experiments[0]
            if run.algorithm in here:
                core.algorithms.create(run.algorithm, run.settings, run.variant)


@pytest.mark.parametrize("row", ["FedAvg", "FedProx"])
def test_reference_and_fedvck_share_their_cifar10_runs(row):
    ours = TableSpec.find_cell(f"reference/1/{row}/cifar10-0.05", "laptop")
    theirs = TableSpec.find_cell(f"fedvck/11/{row}/cifar10-0.05", "laptop")
    assert [run.id for run in ours.experiments] == [run.id for run in theirs.experiments]


def test_what_cannot_be_tested_says_why(cells):
    away = {(cell.paper, cell.table) for cell in cells["paper"] if cell.not_testable}
    # a 0 that a set has to itself; where data cannot be had, a run asks for their file
    assert away == {("fedmk", "7")}
    assert TableSpec.find_cell("reference/1/FedAvg/mnist-0.05", "paper").implemented


def test_the_reference_table_is_most_urgent(cells):
    first = TableSpec.find("reference", 1).priority
    assert first == min(spec.priority for spec in TableSpec.all())
    for spec in TableSpec.all():
        own = [cell.priority for cell in cells["laptop"] if cell.spec is spec]
        assert own == sorted(set(own))
    main = [
        TableSpec.find(paper, table).priority
        for paper, table in (
            ("fedvck", 3),
            ("fedvck", 11),
            ("fedmk", 1),
            ("fediod", 1),
            ("gddfl", 1),
            ("fedvck", 7),
            ("fedvck", 2),
            ("fedvck", 14),
        )
    ]
    assert main == sorted(main)


def test_comparisons():
    assert ("FedAvg", "FedVCK") in TableSpec.find("fedvck", 3).pairs()
    assert len(TableSpec.find("fedvck", 3).pairs()) == 45
    assert TableSpec.find("fedvck", 4).pairs() == [
        ("w.o. all", "w.o. L_rc + P_w"),
        ("w.o. L_rc + P_w", "w.o. L_rc"),
        ("w.o. L_rc", "FedVCK"),
    ]
    assert TableSpec.find("fedmk", 5).pairs() == [("tau=1", "tau=5"), ("tau=10", "tau=5")]
    assert TableSpec.find("fedmk", 7).pairs() == []  # a description


# --- names
# ---------------------------------------------------------------------------------------------


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
        ("fedmk/2/FedMK/cifar10-0.5/accuracy/x", "PAPER/TABLE/ROW/COLUMN"),
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


def test_an_unknown_profile():
    with pytest.raises(InputError, match="did you mean 'laptop'"):
        TableSpec.find_cell("fedvck/3/FedAvg/pathmnist-0.05", "labtop")


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


def test_a_mistake_in_a_table_does_not_hide_what_another_paper_needs(tmp_path, monkeypatch):
    for path in TABLES.rglob("*"):
        if path.is_file() and path.parent.name in ("tables", "gddfl", "fedmk"):
            copy = tmp_path / path.relative_to(TABLES)
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(path.read_bytes())
    (tmp_path / "gddfl" / "1.yaml").write_text("paper: gddfl\n")
    for module in (queue, grid):
        monkeypatch.setattr(module, "TABLES", tmp_path)
    assert queue.pending("paper", tmp_path, only="fedmk")
    with pytest.raises(InputError, match=r"gddfl/1\.yaml"):
        queue.pending("paper", tmp_path)


def test_a_run_whose_split_file_is_missing_cannot_run_here(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCON_DATA", str(tmp_path))
    monkeypatch.setattr("core.data.present_names", lambda: {"cifar10"})
    missing = [one.missing for one in queue.pending("converged", tmp_path) if one.missing]
    assert any("splits/CIFAR10_clients10_alpha0.05.json is not here" in said for said in missing)


@pytest.mark.parametrize(
    "row, step",
    [
        ("FedAvg", "FedAvg, three epochs"),
        ("FedDM from real images, Adam", "FedDM from real images, Adam"),
        ("FedVCK as released, Adam", "FedVCK as released, Adam"),
    ],
)
def test_rows_that_the_rivals_share_with_the_ladder_are_the_same_runs(row, step):
    runs = [
        [one.id for one in cell.experiments]
        for table, name in (("rivals", row), ("ladder", step))
        for cell in TableSpec.find("fedvck", table).cells("converged")
        if cell.row == name
    ]
    assert len(runs) == 2 and runs[0] == runs[1]
