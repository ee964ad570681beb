"""Questions to the records behind a table, on numbers that can be checked by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import pandas as pd
import pytest

from core.errors import InputError
from lab import Experiment, Record, TableSpec
from lab.published import Published
from lab.report.frames import metrics_frame, runs_frame, table_runs, verdict_counts
from lab.report.results import (
    beside_chance,
    by_seed,
    bytes_by_kind,
    column_curves,
    core_hours,
    cost_in_words,
    ended,
    filled,
    gains,
    gains_by_round,
    gains_by_rule,
    leads,
    megabytes_to,
    readings_beside,
    reporting_rules,
    run_hours,
    spreads,
    verdicts_by_rule,
)


def record(experiment, accuracy=0.5, **bytes_):
    row = {"round": 1, "metrics": {"accuracy": accuracy}, "up": 1, "down": 2, "seconds": {}}
    return Record(
        experiment=experiment,
        settings={},
        fingerprint="f",
        environment={},
        code="c",
        status="complete",
        rounds=[row, {**row, "round": 2}],
        metrics=row["metrics"],
        bytes=bytes_,
    )


def test_readings_stand_beside_what_is_printed_for_their_method():
    """61.9 +- 0.4 in print, say: 50, 51, 52 are away from it; 61, 62, 63 lie within 0.1 + 2.92 /
    sqrt 3 = 1.8 points of it, which is less than two; two seeds say nothing. A row counts for the
    longest name that it begins with.
    """
    cells = TableSpec.find("fedvck", "ladder").cells("converged")
    scores = {
        "FedVCK": (0.50, 0.51, 0.52),
        "FedVCK as released": (0.61, 0.62, 0.63),
        "FedAvg, five epochs": (0.38, 0.40),
        "FedDM": (0.5,),
    }
    known = {
        run.id: record(run, score)
        for cell in cells
        for run, score in zip(cell.experiments, scores.get(cell.row, ()), strict=False)
    }
    printed = {
        name: Published(value, f"{value}", std, "percent", "higher", "")
        for name, value, std in (("Fed", 1.0, None), ("FedVCK", 61.9, 0.4), ("FedAvg", 38.7, 0.5))
    }
    frame = readings_beside("fedvck", "ladder", "converged", printed, known)
    assert frame["verdict"].to_dict() == {
        "FedVCK": "different",
        "FedVCK as released": "equivalent",
        "FedAvg, five epochs": "too few seeds",
        "FedDM": "too few seeds",
    }
    assert frame["measured"].to_dict() == pytest.approx(
        {"FedVCK": 51, "FedVCK as released": 62, "FedAvg, five epochs": 39, "FedDM": 50}
    )
    assert frame["std"]["FedVCK"] == pytest.approx(1) and pd.isna(frame["std"]["FedDM"])
    assert frame["printed"].to_list() == [61.9, 61.9, 1.0, 38.7]
    with pytest.raises(InputError, match="at paper, converged, not at 'laptop'"):
        readings_beside("fedvck", "ladder", "laptop", printed, known)


def test_readings_of_one_column_are_those_of_that_column():
    cells = TableSpec.find("fedmk", "wide").cells("paper")
    scores = {"cifar10-0.5": 0.40, "cifar10-1": 0.50}
    known = {
        run.id: record(run, scores[cell.column] + run.seed / 100)
        for cell in cells
        for run in cell.experiments
        if cell.row == "FedMK, ten steps" and cell.column in scores
    }
    (printed,) = (
        cell.published
        for cell in TableSpec.find("fedmk", 1).cells("paper")
        if (cell.row, cell.column) == ("FedMK", "cifar10-0.5")
    )
    asked = ("fedmk", "wide", "paper", {"FedMK": printed}, known)
    for name, score in scores.items():
        frame = readings_beside(*asked, column=name)
        assert list(frame.index) == ["FedMK, ten steps"] and frame["printed"].item() == 47.33
        assert frame["measured"].item() == pytest.approx(100 * score + 1)


def test_a_lead_is_over_the_best_of_the_others():
    cells = TableSpec.find("fedmk", 3).cells("paper")
    scores = {"FedMK": (0.80, 0.90), "FedGen": (0.70,), "FedAvg": (0.70, 0.84, 0.99)}
    scores["FedGen, tuned"] = (0.95,)
    known = {
        run.id: record(run, score)
        for cell in cells
        for run, score in zip(cell.experiments, scores.get(cell.row, ()), strict=False)
    }
    (plain,) = leads("fedmk", 3, "FedMK", lambda row: "," not in row, None, known).to_dict(
        "records"
    )
    # FedAvg's third seed has no pair: 10 and 6 points; FedGen's only seed decides nothing
    half = 2 * 6.313752
    expected = {"measured": 8, "low": 8 - half, "high": 8 + half}
    assert {name: plain.pop(name) for name in expected} == pytest.approx(expected)
    # as printed: 88.85 over FedGen's 86.44
    assert plain.pop("printed") == pytest.approx(2.41)
    counts = {"printed rivals": 5, "measured rivals": 2, "seeds": 2}
    assert plain == counts | {"rival": "FedAvg", "ahead": False, "behind": False}
    two = leads("fedmk", 3, "FedMK", lambda row: row == "FedAvg", None, known).iloc[0]
    assert two["seeds"] == 2  # FedAvg has three, FedMK two
    all_rows = leads("fedmk", 3, "FedMK", measured=known).iloc[0]
    assert all_rows["measured"] == pytest.approx(8) and all_rows["measured rivals"] == 3
    alone = leads("fedmk", 3, "FedMK", lambda row: row == "FedGen, tuned", None, known).iloc[0]
    assert alone["measured"] == pytest.approx(-15) and alone["seeds"] == 1
    # a row that is not in all columns has a line for each all the same
    some = leads("fediod", 1, "FedIOD, released script for 0.1", measured={})
    assert list(some.index) == [line.name for line in TableSpec.find("fediod", 1).columns]
    none = leads("fedmk", 3, "FedMK", measured={})
    assert none["measured"].isna().all() and not none["seeds"].any()


def test_a_gain_is_over_the_seeds_that_both_have():
    cells = TableSpec.find("fedmk", 6).cells("paper")
    here = [cell for cell in cells if cell.column == cells[0].column and cell.published]
    scores = {"Class-balanced weights": (0.50, 0.70, 0.60), "Dynamic weights": (0.55, 0.80)}
    known = {
        run.id: record(run, score)
        for cell in here
        for run, score in zip(cell.experiments, scores[cell.row], strict=False)
    }
    (found,) = gains("fedmk", 6, "accuracy", "Class-balanced weights", None, known).to_dict(
        "records"
    )
    # the third seed of one side counts for nothing: 0.55 - 0.50 and 0.80 - 0.70
    half = 2.5 * 6.313752
    expected = {"gain": 7.5, "low": 7.5 - half, "high": 7.5 + half}
    assert {name: found.pop(name) for name in expected} == pytest.approx(expected)
    assert found == {"column": cells[0].column, "row": "Dynamic weights", "seeds": 2}
    assert gains("fedmk", 6, "accuracy", "Class-balanced weights", "paper", {}).empty


def test_a_gain_in_bytes_is_exact():
    found = gains("fedvck", 9, "upload_mb_per_round", "FedAvg", "paper")
    of = found[(found["row"] == "FedVCK") & (found["seeds"] > 1)]
    assert len(of) and (of["low"] == of["high"]).all()


def test_a_gain_after_each_round_is_over_the_seeds_that_both_have():
    cells = [cell for cell in TableSpec.find("fedmk", 6).cells("paper") if cell.published]
    one, other = (cell for cell in cells if cell.column == cells[0].column)
    runs = []
    for cell, scores in (
        (one, [(0.2, 0.5), (0.3, 0.6), (0.1, 0.1)]),
        (other, [(0.1, 0.7), (0.2, 0.2)]),
    ):
        for run, (first, last) in zip(cell.experiments, scores, strict=False):
            measured = record(run)
            for row, score in zip(measured.rounds, (first, last), strict=True):
                row["metrics"] = {"accuracy": score}
            runs.append({"row": cell.row, "record": measured})
    found = gains_by_round(pd.DataFrame(runs), other.row, one.row)
    # seed 2 has one side only; percent, by hand
    expected = pd.DataFrame({0: [-10.0, 20.0], 1: [-10.0, -40.0]}, index=[1, 2])
    pd.testing.assert_frame_equal(found, expected, check_names=False, check_index_type=False)
    assert gains_by_round(pd.DataFrame(runs), other.row, "no such row").empty


def test_hours_count_each_run_once_and_each_of_its_threads():
    cells = TableSpec.find("fedmk", "protocol").cells("paper")
    two = [cells[0].experiments[0], cells[0].experiments[1]]
    known = {run.id: record(run) for run in two}
    for threads, kept in zip((1, 2), known.values(), strict=True):
        kept.environment = {"threads": threads}
        kept.rounds = [row | {"seconds": {"clients": 1800.0}} for row in kept.rounds]
    runs = table_runs("fedmk", "protocol", ["paper"], known)
    assert core_hours(runs) == core_hours(pd.concat([runs, runs])) == 3.0
    # Table 1 has the same runs
    assert cost_in_words("fedmk", known).endswith("with their number: paper 3.0 (2).")
    assert cost_in_words("fedmk", {}) == "No run is behind these tables yet."


def test_hours_of_a_gpu_are_no_hours_of_one_core():
    cells = TableSpec.find("fedmk", "protocol").cells("paper")
    known = {run.id: record(run) for run in cells[0].experiments[:2]}
    for device, kept in zip(("cpu", "cuda"), known.values(), strict=True):
        kept.environment = {"device": device, "threads": 2}
        kept.rounds = [row | {"seconds": {"clients": 1800.0}} for row in kept.rounds]
    runs = table_runs("fedmk", "protocol", ["paper"], known)
    assert core_hours(runs) == run_hours(runs) == 2.0
    said = cost_in_words("fedmk", known)
    assert said.endswith("with their number: paper 2.0 (1). Hours of a GPU: 1.0 (1).")
    del known[cells[0].experiments[0].id]
    assert "number: none. Hours of a GPU" in cost_in_words("fedmk", known)


def test_rules_of_reporting_read_the_same_rounds_in_their_own_way():
    run = TableSpec.find("fedmk", "1").cells("paper")[0].experiments[0]
    scores = [0.1, 0.9, 0.3, 0.5, 0.7, 0.6, 0.8]
    rounds = [
        {"round": n, "metrics": {"accuracy": a}, "up": 0, "down": 0, "seconds": {}}
        for n, a in enumerate(scores, 1)
    ]
    kept = record(run)
    kept.rounds = rounds
    one = pd.DataFrame({"column": ["x"], "row": ["y"], "profile": ["paper"], "record": [kept]})
    with pytest.raises(InputError, match="one profile"):
        reporting_rules(pd.concat([one, one.assign(profile="laptop")]))
    found = reporting_rules(one)
    assert found.loc[("x", "y")].to_dict() == pytest.approx(
        {
            "last": 80,
            "mean of last five": (30 + 50 + 70 + 60 + 80) / 5,
            "five best": (90 + 80 + 70 + 60 + 50) / 5,
            "best": 90,
            "five best, tested before training": (90 + 70 + 60 + 50 + 30) / 5,
            "runs": 1,
        }
    )
    # FedGen's code tests FedEnsemble after a round, so its last one counts
    kept.experiment = attrs.evolve(run, algorithm="fedensemble", settings={})
    (after,) = reporting_rules(one)["five best, tested before training"]
    assert after == pytest.approx((90 + 80 + 70 + 60 + 50) / 5)


def scored(row: str, seed: int, scores: Sequence[float]) -> dict[str, object]:
    """A run in the column x with these accuracies (%) round by round, as `table_runs` has it."""
    run = TableSpec.find("fedmk", 1).cells("paper")[0].experiments[0]
    kept = record(attrs.evolve(run, seed=seed))
    kept.rounds = [
        {**kept.rounds[0], "round": number, "metrics": {"accuracy": score / 100}}
        for number, score in enumerate(scores, 1)
    ]
    return {"column": "x", "row": row, "profile": "paper", "record": kept}


def test_verdicts_by_rule_hang_on_the_rounds_that_a_rule_reads():
    """Three seeds end at 80 and have 60 as the mean of all that come before; print has 60."""
    scores = {
        0: (40, 80, 60, 60, 60, 80),
        1: (41, 79, 60, 60, 60, 79.9),
        2: (39, 81, 60, 60, 60, 80.1),
    }
    runs = pd.DataFrame([scored("A", seed, of) for seed, of in scores.items()])
    two = pd.DataFrame([scored("B", seed, scores[seed]) for seed in (0, 1)])
    one = Published(60.0, "60.0", None, "percent", "higher", "")
    printed = {("x", "A"): one, ("x", "B"): one, ("x", "C"): one}
    found = verdicts_by_rule(pd.concat([runs, two]), printed).set_index("rule")
    # B has too few seeds, C no run
    assert set(found["row"]) == {"A"} and set(found["column"]) == {"x"}
    assert found["difference"].to_dict() == pytest.approx(
        {
            "last": 20,
            "mean of last five": 8,
            "five best": 8,
            "best": 21 - 2 / 3,
            "five best, tested before training": 0,
        },
        abs=0.05,
    )
    assert found.loc["last", "verdict"] == found.loc["five best", "verdict"] == "different"
    assert found.loc["five best, tested before training", "verdict"] == "equivalent"
    assert verdicts_by_rule(runs, {}).empty
    with pytest.raises(InputError, match="not at 'laptop'"):
        verdicts_by_rule(runs.assign(profile="laptop"), printed)


def test_gains_by_rule_pair_the_seeds_that_both_have():
    """Over two seeds A ends 10 and 20 points above B, and is 30 and 20 below it at its best."""
    of = {
        ("A", 0): (50, 60),
        ("A", 1): (50, 70),
        ("A", 2): (0, 1),
        ("B", 0): (90, 50),
        ("B", 1): (90, 50),
    }
    runs = [scored(row, seed, scores) for (row, seed), scores in of.items()]
    found = gains_by_rule(pd.DataFrame(runs), "A", "B").set_index("rule")
    assert set(found["seeds"]) == {2}
    assert found.loc["last", "gain"] == pytest.approx(15)
    assert found.loc["best", "gain"] == pytest.approx(-25)
    # t of one degree of freedom: 6.31 times 5
    assert found.loc["last", "high"] == pytest.approx(15 + 6.314 * 5, abs=0.1)


def test_runs_that_stop_early_do_not_stand_under_a_heading_of_more_rounds():
    """Table 14 has columns of 10 and of 100 rounds; a laptop's runs have ten."""
    ten = "cifar10-10-rounds"
    cells = [one for one in TableSpec.find("fedvck", 14).cells("laptop") if one.column == ten]
    known = {run.id: record(run, 0.5) for cell in cells for run in cell.experiments}
    for frame in (
        table_runs("fedvck", 14, ["laptop"], known),
        metrics_frame("fedvck", 14, "laptop", known),
    ):
        assert set(frame["column"]) == {ten}
    assert len(runs_frame("fedvck", 14, ten, known)) == len(known)
    with pytest.raises(InputError, match="no run"):
        runs_frame("fedvck", 14, "cifar10-100-rounds", known)


