"""The rule of verdicts, by cases that are worked out by hand and by its symmetries."""

from __future__ import annotations

import math

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InputError
from core.experiments import Experiment, Record, TableSpec
from core.report.verdict import (
    MB,
    VERDICTS,
    Judgement,
    agreement,
    compare,
    in_printed_unit,
    judge,
    margin,
    measured,
    values,
)

CSV = """paper,table,method,dataset,metric,value,std,unit,better,note
p,1,a,mnist,accuracy,60.00,,percent,higher,
p,1,b,mnist,accuracy,70.00,,percent,higher,
p,1,c,mnist,accuracy,80.00,,percent,higher,
p,1,d,mnist,accuracy,80.00,,percent,higher,
p,1,e,mnist,accuracy,OOM,,percent,higher,out of memory
p,1,a,mnist,upload_mb_per_round,12.13,,MB,lower,
p,1,a,mnist,upload_mb,121.30,,MB,lower,
p,1,b,mnist,condensation_ratio_percent,5,,percent,lower,
p,1,a,mnist,mia_auc_max,0.556,,auc,lower,
"""
YAML = """
paper: p
table: 1
title: A table
metrics: [accuracy, upload_mb_per_round, upload_mb, condensation_ratio_percent, mia_auc_max]
rows:
  - {name: A, algorithm: fedavg, match: {method: a},
     metrics: [accuracy, upload_mb_per_round, upload_mb, mia_auc_max]}
  - {name: B, algorithm: fedprox, match: {method: b}, metrics: [accuracy, condensation_ratio_percent]}
  - {name: C, algorithm: fedavgm, match: {method: c}, metrics: [accuracy]}
  - {name: D, algorithm: standalone, match: {method: d}, metrics: [accuracy]}
  - {name: E, algorithm: centralized, match: {method: e}, metrics: [accuracy], not_testable: no data}
columns:
  - {dataset: mnist, match: {dataset: mnist}}
  - {dataset: cifar10, printed: false, metrics: [accuracy], needs: a reader}
stand_ins: {mnist: {dataset: digits, profiles: [laptop]}}
"""


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "published.csv").write_text(CSV)
    (tmp_path / "p" / "1.yaml").write_text(YAML)
    return TableSpec.load(tmp_path / "p" / "1.yaml")


def record(run: Experiment, accuracy: float = 0.5, settings: dict | None = None) -> Record:
    rounds = [{"round": r, "metrics": {}, "up": 6 * MB, "down": 0, "seconds": {}} for r in (1, 2)]
    return Record(
        experiment=run,
        settings=settings or {},
        fingerprint="",
        environment={},
        code="",
        status="complete",
        rounds=rounds,
        metrics={"accuracy": accuracy},
        bytes={"up": {"parameters": 9 * MB, "meta": 3 * MB}},
    )


def verdicts(spec, profile, accuracies, column="mnist"):
    """Judgements of the accuracies by row, where `accuracies` gives a value per seed for some
    rows.
    """
    cells = spec.cells(profile)
    here = [cell for cell in cells if cell.metric == "accuracy" and cell.column == column]
    known = {
        run.id: record(run, value)
        for cell in here
        for run, value in zip(cell.experiments, accuracies.get(cell.row, ()), strict=False)
    }
    return {
        cell.row: found
        for cell, found in zip(cells, judge(cells, known), strict=True)
        if cell in here
    }


@pytest.mark.parametrize(
    ("printed", "found", "unit", "same"),
    [
        (62.0, [60.0, 60.0, 60.0], "percent", True),  # two points, to the digit
        (62.01, [60.0, 60.0, 60.0], "percent", False),
        (58.0, [60.0, 60.0, 60.0], "percent", True),
        (66.0, [57.0, 60.0, 63.0], "percent", True),  # standard deviation 3, so 6 points
        (66.01, [57.0, 60.0, 63.0], "percent", False),
        (12.13, [12.16, 12.16, 12.16], "MB", True),  # 0.25 %
        (0.25, [0.73, 0.73, 0.73], "MB", False),
        (100.0, [102.0, 102.0, 102.0], "dB", True),  # 2 %, to the digit
        (100.0, [102.1, 102.1, 102.1], "dB", False),
        (0.0, [0.0, 0.0, 0.0], "score", True),
        (0.0, [0.001, 0.001, 0.001], "score", False),
        (50.0, [math.nan, 50.0, 50.0], "percent", False),
        (50.0, [math.inf, 50.0, 50.0], "percent", False),
    ],
)
def test_a_printed_value_is_reproduced_or_not(printed, found, unit, same):
    assert compare(printed, found, unit) is same


