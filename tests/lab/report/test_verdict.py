"""The rule of verdicts, by cases that are worked out by hand and by its symmetries."""

from __future__ import annotations

import math

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab import Experiment, Record, TableSpec
from lab.report.verdict import (
    MB,
    Judgement,
    compare,
    direction,
    judge,
    measured,
    values,
)
from tests.lab.report import made

CSV = """paper,table,method,dataset,metric,value,std,unit,better,note
p,1,a,mnist,accuracy,60.00,,percent,higher,
p,1,b,mnist,accuracy,70.00,,percent,higher,
p,1,c,mnist,accuracy,80.00,,percent,higher,
p,1,d,mnist,accuracy,80.00,9,percent,higher,
p,1,e,mnist,accuracy,OOM,,percent,higher,out of memory
p,1,a,mnist,upload_mb_per_round,12.13,,MB,lower,
p,1,a,mnist,upload_mb,121.30,,MB,lower,
p,1,b,mnist,upload_mb,242.60,,MB,lower,
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
  - {name: B, algorithm: fedprox, match: {method: b},
     metrics: [accuracy, upload_mb, condensation_ratio_percent]}
  - {name: C, algorithm: fedavgm, match: {method: c}, metrics: [accuracy]}
  - {name: D, algorithm: standalone, match: {method: d}, metrics: [accuracy]}
  - {name: E, algorithm: centralized, match: {method: e}, metrics: [accuracy], not_testable: no data}
columns:
  - {dataset: mnist, match: {dataset: mnist}}
  - {dataset: cifar10, printed: false, metrics: [accuracy]}
substitutes: {mnist: {dataset: digits, profiles: [laptop]}}
"""


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "published.csv").write_text(CSV)
    (tmp_path / "p" / "1.yaml").write_text(YAML)
    return TableSpec.load(tmp_path / "p" / "1.yaml")


def record(run: Experiment, accuracy: float = 0.5, settings: dict | None = None) -> Record:
    """A run of two rounds that sends up 12 MB."""
    one = made.record(run, accuracy=accuracy)
    sent = {"up": {"parameters": 9 * MB, "meta": 3 * MB}}
    return attrs.evolve(one, rounds=one.rounds[:2], settings=settings or {}, bytes=sent)


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
    ("printed", "found", "unit", "said"),
    [
        (62.0, [60.0, 60.0, 60.0], "percent", "equivalent"),  # two points, to the digit
        (62.01, [60.0, 60.0, 60.0], "percent", "different"),
        (12.13, [12.16, 12.16, 12.16], "MB", "equivalent"),  # 0.25 %
        (0.25, [0.73, 0.73, 0.73], "MB", "different"),
        (100.0, [102.0, 102.0, 102.0], "dB", "equivalent"),  # 2 %, to the digit
        (100.0, [102.1, 102.1, 102.1], "dB", "different"),
        (0.55, [0.57, 0.57, 0.57], "auc", "equivalent"),
        (0.55, [0.58, 0.58, 0.58], "auc", "different"),
        (0.0, [0.0, 0.0, 0.0], "score", "equivalent"),
        (-10.0, [-10.2, -10.2, -10.2], "score", "equivalent"),
        (0.0, [0.001, 0.001, 0.001], "score", "different"),
        (50.0, [math.inf, 50.0, 50.0], "percent", "different"),
    ],
)
def test_the_margin_of_each_unit(printed, found, unit, said):
    assert compare(printed, found, unit).outcome == said


# --- directions

PAIRS = [("a", "b"), ("a", "c"), ("b", "c"), ("c", "d")]


def rows(**values):
    """Values by seed."""
    return {row: dict(enumerate(found)) for row, found in values.items()}


def counted(printed, found, pairs, unit="score", **more):
    """Pairs in the printed direction, against it, and comparable; the margin of scores is a share of them."""
    sides = [direction(printed, found, *pair, unit, **more) for pair in pairs]
    known = [side for side in sides if side is not None]
    return known.count(1), known.count(-1), len(known)