def test_runs_that_stop_early_do_not_decide_at_which_profile_a_column_is_shown():
    """Two laptop runs of ten rounds, which are no runs of a hundred, beside one of the paper's."""
    of = {
        profile: {
            (cell.column, cell.row): cell for cell in TableSpec.find("fedvck", 14).cells(profile)
        }
        for profile in ("laptop", "paper")
    }
    ten, hundred = "cifar10-10-rounds", "cifar10-100-rounds"
    rows = list(dict.fromkeys(row for _, row in of["paper"]))[:2]
    cells = [*(of["laptop"][ten, row] for row in rows), of["paper"][hundred, rows[0]]]
    known = {run.id: record(run) for cell in cells for run in cell.experiments}
    shown = table_runs("fedvck", 14, None, known).groupby("column")["profile"].unique()
    assert {column: list(found) for column, found in shown.items()} == {
        ten: ["laptop"],
        hundred: ["paper"],
    }


def test_what_a_run_sends_goes_both_ways():
    cells = TableSpec.find("fedvck", 3).cells("laptop")
    run = cells[0].experiments[0]
    sent = {"up": {"images": 2**20, "labels": 2**19}, "down": {"parameters": 2**21}}
    (found,) = runs_frame(
        "fedvck", 3, cells[0].column, {run.id: record(run, 0.75, **sent)}
    ).to_dict("records")
    assert (found["MB sent"], found["accuracy"], found["seed"]) == (3.5, 75, run.seed)
    assert found["method"] == cells[0].row


