"""A table of one's own: how its parts merge, and that each mistake in it is named."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import attrs
import pytest

import core.algorithms
from core.errors import InputError
from lab.experiment import Experiment
from lab.grid import TableSpec
from lab.spec import Published, of_table

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


def test_a_printed_number_takes_the_deviation_of_the_same_number_in_another_table():
    row = {"table": "1", "method": "a", "setting": "", "value": "50", "std": "2", "note": ""}
    same = row | {"table": "2", "setting": "x=1", "std": "", "note": "again"}
    others = [same | {"value": "51"}, same | {"method": "b"}]
    found = of_table([row, same, *others], "2")
    assert [one["std_elsewhere"] for one in found] == ["2", "", ""]
    # which of two deviations it would be nobody knows
    (found,) = of_table([row, row | {"table": "3", "std": "3"}, same], "2")
    assert not found["std_elsewhere"]
    # nor is one of another setting in the same table taken
    (found,) = of_table([row, same], "1")
    assert found["table"] == "1" and not found["std_elsewhere"]
    assert not any(one["std_elsewhere"] for one in of_table([row, same | {"table": "1"}], "1"))


def test_the_deviation_of_another_table_is_the_spread_where_there_is_none():
    one = Published(50.0, "50.0", None, "percent", "higher", "", 2.0)
    assert one.spread == 2 and attrs.evolve(one, std=0.0).spread == 0
    assert attrs.evolve(one, std_elsewhere=None).spread is None


def test_the_table_that_contributing_shows_is_one(tmp_path):
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    (tmp_path / "mine").mkdir()
    for kind, name in (("yaml", "1.yaml"), ("text", "published.csv")):
        (block,) = re.findall(rf"   ```{kind}\n(   paper.*?)   ```", text, re.DOTALL)
        (tmp_path / "mine" / name).write_text(textwrap.dedent(block))
    cells = TableSpec.find("mine", 1, tmp_path).cells("paper")
    printed = {(cell.row, cell.column): cell.published.value for cell in cells}
    assert printed["FedProx", "digits-1"] == 95.5 and printed["FedAvg", "digits-0.1"] == 80
    assert len(printed) == 4 and [run.seed for run in cells[0].experiments] == [0, 1, 2]


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
    # what is not printed has the unit in which it is measured
    assert cells["A", "cifar10-1"].spec.unit("upload_mb_per_round") == "MB"
    assert cells["A", "cifar10-1"].spec.unit("mia_auc_mean") == "auc"


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
        (
            "clients: 5,",
            "clients: 5, model_options: {widht: 8},",
            "option of convnet named 'widht'",
        ),
        ("method: b", "method: d", r"row 'B'.*fits 0 rows"),
        (", match: {method: b}", "", r"row 'B'.*'fedprox'.*fits 0 rows"),
        ("dataset: mnist, rounds: 10", "setting: 'x=1,y'", r"fits 0 rows"),
        ("method: b", "methd: b", "did you mean 'method'"),
        ("method: b", "value: 50.00", "column to match"),
        ("method: b", "std_elsewhere: 1.5", "column to match"),
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
        ("priority: 3", "priority: !!int x", "not valid YAML"),
        ("priority: 3", "priority: 2020-13-45", "not valid YAML"),
        ("priority: 3", "priority: !!bool maybe", "not valid YAML"),
    ],
)
def test_mistakes_in_a_specification_are_named(folder, old, new, message):
    assert old in YAML
    assert TableSpec.load(write(folder)).cells("paper")
    with pytest.raises(InputError, match=message) as error:
        TableSpec.load(write(folder, YAML.replace(old, new, 1))).cells("paper")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["5e-2", "+5E-2", "0.5e-1", "5.e-2", "0.05", ".05"])
def test_a_number_is_one_however_it_is_written(folder, text):
    """YAML 1.1 reads the first two as texts."""
    spec = TableSpec.load(write(folder, YAML.replace("lr: 0.3", f"lr: {text}", 1)))
    rates = {run.settings["lr"] for cell in spec.cells("paper") for run in cell.experiments}
    assert 0.05 in rates and all(isinstance(rate, float) for rate in rates)


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


def test_a_table_by_a_name_that_nothing_reads(folder):
    write(folder).with_name("2.yml").write_text(YAML)
    with pytest.raises(InputError, match=r"p/2\.yml is not read: call it 2\.yaml"):
        TableSpec.all(folder)


def test_a_published_file_that_is_broken(folder):
    path = folder / "p" / "published.csv"
    for wrong, said in (
        ("fifty,1.5", r"'fifty'.*no number"),
        ("50.00,-1.5", r"'-1\.5'.*no number"),
    ):
        path.write_text(CSV.replace("50.00,1.5", wrong))
        with pytest.raises(InputError, match=said):
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
