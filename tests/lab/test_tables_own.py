"""A table of one's own: how its parts merge, and that each mistake in it is named."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import get_args

import pytest

from core.errors import InputError
from lab.experiment import Experiment
from lab.forms import read_yaml
from lab.published import Unit, as_published, of_table, read_published
from lab.report.verdict import SCALE
from lab.table import TableSpec

HEADER = "paper,table,method,dataset,rounds,setting,metric,value,std,unit,better,note\n"
CSV = f"""{HEADER}p,1,a b,mnist,10,,accuracy,50.00,1.5,percent,higher,
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
  - {name: C c, algorithm: moon, settings: {mu: 2}, match: {method: c, setting: "y,x=1"}}
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


def cells(folder, text=YAML, profile="paper"):
    return TableSpec.load(write(folder, text)).cells(profile)


# --- how the parts merge


def test_rows_columns_and_defaults_merge_in_order(folder):
    a, b, c = cells(folder)
    assert a.experiments[0].settings == {"local_epochs": 3, "lr": 0.3, "momentum": 0.5}
    assert b.experiments[0].settings == {"local_epochs": 3, "lr": 0.2, "momentum": 0.5, "mu": 1.0}
    assert c.experiments[0].settings == {"local_epochs": 3, "lr": 0.2, "momentum": 0.5, "mu": 2}
    assert [run.seed for run in a.experiments] == [0, 4]
    assert a.experiments[0].partition == {"name": "dirichlet", "alpha": 0.1}
    assert (a.published.value, b.published.std) == (50.0, 1.5)
    assert (c.published.value, c.published.text) == (None, "OOM")
    assert [a.column, c.address] == ["mnist-0.1", "p/1/C-c/mnist-0.1"]
    assert TableSpec.find_cell("p/1/c-C/MNIST-0.1", "paper", folder).row == "C c"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("alpha: 0.1", "beta: 0.1"),
        ("alpha: 0.1", "partition: {name: dirichlet, alpha: 0.1}"),
        ("dataset: mnist, alpha", "name: mnist-0.1, dataset: mnist, alpha"),
        ("metric: accuracy", "metrics: [accuracy]"),
    ],
)
def test_what_may_be_said_in_two_ways(folder, old, new):
    ids = [
        [(cell.address, run.id) for cell in cells(folder, text) for run in cell.experiments]
        for text in (YAML, YAML.replace(old, new, 1))
    ]
    assert ids[0] == ids[1]


def test_a_value_is_the_one_that_is_written(folder):
    """An id tells 1 from 1.0; only the concentration of a column is always a decimal number."""
    text = YAML.replace("lr: 0.3", "lr: 1").replace("alpha: 0.1", "alpha: 1")
    (run, _), other = cells(folder, text)[0].experiments, cells(folder, text)[1].experiments[0]
    assert isinstance(run.settings["lr"], int) and isinstance(other.settings["mu"], float)
    assert isinstance(run.partition["alpha"], float)


def test_a_column_may_have_seeds_of_its_own(folder):
    a, *_ = cells(folder, YAML.replace("alpha: 0.1,", "alpha: 0.1, seeds: [7, 2],"))
    assert [run.seed for run in a.experiments] == [7, 2]
    assert [run.seed for run in a.experiments_of([2])] == [2]
    with pytest.raises(InputError, match="has the seeds 7, 2, not 4"):
        a.experiments_of([4])
    assert [run.seed for run in a.experiments_of([4, 7], any_seed=True)] == [4, 7]


def test_a_profile_comes_after_stand_ins_and_a_tables_own_part_comes_last(folder):
    extra = """
substitutes: {mnist: {dataset: digits, rounds: 7, settings: {batch_size: 8}, profiles: [laptop]}}
profiles:
  laptop: {rounds: 12, settings: {local_steps: 33}, algorithms: {fedprox: {settings: {mu: 0.5}}}}
"""
    a, b, _ = cells(folder, YAML + extra, "laptop")
    assert a.experiments[0] == Experiment(
        algorithm="fedavg",
        dataset="digits",
        model_options={"width": 64},
        clients=5,
        rounds=12,
        evaluate_every=2,
        partition={"name": "dirichlet", "alpha": 0.1},
        profile="laptop",
        settings={"local_epochs": 3, "lr": 0.3, "momentum": 0.5, "batch_size": 8}
        | {"local_steps": 33},
    )
    assert b.experiments[0].settings["mu"] == 0.5
    assert a.substitute == "digits in place of mnist"


def test_sites_at_hand_take_the_place_of_those_in_print(folder):
    text = YAML.replace("{name: A,", "{name: A, suffix: ':south',")
    text = text.replace("dataset: mnist, alpha", "suffix: '@north', dataset: mnist, alpha")
    text += """
substitutes: {mnist: {dataset: digits, profiles: [laptop]}}
sites: {digits: {north: left, south: right}}
"""
    here, there = (cells(folder, text, profile)[0] for profile in ("laptop", "paper"))
    assert here.record_metric == "accuracy@left:right"
    assert there.record_metric == "accuracy@north:south"
    assert here.substitute == "digits in place of mnist (left for north, right for south)"


