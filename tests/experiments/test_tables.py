"""The specifications of all tables: complete, consistent with print, and strict about mistakes."""

from __future__ import annotations

import collections
import csv
import functools
import re
import shlex

import attrs
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import core.algorithms
from core.data import drawn, monuseg, sites
from core.errors import InputError
from core.experiments import queue
from core.experiments.experiment import PROFILES, Experiment
from core.experiments.grid import TableSpec
from core.experiments.lines import slug
from core.experiments.profiles import Profile, apply
from core.experiments.spec import TABLES

PAPERS = {"fedvck": 432, "fediod": 250, "fedmk": 186, "gddfl": 87}
NUMBERS = {
    "fedvck": [2, 3, 4, 5, 6, 7, 9, 11, 12, 13, 14],
    "fediod": [*range(1, 10)],
    "fedmk": [*range(1, 8)],
    "gddfl": [1],
}
#: methods of print that are other algorithms here
METHODS = {"upperbound": "centralized", "rs10": "random_selection", "rs100": "random_selection"}
#: data sets of print that have another name here; the sets of segmentation are tasks of their own
SETS = {"isic2020": "isic2020_224", "brats2018": "brats2018"}


def printed_rows(paper: str) -> list[dict[str, str]]:
    with (TABLES / paper / "published.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def cells():
    """All cells of all tables, by profile."""
    return {
        profile: [cell for spec in TableSpec.all() for cell in spec.cells(profile)]
        for profile in PROFILES
    }


def test_every_table_of_the_papers_is_specified():
    found = {
        paper: sorted(int(spec.table) for spec in TableSpec.of_paper(paper) if spec.table.isdigit())
        for paper in NUMBERS
    }
    assert found == NUMBERS


def test_the_papers_print_955_numbers():
    assert {paper: len(printed_rows(paper)) for paper in PAPERS} == PAPERS
    assert sum(PAPERS.values()) == 955


@pytest.mark.parametrize("paper", PAPERS)
def test_every_printed_number_has_one_cell_per_method(paper, cells):
    wanted: collections.Counter = collections.Counter()
    for row in printed_rows(paper):
        std = float(row["std"]) if row["std"] else None
        for method in row["method"].split():
            wanted[
                row["table"],
                row["metric"],
                METHODS.get(method, method),
                row["value"],
                std,
                row["note"],
            ] += 1
    found = collections.Counter(
        (
            cell.table,
            cell.metric,
            cell.experiments[0].algorithm,
            cell.published.text,
            cell.published.std,
            cell.published.note,
        )
        for cell in cells["paper"]
        if cell.paper == paper and cell.published
    )
    assert found == wanted


def _contradictions(cell, row) -> list[str]:
    """Where the run of a cell differs from what published.csv says of its number."""
    run = cell.experiments[0]
    wrong = [] if run.model == row["model"] else ["model"]
    known = {"cifar100_coarse": "cifar100", **{here: there for there, here in SETS.items()}}
    if run.model != "unet" and known.get(run.dataset, run.dataset) != row["dataset"]:
        wrong.append("dataset")
    if row["rounds"] and int(row["rounds"]) != run.rounds:
        wrong.append("rounds")
    if row.get("beta"):
        wrong += [] if run.partition["file"].endswith(f"_alpha{row['beta']}.json") else ["beta"]
    split = row.get("split", "")
    if split.startswith("dir("):
        wrong += (
            []
            if run.partition == {"name": "dirichlet", "alpha": float(split[10 : split.index(")")])}
            else ["alpha"]
        )
    if "=" in split.rpartition(",")[2]:
        wrong += [] if run.clients == int(split.rpartition("=")[2]) else ["clients"]
    return wrong


@pytest.mark.parametrize("paper", PAPERS)
def test_a_cell_runs_what_its_printed_number_is_about(paper, cells):
    """Model, data set, rounds, concentration and clients as published.csv states them, row by
    row.
    """
    rows = printed_rows(paper)
    for cell in cells["paper"]:
        if cell.paper != paper or cell.published is None:
            continue
        same = [
            row
            for row in rows
            if row["table"] == cell.table
            and row["metric"] == cell.metric
            and row["value"] == cell.published.text
            and row["note"] == cell.published.note
            and cell.experiments[0].algorithm in {METHODS.get(m, m) for m in row["method"].split()}
        ]
        assert any(not _contradictions(cell, row) for row in same), (cell.address, same)


def test_every_cell_names_a_command_that_leads_back_to_it(cells):
    for profile in PROFILES:
        for spec in TableSpec.all():
            addresses = [
                cell.address
                for cell in cells[profile]
                if (cell.paper, cell.table) == (spec.paper, spec.table)
            ]
            assert len(set(addresses)) == len(addresses)
    for profile, step in (("laptop", 4), ("quick", 20), ("paper", 20)):
        for cell in cells[profile][::step]:
            words = shlex.split(cell.command())
            assert words == cell.command().split(" ")
            assert words[:5] == ["python", "-m", "core", "run", "--cell"]
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
        ("", "PAPER/TABLE/ROW/COLUMN"),
    ],
)
def test_an_unknown_cell_is_met_with_near_names(text, hint):
    with pytest.raises(InputError, match=hint):
        TableSpec.find_cell(text, "laptop")