def test_a_run_that_fills_two_rows_of_a_column_counts_once():
    cells = TableSpec.find("fedvck", "ladder").cells("laptop")
    (row, same) = (
        next(one for one in cells if one.row == name) for name in ("FedAvg", "FedAvg, chosen rate")
    )
    known = {run.id: record(run) for run in row.experiments}
    assert [run.id for run in same.experiments] == list(known)
    frame = runs_frame("fedvck", "ladder", row.column, known)
    assert frame["seed"].tolist() == [run.seed for run in row.experiments]


def test_how_runs_ended_are_medians_over_seeds_under_the_names_of_a_page():
    cell = TableSpec.find("fedmk", 6).cells("paper")[0]
    known = {
        run.id: record(run, score)
        for run, score in zip(cell.experiments, (0.5, 0.6, 0.9), strict=False)
    }
    names = {"accuracy": "accuracy (%)", "loss": "loss", "none": "nobody has it"}
    for value, one in zip((1, 2, 900), known.values(), strict=True):
        one.metrics = {**one.metrics, "loss": value}
    found = ended("fedmk", 6, names, "paper", known)
    assert found.index.tolist() == [(cell.column, cell.row)]
    assert found.columns.tolist() == list(names.values())
    assert found.iloc[0, :2].tolist() == pytest.approx([60, 2])
    assert found["nobody has it"].isna().all()
    assert ended("fedmk", 6, names, "paper", {}).empty