_numbers = st.lists(st.floats(0, 100), min_size=2, max_size=5)


@given(st.floats(0, 100), _numbers)
def test_the_rule_as_numpy_computes_it(printed, found):
    wide = max(2 * np.std(found, ddof=1), 2.0)
    distance = abs(printed - np.mean(found))
    if abs(distance - wide) > 1e-6:
        assert compare(printed, found, "percent") is bool(distance < wide)


@given(st.floats(0, 100), _numbers, st.randoms())
def test_the_order_of_seeds_does_not_matter(printed, found, random):
    mixed = random.sample(found, len(found))
    distance = abs(printed - np.mean(found))
    if abs(distance - max(2 * np.std(found, ddof=1), 2)) > 1e-6:
        assert compare(printed, mixed, "percent") is compare(printed, found, "percent")


@given(st.floats(1e-3, 1e3), st.floats(0, 10), st.sampled_from(["percent", "MB", "auc"]))
def test_a_margin_never_shrinks_with_the_spread(printed, std, unit):
    assert (
        margin(printed, std + 1, unit) >= margin(printed, std, unit) >= margin(printed, 0, unit) > 0
    )


def test_one_seed_has_no_spread():
    with pytest.raises(InputError, match="two seeds"):
        compare(1.0, [1.0], "percent")


def test_units():
    assert in_printed_unit(0.625, "percent") == 62.5
    assert in_printed_unit(3 * 2**20, "MB") == 3
    assert in_printed_unit(0.5, "auc") == 0.5
    with pytest.raises(InputError, match="unit"):
        in_printed_unit(1.0, "percents")


# --- directions
# ---------------------------------------------------------------------------------------------

PAIRS = [("a", "b"), ("a", "c"), ("b", "c"), ("c", "d")]


def test_agreement_by_hand():
    printed = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 3.0}
    assert agreement(printed, {"a": 5, "b": 6, "c": 7, "d": 0}, PAIRS) == (
        3,
        3,
    )  # c and d are printed equal
    assert agreement(printed, {"a": 5, "b": 4, "c": 4.5}, PAIRS) == (1, 3)  # only b < c
    assert agreement(printed, {"a": 5, "b": 5}, PAIRS) == (0, 1)  # equal is not in order
    assert agreement(printed, {"a": 5, "b": math.nan}, PAIRS) == (0, 1)
    assert agreement(printed, {"a": 5}, PAIRS) == (0, 0)
    assert agreement({**printed, "b": None}, {"a": 5, "b": 6, "c": 7}, PAIRS) == (1, 1)


_rows = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 50), max_size=4)


@given(_rows, _rows)
def test_agreement_under_change_of_scale_and_sign(printed, means):
    agree, total = agreement(printed, means, PAIRS)
    assert 0 <= agree <= total <= len(PAIRS)
    assert agreement(printed, {key: 3 * value + 7 for key, value in means.items()}, PAIRS) == (
        agree,
        total,
    )
    assert agreement(printed, means, [(b, a) for a, b in PAIRS]) == (agree, total)
    ties = sum(
        a in means
        and b in means
        and means[a] == means[b]
        and a in printed
        and b in printed
        and printed[a] != printed[b]
        for a, b in PAIRS
    )
    assert agreement(printed, {key: -value for key, value in means.items()}, PAIRS) == (
        total - agree - ties,
        total,
    )


@given(_rows)
def test_print_agrees_with_itself(printed):
    agree, total = agreement(printed, printed, PAIRS)
    assert agree == total


# --- whole tables
# ---------------------------------------------------------------------------------------------


def test_at_the_papers_budget_values_count(spec):
    found = verdicts(
        spec,
        "paper",
        {"A": [0.61, 0.60, 0.62], "B": [0.61, 0.60, 0.62], "C": [0.80, 0.80], "E": [0.3, 0.3, 0.3]},
    )
    assert {row: one.verdict for row, one in found.items()} == {
        "A": "reproduced",
        "B": "not reproduced",
        "C": "pending",
        "D": "pending",
        "E": "not compared",
    }
    assert found["A"].reason == found["B"].reason == ""
    assert (found["A"].mean, found["A"].std, found["A"].seeds) == (
        pytest.approx(61),
        pytest.approx(1),
        3,
    )
    assert found["B"].difference == pytest.approx(-9)
    assert str(found["C"]) == "pending: 2 of 3 seeds"
    assert found["D"] == Judgement("pending")
    assert found["E"].reason == "printed as OOM"