def test_an_unknown_profile():
    with pytest.raises(InputError, match="did you mean 'laptop'"):
        TableSpec.find_cell("fedvck/3/FedAvg/pathmnist-0.05", "labtop")


# --- profiles
# ---------------------------------------------------------------------------------------------


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


# --- a table of our own
# ----------------------------------------------------------------------------------------------

CSV = """paper,table,method,dataset,rounds,setting,metric,value,std,unit,better,note
p,1,a b,mnist,10,,accuracy,50.00,1.5,percent,higher,
p,1,c,mnist,10,"x=1,y",accuracy,OOM,,percent,higher,out of memory
"""
YAML = """
paper: p
table: 1
title: A table
metric: accuracy
priority: 3
seeds: [0, 4]
defaults: {model: convnet, clients: 5, settings: {local_epochs: 3, lr: 0.1}}
rows:
  - {name: A, algorithm: fedavg, settings: {lr: 0.3}, match: {method: a}}
  - {name: B, algorithm: fedprox, match: {method: b}}
  - {name: C c, algorithm: unwritten, settings: {own: 1}, match: {method: c, setting: "y,x=1"}}
columns:
  - {dataset: mnist, alpha: 0.1, settings: {lr: 0.2, momentum: 0.5}, settings_of: {fedprox: {mu: 1.0}},
     match: {dataset: mnist, rounds: 10}}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "published.csv").write_text(CSV)
    return tmp_path


def write(folder, text=YAML):
    (folder / "p" / "1.yaml").write_text(text)
    return folder / "p" / "1.yaml"


def test_rows_columns_and_defaults_merge_in_order(folder):
    spec = TableSpec.load(write(folder))
    a, b, c = spec.cells("paper")
    assert a.experiments[0].settings == {"local_epochs": 3, "lr": 0.3, "momentum": 0.5}
    assert b.experiments[0].settings == {"local_epochs": 3, "lr": 0.2, "momentum": 0.5, "mu": 1.0}
    assert c.experiments[0].settings == {"local_epochs": 3, "lr": 0.2, "momentum": 0.5, "own": 1}
    assert [run.seed for run in a.experiments] == [0, 4]
    assert a.experiments[0].partition == {"name": "dirichlet", "alpha": 0.1}
    assert (a.published.value, b.published.std, c.published.value, c.published.text) == (
        50.0,
        1.5,
        None,
        "OOM",
    )
    assert (a.implemented, c.implemented) == (True, False)
    assert [a.column, c.address] == ["mnist-0.1", "p/1/C-c/mnist-0.1"]
    assert TableSpec.find_cell("p/1/c-C/MNIST-0.1", "paper", folder).row == "C c"


def test_a_column_may_have_seeds_of_its_own(folder):
    a, *_ = TableSpec.load(
        write(folder, YAML.replace("alpha: 0.1,", "alpha: 0.1, seeds: [7, 2],"))
    ).cells("paper")
    assert [run.seed for run in a.experiments] == [7, 2]
    assert [run.seed for run in a.chosen([2])] == [2]
    with pytest.raises(InputError, match="has the seeds 7, 2, not 4"):
        a.chosen([4])
    with pytest.raises(InputError, match="seed stands twice"):
        TableSpec.load(write(folder, YAML.replace("alpha: 0.1,", "alpha: 0.1, seeds: [7, 7],")))


def test_a_profile_comes_after_stand_ins_and_a_tables_own_part_comes_last(folder):
    extra = """