def test_agreement_by_hand():
    printed = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 3.0}
    found = rows(a=[5, 5.1], b=[6, 6.2], c=[9, 9.15], d=[0, 0])
    assert counted(printed, found, PAIRS) == (3, 0, 3)  # c and d are printed equal
    assert counted(printed, found, PAIRS, "percent") == (0, 0, 0)  # a margin is two points
    assert counted({**printed, "b": 3.1}, found, PAIRS, "percent") == (1, 0, 1)  # a and b
    found = rows(a=[5, 5.1], b=[4, 4.2], c=[4.5, 4.58])
    assert counted(printed, found, PAIRS) == (1, 2, 3)  # only b < c
    # differences of 1 and 9: the interval 5 ± 25 is on both sides of 0
    assert counted(printed, rows(a=[5, 5], b=[6, 14]), PAIRS) == (0, 0, 1)
    assert counted(printed, rows(a=[5], b=[6]), PAIRS) == (0, 0, 1)  # one seed has no interval
    assert counted(printed, rows(a=[5, 5], b=[5, math.nan]), PAIRS) == (0, 0, 1)
    assert counted(printed, rows(a=[5, 6]), PAIRS) == (0, 0, 0)
    # the same difference in each seed, as of a measure with few values: its spread is not known
    assert counted(printed, rows(a=[0.1, 0.2], b=[0.4, 0.5]), PAIRS) == (0, 0, 1)
    assert counted(printed, rows(a=[0.2, 0.2], b=[0.4, 0.4]), PAIRS) == (0, 0, 1)
    # but what is exact, as bytes, is as it is
    assert counted(printed, rows(a=[0.2, 0.3], b=[0.4, 0.5]), PAIRS, exact=True) == (1, 0, 1)
    assert counted({**printed, "b": None}, rows(a=[5, 5], b=[6, 6], c=[7, 7]), PAIRS)[2] == 1


_rows = st.dictionaries(
    st.sampled_from("abcd"), st.lists(st.integers(0, 50), min_size=3, max_size=3), max_size=4
)


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 50), max_size=4), _rows)
def test_agreement_under_change_of_scale_and_sign(printed, found):
    found = {row: dict(enumerate(values)) for row, values in found.items()}
    agree, against, total = counted(printed, found, PAIRS)
    assert 0 <= agree + against <= total <= len(PAIRS)

    def mapped(factor, shift):
        return {
            row: {seed: factor * value + shift for seed, value in values.items()}
            for row, values in found.items()
        }

    assert counted(printed, mapped(4, 8), PAIRS) == (agree, against, total)
    assert counted(printed, found, [(b, a) for a, b in PAIRS]) == (agree, against, total)
    assert counted(printed, mapped(-1, 0), PAIRS) == (against, agree, total)


# --- whole tables


def test_at_the_papers_budget_values_count(spec):
    found = verdicts(
        spec,
        "paper",
        {"A": [0.61, 0.59, 0.63], "B": [0.61, 0.60, 0.62], "C": [0.80, 0.80], "E": [0.3, 0.3, 0.3]},
    )
    assert {row: one.verdict for row, one in found.items()} == {
        "A": "inconclusive",
        "B": "different",
        "C": "pending",
        "D": "pending",
        "E": "not compared",
    }
    assert found["A"].reason.startswith("a difference of ") and found["B"].reason == ""
    assert (found["A"].mean, found["A"].std, found["A"].seeds) == (
        pytest.approx(61),
        pytest.approx(2),
        3,
    )
    assert found["B"].difference == pytest.approx(-9)
    assert str(found["C"]) == "pending: 2 of 3 seeds"
    assert found["D"] == Judgement("pending")
    assert found["E"].reason == "printed as OOM"


def test_a_cell_short_of_its_plan_is_pending_and_looks_are_counted(spec):
    spec.path.write_text(YAML + "seeds: [0, 1, 2, 3]\nlooked_at: [3]\n")
    grown = TableSpec.load(spec.path)
    assert {cell.looks for cell in grown.cells("paper")} == {2}
    found = verdicts(grown, "paper", {"A": [0.6] * 3, "B": [0.7] * 4})
    assert str(found["A"]) == "pending: 3 of 4 seeds" and found["B"].verdict == "equivalent"


@pytest.mark.parametrize(
    ("other", "verdict"),
    [(0.60, "depends on our choice"), (0.40, "different"), (None, "different")],
)
def test_what_another_choice_reverses_depends_on_ours(spec, tmp_path, other, verdict):
    """The paper has 60, and 30 is different, unless fewer rounds, in table `wide`, have it."""
    wide = YAML.replace("table: 1", "table: wide").replace("name: A,", "name: A wide,")
    (tmp_path / "p" / "wide.yaml").write_text(wide + "defaults: {rounds: 3}\n")
    spec.path.write_text(YAML + "choices: [{of: the rounds, table: wide, rows: {A: A wide}}]\n")
    cell = TableSpec.load(spec.path).cells("paper")[0]
    ((_, beside),) = cell.alternatives()
    known = {one.id: record(one, 0.3) for one in cell.experiments}
    known |= {one.id: record(one, other) for one in beside.experiments} if other else {}
    (found,) = judge([cell], known)
    assert found.verdict == verdict
    assert (found.reason == "the rounds: different with ours, equivalent with the other") == (
        other == 0.6
    )


