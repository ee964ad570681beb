"""Overrides: which of them holds, and where each value comes from."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab import PROFILES, TableSpec
from lab.explain import explanation, origins
from lab.overrides import Merged, Override, merge, opened


def stack(*parts, alpha=None) -> Merged:
    """Overrides named 0, 1, 2, … on each other."""
    return merge([Override(str(i), fields) for i, fields in enumerate(parts)], alpha)


# --- merging

_plain = st.dictionaries(st.sampled_from("abc"), st.integers(0, 3), max_size=3)
FILE = {"partition": {"name": "file", "file": "x.json"}}
DRAWN = {"partition": {"name": "dirichlet", "alpha": 1}}
CAPPED = {"partition": {"name": "dirichlet", "alpha": 0.5, "cap": True}}
NATURAL = {"dataset": "a", "partition": {"name": "natural"}}
IID = {"dataset": "a", "partition": {"name": "iid"}}
WIDE = {"model": "resnet18", "model_options": {"pool": "released"}}


@given(st.lists(_plain, max_size=5))
def test_the_last_value_holds_and_every_place_that_states_one_is_a_step(parts):
    made = stack(*({"settings": one, **one} for one in parts))
    history = made.history()
    whole = {key: value for one in parts for key, value in one.items()}
    assert made.fields == ({"settings": whole, **whole} if parts else {})
    assert {key: steps[-1][0] for key, steps in history.items()} == opened(made.fields)
    for name in "abc":
        wanted = [(one[name], str(i)) for i, one in enumerate(parts) if name in one]
        assert history.get(f"settings.{name}", []) == history.get(name, []) == wanted


@pytest.mark.parametrize(
    ("parts", "fields"),
    [
        ([FILE, DRAWN], DRAWN),  # another kind replaces the first whole
        ([DRAWN, {"partition": {"cap": True}}], {"partition": DRAWN["partition"] | {"cap": True}}),
        ([WIDE, {"model": "convnet"}], {"model": "convnet"}),
        ([WIDE, {"model": "resnet18"}], WIDE),
        ([IID, {"dataset": "b"}], IID | {"dataset": "b"}),  # it fits any data
        ([NATURAL, {"dataset": "b"}], CAPPED | {"dataset": "b"}),
        ([NATURAL, {"dataset": "b"} | DRAWN], DRAWN | {"dataset": "b"}),
        ([NATURAL, {"rounds": 3}], NATURAL | {"rounds": 3}),
    ],
)
def test_what_does_not_belong_together_is_not_merged(parts, fields):
    assert stack(*parts).fields == fields


def test_a_partition_that_is_drawn_anew_has_the_concentration_of_its_column():
    before, after = stack(NATURAL, {"dataset": "b"}, alpha=0.1).history()["partition"]
    assert before[0]["name"] == "natural" and after[0]["alpha"] == 0.1
    assert "its data set is another" in after[1]


def test_merging_leaves_its_parts_alone():
    part = {"settings": {"a": {"b": 1}}}
    out = stack(part, {"settings": {"a": {"c": 2}}}).fields
    out["settings"]["a"]["b"] = 3
    assert part == {"settings": {"a": {"b": 1}}}


@pytest.mark.parametrize(
    ("part", "changed"),
    [
        (Override("", {"rounds": 4, "clients": 20}, limits=True), {"rounds": 4}),  # 10 of each
        (Override("", {"rounds": 4}, model="convnet"), {"rounds": 4}),
        (Override("", {"rounds": 4}, model="lenet"), {}),
        (Override("", {"settings": {"lr": 1, "tau": 2}}, fitting=True), {"settings": {"lr": 1}}),
    ],
)
def test_an_override_counts_where_it_fits(part, changed):
    assert part.changes_to({"algorithm": "fedavg"}) == changed


# --- where a value comes from


@pytest.mark.parametrize("profile", PROFILES)
def test_the_origin_of_every_value_ends_with_the_value_that_is_used(profile):
    """Against what the experiment builds: one cell of every algorithm and variant in a paper."""
    cells = {
        (cell.paper, run.algorithm, run.variant, bool(cell.substitute)): cell
        for spec in TableSpec.all()
        for cell in spec.cells(profile)
        for run in cell.experiments[:1]
    }
    for cell in cells.values():
        run = cell.experiments[0]
        found = {key: steps[-1][0] for key, steps in origins(cell).items()}
        used = run.to_dict() | {"settings": attrs.asdict(run.new_algorithm().settings)}
        assert found == opened(used) | {"seed": [one.seed for one in cell.experiments]}


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