def test_cells_without_a_printed_number(folder):
    extra = """
  - {dataset: cifar10, alpha: 1, printed: false, note: added here}
absent:
  - {rows: [B], columns: [mnist-0.1], reason: cut off}
  - {rows: [C c], columns: [cifar10-1], reason: out of memory, run: false}
"""
    found = {(cell.row, cell.column): cell for cell in cells(folder, YAML + extra)}
    assert len(found) == 5
    assert found["A", "mnist-0.1"].published
    assert found["B", "mnist-0.1"].published is None
    assert found["B", "mnist-0.1"].note == "cut off"
    assert found["A", "cifar10-1"].published is None
    # what is not printed has the unit in which it is measured
    units = [found["A", "cifar10-1"].unit]
    units += [found["A", "cifar10-1"].spec.unit(one) for one in ("upload_mb", "mia_auc_mean")]
    assert units == ["percent", "MB", "auc"]


@pytest.mark.parametrize("text", ["5e-2", "+5E-2", "0.5e-1", "5.e-2", "0.05", ".05"])
def test_a_number_is_one_however_it_is_written(folder, text):
    """YAML 1.1 reads the first two as texts."""
    rate = cells(folder, YAML.replace("lr: 0.3", f"lr: {text}", 1))[0].experiments[0].settings["lr"]
    assert rate == 0.05 and isinstance(rate, float)


def test_the_table_that_contributing_shows_is_one(tmp_path):
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    (tmp_path / "mine").mkdir()
    for kind, name in (("yaml", "1.yaml"), ("text", "published.csv")):
        (block,) = re.findall(rf"   ```{kind}\n(   paper.*?)   ```", text, re.DOTALL)
        (tmp_path / "mine" / name).write_text(textwrap.dedent(block))
    found = TableSpec.find("mine", 1, tmp_path).cells("paper")
    printed = {(cell.row, cell.column): cell.published.value for cell in found}
    assert printed["FedProx", "digits-1"] == 95.5 and printed["FedAvg", "digits-0.1"] == 80
    assert len(printed) == 4 and [run.seed for run in found[0].experiments] == [0, 1, 2]


# --- files


def test_a_mistake_in_one_paper_hides_no_other(folder):
    write(folder)
    other = folder / "q" / "1.yaml"
    other.parent.mkdir()
    other.write_text("paper: q\n")
    assert TableSpec.find("p", 1, folder).title == "A table"
    for ask in (lambda: TableSpec.find("q", 1, folder), lambda: TableSpec.all(folder)):
        with pytest.raises(InputError, match=r"q/1\.yaml"):
            ask()
    with pytest.raises(InputError, match="no paper named 'r'; known: p, q"):
        TableSpec.find("r", 1, folder)


def test_an_edited_file_is_read_again(folder):
    write(folder)
    assert TableSpec.find("p", 1, folder).title == "A table"
    write(folder, YAML.replace("A table", "Another, longer one"))
    assert TableSpec.find("p", 1, folder).title == "Another, longer one"
    (folder / "p" / "published.csv").write_text(CSV.replace("50.00", "51.00"))
    assert TableSpec.find("p", 1, folder).cells("paper")[0].published.value == 51


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("metric: accuracy", "metrc: accuracy", "p/1.yaml.*give either 'metric'"),
        ("title: A", "titel: A", "p/1.yaml: .*'titel'.*did you mean 'title'"),
        ("algorithm: fedprox, ", "", "rows, B: has no 'algorithm'"),
        ("name: A, ", "", "rows, 1 has no 'name'"),
        ("name: B,", "name: A,", "rows: 'A' and 'A' are the same"),
        ("name: B,", "name: '//',", "no letter or digit"),
        ("algorithm: fedprox", "algoritm: fedprox", "rows, B.*'algoritm'.*mean 'algorithm'"),
        ("dataset: mnist, alpha", "alpha", "columns, 1 has no 'name'"),
        ("dataset: mnist, alpha", "name: x, alpha", "'x' has no 'dataset'"),
        ("alpha: 0.1", "alpha: -1", "columns, mnist, alpha must be greater than 0, not -1"),
        ("alpha: 0.1", "alpha: 0.1, beta: 0.1", "mean the same"),
        (
            "alpha: 0.1,",
            "alpha: 0.1, seeds: [7, 7],",
            "columns, mnist, seeds: 7 and 7 are the same",
        ),
        ("seeds: [0, 4]", "seeds: [0, 1.5]", "seeds, 2 must be a valid integer, not 1.5"),
        ("clients: 5,", "clients: 5, model_options: {widht: 8},", "option of convnet.*'widht'"),
        ("method: b", "method: d", r"row 'B'.*fits 0 rows"),
        ("method: b", "methd: b", "did you mean 'method'"),
        ("method: b", "std_elsewhere: 1.5", "column to match"),
        ("title: A table\n", "", "p/1.yaml has no 'title'"),
        ("clients: 5", "cliens: 5", "defaults.*did you mean 'clients'"),
        ("clients: 5", "clients: 0", "p/1.yaml, defaults: clients must be a whole number"),
        ("model: convnet", "model: [convnet]", "defaults: model must be a name"),
        ("priority: 3", "profiles: {paper: {settings: 3}}", "settings must map names"),
        ("lr: 0.3", "lrr: 0.3", "setting of fedavg.*did you mean 'lr'"),
        ("{mu: 1.0}", "{mu: much}", "mu must be a number"),
        ("priority: 3", "profiles: {paper: {limits: {active: 3}}}", "limits.*'active'"),
        ("priority: 3", "substitutes: {mnist: {dataset: digits, profiles: [lap]}}", "'laptop'"),
        ("priority: 3", "absent: [{rows: [Q], reason: x}]", "no row named 'Q'"),
        ("priority: 3", "compare: best", "way to compare"),
        ("priority: 3", "priority: 3\npriority: 4", "stands twice"),
        ("priority: 3", "3: 4", "must hold a mapping of names"),
        ("priority: 3", "priority: !!python/object/apply:os.system ['true']", "not valid YAML"),
    ],
)
def test_mistakes_in_a_specification_are_named(folder, old, new, message):
    assert old in YAML
    with pytest.raises(InputError, match=message) as error:
        cells(folder, YAML.replace(old, new, 1))
    assert "\n" not in str(error.value)


