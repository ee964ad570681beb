"""Claims: which comparisons count, and how many of them must be ahead."""

import attrs
import pytest

from lab import TableSpec, records
from lab.report.claims import Claim, judge
from lab.report.comparisons import Lead, refuted

CSV = """paper,table,method,dataset,metric,value,std,unit,better,note
p,1,a,mnist,accuracy,80,,percent,higher,
p,1,b,mnist,accuracy,70,,percent,higher,
p,1,a,svhn,accuracy,60,,percent,higher,
p,1,b,svhn,accuracy,50,,percent,higher,
"""
YAML = """
paper: p
table: 1
title: A table
metric: accuracy
rows:
  - {name: A, algorithm: fedavg, match: {method: a}}
  - {name: B, algorithm: fedprox, match: {method: b}}
columns:
  - {name: one, dataset: mnist, match: {dataset: mnist}}
  - {name: other, dataset: SECOND, match: {dataset: svhn}}
"""


@pytest.fixture
def leads(tmp_path, monkeypatch):
    """Judge that A leads B on two columns, the second with these data, by about so many points in each."""
    folder = tmp_path / "p"
    folder.mkdir()
    (folder / "published.csv").write_text(CSV)

    def found(second, gaps, **more):
        (folder / "1.yaml").write_text(YAML.replace("SECOND", second))
        spec = TableSpec.load(folder / "1.yaml")
        monkeypatch.setattr(TableSpec, "find", lambda paper, table: spec)
        known, some = {}, next(iter(records().values()))
        for cell in spec.cells("paper"):
            for run in cell.experiments:
                gap = (gaps[cell.column] + (run.seed - 1) / 10) * (cell.row == "A")
                scores = {"accuracy": 0.5 + (gap + run.seed) / 100}
                known[run.id] = attrs.evolve(some, experiment=run, metrics=scores)
        detail = {"tables": [1], "pairs": [["A", "B"]], **more}
        claim = Claim(paper="p", number=1, text="", where="", kind="ahead", detail=detail)
        return judge(claim, known)

    return found


def test_a_half_is_not_most(leads):
    assert leads("svhn", {"one": 3, "other": 3}, most=True).verdict == "holds"
    assert leads("svhn", {"one": 3, "other": -3}, most=True).verdict == "unclear"
    assert leads("svhn", {"one": 3, "other": -3}).verdict == "does not hold"


def test_columns_that_the_same_runs_fill_are_one_comparison(leads):
    (lead,) = leads("mnist", {"one": 3, "other": 3}).leads
    assert (lead.cell.column, round(lead.mean, 6)) == ("one", 3)
    assert len(leads("svhn", {"one": 3, "other": 3}).leads) == 2


@pytest.mark.parametrize(
    ("metric", "decides"), [("upload_mb_per_round", True), ("accuracy", False)]
)
def test_the_same_lead_in_all_seeds_decides_only_of_what_is_exact(metric, decides):
    cells = (cell for spec in TableSpec.all() for cell in spec.cells("paper"))
    cell = next(cell for cell in cells if cell.metric == metric)
    ahead, behind = (Lead(cell, {"rival": (gap,) * 3}) for gap in (2.0, -2.0))
    assert ahead.above(0) == behind.below(0) == refuted([behind]) == decides


def test_a_rival_that_only_the_second_of_two_tables_has_is_not_lost():
    """FedVCK's runs stand in two tables, FedAvg's as well; FedProx is a row of the second alone."""
    some, row = next(iter(records().values())), "FedVCK as released, Adam, twice"
    scores = {row: (0.6, 0.62), "FedAvg": (0.5, 0.53), "FedProx": (0.4, 0.44)}
    known = {
        run.id: attrs.evolve(some, experiment=run, metrics={"accuracy": score})
        for cell in TableSpec.find("fedvck", "nearest").cells("converged")
        if cell.column == "cifar10-0.05" and cell.row in scores
        for run, score in zip(cell.experiments, scores[cell.row], strict=False)
    }
    detail = {"tables": ["ladder", "nearest"], "columns": ["cifar10-0.05"], "row": row}
    claim = Claim(paper="fedvck", number=1, text="", where="", kind="ahead", detail=detail)
    found = judge(attrs.evolve(claim, ours=True), known).leads
    assert sorted(sorted(lead.gaps) for lead in found) == [["FedAvg"], ["FedAvg", "FedProx"]]