stand_ins: {mnist: {dataset: digits, rounds: 7, settings: {batch_size: 8}, profiles: [laptop]}}
profiles:
  laptop: {rounds: 12, settings: {local_steps: 33}, algorithms: {fedprox: {settings: {mu: 0.5}}}}
"""
    a, b, _ = TableSpec.load(write(folder, YAML + extra)).cells("laptop")
    assert (
        a.experiments[0].to_dict()
        == Experiment(
            algorithm="fedavg",
            dataset="digits",
            model_options={"width": 64},
            clients=5,
            rounds=12,
            evaluate_every=2,
            partition={"name": "dirichlet", "alpha": 0.1},
            profile="laptop",
            settings={
                "local_epochs": 3,
                "lr": 0.3,
                "momentum": 0.5,
                "batch_size": 8,
                "local_steps": 33,
            },
        ).to_dict()
    )
    assert b.experiments[0].settings["mu"] == 0.5
    assert a.stand_in == "digits in place of mnist"


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


def test_sites_at_hand_take_the_place_of_those_in_print(folder):
    extra = """
stand_ins: {mnist: {dataset: digits, profiles: [laptop]}}
sites: {digits: {north: left, south: right}}
"""
    spec = TableSpec.load(write(folder, YAML + extra))
    line = attrs.evolve(spec.columns[0], suffix="@north")
    row = attrs.evolve(spec.rows[0], suffix=":south")
    spec = attrs.evolve(spec, columns=(line,), rows=(row,), absent=())
    here, there = (spec.cells(profile)[0] for profile in ("laptop", "paper"))
    assert here.record_metric == "accuracy@left:right"
    assert there.record_metric == "accuracy@north:south"
    assert here.stand_in == "digits in place of mnist (left for north, right for south)"


def test_a_profiles_setting_reaches_only_algorithms_that_have_it(folder, monkeypatch):
    known = core.algorithms.settings_fields
    monkeypatch.setattr(
        core.algorithms,
        "settings_fields",
        lambda name: (
            {"own", "local_epochs", "lr", "momentum"} if name == "unwritten" else known(name)
        ),
    )
    a, _, c = TableSpec.load(write(folder)).cells("laptop")
    assert a.experiments[0].settings["local_steps"] == 10
    assert "local_steps" not in c.experiments[0].settings


def test_cells_without_a_printed_number(folder):
    extra = """
  - {dataset: cifar10, alpha: 1, printed: false, note: added here}
absent:
  - {rows: [B], columns: [mnist-0.1], reason: cut off}
  - {rows: [C c], columns: [cifar10-1], reason: out of memory, run: false}