def test_a_profiles_setting_that_no_row_has_is_named(folder):
    """It would change nothing, in silence."""
    text = YAML + "profiles: {paper: {settings: {iteratons: 3}}}\n"
    with pytest.raises(InputError, match=r"p/1\.yaml: .*'iteratons'"):
        cells(folder, text)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        (b"- 1\n", "must hold a mapping"),
        (b"\xe9\xe9", "cannot be read.*UTF-8"),
    ],
)
def test_a_file_that_is_no_table(tmp_path, content, said):
    path = tmp_path / "1.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=said):
        read_yaml(path)


# --- printed numbers


def test_a_printed_number_takes_the_deviation_of_the_same_number_in_another_table():
    row = {"table": "1", "method": "a", "setting": "", "value": "50", "std": "2", "note": ""}
    same = row | {"table": "2", "setting": "x=1", "std": "", "note": "again"}
    others = [same | {"value": "51"}, same | {"method": "b"}]

    def elsewhere(table, *rows):
        return [one["std_elsewhere"] for one in of_table(rows, table)]

    assert elsewhere("2", row, same, *others) == ["2", "", ""]
    assert elsewhere("2", row, row | {"table": "3", "std": "3"}, same) == [""]  # which of two?
    # nor is one of another setting in the same table taken
    assert elsewhere("1", row, same | {"table": "1"}) == ["", ""]
    for std, std_elsewhere, spread in (("", "2", 2), ("0.0", "2", 0), ("", "", None)):
        one = NUMBER | {"std": std, "std_elsewhere": std_elsewhere}
        assert as_published(one, "here").spread == spread


ROW = "p,1,a,mnist,10,,accuracy,97,,percent,higher,"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEADER + "p,1,a\n", "row 2, has not as many values"),
        (HEADER + ROW + ",more\n", "row 2, has not as many values"),
        (HEADER.replace("better", "bettr"), "no column 'better'"),
        (HEADER + ROW + f'"{"x" * 200_000}"\n', "field larger"),
    ],
)
def test_a_list_of_printed_numbers_that_is_none(tmp_path, text, said):
    path = tmp_path / "published.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=rf"published\.csv.*{said}"):
        read_published(path)


NUMBER = {"value": "97", "std": "", "unit": "percent", "better": "higher", "note": ""}


@pytest.mark.parametrize("key", ["value", "std", "std_elsewhere"])
@pytest.mark.parametrize("value", ["nan", "1e999", "97%"])
def test_a_value_that_is_no_number(key, value):
    with pytest.raises(InputError, match=f"here, published.csv, {key}.* must be a .*number"):
        as_published(NUMBER | {key: value}, "here")


@pytest.mark.parametrize(
    ("key", "value"), [("unit", "procent"), ("better", "lowr"), ("std", "-1.5")]
)
def test_a_value_that_would_turn_a_verdict_round(key, value):
    assert as_published(NUMBER, "here").value == 97
    with pytest.raises(InputError, match=f"published.csv, {key} must be .*, not '{value}'"):
        as_published(NUMBER | {key: value}, "here")


@pytest.mark.parametrize("unit", get_args(Unit))
def test_each_unit_of_print_can_be_measured(unit):
    assert SCALE[unit] > 0
