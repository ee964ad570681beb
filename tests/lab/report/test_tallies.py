"""Verdicts by kind and orders of methods, on made-up records of real tables."""

import attrs
import pytest
from scipy import stats

from lab import Record, TableSpec
from lab.report.tallies import directions, identity, numbers, orders, tally
from lab.report.verdict import FULL, MB, REDUCED


def record(run, accuracy, megabytes=0.0, share=0.0):
    return Record(
        experiment=run,
        settings={"share": share},
        fingerprint="",
        environment={},
        code="",
        status="complete",
        rounds=[{"round": 1, "metrics": {}, "up": 0, "down": 0, "seconds": {}}],
        metrics={"accuracy": accuracy},
        bytes={"up": {"parameters": int(megabytes * MB)}, "down": {}},
    )


def column_of(table, profile, column):
    every = [c for c in TableSpec.find("fedvck", table).cells(profile) if c.column == column]
    cells = [cell for cell in every if cell.published]
    assert len(cells) == 10
    return cells


def test_an_order_that_is_printed_is_measured():
    cells = column_of(11, "laptop", "cifar10-0.05")

    def tau(value, seeds=3):
        runs = {
            run.id: record(run, value(cell, seed))
            for cell in cells
            for seed, run in enumerate(cell.experiments[:seeds])
        }
        found = orders(runs)
        (row,) = found[(found["table"] == "11") & (found["column"] == "cifar10-0.05")].to_dict(
            "records"
        )
        return row

    same = tau(lambda cell, seed: cell.published.value / 200 + seed / 10)
    assert (same["tau"], same["low"], same["high"]) == (1.0, -1.0, 1.0)
    assert (same["methods"], same["seeds"], same["profile"]) == (10, 3, "laptop")
    assert tau(lambda cell, seed: -cell.published.value / 200)["tau"] == -1.0
    one = tau(lambda cell, seed: cell.published.value / 200, seeds=1)
    assert (one["tau"], one["low"], one["high"]) == (1.0, -1.0, 1.0)


def test_an_order_is_told_seed_by_seed_and_rows_printed_within_the_margin_have_none():
    """Two seeds in the printed order by little, one against it by much: (1 + 1 - 1) / 3. A pair that is
    printed less than two points apart may stand the other way round.
    """
    cells = sorted(column_of(11, "laptop", "cifar10-0.05"), key=lambda cell: cell.published.value)
    printed = [cell.published.value for cell in cells]
    near = next(k for k in range(9) if printed[k + 1] - printed[k] < 1.9)
    order = [*range(near), near + 1, near, *range(near + 2, 10)]
    runs = {
        run.id: record(run, 0.5 + place * (-0.05 if seed == 2 else 0.001))
        for cell, place in zip(cells, order, strict=True)
        for seed, run in enumerate(cell.experiments[:3])
    }
    found = orders(runs)
    (tau,) = found[(found["table"] == "11") & (found["column"] == "cifar10-0.05")]["tau"]
    assert tau == pytest.approx(1 / 3)


def test_an_order_by_chance_is_near_what_scipy_says():
    """Without ties and with printed gaps that all count, tau is SciPy's."""
    cells = column_of(11, "laptop", "cifar10-0.05")
    apart, chosen = [], []
    for cell in sorted(cells, key=lambda cell: cell.published.value):
        if not apart or cell.published.value - apart[-1] > 2.01:
            apart.append(cell.published.value)
            chosen.append(cell)
    assert len(chosen) >= 4
    scores = [0.3, 0.1, 0.4, 0.2, 0.6, 0.5, 0.7, 0.9][: len(chosen)]
    runs = {
        run.id: record(run, score)
        for cell, score in zip(chosen, scores, strict=True)
        for run in cell.experiments
    }
    found = orders(runs)
    (tau,) = found[(found["table"] == "11") & (found["column"] == "cifar10-0.05")]["tau"]
    assert tau == pytest.approx(stats.kendalltau(apart, scores).statistic)


def test_kinds_are_apart_and_a_run_counts_once():
    cells = TableSpec.find("fedvck", 11).cells("paper")
    cell = next(one for one in cells if one.row == "FedVCK" and one.column == "cifar10-0.05")
    runs = {run.id: record(run, cell.published.value / 100) for run in cell.experiments}
    shared = [
        one
        for spec in TableSpec.all()
        for one in spec.cells("paper")
        if one.published
        and one.metric == "accuracy"
        and {run.id for run in one.experiments} == set(runs)
    ]
    counts = tally(runs)
    printed = {one.published.value for one in shared if one.paper != "reference"}
    assert len(shared) > 1 and counts.loc["results"].sum() == len(printed)
    assert counts.loc["results", "equivalent"] == 1
    assert list(counts.index) == ["results", "costs", "settings"]


