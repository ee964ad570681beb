"""Questions to the records behind a table, on numbers that can be checked by hand."""

from __future__ import annotations

import attrs
import pandas as pd
import pytest

from lab import TableSpec
from lab.published import Published
from lab.report.frames import metrics_frame, table_runs
from lab.report.results import (
    by_rule,
    by_seed,
    column_curves,
    cost,
    gains,
    gains_by_rule,
    interpretations_beside,
    leads,
    verdicts_by_rule,
)
from tests.lab.report.made import record as made

#: t of one degree of freedom at 95%
T1 = 6.313752


def record(experiment, *accuracies, **bytes_):
    """A run with these accuracies, round by round; by default two of 0.5."""
    rounds = [
        {"round": n, "metrics": {"accuracy": a}, "up": 1, "down": 2, "seconds": {}}
        for n, a in enumerate(accuracies or (0.5, 0.5), 1)
    ]
    kept = made(experiment, accuracy=rounds[-1]["metrics"]["accuracy"])
    return attrs.evolve(kept, rounds=rounds, bytes=bytes_)


def known(paper, table, profile, scores, column=None):
    """Records of a table's cells, with accuracies by row, seed by seed."""
    return {
        run.id: record(run, score)
        for cell in TableSpec.find(paper, table).cells(profile)
        if column in (None, cell.column)
        for run, score in zip(cell.experiments, scores.get(cell.row, ()), strict=False)
    }


def reported(value, std=None):
    return Published(
        value=value, text=f"{value}", std=std, unit="percent", better="higher", note=""
    )


def test_interpretations_stand_beside_what_is_printed_for_their_method():
    """61.9 +- 0.4 reported, say: 50, 51, 52 are away from it; 61, 62, 63 lie within 0.1 + 2.92 / sqrt 3 =
    1.8 points of it, which is less than two; two seeds say nothing. A row counts for the longest name that it
    begins with.
    """
    scores = {
        "FedVCK": (0.50, 0.51, 0.52),
        "FedVCK as released": (0.61, 0.62, 0.63),
        "FedAvg, five epochs": (0.38, 0.40),
        "FedDM": (0.5,),
    }
    runs = known("fedvck", "budgets", "converged", scores)
    printed = {"Fed": reported(1.0), "FedVCK": reported(61.9, 0.4), "FedAvg": reported(38.7, 0.5)}
    frame = interpretations_beside("fedvck", "budgets", "converged", printed, runs)
    said = ["different", "equivalent", "too few seeds", "too few seeds"]
    assert frame["verdict"].to_dict() == dict(zip(scores, said, strict=True))
    assert frame["measured"].to_list() == pytest.approx([51, 62, 50, 39])
    assert frame["printed"].to_list() == [61.9, 61.9, 1.0, 38.7]
    assert frame["std"]["FedVCK"] == pytest.approx(1) and pd.isna(frame["std"]["FedDM"])
    runs = known(
        "fedmk",
        "wide",
        "paper",
        {"FedMK, network of FedGen's code": (0.4, 0.41, 0.42)},
        "cifar10-0.5",
    )
    asked = ("fedmk", "wide", "paper", {"FedMK": reported(47.33)}, runs)
    assert interpretations_beside(*asked, column="cifar10-0.5")["measured"].item() == pytest.approx(
        41
    )
    assert interpretations_beside(*asked, column="cifar10-1").empty


def test_a_lead_is_over_the_best_of_the_others():
    scores = {"FedMK": (0.80, 0.90), "FedGen": (0.70,), "FedAvg": (0.70, 0.84, 0.99)}
    runs = known("fedmk", 3, "paper", scores | {"FedGen, tuned": (0.95,)})
    plain = leads("fedmk", 3, "FedMK", lambda row: "," not in row, None, runs).iloc[0].to_dict()
    # FedAvg's third seed has no pair: 10 and 6 points; FedGen's only seed decides nothing
    expected = {"value": 8, "low": 8 - 2 * T1, "high": 8 + 2 * T1}
    # the paper: 88.85 over FedGen's 86.44
    expected["paper"] = 2.41
    assert {name: plain.pop(name) for name in expected} == pytest.approx(expected)
    assert plain == {"name": "mnist-pathological", "baseline": "FedAvg", "seeds": 2}
    alone = leads("fedmk", 3, "FedMK", lambda row: row == "FedGen, tuned", None, runs).iloc[0]
    assert alone["value"] == pytest.approx(-15) and alone["seeds"] == 1
    # a row that is not in all columns has a line for each all the same
    some = leads("fediod", 1, "FedIOD, released script for 0.1", measured={})
    assert list(some["name"]) == [line.name for line in TableSpec.find("fediod", 1).columns]
    assert some["value"].isna().all() and not some["seeds"].any()


def test_a_gain_is_over_the_seeds_that_both_have():
    table, (base, other) = TableSpec.find("fedmk", 6), ("Class-balanced weights", "Dynamic weights")
    column = table.columns[0].name
    scores = {base: (0.50, 0.70, 0.60), other: (0.55, 0.80)}
    runs = known("fedmk", 6, "paper", scores, column)
    (found,) = gains("fedmk", 6, "accuracy", base, None, runs).to_dict("records")
    # the third seed of one side counts for nothing: 0.55 - 0.50 and 0.80 - 0.70
    expected = {"gain": 7.5, "low": 7.5 - 2.5 * T1, "high": 7.5 + 2.5 * T1}
    assert {name: found.pop(name) for name in expected} == pytest.approx(expected)
    assert found == {"column": column, "row": other, "seeds": 2}
    assert gains("fedmk", 6, "accuracy", base, "paper", {}).empty
    exact = gains("fedvck", 9, "upload_mb_per_round", "FedAvg", "paper").query("seeds > 1")
    assert len(exact) and (exact["low"] == exact["high"]).all()


