"""Claims of the papers: the files, the rule by hand, and that the tests they name exist."""

import ast
import csv
import itertools
import re

import numpy as np
import pytest
from scipy.stats import t

from core.errors import InputError
from lab import TableSpec
from lab.forms import TABLES
from lab.record import REPOSITORY
from lab.report.claims import (
    PAPERS,
    VERDICTS,
    Claim,
    Lead,
    claims,
    claims_frame,
    claims_table,
    judge,
    refuted,
)
from tests.lab.report.made import record

ALL = [claim for paper in PAPERS for claim in claims(paper)]
#: claims in the list of each paper; those that its text has besides, less what it prints and does not claim
LISTED = {"fedvck": 45, "fedmk": 28, "gddfl": 20, "fediod": 27}
MORE = {"fedvck": 0, "fedmk": 1, "gddfl": 1, "fediod": -1}


def leading(paper="fedmk", ours=False, **ahead):
    return Claim(claim="x", paper=paper, ours=ours, ahead=ahead)


def made(scores, paper, table, profile="paper"):
    """Records of cells of a table, the same in all metrics: `scores` has values per seed by row or by
    (row, column).
    """
    known = {}
    for cell in TableSpec.find(paper, table).cells(profile):
        values = scores.get((cell.row, cell.column), scores.get(cell.row, ()))
        for run, value in zip(cell.experiments, values, strict=False):
            before = known[run.id].metrics if run.id in known else {}
            known[run.id] = record(run, **(before | {cell.record_metric: value}))
    return known


def test_all_claims_of_the_papers_are_there_with_tests_and_pages_that_exist():
    theirs = {paper: sum(not claim.ours for claim in claims(paper)) for paper in PAPERS}
    assert theirs == {paper: number + MORE[paper] for paper, number in LISTED.items()}
    for claim in ALL:
        kinds = ("ahead", "test", "paper_numbers", "shown", "open", "not_testable")
        assert claim.where and sum(getattr(claim, kind) is not None for kind in kinds) == 1
        assert not claim.page or (REPOSITORY / "notebooks" / f"{claim.page}.py").exists(), claim
        if claim.test:
            path, _, name = claim.test.partition("::")
            tree = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
            assert name in {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}


@pytest.mark.parametrize("claim", [one for one in ALL if one.ahead], ids=lambda one: one.claim[:30])
def test_a_claim_names_rows_columns_and_metrics_of_its_tables(claim):
    """Else it would be "not measured" for ever."""
    asked = claim.ahead
    for table in asked.tables:
        specs = [TableSpec.find(claim.paper, one) for one in (table, *asked.beside)]
        rows = {*filter(None, [asked.row]), *(asked.against or ()), *itertools.chain(*asked.pairs)}
        assert rows and rows <= {row.name for spec in specs for row in spec.rows}
        assert {*(asked.columns or ())} <= {one.name for spec in specs for one in spec.columns}
        metrics = {one for spec in specs for one in spec.metrics}
        assert {*(asked.metrics or ()), *asked.least} <= metrics


#: the two rows of FedMK's Table 6, and one of its columns
ROWS = ("Dynamic weights", "Class-balanced weights")
ONE = TableSpec.find("fedmk", 6).cells("paper")[0].column


def two(first, second):
    return made({(ROWS[0], ONE): first, (ROWS[1], ONE): second}, "fedmk", 6)


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ([0.90, 0.91, 0.93], [0.80, 0.81, 0.82], "holds"),
        ([0.80, 0.81, 0.82], [0.90, 0.91, 0.93], "does not hold"),
        ([0.90, 0.50, 0.70], [0.80, 0.60, 0.69], "unclear"),
        ([0.90], [0.10], "unclear"),  # one seed says nothing about its spread
        ([0.90, 0.91, 0.92], [0.80, 0.81, 0.82], "unclear"),  # nor do equal differences
        ([0.80, 0.81, 0.82], [0.90, 0.91, 0.92], "unclear"),
        ([], [0.5, 0.5, 0.5], "not measured"),
    ],
)
def test_the_rule_by_hand(first, second, verdict):
    found = judge(leading(tables=[6], pairs=[[*ROWS]]), two(first, second))
    assert found.verdict == verdict and "inf" not in found.effect


@pytest.mark.parametrize(
    ("by", "verdict"), [(0, "holds"), (5, "holds"), (10, "unclear"), (15, "does not hold")]
)
def test_a_claim_may_ask_for_a_lead_of_so_many_points(by, verdict):
    """The lead is 10.3 points with an interval of one point to either side."""
    known = two([0.90, 0.91, 0.93], [0.80, 0.81, 0.82])
    assert judge(leading(tables=[6], pairs=[[*ROWS]], by=by), known).verdict == verdict