def test_fewer_steps_than_print_do_not_refute_it(spec):
    """FedProx takes fewer steps at `converged`, FedAvg does not."""
    steps = "profiles: {converged: {algorithms: {fedprox: {settings: {local_steps: 3}}}}}\n"
    spec.path.write_text(YAML + steps)
    found = verdicts(TableSpec.load(spec.path), "converged", {"A": [0.3] * 3, "B": [0.3] * 3})
    assert (found["A"].verdict, found["B"].verdict) == ("different", "not enough budget")


def test_a_wide_spread_is_inconclusive_and_says_what_would_decide(spec):
    printed = next(cell for cell in spec.cells("paper") if cell.row == "A").published.value
    # (4.303 + 1.061) * 2 * sqrt(2/3) = 8.8 and, with six seeds, (2.571 + 0.920) * 2 * sqrt(1/2) < 5; the
    # noise of the paper alone is too much for four
    for spread, found, seeds in ((2, "8.8", 6), (4, "18", "not even 100")):
        shifted = [(printed + shift) / 100 for shift in (-spread, 0, spread)]
        wide = verdicts(spec, "paper", {"A": shifted})["A"]
        assert (wide.verdict, wide.reason) == (
            "inconclusive",
            f"a difference of {found} would be found in about three of four tries; "
            f"with this mean and spread {seeds} seeds would decide",
        )
    narrow = verdicts(spec, "paper", {"A": [0.596, 0.60, 0.606]})["A"]
    assert narrow.verdict == "equivalent" and narrow.reason == ""
    print_too = verdicts(spec, "paper", {"D": [0.76, 0.80, 0.84]})["D"]
    assert print_too.verdict == "inconclusive"
    assert print_too.reason.endswith(" seeds would decide")


def test_at_a_reduced_budget_directions_count(spec):
    found = verdicts(
        spec, "quick", {"A": [0.10, 0.11], "B": [0.20, 0.213], "C": [0.15, 0.161], "D": [0.1]}
    )
    said = "{} pairs of rows compared: {} ordered as reported, {} the other way round"
    assert {row: str(one) for row, one in found.items()} == {
        "A": f"direction agrees: {said.format(3, 2, 0)}",
        "B": f"direction unsure: {said.format(3, 1, 1)}",
        "C": f"direction unsure: {said.format(2, 1, 1)}",
        "D": f"direction unsure: {said.format(2, 0, 0)}",
        "E": "not testable here: no data",
    }
    assert found["D"].std is None
    assert found["A"].difference == pytest.approx(10.5 - 60)


def test_bytes_have_a_direction_though_no_seed_changes_them(spec):
    cells = [one for one in spec.cells("quick") if one.metric == "upload_mb"]
    known = {
        run.id: attrs.evolve(record(run), bytes={"up": {"parameters": sent * MB}})
        for cell, sent in zip(cells, (3, 4), strict=True)
        for run in cell.experiments
    }
    assert [one.verdict for one in judge(cells, known)] == ["direction agrees"] * 2


def test_a_stand_in_is_never_reproduced(spec, tmp_path):
    path = spec.path
    path.write_text(YAML.replace("[laptop]", "[paper]"))
    found = verdicts(TableSpec.load(path), "paper", {"A": [0.6, 0.61, 0.6], "B": [0.7, 0.712, 0.7]})
    assert found["A"].verdict == "direction agrees"


def test_columns_without_printed_numbers(spec):
    found = verdicts(spec, "paper", {"A": [0.6, 0.6, 0.6]}, column="cifar10")
    assert str(found["A"]) == "not compared: no printed number"
    assert str(found["B"]) == "pending"


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
    assert values(cells["A", "accuracy"], {run.id: one}) == {run.seed: 62.5}
    assert values(cells["A", "accuracy"], {}) == {}
    assert values(cells["A", "mia_auc_max"], {run.id: one}) == {}
    (found,) = judge([cells["A", "mia_auc_max"]], {run.id: one})
    assert (found.verdict, found.reason) == ("pending", "its records have no 'mia_auc_max'")
