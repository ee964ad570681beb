"""Counts of printed numbers, and orders of methods, on made-up records of real tables."""

import csv

import attrs
import pytest

from lab import TableSpec
from lab.forms import TABLES
from lab.report.totals import REPEAT, directions, numbers, orders
from lab.report.verdict import FULL, MB, REDUCED
from tests.lab.report.made import record


def runs_of(row, profile, shift=0.0, spread=0.0, seeds=3, place="11/{}/cifar10-0.05"):
    """Records of a row of FedVCK's Table 11, or at a `place`, `shift` points from the paper and `spread` more
    from seed to seed.
    """
    cell = TableSpec.find_cell(f"fedvck/{place.format(row)}", profile)
    return {
        run.id: record(run, accuracy=(cell.published.value + shift + spread * seed) / 100)
        for seed, run in enumerate(cell.experiments[:seeds])
    }


def measured(
    paper, table, value=lambda cell: cell.published.value / 100, profile="paper", **chosen
):
    """Records of a table's printed cells that have these attributes."""
    known = {}
    for cell in TableSpec.find(paper, table).cells(profile):
        if cell.published and all(getattr(cell, name) == one for name, one in chosen.items()):
            for run in cell.experiments:
                before = known[run.id].metrics if run.id in known else {}
                known[run.id] = record(run, **(before | {cell.record_metric: value(cell)}))
    return known


def counted(known):
    """The numbers on which something is measured."""
    rows = numbers(known)
    return rows[~rows["verdict"].isin(["pending", "not testable here"])]


def in_file(paper):
    with (TABLES / paper / "published.csv").open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row["value"] != "OOM"]


def test_methods_that_share_a_printed_cell_are_one_number_with_the_worst_verdict():
    """Table 9 prints one upload for seven methods that average models."""
    line = next(row for row in in_file("fedvck") if row["table"] == "9" and " " in row["method"])
    methods = line["method"].split()
    assert len(methods) == 7

    def found(off):
        known = {}
        for cell in TableSpec.find("fedvck", 9).cells("paper"):
            algorithm = cell.experiments[0].algorithm
            here = cell.metric == line["metric"] and line["dataset"] in cell.column
            if here and algorithm in methods and cell.published:
                size = cell.published.value * MB * (1 + 0.5 * (algorithm == off))
                for run in cell.experiments:
                    one = record(run, accuracy=0.5)
                    up = {"parameters": int(size * len(one.rounds))}
                    known[run.id] = attrs.evolve(one, bytes={"up": up, "down": {}})
        rows = counted(known).query("kind == 'costs' and verdict != @REPEAT")
        return rows["verdict"].tolist()

    assert found(None) == ["equivalent"] and found(methods[-1]) == ["different"]


def test_a_number_that_the_same_runs_measure_in_two_tables_is_a_repeat():
    """FedVCK's accuracy of ten rounds is in Tables 4 and 14."""
    known = runs_of("FedVCK", "laptop", place="14/{}/pathmnist-10-rounds")
    rows = counted(known).query("kind == 'results'")
    assert (rows["verdict"] == REPEAT).sum() == len(rows) - 1 > 0
    # FedIOD on CIFAR-10 has two different numbers in its Tables 1 and 6
    cells = [TableSpec.find_cell(f"fediod/{n}/FedIOD/cifar10-0.1", "paper") for n in (1, 6)]
    found = counted({run.id: record(run, accuracy=0.7) for run in cells[0].experiments})
    assert sorted(found["difference"]) == pytest.approx(
        sorted(70 - cell.published.value for cell in cells)
    )


def test_each_test_set_of_a_run_is_a_number_of_its_own():
    """Table 4 of FedIOD: one run is tested on three sites by four measures, and on their average."""
    assert len(counted(measured("fediod", 4, lambda cell: 0.1, row="FedAvg"))) == 16