def lead_by(*gaps: tuple[float, ...]) -> Lead:
    """A lead over the first of some baselines, by so much to each of them."""
    cell = TableSpec.find("fedmk", 6).cells("paper")[0]
    return Lead(cell, {str(k): each for k, each in enumerate(gaps)})


def of_chance(p: float) -> tuple[float, ...]:
    """Three differences that come out so low with this probability where there is none."""
    middle = t.ppf(p, 2) / 3**0.5
    return middle - 1, middle, middle + 1


@pytest.mark.parametrize(
    ("chances", "refutes"),
    [
        ([0.04], True),
        ([0.06], False),
        ([0.04, 0.9], False),  # one of two by chance
        ([0.02, 0.9], True),  # far below
        ([0.04, 0.045], True),  # both a little
        ([0.04] * 3 + [0.9] * 9, False),
        ([0.01] * 3 + [0.9] * 9, True),
    ],
)
def test_one_lead_far_below_or_many_a_little_refute_a_claim(chances, refutes):
    each = [of_chance(p) for p in chances]
    assert refuted([lead_by(gaps) for gaps in each]) == refutes
    assert refuted([lead_by(*each)]) == refutes  # as baselines in one column
    assert refuted([lead_by(gaps) for gaps in each] + [lead_by((-50.0,))]) == refutes


def test_equal_methods_refute_a_claim_as_seldom_as_is_said():
    """Five baselines in four columns, three seeds; the row that is to lead them is in all comparisons."""
    draws, found = np.random.default_rng(0), []
    for _ in range(300):
        row, baselines = draws.normal(size=(4, 1, 3)), draws.normal(size=(4, 5, 3))
        gaps = (row - baselines).tolist()
        found.append(refuted([lead_by(*map(tuple, column)) for column in gaps]))
    assert 0.005 < np.mean(found) < 0.06


def test_a_baseline_that_is_surely_ahead_counts_beside_one_that_is_further_ahead_but_unsure():
    behind = lead_by((-3.0, -2.9), (-9.0, 1.0))
    assert behind.below(0) and not behind.above(0) and not behind.above(-20)


def test_columns_that_the_paper_lacks_count_in_claims_of_the_book_only():
    scores = [0.9, 0.91, 0.92]
    known = made({"FedIOD": scores, "FedAvg": scores}, "fediod", 1)
    added = {one.name for one in TableSpec.find("fediod", 1).columns if not one.printed}
    theirs, ours = (
        {
            lead.cell.column
            for lead in judge(
                leading("fediod", own, tables=[1], pairs=[["FedIOD", "FedAvg"]]), known
            ).leads
        }
        for own in (False, True)
    )
    assert added and theirs and not theirs & added and added <= ours


