"""Tables beside the papers: every printed number has its cell, and the cell runs what the number is about."""

from __future__ import annotations

import collections
import csv
import re

import pytest

from lab.forms import TABLES
from lab.report.claims import PAPERS

#: methods of papers that are other algorithms here
METHODS = {"upperbound": "centralized", "rs10": "random_selection", "rs100": "random_selection"}
#: data sets of papers that have another name here; the sets of segmentation are tasks of their own
SETS = {"isic2020": "isic2020_224", "brats2018": "brats2018"}


def printed_rows(paper: str) -> list[dict[str, str]]:
    with (TABLES / paper / "published.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_what_the_errata_count_of_fedvck():
    """No number after 100 rounds is below the one after ten; ten are equal, six of these 62.50."""
    found: dict[str, dict[tuple[str, ...], str]] = {}
    for row in printed_rows("fedvck"):
        place = row["method"], row["dataset"], row["beta"], row["setting"]
        found.setdefault(row["table"], {})[place] = row["value"]
    pairs = [
        (float(late), float(early))
        for overall, limited in (("2", "3"), ("7", "11"))
        for place, late in found[overall].items()
        if "OOM" not in (late, early := found[limited][place])
    ]
    assert len(pairs) == 154 and all(late >= early for late, early in pairs)
    alike = [late for late, early in pairs if late == early]
    assert len(alike) == 10 and alike.count(62.5) == 6


@pytest.mark.parametrize("paper", PAPERS)
def test_every_printed_number_has_one_cell_per_method(paper, cells):
    wanted = collections.Counter(
        (row["table"], row["metric"], METHODS.get(one, one), row["value"], std, row["note"])
        for row in printed_rows(paper)
        for std in [float(row["std"]) if row["std"] else None]
        for one in row["method"].split()
    )
    found = collections.Counter(
        (cell.table, cell.metric, cell.experiments[0].algorithm, one.text, one.std, one.note)
        for cell in cells["paper"]
        if cell.paper == paper and (one := cell.published)
    )
    assert found == wanted


def _fits(cell, row) -> bool:
    """Whether the run of a cell is what published.csv says of its number."""
    run, split = cell.experiments[0], row.get("split", "")
    known = {"cifar100_coarse": "cifar100", **{here: there for there, here in SETS.items()}}
    alpha = re.match(r"dir\(alpha=(.*?)\)", split)
    clients = re.search(r"=(\d+)$", split.rpartition(",")[2])
    return (
        run.model == row["model"]
        and (run.model == "unet" or known.get(run.dataset, run.dataset) == row["dataset"])
        and row["rounds"] in ("", str(run.rounds))
        and (not row.get("beta") or run.partition["file"].endswith(f"_alpha{row['beta']}.json"))
        and (not alpha or run.partition == {"name": "dirichlet", "alpha": float(alpha[1])})
        and (not clients or run.clients == int(clients[1]))
    )


@pytest.mark.parametrize("paper", PAPERS)
def test_a_cell_runs_what_its_printed_number_is_about(paper, cells):
    """Model, data set, rounds, concentration and clients as published.csv states them, row by
    row.
    """
    rows = printed_rows(paper)
    for cell in cells["paper"]:
        if cell.paper != paper or not (one := cell.published):
            continue
        same = [
            row
            for row in rows
            if (row["table"], row["metric"], row["value"], row["note"])
            == (cell.table, cell.metric, one.text, one.note)
            and cell.experiments[0].algorithm in {METHODS.get(m, m) for m in row["method"].split()}
        ]
        assert any(_fits(cell, row) for row in same), (cell.address, same)


@pytest.mark.parametrize(("dataset", "far"), [("cifar10", 0.2), ("pathmnist", 1.0)])
def test_the_authors_logs_end_where_print_does(dataset, far):
    """One seed each, beside a mean of three in Tables 11 and 3; ten rounds, ten tests in each."""
    with (TABLES / "fedvck" / "authors_log.csv").open(encoding="utf-8", newline="") as file:
        log = [row for row in csv.DictReader(file) if row["dataset"] == dataset]
    places = [(int(row["round"]), int(row["epoch"])) for row in log]
    assert places == [(t, epoch) for t in range(1, 11) for epoch in range(100, 1001, 100)]
    (printed,) = (
        float(row["value"])
        for row in printed_rows("fedvck")
        if (row["dataset"], row["method"], row["beta"]) == (dataset, "fedvck", "0.05")
        and (row["table"], row["metric"]) in {("11", "accuracy"), ("3", "accuracy")}
    )
    assert abs(float(log[-1]["accuracy"]) - printed) < far