def test_an_accuracy_costs_what_was_sent_until_it_was_first_seen():
    kept = record(TableSpec.find("fedmk", "1").cells("paper")[0].experiments[0])
    kept.rounds = [
        {"round": n, "metrics": {"accuracy": a} if a else {}, "up": 2**20, "down": 2**21}
        for n, a in enumerate((0.25, 0, 0.75, 0.5, 0.75), 1)
    ]
    assert [megabytes_to(kept, target) for target in (20, 25, 26, 75)] == [3, 3, 9, 9]
    assert pd.isna(megabytes_to(kept, 76))


def test_verdicts_are_counted_in_words():
    frame = pd.DataFrame(
        {"verdict": ["reproduced", "pending", "undecided", "pending", "pending", "pending"]}
    )
    assert verdict_counts(frame) == "4 pending, 1 reproduced, 1 undecided"


def test_what_is_missing_gets_a_word():
    found = filled(pd.DataFrame({"x": [1.234, None]}), "{:+.1f}", "open")
    assert found["x"].tolist() == ["+1.2", "open"]


def test_the_runs_behind_a_table_are_its_measured_cells():
    cells = TableSpec.find("fedvck", "3").cells("laptop")
    some = [run for cell in cells[:2] for run in cell.experiments]
    known = {run.id: record(run) for run in some}
    found = table_runs("fedvck", 3, ["laptop"], known)
    assert set(found["id"]) == set(known) and len(found) >= len(known)
    assert {*zip(found["column"], found["row"], strict=True)} >= {
        (cell.column, cell.row) for cell in cells[:2]
    }
    assert all(row.record.experiment.seed == row.seed for row in found.itertuples())
    assert table_runs("fedvck", 3, ["laptop"], {}).empty
    # of profiles at which as much is measured the fullest is shown, column by column
    (fuller, *_) = (
        c for c in TableSpec.find("fedvck", "3").cells("paper") if c.row == cells[0].row
    )
    known |= {run.id: record(run) for run in fuller.experiments}
    best = table_runs("fedvck", 3, None, known)
    assert set(best[best["column"] == fuller.column]["profile"]) == {"paper"}


