"""The layers of a setting: which of them holds, where each value comes from, and that none is
idle.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import core.algorithms
from lab import PROFILES, Experiment, TableSpec
from lab.explain import explanation, origins
from lab.layers import Layer, Stack, opened
from lab.profiles import Overrides, Profile
from lab.spec import TABLES, join_match, read_published, read_yaml, short


def stack(*layers, alpha=None) -> Stack:
    """Layers named 0, 1, 2, … on each other."""
    made = Stack(alpha)
    for number, fields in enumerate(layers):
        made = made.put(Layer(str(number), fields))
    return made


# --- merging
# ---------------------------------------------------------------------------------------------

_plain = st.dictionaries(st.sampled_from("abc"), st.integers(), max_size=3)


@given(_plain, _plain, _plain)
def test_settings_merge_key_by_key_and_the_last_one_holds(a, b, c):
    assert stack(*({"settings": one} for one in (a, b, c))).fields["settings"] == {**a, **b, **c}
    assert stack(a, b, c).fields == {**a, **b, **c}


def test_another_partition_replaces_the_first_whole():
    file = {"partition": {"name": "file", "file": "x.json"}}
    drawn = {"partition": {"name": "dirichlet", "alpha": 1}}
    assert stack(file, drawn).fields == drawn
    assert stack(drawn, {"partition": {"cap": True}}).fields["partition"] == {
        "name": "dirichlet",
        "alpha": 1,
        "cap": True,
    }


def test_another_model_drops_the_options_of_the_first():
    first = {"model": "resnet18", "model_options": {"pool": "released"}}
    assert stack(first, {"model": "convnet"}).fields == {"model": "convnet"}
    assert stack(first, {"model": "resnet18"}).fields == first


def test_merging_leaves_its_layers_alone():
    layer = {"settings": {"a": {"b": 1}}}
    out = stack(layer, {"settings": {"a": {"c": 2}}}).fields
    out["settings"]["a"]["b"] = 3
    assert layer == {"settings": {"a": {"b": 1}}}


@pytest.mark.parametrize(
    "partition", [{"name": "iid"}, {"name": "pathological", "classes_per_client": 5}]
)
def test_a_partition_that_fits_any_data_moves_along(partition):
    moved = stack({"dataset": "a", "partition": partition}, {"dataset": "b"})
    assert moved.fields["partition"] == partition


def test_a_partition_of_one_data_set_does_not_move_along():
    fields = {"dataset": "a", "partition": {"name": "natural"}}
    assert stack(fields, {"dataset": "b"}).fields["partition"] == {
        "name": "dirichlet",
        "alpha": 0.5,
        "cap": True,
    }
    assert stack(fields, {"rounds": 3}).fields["partition"] == {"name": "natural"}
    steps = stack(fields, {"dataset": "b"}, alpha=0.1).history()["partition"]
    assert [step.value["name"] for step in steps] == ["natural", "dirichlet"]
    assert steps[1].value["alpha"] == 0.1 and "its data set is another" in steps[1].where


OWN = """
paper: p
table: own
title: A table
metric: accuracy
defaults: {rounds: 20, clients: 30}
rows: [{name: A, algorithm: fedavg, rounds: 60, model: lenet}]
columns: [{dataset: mnist, alpha: 0.1, rounds: 40, clients: 50, model: convnet}]
profiles: {paper: {limits: {evaluate_every: 1, rounds: 55}}, converged: {limits: {clients: 7}}}
"""


def test_a_row_holds_before_a_column_and_a_column_before_defaults(tmp_path):
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "own.yaml").write_text(OWN)
    spec = TableSpec.load(tmp_path / "p" / "own.yaml")
    (run, *_), (other, *_) = (spec.cells(name)[0].experiments for name in ("paper", "converged"))
    assert (run.model, run.clients, run.rounds) == ("lenet", 50, 55)
    assert other.clients == 7


def test_a_limit_holds_for_what_nobody_states():
    """An `Experiment` has ten rounds and ten clients where none are stated."""
    parts = {"limits": {"rounds": 4, "clients": 20}}
    over = Overrides.read(Layer("p", {}), parts, "p").over(stack({"algorithm": "fedavg"}))
    assert over.fields == {"algorithm": "fedavg", "rounds": 4}


def test_a_column_picks_the_printed_number_before_a_row():
    row = {"method": "a", "dataset": "mnist", "setting": "u"}
    column = {"dataset": "svhn", "setting": "v"}
    assert join_match(row, column) == {"method": "a", "dataset": "svhn", "setting": "v,u"}


# --- where a value comes from
# ---------------------------------------------------------------------------------------------


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 3)), max_size=5))
def test_the_last_step_is_in_force_and_every_layer_that_states_a_value_is_a_step(layers):
    made = stack(*({"settings": layer} for layer in layers))
    history = made.history()
    assert {key: steps[-1].value for key, steps in history.items()} == opened(made.fields)
    for name in "abc":
        wanted = [(layer[name], str(i)) for i, layer in enumerate(layers) if name in layer]
        steps = history.get(f"settings.{name}", [])
        assert [(step.value, step.where) for step in steps] == wanted


def test_options_of_a_model_that_is_replaced_leave_no_trace():
    first = {"model": "resnet8", "model_options": {"width": 16}}
    history = stack(first, {"model": "convnet"}, {"model_options": {"depth": 2}}).history()
    assert [step.value for step in history["model"]] == ["resnet8", "convnet"]
    assert "model_options.width" not in history
    assert [step.where for step in history["model_options.depth"]] == ["2"]


@pytest.mark.parametrize("profile", PROFILES)
def test_the_origin_of_every_value_ends_with_the_value_that_is_used(profile):
    """Against what the experiment builds: one cell of every algorithm and variant in a paper."""
    cells = {
        (cell.paper, run.algorithm, run.variant, bool(cell.stand_in)): cell
        for spec in TableSpec.all()
        for cell in spec.cells(profile)
        if (run := cell.experiments[0]).algorithm in core.algorithms.names()
    }
    for cell in cells.values():
        run, steps = cell.experiments[0], origins(cell)
        found = {key: chain[-1].value for key, chain in steps.items()}
        used = opened({"settings": attrs.asdict(run.new_algorithm().settings)})
        assert {key: found[key] for key in found if key.startswith("settings.")} == used
        rest = {key: value for key, value in run.to_dict().items() if key != "settings"}
        stands = {key: found[key] for key in found if not key.startswith("settings.")}
        assert stands == opened(rest) | {"seed": [one.seed for one in cell.experiments]}


def test_an_explanation_names_file_and_keys_and_what_was_replaced():
    cell = TableSpec.find_cell("fedvck/11/FedVCK/cifar10-0.05", "laptop")
    lines = [line.split("  ") for line in explanation(cell).splitlines()]
    rows = [[part.strip() for part in line if part.strip()] for line in lines]
    at = rows.index(["settings.share", "0.001", "profiles.yaml, laptop, algorithms, fedvck"])
    column = "fedvck/11.yaml, columns, cifar10-0.05, settings_of, fedvck"
    assert rows[at + 1] == ["in place of", "0.02", column]
    assert ["settings.b", "0.3", "default of fedvck"] in rows
    released = explanation(TableSpec.find_cell("fedvck/released/as-released/cifar10-0.05", "paper"))
    assert "released value of fedvck" in released


# --- idle lines
# ---------------------------------------------------------------------------------------------


Place = tuple[str, str]


def stated(specs: list[TableSpec]) -> set[Place]:
    """Every value that a specification or a profile states, by place and key."""
    layers: list[Layer] = []
    for root in {spec.path.parents[1] for spec in specs}:
        layers += [one for name in PROFILES for one in Profile.load(name, root).overrides.layers()]
    for spec in specs:
        layers += [spec.defaults, *(line.layer for line in (*spec.rows, *spec.columns))]
        layers += [layer for line in spec.columns for layer in line.settings_of.values()]
        layers += [one.layer for one in spec.stand_ins.values()]
        layers += [layer for one in spec.profiles.values() for layer in one.layers()]
    return {(one.where, key) for one in layers for key in opened(one.fields)}


def effective(specs: list[TableSpec]) -> set[Place]:
    """The places whose value is in force in some run, and differs from what stood there before."""
    found: set[Place] = set()
    stacks = {id(c.stack): c.stack for p in PROFILES for spec in specs for c in spec.cells(p)}
    for stack in stacks.values():
        for key, steps in stack.history().items():
            *before, last = steps
            others = [step for step in before if step.where != last.where]
            if not others or before[-1].value != last.value:
                found.add((last.where, key))
    return found


def lacking(fields: Mapping, key: str) -> dict:
    """The fields without one, which may be an entry of another: `settings.lr`."""
    name, _, rest = key.partition(".")
    if rest:
        return {**fields, name: lacking(fields[name], rest)} if name in fields else {**fields}
    return {one: value for one, value in fields.items() if one != name}


def without(stack: Stack, place: Place) -> dict:
    """The fields of a stack if one place did not state its value."""
    where, key = place
    less = Stack(stack.alpha)
    for layer in stack.layers:
        if not layer.where.endswith("as its data set is another"):  # `put` adds these itself
            kept = lacking(layer.fields, key) if layer.where == where else layer.fields
            less = less.put(Layer(layer.where, kept))
    return less.fields


def by_hand(root: Path) -> list[Stack]:
    """The fields of a run without a table, for every profile and algorithm."""
    return [
        Profile.load(name, root).overrides.over(
            Stack().put(Layer("stated by hand", {"algorithm": algorithm, "dataset": "digits"}))
        )
        for name in PROFILES
        for algorithm in core.algorithms.names()
    ]


def idle(specs: list[TableSpec]) -> set[Place]:
    """Places that change no run, of a table or by hand: not by their value, nor by what would stand
    there without them, as where a data set would bring a partition of its own.
    """
    stacks = {id(c.stack): c.stack for p in PROFILES for spec in specs for c in spec.cells(p)}
    alone = [one for root in {spec.path.parents[1] for spec in specs} for one in by_hand(root)]

    def settings(fields: dict) -> object:
        return Experiment.from_dict({**fields, "profile": "quick"}).new_algorithm().settings

    return {
        place
        for place in stated(specs) - effective(specs)
        if all(without(stack, place) == stack.fields for stack in stacks.values())
        and all(
            settings(without(stack, place)) == settings(stack.fields)
            for stack in alone
            if any(layer.where == place[0] for layer in stack.layers)
        )
    }


def test_no_line_of_a_specification_changes_nothing():
    """A place in a file that could be left out without changing a run must be left out. What says
    explicitly what is the default of an `Experiment` is a statement and may stand.
    """
    assert idle(TableSpec.all()) == set()


def repeated(path) -> list[str]:
    """Parts of a table that say what would hold without them."""
    data, spec = read_yaml(path), TableSpec.load(path)
    rows = read_published(path.with_name("published.csv"))
    has_print = any(row["table"] == spec.table for row in rows)
    found = [
        f"{row['name']}: match"
        for row in data["rows"]
        if row.get("match", {}).get("method") == row["algorithm"]
        or ("match" in row and not (has_print and row.get("printed", True)))
    ]
    for line in (*data["rows"], *data["columns"]):
        if line.get("printed", not has_print) is has_print:
            found.append(f"{line.get('name', line.get('dataset'))}: printed")
    grid = list(itertools.product(spec.rows, spec.columns, spec.metrics))
    for number, absent in enumerate(spec.absent):
        if not any(absent.covers(row.name, column.name, metric) for row, column, metric in grid):
            found.append(f"absent {number}")
    return found


@pytest.mark.parametrize("path", sorted(TABLES.glob("*/*.yaml")), ids=short)
def test_no_table_says_what_holds_without_it(path):
    assert repeated(path) == []


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("lr: 0.1", "lr: 0.1, momentum: 0.3", ("defaults", "settings.momentum")),
        ("rounds: 3", "rounds: 3, clients: 5", ("columns, mnist-0.1", "clients")),
        ("fedprox: {mu", "moon: {mu: 2.0}, fedprox: {mu", ("settings_of, moon", "settings.mu")),
        ("{name: A,", "{name: A, rounds: 3,", ("rows, A", "rounds")),
        ("seeds:", "stand_ins: {svhn: digits}\nseeds:", ("stand_ins, svhn", "dataset")),
        ("seeds:", "profiles: {laptop: {rounds: 3}}\nseeds:", ("profiles, laptop", "rounds")),
        ("seeds:", "profiles: {paper: {limits: {rounds: 3}}}\nseeds:", ("limits", "rounds")),
    ],
)
def test_a_line_that_changes_nothing_is_found(tmp_path, old, new, found):
    text = """
paper: p
table: 1
title: A table
metric: accuracy
seeds: [0]
defaults: {clients: 5, settings: {lr: 0.1}}
rows:
  - {name: A, algorithm: fedavg, settings: {lr: 0.3}}
  - {name: B, algorithm: fedprox}
columns:
  - {dataset: mnist, alpha: 0.1, rounds: 3, settings: {momentum: 0.5}, settings_of: {fedprox: {mu: 1.0}}}
"""
    path = tmp_path / "p" / "1.yaml"
    path.parent.mkdir()
    places = []
    for content in (text, text.replace(old, new, 1)):
        path.write_text(content)
        places.append({one for one in idle([TableSpec.load(path)]) if one[0].startswith("p/")})
    assert places[0] == set()
    assert [key for where, key in places[1] if where.endswith(found[0])] == [found[1]]