"""
    cells = {
        (cell.row, cell.column): cell
        for cell in TableSpec.load(write(folder, YAML + extra)).cells("paper")
    }
    assert len(cells) == 5
    assert cells["A", "mnist-0.1"].published
    assert cells["B", "mnist-0.1"].published is None
    assert cells["B", "mnist-0.1"].note == "cut off"
    assert cells["A", "cifar10-1"].published is None
    assert cells["A", "cifar10-1"].unit == "percent"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("metric: accuracy", "metrc: accuracy", "p/1.yaml.*'metrc'.*did you mean 'metric'"),
        ("algorithm: fedprox, ", "", "row 'B' has no 'algorithm'"),
        ("name: A, ", "", "a row has no 'name'"),
        ("name: B,", "name: A,", "'A' and 'A' are the same"),
        ("name: B,", "name: a,", "'A' and 'a' are the same"),
        ("name: B,", "name: '//',", "no letter or digit"),
        ("algorithm: fedprox", "algoritm: fedprox", "row.*'algoritm'.*did you mean 'algorithm'"),
        ("dataset: mnist, alpha", "alpha", "needs a 'name' or a 'dataset'"),
        ("dataset: mnist, alpha", "name: x, alpha", "'x' has no 'dataset'"),
        ("alpha: 0.1", "alpha: -1", "alpha must be a number above 0"),
        ("alpha: 0.1", "alpha: 0.1, beta: 0.1", "the same"),
        ("seeds: [0, 4]", "seeds: [0, 1.5]", "each seed must be a whole number"),
        ("seeds: [0, 4]", "seeds: [0, true]", "each seed must be a whole number"),
        ("seeds: [0, 4]", "seeds: [1, 1]", "stands twice"),
        ("seeds: [0, 4]", "seeds: []", "at least one"),
        ("priority: 3", "priority: high", "priority must be a whole number"),
        ("method: b", "method: d", r"row 'B'.*fits 0 rows"),
        (", match: {method: b}", "", r"row 'B'.*'fedprox'.*fits 0 rows"),
        ("dataset: mnist, rounds: 10", "setting: 'x=1,y'", r"fits 0 rows"),
        ("method: b", "methd: b", "did you mean 'method'"),
        ("method: b", "value: 50.00", "column to match"),
        ("{method: b}", "[b]", "match must map names"),
        ("paper: p", "paper: q", "must agree"),
        ("title: A table\n", "", "no 'title'"),
        ("title: A table", "title: [1]", "must be a text"),
        ("metric: accuracy", "metric: accuracy\nmetrics: [accuracy]", "either"),
        ("metric: accuracy", "metrics: []", "at least one"),
        ("clients: 5", "cliens: 5", "defaults.*did you mean 'clients'"),
        ("clients: 5", "clients: 0", "p/1.yaml, defaults: clients must be a whole number"),
        ("clients: 5", "clients: 5, rounds: '10'", "defaults: rounds must be a whole number"),
        ("model: convnet", "model: [convnet]", "defaults: model must be a name"),
        ("settings: {lr: 0.3}", "settings: 3", "settings must map names"),
        ("priority: 3", "absent: 5", "absent must be a list"),
        ("priority: 3", "record_metrics: {accuracy: 5}", "accuracy must be a text"),
        ("priority: 3", "profiles: {paper: {settings: 3}}", "settings must map names"),
        ("lr: 0.3", "lrr: 0.3", "setting of fedavg.*did you mean 'lr'"),
        ("{mu: 1.0}", "{mue: 1.0}", "setting of fedprox.*did you mean 'mu'"),
        ("{mu: 1.0}", "{mu: much}", "mu must be a number"),
        ("model: convnet", "model: convnets", "did you mean 'convnet'"),
        ("priority: 3", "profiles: {latop: {}}", "did you mean 'laptop'"),
        ("priority: 3", "profiles: {paper: {round: 3}}", "did you mean 'rounds'"),
        (
            "priority: 3",
            "profiles: {paper: {settings: {iteratons: 3}}}",
            "setting of any algorithm.*'iteratons'",
        ),
        ("priority: 3", "profiles: {paper: {limits: {rounds: 0}}}", "at least 1"),
        ("priority: 3", "stand_ins: {mnist: {rounds: 3}}", "has no 'dataset'"),
        ("priority: 3", "stand_ins: {mnist: {dataset: digits, profiles: [lap]}}", "profiles of"),
        ("priority: 3", "absent: [{rows: [Q], reason: x}]", "rows of"),
        ("priority: 3", "absent: [{rows: [A]}]", "reason must be a text"),
        ("priority: 3", "compare: best", "way to compare"),
        ("priority: 3", "priority: 3\npriority: 4", "stands twice"),
        ("priority: 3", "priority: 3\n  x: 4", "not valid YAML"),
        ("seeds: [0, 4]", "seeds: [0, 4", "not valid YAML"),
        ("priority: 3", "? [a, b]\n: 3", "not a plain name"),
    ],
)
def test_mistakes_in_a_specification_are_named(folder, old, new, message):
    assert old in YAML
    assert TableSpec.load(write(folder)).cells("paper")
    with pytest.raises(InputError, match=message) as error:
        TableSpec.load(write(folder, YAML.replace(old, new, 1))).cells("paper")
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_a_table(folder):
    with pytest.raises(InputError, match="no specification"):
        TableSpec.load(folder / "p" / "2.yaml")
    for text in ("- 1\n", "", "just text"):
        with pytest.raises(InputError, match="must hold a mapping"):
            TableSpec.load(write(folder, text))
    path = write(folder)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not text in UTF-8"):
        TableSpec.load(path)


def test_a_published_file_that_is_broken(folder):
    path = folder / "p" / "published.csv"
    path.write_text(CSV.replace("50.00", "fifty"))
    with pytest.raises(InputError, match=r"'fifty'.*no number"):
        TableSpec.load(write(folder))
    path.write_text(CSV.replace("better", "bettr"))
    with pytest.raises(InputError, match="no column 'better'"):
        TableSpec.load(write(folder))


def test_an_edited_file_is_read_again(folder):
    write(folder)
    assert TableSpec.find("p", 1, folder).title == "A table"
    write(folder, YAML.replace("A table", "Another, longer one"))
    assert TableSpec.find("p", 1, folder).title == "Another, longer one"


def test_a_table_of_ones_own_needs_a_file_and_nothing_else(folder):
    """As CONTRIBUTING says: no printed numbers, no `match`, nothing to register."""
    text = YAML.replace("table: 1", "table: mine").replace("seeds: [0, 4]\n", "")
    for match in (", match: {method: a}", ", match: {method: b}"):
        text = text.replace(match, "")
    (folder / "p" / "mine.yaml").write_text(text)
    cells = TableSpec.find("p", "mine", folder).cells("laptop")
    assert [cell.published for cell in cells] == [None] * 3
    assert [run.seed for run in cells[0].experiments] == [0, 1, 2]
    assert {run.id for cell in cells for run in cell.experiments} <= TableSpec.ids(folder)
    assert TableSpec.find_cell(cells[0].address, "laptop", folder).row == "A"


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


@pytest.mark.parametrize(("dataset", "far"), [("cifar10", 0.2), ("pathmnist", 1.0)])
def test_the_authors_logs_end_where_print_does(dataset, far):
    """One seed each, beside a mean of three in Tables 11 and 3; ten rounds, ten tests in each."""
    with (TABLES / "fedvck" / "authors_log.csv").open(encoding="utf-8", newline="") as file:
        log = [row for row in csv.DictReader(file) if row["dataset"] == dataset]
    places = [(int(row["round"]), int(row["epoch"])) for row in log]
    assert places == [(t, epoch) for t in range(1, 11) for epoch in range(100, 1001, 100)]
    (printed,) = (
        float(row["value"])
        for row in printed_rows("fedvck")
        if (row["dataset"], row["method"], row["beta"]) == (dataset, "fedvck", "0.05")
        and (row["table"], row["metric"]) in {("11", "accuracy"), ("3", "accuracy")}
    )
    assert abs(float(log[-1]["accuracy"]) - printed) < far


def test_a_run_whose_split_file_is_missing_cannot_run_here(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCON_DATA", str(tmp_path))
    monkeypatch.setattr("core.data.present_names", lambda: {"cifar10"})
    missing = [one.missing for one in queue.pending("converged", tmp_path) if one.missing]
    assert any("splits/CIFAR10_clients10_alpha0.05.json is not here" in said for said in missing)