def test_curves_of_a_column_bear_the_names_of_its_rows():
    pytest.importorskip("matplotlib")
    cells = TableSpec.find("fedvck", "3").cells("laptop")
    column = cells[0].column
    of = [cell for cell in cells if cell.column == column][:2]
    known = {run.id: record(run) for cell in of for run in cell.experiments}
    found = table_runs("fedvck", 3, ["laptop"], known)
    (figure,) = column_curves(found[found["column"] == column])
    assert all(f"{cell.row} ends at 50.0" in figure.get_label() for cell in of)
    assert figure.get_label().startswith(f"{column}, profile laptop. ")


def test_a_run_that_serves_two_rows_has_one_curve_with_both_names():
    pytest.importorskip("matplotlib")
    cells = {c.row: c for c in TableSpec.find("fedvck", "medical").cells("laptop")[:4]}
    known = {run.id: record(run) for cell in cells.values() for run in cell.experiments}
    found = table_runs("fedvck", "medical", ["laptop"], known)
    found = found[found["row"].str.startswith("FedAvg")]
    column = found["column"].iloc[0]
    (figure,) = column_curves(found[found["column"] == column])
    assert "FedAvg = FedAvg, ten batches a round ends at 50.0" in figure.get_label()


def test_bytes_are_those_of_the_ledger():
    (run, *_) = TableSpec.find("fedvck", "3").cells("laptop")[0].experiments
    sent = {"up": {"images": 10, "labels": 3}, "down": {"parameters": 8}}
    found = bytes_by_kind({"one": record(run, **sent), "two": record(run, up={"images": 4})})
    assert found["one"].to_dict() == {
        ("up", "images"): 5,
        ("up", "labels"): 2,
        ("down", "parameters"): 4,
    }
    assert found.loc[("up", "images"), "two"] == 2 and found["two"].sum() == 2
    whole = bytes_by_kind({"one": record(run, **sent)}, each_round=False)
    assert whole.loc[("up", "labels"), "one"] == 3


