"""Verdicts by kind and orders of methods, on made-up records of real tables."""

import pytest
from scipy import stats

from core.experiments import Record, TableSpec
from core.report.tallies import orders, tally
from core.report.verdict import MB


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