def test_the_lead_that_is_claimed_is_the_smallest_in_print():
    """ "By far" of FedMK's Tables 1 and 4: the smallest lead over the best other method."""
    (claim,) = (one for one in claims("fedmk") if one.ahead and one.ahead.by)
    assert claim.ours  # the paper names no number
    columns: dict[tuple[str, ...], dict[str, float]] = {}
    with (TABLES / "fedmk" / "published.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["table"] in map(str, claim.ahead.tables):
                where = row["table"], row["dataset"], row["split"]
                columns.setdefault(where, {})[row["method"]] = float(row["value"])
    leads = [of.pop("fedmk") - max(of.values()) for of in columns.values()]
    assert len(leads) > 6 and claim.ahead.by == round(min(leads), 2)


@pytest.mark.parametrize(
    ("ahead", "most", "verdict"),
    [
        (3, False, "holds"),
        (2, False, "does not hold"),
        (2, True, "holds"),
        (1, True, "does not hold"),
    ],
)
def test_a_claim_on_most_columns_may_lose_one(ahead, most, verdict):
    columns = [one.name for one in TableSpec.find("fedmk", 6).columns if one.printed][:3]
    high, low = [0.90, 0.91, 0.93], [0.80, 0.81, 0.82]
    scores = {}
    for place, column in enumerate(columns):
        first, second = (high, low) if place < ahead else (low, high)
        scores |= {(ROWS[0], column): first, (ROWS[1], column): second}
    claim = leading(tables=[6], pairs=[[*ROWS]], most=most, columns=columns)
    assert judge(claim, made(scores, "fedmk", 6)).verdict == verdict


def test_a_claim_on_several_measures_needs_all_of_them():
    """HD95 is a distance: less is better, and its lead has the sign of the others."""
    asked = leading("fediod", tables=[3], metrics=["dice", "hd95"], pairs=[["FedIOD", "FedAvg"]])

    def found(hd95):
        known = {}
        for cell in TableSpec.find("fediod", 3).cells("paper"):
            if cell.row in ("FedIOD", "FedAvg"):
                dice, far, spread = (0.8, hd95, 0.01) if cell.row == "FedIOD" else (0.7, 12.0, 0)
                for place, run in enumerate(cell.experiments):
                    shift = (place - len(cell.experiments) // 2) * spread
                    known[run.id] = record(run, dice=dice + shift, hd95=far + shift)
        return judge(asked, known)

    assert found(9.0).verdict == "holds" and found(15.0).verdict == "does not hold"
    assert [round(lead.mean, 6) for lead in found(9.0).leads] == [10, 3]
    assert "Dice +10.0, HD95 +3.0" in found(9.0).effect


@pytest.mark.parametrize(
    ("profile", "score", "verdict"),
    [("paper", 0.1, "does not hold"), ("laptop", 0.3, "does not hold"), ("laptop", 0.1, "unclear")],
)
def test_a_method_that_has_learned_nothing_refutes_nothing_with_less(profile, score, verdict):
    """Below `least` a smaller budget says nothing; the paper's own does."""
    column = "cifar10-1"
    scores = {
        ("FedMK", column): [score, score + 0.01, score + 0.03],
        ("FedAvg", column): [0.80, 0.82, 0.83],
    }
    asked = {"tables": [1], "pairs": [["FedMK", "FedAvg"]], "least": {"accuracy": 20}}
    known = made(scores, "fedmk", 1, profile)
    found = judge(leading(**asked), known)
    assert found.verdict == verdict and len(found.leads) == 1
    assert ("itself has less than 20 in accuracy" in found.effect) == (verdict == "unclear")


@pytest.mark.parametrize(
    "text",
    [
        "claims: 3",
        # an unquoted comma ends a reason
        "claims: [{claim: x, paper_numbers: {agrees: false, because: rounds, clients are not given}}]",
        "claims: [{claim: x, ahead: {tables: [1], pairs: [[a]]}}]",
        "claims: [{claim: x, ahead: {tables: [1], row: a, lest: 1}}]",
    ],
)
def test_malformed_files_are_refused(tmp_path, monkeypatch, text):
    monkeypatch.setattr("lab.report.claims.CLAIMS", tmp_path)
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(InputError, match=r"p\.yaml, claims"):
        claims("p")


def test_rows_of_two_tables_may_stand_beside_each_other():
    """A row of Table 8 beside one of Table 4, in the column that both have."""
    one, other = "Trained on tnbc", "FedIOD"
    known = made({(one, "tnbc"): (0.8, 0.7)}, "fediod", 8)
    known |= made({(other, "tnbc"): (0.6, 0.6, 0.9)}, "fediod", 4)
    asked = {"tables": [8], "pairs": [[one, other]]}
    (lead,) = judge(leading("fediod", beside=[4], **asked), known).leads
    assert (lead.mean, lead.seeds, lead.cell.column) == (pytest.approx(15), 2, "tnbc")


def test_a_baseline_that_only_the_second_of_two_tables_has_is_not_lost():
    """FedVCK's runs stand in two tables, FedAvg's as well; FedProx is a row of the second alone. What the
    same runs fill is one comparison.
    """
    row = "FedVCK as released, Adam, twice"
    scores = {row: (0.6, 0.62), "FedAvg": (0.5, 0.53), "FedProx": (0.4, 0.44)}
    column = "cifar10-0.05"
    known = made(
        {(name, column): of for name, of in scores.items()}, "fedvck", "nearest", "converged"
    )
    asked = {"tables": ["budgets", "nearest"], "columns": [column], "row": row}
    found = judge(leading("fedvck", True, **asked), known).leads
    assert sorted(sorted(lead.gaps) for lead in found) == [["FedAvg"], ["FedAvg", "FedProx"]]


def test_every_verdict_is_counted_once_and_shown_with_links():
    found = claims_frame("fedvck").query("not ours")["verdict"]
    assert len(found) == LISTED["fedvck"] and set(found) <= set(VERDICTS)
    html = claims_table("gddfl", main=True)._repr_html_()
    assert len(re.findall('<a href="25_gddfl_results.html">', html)) == 4 and "<script" not in html