@pytest.mark.parametrize(("seeds", "budgets"), [(3, [FULL, REDUCED, REDUCED]), (2, [REDUCED] * 3)])
def test_a_number_at_full_size_counts_before_what_its_table_shows(seeds, budgets):
    """One row at `converged`, three at `laptop`: the table shows these, the count takes both. Two seeds as
    printed are not compared with the paper.
    """
    known = runs_of("FedAvg", "converged", seeds=seeds)
    for row in ("FedAvg", "FedProx", "MOON"):
        known |= runs_of(row, "laptop", 10.0)
    found = counted(known).query("verdict != @REPEAT")
    assert sorted(found["budget"], reverse=True) == budgets
    known |= runs_of("FedAvg", "paper", 20.0)
    assert "different" in set(counted(known)["verdict"])  # as printed counts before fewer steps


def test_a_pair_of_rows_counts_once_with_the_seeds_of_both():
    places = [f"{n}/{{}}/pathmnist-10-rounds" for n in (4, 14)]
    first, same = (runs_of("FedVCK", "laptop", spread=0.1, place=one) for one in places)
    assert first.keys() == same.keys()
    known = first | runs_of("w.o. L_rc", "laptop", seeds=2, place=places[0])
    assert directions(known).to_dict("records") == [{"paper": "fedvck", "ordered": 1, "seeds": 2}]


@pytest.mark.parametrize(
    ("profile", "spread", "ordered"),
    [("laptop", 0.1, [1]), ("laptop", 0.0, [0]), ("paper", 0.1, [])],
)
def test_pairs_are_compared_where_values_are_not(profile, spread, ordered):
    found = directions(runs_of("FedVCK", profile, spread=spread) | runs_of("FedAvg", profile))
    assert found["ordered"].tolist() == ordered


def test_costs_have_no_order_nor_have_other_measures_of_the_same_runs():
    known = measured("fediod", 4, lambda cell: cell.published.value / 100, "laptop", metric="aji")
    assert directions(known).empty and TableSpec.find("fediod", 4).metrics[0] == "dice"
    distances = measured("fedmk", 7, lambda cell: cell.published.value, metric="emd")
    assert orders(distances).empty and set(counted(distances)["verdict"]) == {"not compared"}


def order(known, table=11, column="cifar10-0.05", paper="fedvck"):
    found = orders(known)
    found = found[(found["paper"] == paper) & (found["table"] == str(table))]
    return found[found["column"] == column].to_dict("records")


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("sign", [1, -1])
def test_an_order_that_is_printed_is_measured(seeds, sign):
    known = measured(
        "fedvck", 11, lambda cell: sign * cell.published.value, "laptop", column="cifar10-0.05"
    )
    known = {key: one for key, one in known.items() if one.experiment.seed < seeds}
    (found,) = order(known)
    assert (found["methods"], found["seeds"], found["profile"]) == (10, seeds, "laptop")
    # nothing is known of the spread of tau
    low, high = (-1, 1)
    assert (found["tau"], found["low"], found["high"]) == (sign, low, high)


def test_rows_that_are_printed_within_the_margin_have_no_order():
    known = {}
    for row, shift in (("MOON", 5.0), ("FedGAN", 0.0), ("FedProx", -5.0)):  # 36.2, 36.63 and 37.58
        known |= runs_of(row, "laptop", shift)
    assert order(known) == []
    # decibels of two pairs of methods, 0.05 and 0.26 apart around 32: both stand the other way round
    place = {"FedIOD": 1, "FedAvg": 2, "FL-MRCM": 3, "FedAD": 4}
    known = measured("fediod", 9, lambda cell: float(place[cell.row]), metric="psnr")
    (found,) = order(known, 9, "fastmri_t1", "fediod")
    assert (found["metric"], found["methods"], found["tau"]) == ("psnr", 4, 1.0)


def test_a_table_that_is_no_fair_comparison_with_less_counts_for_nothing():
    known = measured("fediod", 9, lambda cell: cell.published.value, "laptop", metric="ssim")
    assert set(counted(known)["verdict"]) == {"not compared"}
    assert directions(known).empty and orders(known).empty