def test_arms_at_chance_have_no_order():
    equal = beside_chance(pd.Series([9.71, 9.74]), 10)
    assert equal.startswith("Both arms have an accuracy of 9.7%; a guess has 10.0%.")
    low = beside_chance(pd.Series([9.0, 12.3, 19.9]), 10)
    assert "3 arms lie between 9.0 and 19.9%; a guess has 10.0%" in low and low.endswith("order.")
    assert "order" not in beside_chance(pd.Series([9.0, 20.1]), 10)
    assert beside_chance(pd.Series([12.0, float("nan")]), 10) == (
        "One arm is measured: 12.0%; a guess has 10.0%."
    )
    assert beside_chance(pd.Series([float("nan")]), 10) == ""


def test_rows_are_summed_up_over_their_seeds():
    runs = [
        (
            row,
            attrs.evolve(
                record(Experiment(algorithm="fedavg", dataset="digits", seed=seed)),
                metrics={"auc": auc},
            ),
        )
        for row, seed, auc in (("b", 0, 0.5), ("b", 1, 0.7), ("a", 1, 0.4))
    ]
    scores = by_seed(pd.DataFrame(runs, columns=["row", "record"]), "auc")
    assert scores.index.tolist() == ["b", "a"] and scores.loc["a"].isna().tolist() == [True, False]
    found = spreads(scores)
    assert found["b"] == pytest.approx((60, 200**0.5))
    assert found["a"] == pytest.approx((40, math.nan), nan_ok=True)  # one run has no deviation