def runs_of(row, profile, shift=0.0, spread=0.0, seeds=3, place="11/{}/cifar10-0.05"):
    """Records of a row of Table 11, or at a `place`, `shift` points from print and `spread` more from seed
    to seed.
    """
    cell = TableSpec.find_cell(f"fedvck/{place.format(row)}", profile)
    return {
        run.id: record(run, (cell.published.value + shift + spread * seed) / 100)
        for seed, run in enumerate(cell.experiments[:seeds])
    }


def test_a_number_is_of_the_papers_own_method_or_of_another():
    found = numbers(runs_of("FedVCK", "paper", 3.0) | runs_of("FedAvg", "paper", -3.0))
    found = found[found["paper"] == "fedvck"]
    told = dict(zip(found["own"], found["difference"], strict=True))
    assert told == {True: pytest.approx(3.0), False: pytest.approx(-3.0)}


def test_a_run_as_printed_counts_before_one_until_nothing_moves():
    """Also where the table shows the column with less work."""
    known = runs_of("FedAvg", "paper") | runs_of("FedAvg", "converged", 20.0)
    for row in ("FedAvg", "FedProx", "MOON"):
        known |= runs_of(row, "laptop", 10.0)
    found = numbers(known)
    full = found[(found["paper"] == "fedvck") & (found["budget"] == FULL)]
    assert full["verdict"].tolist() == ["equivalent"]


def test_pairs_at_the_papers_budget_are_compared_by_value_and_not_by_direction():
    less, full = (
        directions(runs_of("FedVCK", profile, spread=0.1) | runs_of("FedAvg", profile))
        for profile in ("laptop", "paper")
    )
    assert less["ordered"].tolist() == [1] and full.empty


def test_a_pair_that_seeds_do_not_decide_is_compared_all_the_same():
    found = directions(runs_of("FedVCK", "laptop") | runs_of("FedAvg", "laptop"))
    assert found["ordered"].tolist() == [0]


def test_a_pair_has_the_seeds_that_both_of_its_rows_have():
    for first, second in ((3, 2), (2, 3)):
        known = runs_of("FedVCK", "laptop", spread=0.1, seeds=first)
        found = directions(known | runs_of("FedAvg", "laptop", seeds=second))
        assert found["seeds"].tolist() == [2]


@pytest.mark.parametrize("fewer", ["FedAvg", "MOON", "FedVCK"])
def test_an_order_has_three_methods_and_the_seeds_of_all(fewer):
    known = {}
    for row in ("FedAvg", "MOON", "FedVCK"):
        known |= runs_of(row, "laptop", seeds=2 if row == fewer else 3)
        found = orders(known)
        found = found[(found["table"] == "11") & (found["column"] == "cifar10-0.05")]
        assert found.empty == (row != "FedVCK")  # the third of them
    assert found[["methods", "seeds"]].to_numpy().tolist() == [[3, 2]]


def measured(paper, table, metric, values, profile="paper"):
    """Records of all seeds of a table's cells of a metric, by the value of a cell."""
    cells = [one for one in TableSpec.find(paper, table).cells(profile) if one.metric == metric]
    return {
        run.id: attrs.evolve(record(run, 0.0), **values(cell))
        for cell in cells
        if cell.published
        for run in cell.experiments
    }


def test_costs_have_no_order_nor_have_tables_whose_rows_are_not_compared():
    def sent(cell):
        return {"bytes": {"up": {"parameters": int(cell.published.value * MB)}, "down": {}}}

    costs = measured("fedvck", 9, "upload_mb_per_round", sent)
    distances = measured(
        "fedmk", 7, "emd", lambda cell: {"metrics": {cell.record_metric: cell.published.value}}
    )
    told = orders(costs | distances)
    assert len(costs) > 100 and len(distances) == 24
    assert told.empty or not set(told["metric"]) & {"upload_mb_per_round", "emd"}
    assert directions(measured("fedvck", 9, "upload_mb_per_round", sent, "laptop")).empty
    assert set(numbers(distances)["verdict"]) == {"not compared"}


def test_rows_that_are_printed_within_a_share_of_their_size_have_no_order():
    """Decibels of two pairs of methods, 0.05 and 0.26 apart around 32: both stand the other way round."""
    place = {"FedIOD": 1, "FedAvg": 2, "FL-MRCM": 3, "FedAD": 4}
    runs = measured(
        "fediod", 9, "psnr", lambda cell: {"metrics": {"psnr@fastmri": float(place[cell.row])}}
    )
    found = orders(runs)
    (row,) = found[(found["table"] == "9") & (found["column"] == "fastmri_t1")].to_dict("records")
    assert (row["metric"], row["methods"], row["tau"]) == ("psnr", 4, 1.0)