def ran(row, seed, *percent, algorithm="fedmk"):
    """A run in the column x with these accuracies (%) round by round, as `table_runs` has it."""
    run = TableSpec.find("fedmk", 1).cells("paper")[0].experiments[0]
    run = attrs.evolve(run, algorithm=algorithm, settings={}, seed=seed)
    kept = record(run, *(score / 100 for score in percent))
    return {"column": "x", "row": row, "profile": "paper", "seed": seed, "record": kept}


@pytest.mark.parametrize(
    ("algorithm", "seen"), [("fedmk", (90, 70, 60, 50, 30)), ("fedensemble", (90, 80, 70, 60, 50))]
)
def test_rules_of_reporting_read_the_same_rounds_in_their_own_way(algorithm, seen):
    """FedGen's code tests FedEnsemble after a round, so its last one counts."""
    one = pd.DataFrame([ran("y", 0, 10, 90, 30, 50, 70, 60, 80, algorithm=algorithm)])
    found = by_rule(one).drop(columns=["seed", "column", "row"]).iloc[0].to_dict()
    assert found == pytest.approx(
        {
            "last": 80,
            "mean of last five": (30 + 50 + 70 + 60 + 80) / 5,
            "five best": (90 + 80 + 70 + 60 + 50) / 5,
            "best": 90,
            "five best, tested before training": sum(seen) / 5,
        }
    )


def test_verdicts_and_gains_by_rule_hang_on_the_rounds_that_a_rule_reads():
    """Three seeds of A end at 80 and have 60 as the mean of all that come before; the paper has 60. B has too
    few seeds for a verdict, C no run.
    """
    runs = pd.DataFrame(
        [
            ran("A", 0, 40, 80, 60, 60, 60, 80),
            ran("A", 1, 41, 79, 60, 60, 60, 79.9),
            ran("A", 2, 39, 81, 60, 60, 60, 80.1),
            ran("B", 0, 90, 70, 70, 70, 70, 70),
            ran("B", 1, 90, 70, 70, 70, 70, 59.9),
        ]
    )
    printed = {("x", row): reported(60.0) for row in "ABC"}
    found = verdicts_by_rule(runs, printed).set_index("rule")
    assert set(found["row"]) == {"A"} and set(found["column"]) == {"x"}
    assert found["verdict"].to_dict() == {
        **dict.fromkeys(("last", "mean of last five", "five best", "best"), "different"),
        "five best, tested before training": "equivalent",
    }
    gained = gains_by_rule(runs, "A", "B").set_index("rule")
    assert set(gained["seeds"]) == {2} and gained.loc["last", "gain"] == pytest.approx(15)
    assert gained.loc["last", "high"] == pytest.approx(15 + T1 * 5)
    assert gained.loc["best", "gain"] == pytest.approx(-10.05)


def test_costs_count_each_run_once_and_those_of_a_gpu_apart():
    runs = known("fedmk", "protocol", "paper", dict.fromkeys(("FedAvg",), (0.5, 0.5, 0.5)))
    for threads, device, kept in zip(
        (1, 2, 2), ("cpu", "cpu", "cuda"), runs.values(), strict=False
    ):
        kept.environment = {"threads": threads, "device": device}
        kept.rounds = [row | {"seconds": {"clients": 1800.0}} for row in kept.rounds * 2]
    some = dict(list(runs.items())[:3])
    # Table 1 has the same runs
    assert cost("fedmk", some).loc["paper"].tolist() == [2, 3.0, 1, 1.0]
    assert not cost("fedmk", {}).any(axis=None)


def test_runs_that_stop_early_do_not_stand_under_a_heading_of_more_rounds():
    """Table 14 has columns of 10 and of 100 rounds; a laptop's runs have ten. Nor do they decide at which
    profile that column is shown.
    """
    ten, hundred = "cifar10-10-rounds", "cifar10-100-rounds"
    rows = [row.name for row in TableSpec.find("fedvck", 14).rows][:2]
    runs = known("fedvck", 14, "laptop", dict.fromkeys(rows, (0.5,)), ten)
    for frame in (
        table_runs("fedvck", 14, ["laptop"], runs),
        metrics_frame("fedvck", 14, "laptop", runs),
    ):
        assert set(frame["column"]) == {ten}
    runs |= known("fedvck", 14, "paper", {rows[0]: (0.5,)}, hundred)
    shown = table_runs("fedvck", 14, None, runs).groupby("column")["profile"].unique()
    assert {column: [*of] for column, of in shown.items()} == {ten: ["laptop"], hundred: ["paper"]}


def test_curves_of_a_column_bear_the_names_of_its_rows():
    """One run that serves two rows has one curve with both names."""
    runs = known("fedvck", "medical", "laptop", dict.fromkeys(("FedAvg", "FedVCK"), (0.5, 0.5)))
    found = table_runs("fedvck", "medical", ["laptop"], runs)
    column = found["column"].iloc[0]
    (figure,) = column_curves(found[found["column"] == column])
    label = figure.get_label()
    assert label.startswith(f"{column}, budget laptop. ")
    assert "FedAvg = FedAvg, ten batches a round goes from 50 to 50" in label


def test_rows_are_summed_up_over_their_seeds():
    runs = pd.DataFrame([ran("b", 0, 50), ran("b", 1, 70), ran("a", 1, 40)])
    scores = by_seed(runs)
    assert scores.index.tolist() == ["b", "a"] and scores.loc["a"].isna().tolist() == [True, False]
    assert scores.loc["b"].tolist() == [50, 70]