def test_what_only_the_deviations_bring_near_has_a_wide_spread(spec):
    printed = next(cell for cell in spec.cells("paper") if cell.row == "A").published.value
    for middle in (printed - 3, printed + 3):  # beyond 2 points, within 2 x 4
        wide = verdicts(spec, "paper", {"A": [(middle + shift) / 100 for shift in (-4, 0, 4)]})["A"]
        assert (wide.verdict, wide.reason, str(wide)) == (
            "reproduced",
            "wide spread",
            "reproduced: wide spread",
        )
    far = verdicts(spec, "paper", {"A": [(printed + 9 + shift) / 100 for shift in (-4, 0, 4)]})["A"]
    assert (far.verdict, far.reason) == ("not reproduced", "")


def test_at_a_reduced_budget_directions_count(spec):
    found = verdicts(spec, "quick", {"A": [0.1], "B": [0.2, 0.2], "C": [0.15]})
    assert {row: str(one) for row, one in found.items()} == {
        "A": "direction agrees (2/2)",
        "B": "direction disagrees (1/2)",
        "C": "direction disagrees (1/2)",
        "D": "pending",
        "E": "not testable here: no data",
    }
    assert found["A"].std is None
    assert found["A"].difference == pytest.approx(10 - 60)


def test_one_method_has_no_direction(spec):
    assert (
        str(verdicts(spec, "quick", {"C": [0.1], "D": [0.2]})["C"])
        == "not compared: one method only"
    )


def test_a_stand_in_is_never_reproduced(spec, tmp_path):
    path = spec.path
    path.write_text(YAML.replace("[laptop]", "[paper]"))
    found = verdicts(TableSpec.load(path), "paper", {"A": [0.6, 0.6, 0.6], "B": [0.7, 0.7, 0.7]})
    assert str(found["A"]) == "direction agrees (1/1)"


def test_columns_without_printed_numbers(spec):
    found = verdicts(spec, "paper", {"A": [0.6, 0.6, 0.6]}, column="cifar10")
    assert str(found["A"]) == "not compared: no printed number"
    assert str(found["B"]) == "pending: needs a reader"


def test_every_verdict_is_listed(spec):
    given = {"A": [0.6, 0.6, 0.6], "B": [0.1, 0.1, 0.1], "D": [0.2]}
    for profile in ("quick", "laptop", "paper"):
        assert {one.verdict for one in verdicts(spec, profile, given).values()} <= set(VERDICTS)


def test_values_come_from_records(spec):
    cells = {
        (cell.row, cell.metric): cell for cell in spec.cells("paper") if cell.column == "mnist"
    }
    run = cells["A", "accuracy"].experiments[0]
    one = record(run, 0.625, {"share": 0.05})
    assert measured(one, cells["A", "accuracy"]) == 62.5
    assert measured(one, cells["A", "upload_mb_per_round"]) == 6  # 12 MB in two rounds
    assert measured(one, cells["A", "upload_mb"]) == 12
    once = attrs.evolve(
        one, bytes={"up": one.bytes["up"] | {"averages": 2**22, "anchors": 2**21}, "down": {}}
    )
    assert (
        measured(once, cells["A", "upload_mb_per_round"]) == 6
        and measured(once, cells["A", "upload_mb"]) == 18
    )
    assert measured(one, cells["B", "condensation_ratio_percent"]) == 5
    assert measured(record(run), cells["B", "condensation_ratio_percent"]) is None
    assert measured(one, cells["A", "mia_auc_max"]) is None
    assert values(cells["A", "accuracy"], {run.id: one}) == [62.5]
    assert values(cells["A", "accuracy"], {}) == []
    assert values(cells["A", "mia_auc_max"], {run.id: one}) == []


def test_the_reference_table_is_measured_but_not_compared():
    cells = TableSpec.find("reference", 1).cells("laptop")
    known = {run.id: record(run) for run in cells[0].experiments}
    first, second, *_ = judge(cells, known)
    assert (first.verdict, first.seeds, first.mean) == ("not compared", 3, 50.0)
    assert second == Judgement("pending")