def test_rows_that_are_all_printed_within_the_margin_have_no_order():
    known = {}
    for row, shift in (("MOON", 5.0), ("FedGAN", 0.0), ("FedProx", -5.0)):  # 36.2, 36.63 and 37.58
        known |= runs_of(row, "laptop", shift)
    found = orders(known)
    assert found[(found["table"] == "11") & (found["column"] == "cifar10-0.05")].empty


def test_a_run_counts_as_the_first_table_has_it():
    """FedVCK at 100 rounds stands in Tables 2, 4 and 14, and its rival in Table 2 alone."""
    place = "2/{}/pathmnist-0.05"
    known = runs_of("FedVCK", "laptop", spread=0.1, place=place)
    found = numbers(known | runs_of("FedAvg", "laptop", place=place))
    found = found[(found["paper"] == "fedvck") & found["own"]]
    assert found["verdict"].tolist() == ["direction agrees"]


def test_a_run_has_a_number_for_each_data_set_that_it_is_tested_on():
    """Also where the same is printed for two."""
    cells = [c for c in TableSpec.find("fediod", 9).cells("paper") if c.row == "FedIOD"]
    here, there = (
        next(c for c in cells if (c.column, c.metric) == (f"{name}_t1", "ssim"))
        for name in ("fastmri", "ixi")
    )
    assert here.experiments[0].id == there.experiments[0].id
    same = attrs.evolve(there, published=here.published)
    assert identity(same) != identity(here) == identity(attrs.evolve(here))


def test_a_number_on_data_in_the_place_of_others_is_of_a_reduced_budget(monkeypatch):
    """No table has such data at the paper's budget."""
    known, cells = runs_of("FedAvg", "paper"), TableSpec.cells
    monkeypatch.setattr(
        TableSpec,
        "cells",
        lambda spec, profile: [attrs.evolve(c, stand_in="other") for c in cells(spec, profile)],
    )
    assert set(numbers(known)["budget"]) == {REDUCED}


def test_a_number_of_too_few_seeds_at_full_size_counts_with_less_work():
    """Two seeds as printed are not compared with print: what the table shows stands."""
    known = runs_of("FedAvg", "paper", seeds=2)
    for row in ("FedAvg", "FedProx", "MOON"):
        known |= runs_of(row, "laptop", 10.0)
    found = numbers(known)
    assert set(found["budget"]) == {REDUCED} and "pending" not in set(found["verdict"])


def test_a_run_is_two_numbers_where_two_tables_print_two():
    """FedIOD on CIFAR-10, in Tables 1 and 6 of its paper."""
    cells = [TableSpec.find_cell(f"fediod/{n}/FedIOD/cifar10-0.1", "paper") for n in (1, 6)]
    ids, printed = zip(
        *(({r.id for r in c.experiments}, c.published.value) for c in cells), strict=True
    )
    assert ids[0] == ids[1] and printed[0] != printed[1]
    found = numbers({run.id: record(run, 0.7) for run in cells[0].experiments})
    assert found["difference"].tolist() == pytest.approx([70 - value for value in printed])


def test_a_pair_of_rows_that_stands_in_two_tables_counts_once():
    known = {}
    for row, spread in (("FedVCK", 0.1), ("w.o. L_rc", 0.0)):
        places = [f"{n}/{{}}/pathmnist-10-rounds" for n in (4, 14)]
        here, there = (runs_of(row, "laptop", spread=spread, place=place) for place in places)
        assert here.keys() == there.keys()
        known |= here
    assert directions(known)["ordered"].tolist() == [1]


def test_a_pair_counts_by_the_first_measure_of_its_table():
    """Other measures of the same runs are no comparisons of their own."""

    def pairs(metric):
        def value(cell):
            return {"metrics": {cell.record_metric: cell.published.value}}

        return len(directions(measured("fediod", 9, metric, value, "laptop")))

    assert TableSpec.find("fediod", 9).metrics[0] == "ssim"
    assert pairs("ssim") > 0 and pairs("psnr") == 0


def test_what_has_no_number_is_counted_as_none():
    counts = tally(runs_of("FedVCK", "paper"))
    assert counts.loc[["costs", "settings"]].eq(0).all(axis=None)
    assert counts[["different", "direction agrees", "direction unsure"]].eq(0).all(axis=None)
