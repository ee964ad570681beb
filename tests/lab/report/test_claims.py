"""Claims of the papers: the files, the rule by hand, and that the tests they name exist."""

import ast
import csv
import re

import attrs
import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

from core.errors import InputError
from lab import TableSpec, records
from lab.forms import TABLES
from lab.record import REPOSITORY
from lab.report import claims as report_claims
from lab.report.claim_views import claims_figure, claims_table
from lab.report.claims import (
    VERDICTS,
    Claim,
    claims,
    claims_count,
    judge,
    papers,
)
from lab.report.comparisons import Lead, refuted
from lab.report.frames import runs_frame

ALL = [claim for paper in papers() for claim in claims(paper)]


#: claims in the list of each paper; those that its text has besides, less what it prints and does not claim
LISTED = {"fedvck": 45, "fedmk": 28, "gddfl": 20, "fediod": 27}
MORE = {"fedvck": 0, "fedmk": 1, "gddfl": 1, "fediod": -1}


def test_all_claims_of_the_papers_are_there():
    theirs = {paper: sum(not claim.ours for claim in claims(paper)) for paper in papers()}
    assert theirs == {paper: number + MORE[paper] for paper, number in LISTED.items()}
    for paper, number in LISTED.items():
        listed = REPOSITORY.parent / "shared" / "published" / f"{paper}_claims.md"
        if listed.exists():
            assert len(re.findall(r"^\d+\. ", listed.read_text(), re.M)) == number
    assert all(claim.where for claim in ALL)


@pytest.mark.parametrize("claim", [one for one in ALL if one.kind == "test"], ids=lambda c: c.text)
def test_the_tests_that_claims_rest_on_exist(claim):
    path, _, name = claim.detail.partition("::")
    tree = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_pages_that_claims_name_exist():
    for claim in ALL:
        assert not claim.page or (REPOSITORY / "notebooks" / f"{claim.page}.py").exists(), claim


@pytest.fixture(scope="module")
def cells():
    """The two printed rows of FedMK's Table 6 on one column, with the runs of three seeds each."""
    cells = TableSpec.find("fedmk", 6).cells("paper")
    return [cell for cell in cells if cell.column == cells[0].column and cell.published]


def measured(cells, values):
    """Records by id with these accuracies, one list per row."""
    some = next(iter(records().values()))
    return {
        run.id: attrs.evolve(some, experiment=run, metrics={"accuracy": value})
        for cell, of in zip(cells, values, strict=True)
        for run, value in zip(cell.experiments, of, strict=False)
    }


def leading(row, rival):
    detail = {"tables": [6], "pairs": [[row, rival]]}
    return Claim(paper="fedmk", number=1, text="", where="", kind="ahead", detail=detail)


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
def test_the_rule_by_hand(cells, first, second, verdict):
    found = judge(leading(cells[0].row, cells[1].row), measured(cells, [first, second]))
    assert found.verdict == verdict and "inf" not in found.effect


@pytest.mark.parametrize(
    ("by", "verdict"), [(0, "holds"), (5, "holds"), (10, "unclear"), (15, "does not hold")]
)
def test_a_claim_may_ask_for_a_lead_of_so_many_points(cells, by, verdict):
    """The lead is 10.3 points with an interval of one point to either side."""
    claim = leading(cells[0].row, cells[1].row)
    claim = attrs.evolve(claim, detail={**claim.detail, "by": by})
    known = measured(cells, [[0.90, 0.91, 0.93], [0.80, 0.81, 0.82]])
    assert judge(claim, known).verdict == verdict


def lead_by(*gaps: tuple[float, ...]) -> Lead:
    """A lead over the first of some rivals, by so much to each of them."""
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
    assert refuted([lead_by(*each)]) == refutes  # as rivals in one column
    assert refuted([lead_by(gaps) for gaps in each] + [lead_by((-50.0,))]) == refutes


def test_equal_methods_refute_a_claim_as_seldom_as_is_said():
    """Five rivals in four columns, three seeds; the row that is to lead them is in all comparisons."""
    draws = np.random.default_rng(0)
    found = []
    for _ in range(2000):
        row, rivals = draws.normal(size=(4, 1, 3)), draws.normal(size=(4, 5, 3))
        gaps = (row - rivals).tolist()
        found.append(refuted([lead_by(*map(tuple, column)) for column in gaps]))
    assert 0.005 < np.mean(found) < 0.06


def test_columns_that_the_paper_lacks_count_in_claims_of_the_book_only():
    spec = TableSpec.find("fediod", 1)
    cells = [cell for cell in spec.cells("paper") if cell.row in ("FedIOD", "FedAvg")]
    columns = [line.name for line in spec.columns]
    added = {line.name for line in spec.columns if not line.printed}
    assert added and added < set(columns)
    known = measured(cells, [[0.9, 0.91, 0.92] for _ in cells])
    claim = Claim(
        paper="fediod", number=1, text="", where="", kind="ahead",
        detail={"tables": [1], "pairs": [["FedIOD", "FedAvg"]]},
    )  # fmt: skip
    theirs = {lead.cell.column for lead in judge(claim, known).leads}
    ours = {lead.cell.column for lead in judge(attrs.evolve(claim, ours=True), known).leads}
    assert theirs and not theirs & added and added <= ours


def test_the_lead_that_is_claimed_is_the_smallest_in_print():
    """ "By far" of FedMK's Tables 1 and 4: the smallest lead over the best other method."""
    (claim,) = (one for one in claims("fedmk") if one.kind == "ahead" and "by" in one.detail)
    assert claim.ours  # the paper names no number
    columns: dict[tuple[str, ...], dict[str, float]] = {}
    with (TABLES / "fedmk" / "published.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["table"] in map(str, claim.detail["tables"]):
                where = row["table"], row["dataset"], row["split"]
                columns.setdefault(where, {})[row["method"]] = float(row["value"])
    assert len(columns) > 6 and all(len(of) == 6 for of in columns.values())
    leads = [of.pop("fedmk") - max(of.values()) for of in columns.values()]
    assert claim.detail["by"] == round(min(leads), 2)


def test_a_claim_on_most_columns_may_lose_one():
    cells = [cell for cell in TableSpec.find("fedmk", 6).cells("paper") if cell.published]
    high, low = [0.90, 0.91, 0.93], [0.80, 0.81, 0.82]
    columns = list(dict.fromkeys(cell.column for cell in cells))
    first, second = dict.fromkeys(cell.row for cell in cells)
    ahead = {(first, columns[0]), (first, columns[1]), (second, columns[2])}
    known = measured(cells, [high if (one.row, one.column) in ahead else low for one in cells])
    claim = leading(first, second)
    assert judge(claim, known).verdict == "does not hold"
    most = attrs.evolve(claim, detail={**claim.detail, "most": True})
    assert judge(most, known).verdict == "holds"
    other = attrs.evolve(
        leading(second, first), detail=leading(second, first).detail | {"most": True}
    )
    assert judge(other, known).verdict == "does not hold"


def test_the_interval_is_students_over_paired_seeds(cells):
    first, second = [0.93, 0.90, 0.96], [0.80, 0.85, 0.81]
    (lead,) = judge(leading(cells[0].row, cells[1].row), measured(cells, [first, second])).leads
    gaps = 100 * (np.array(first) - second)
    low, high = t.interval(0.9, 2, gaps.mean(), gaps.std(ddof=1) / 3**0.5)
    assert lead.interval == pytest.approx((gaps.mean(), low, high))
    assert lead.seeds == 3 and lead.in_full


def test_a_claim_on_several_measures_needs_all_of_them():
    """HD95 is a distance: less is better, and its lead has the sign of the others."""
    cells = {
        (cell.row, cell.metric): cell.experiments
        for cell in TableSpec.find("fediod", 3).cells("paper")
        if cell.row in ("FedIOD", "FedAvg")
    }
    detail = {"tables": [3], "metrics": ["dice", "hd95"], "pairs": [["FedIOD", "FedAvg"]]}
    claim = Claim(paper="fediod", number=1, text="", where="", kind="ahead", detail=detail)

    def found(hd95):
        some = next(iter(records().values()))
        of = {"FedIOD": (0.80, hd95, 0.01), "FedAvg": (0.70, 12.0, 0)}
        known = {}
        for (row, _), runs in cells.items():
            dice, far, spread = of[row]
            for run in runs:
                shift = (run.seed - runs[len(runs) // 2].seed) * spread
                metrics = {"dice": dice + shift, "hd95": far + shift}
                known[run.id] = attrs.evolve(some, experiment=run, metrics=metrics)
        return judge(claim, known)

    assert found(9.0).verdict == "holds" and found(15.0).verdict == "does not hold"
    assert [round(lead.mean, 6) for lead in found(9.0).leads] == [10, 3]
    assert "Dice +10.0, HD95 +3.0" in found(9.0).effect


@pytest.mark.parametrize(
    ("stand_in", "score", "verdict"),
    [(None, 0.3, "does not hold"), ("emnist", 0.3, "does not hold"), ("emnist", 0.1, "unclear")],
)
def test_a_method_that_has_learned_nothing_refutes_nothing_with_less(
    cells, monkeypatch, stand_in, score, verdict
):
    """Below `least` a smaller budget says nothing; the paper's own does."""
    known = measured(cells, [[score, score + 0.01, score + 0.03], [0.80, 0.82, 0.83]])
    claim = leading(cells[0].row, cells[1].row)
    claim = attrs.evolve(claim, detail=claim.detail | {"least": {"accuracy": 20}})
    in_place = [attrs.evolve(cell, stand_in=stand_in) for cell in cells]
    monkeypatch.setattr("lab.report.comparisons.best_cells", lambda spec, records: in_place)
    found = judge(claim, known)
    assert found.verdict == verdict and len(found.leads) == 1
    assert ("itself has less than 20 in accuracy" in found.effect) == (verdict == "unclear")
    assert judge(attrs.evolve(claim, detail=claim.detail | {"by": -90}), known).verdict == (
        "holds" if verdict != "unclear" else "unclear"
    )


def test_what_counts_for_no_verdict_is_counted_beside_the_claim():
    """A method that has learned nothing is behind in both columns, though nothing follows from it."""
    cells = [
        cell
        for cell in TableSpec.find("fedmk", 1).cells("laptop")
        if cell.row in ("FedMK", "FedAvg") and cell.column in ("mnist-0.5", "mnist-1")
    ]
    some, known = next(iter(records().values())), {}
    for cell in cells:
        for run in cell.experiments:
            score = {"FedMK": 0.1, "FedAvg": 0.8}[cell.row] + run.seed / 1000
            score += (cell.row == "FedMK") * (run.seed % 2) / 100
            known[run.id] = attrs.evolve(some, experiment=run, metrics={"accuracy": score})
    detail = {"tables": [1], "pairs": [["FedMK", "FedAvg"]], "least": {"accuracy": 20}}
    claim = Claim(paper="fedmk", number=1, text="", where="", kind="ahead", detail=detail)
    found = judge(claim, known)
    assert found.verdict == "unclear"
    assert found.effect.startswith("ahead in 0, behind in 2 of 2 comparisons")


def test_each_test_set_of_the_same_runs_is_a_comparison():
    """Table 4: three sites and their mean, all from one run of each method."""
    some, known = next(iter(records().values())), {}
    for cell in TableSpec.find("fediod", 4).cells("paper"):
        if cell.metric == "dice" and cell.row != "AsynDGAN":
            score = {"FedIOD": 0.8, "FedAvg": 0.7}[cell.row] - 0.2 * (cell.column == "tnbc")
            for run in cell.experiments:
                before = known[run.id].metrics if run.id in known else {}
                metrics = {**before, cell.record_metric: score + run.seed / 100}
                known[run.id] = attrs.evolve(some, experiment=run, metrics=metrics)
    detail = {"tables": [4], "row": "FedIOD", "against": ["FedAvg"]}
    claim = Claim(paper="fediod", number=1, text="", where="", kind="ahead", detail=detail)
    assert sorted(lead.cell.column for lead in judge(claim, known).leads) == [
        *("average", "cell17", "tcga", "tnbc")
    ]


def test_the_best_rival_is_one_that_shares_a_seed():
    cells = [cell for cell in TableSpec.find("fedmk", 1).cells("paper") if cell.column == "mnist-1"]
    some = next(iter(records().values()))
    scores = {"FedMK": {0: 0.8, 1: 0.8}, "FedAvg": {2: 0.99}, "FedGen": {0: 0.9, 1: 0.91}}
    known = {
        run.id: attrs.evolve(some, experiment=run, metrics={"accuracy": scores[cell.row][run.seed]})
        for cell in cells
        for run in cell.experiments
        if run.seed in scores.get(cell.row, {})
    }
    detail = {"tables": [1], "row": "FedMK", "against": ["FedAvg", "FedGen"]}
    claim = Claim(paper="fedmk", number=1, text="", where="", kind="ahead", detail=detail)
    (lead,) = judge(claim, known).leads
    assert (lead.rival, lead.seeds) == ("FedGen", 2)


def test_the_best_rival_is_the_best_on_the_seeds_that_both_have():
    """FedAvg's high mean comes from a seed that FedMK lacks: on the common ones FedGen is better."""
    cells = [cell for cell in TableSpec.find("fedmk", 1).cells("paper") if cell.column == "mnist-1"]
    some = next(iter(records().values()))
    scores = {
        "FedMK": {0: 0.8, 1: 0.8},
        "FedAvg": {0: 0.7, 1: 0.71, 2: 0.99},
        "FedGen": {0: 0.75, 1: 0.76},
    }
    known = {
        run.id: attrs.evolve(some, experiment=run, metrics={"accuracy": scores[cell.row][run.seed]})
        for cell in cells
        for run in cell.experiments
        if run.seed in scores.get(cell.row, {})
    }
    detail = {"tables": [1], "row": "FedMK"}
    claim = Claim(paper="fedmk", number=1, text="", where="", kind="ahead", detail=detail)
    (lead,) = judge(claim, known).leads
    assert (lead.rival, lead.mean) == ("FedGen", pytest.approx(4.5))
    # a rival that is behind on average, but not surely: the claim must not hold
    scores["FedAvg"] = {0: 0.5, 1: 0.79}
    for cell in cells:
        for run in cell.experiments[:2]:
            if cell.row == "FedAvg":
                metrics = {"accuracy": scores["FedAvg"][run.seed]}
                known[run.id] = attrs.evolve(some, experiment=run, metrics=metrics)
    found = judge(claim, known)
    assert (found.leads[0].rival, found.verdict) == ("FedGen", "unclear")
    assert "leads “FedGen”, the best of 2 rivals, by 4.5 points (mnist-1, 2 seeds" in found.effect
    # a rival that is surely ahead counts as such beside one that is further ahead, but not surely
    (behind,) = found.leads
    behind = attrs.evolve(behind, gaps={"a": (-3.0, -2.9), "b": (-9.0, 1.0)})
    assert behind.below(0) and not behind.above(0) and not behind.above(-20)


@pytest.mark.parametrize(
    ("detail", "message"),
    [
        ({"row": "FedMKK"}, "no row of table 1 .* named 'FedMKK'; did you mean 'FedMK'"),
        ({"row": "FedMK", "against": ["FedAvgg"]}, "no row .* 'FedAvgg'"),
        ({"pairs": [["FedMK", "FedMixx"]]}, "no row .* did you mean 'FedMix'"),
        ({"pairs": [["FedMK"]]}, "needs a 'row' that leads, or 'pairs' of two rows"),
        ({"row": "FedMK", "columns": ["mnist-2"]}, "no column .* did you mean 'mnist-"),
        ({"row": "FedMK", "metrics": ["acuracy"]}, "no metric .* did you mean 'accuracy'"),
        ({"against": ["FedAvg"]}, "needs a 'row'"),
        ({"tables": [], "row": "FedMK"}, "claim 1 of fedmk, tables must be a list"),
        ({"pairs": [5]}, "each of its pairs must be a list"),
        ({"row": "FedMK", "beside": 4}, "beside must be a list"),
        ({"row": "FedMK", "by": "x"}, "by must be a number"),
        ({"row": "FedMK", "most": "no"}, "most must be true or false"),
        ({"row": "FedMK", "least": {"accuracy": "x"}}, "accuracy must be a number"),
        ({"row": "FedMK", "least": ["accuracy"]}, "least must map names"),
    ],
)
def test_a_name_that_the_tables_do_not_have_is_refused(detail, message):
    """Else it would be "not measured" for ever."""
    detail = {"tables": [1], **detail}
    claim = Claim(paper="fedmk", number=1, text="", where="", kind="ahead", detail=detail)
    with pytest.raises(InputError, match=message):
        judge(claim, {})


def test_rows_of_two_tables_may_stand_beside_each_other():
    """A row of Table 8 beside one of Table 4, in the column that both have."""
    some = next(iter(records().values()))
    known = {}
    for table, row, scores in (
        (8, "Trained on tnbc", (0.8, 0.7)),
        (4, "FedIOD", (0.6, 0.6, 0.9)),
    ):
        cells = TableSpec.find("fediod", table).cells("paper")
        cell = next(one for one in cells if (one.row, one.column) == (row, "tnbc"))
        for run, score in zip(cell.experiments, scores, strict=False):
            known[run.id] = attrs.evolve(some, experiment=run, metrics={cell.record_metric: score})
    detail = {"tables": [8], "beside": [4], "pairs": [["Trained on tnbc", "FedIOD"]]}
    claim = Claim(paper="fediod", number=1, text="", where="", kind="ahead", detail=detail)
    (lead,) = judge(claim, known).leads
    assert (lead.mean, lead.seeds, lead.cell.column) == (pytest.approx(15), 2, "tnbc")
    alone = attrs.evolve(claim, detail={k: v for k, v in detail.items() if k != "beside"})
    with pytest.raises(InputError, match=r"no row of table 8 .* named 'FedIOD'"):
        judge(alone, known)


def test_runs_that_fill_two_columns_are_one_comparison():
    """Table 14 has columns of 10 and of 100 rounds, which a profile of 10 rounds fills with the
    same runs."""
    claim = next(
        one
        for one in claims("fedvck")
        if one.detail == {"tables": [14], "pairs": [["w.o. L_rc + P_w", "w.o. all"]]}
    )
    found = judge(claim).leads
    assert len({(lead.cell.column.rsplit("-", 2)[0], lead.cell.profile) for lead in found}) == len(
        found
    )


def test_every_verdict_is_counted_once_and_drawn():
    counts = claims_count()
    assert (
        counts.loc["fedvck"].sum() == LISTED["fedvck"] + MORE["fedvck"]
        and tuple(counts.columns) == VERDICTS
    )
    label = claims_figure(counts).get_label()
    assert all(name in label for name in ("FedVCK", "FedMK", "GDD-FL", "FedIOD", "holds in a test"))


def test_a_table_shows_its_claims_with_links():
    html = claims_table("gddfl", main=True)._repr_html_()
    assert html.count('<a href="32_gddfl_results.html">') == 4 and "<script" not in html


@pytest.mark.parametrize(
    "text",
    [
        "claims: 3",
        "claims: [{claim: x}]",
        "claims: [{claim: x, open: a, shown: b}]",
        # an unquoted comma ends a reason
        "claims: [{claim: x, print: {agrees: false, because: rounds, clients are not given}}]",
        "claims: [{claim: x, print: {agrees: maybe, because: a}}]",
        "claims: [{claim: x, print: {agrees: true}}]",
    ],
)
def test_malformed_files_are_refused(tmp_path, text):
    (tmp_path / "p.yaml").write_text(f"claims: {text}")
    with pytest.raises(InputError, match=r"p\.yaml"):
        claims("p", tmp_path)


def test_runs_of_a_column():
    frame = runs_frame("reference", 1, "mnist-0.05")
    assert {"FedAvg", "Centralized"} <= set(frame["method"]) and frame["accuracy"].between(
        0, 100
    ).all()
    with pytest.raises(InputError, match="column of the table"):
        runs_frame("reference", 1, "mnist")


def test_main_claims_part_what_was_measured_with_less(monkeypatch):
    less = "smaller, or other data"
    said = [
        *[("holds", less), ("holds", "as printed"), ("holds in a test", "")],
        *[("does not hold", less)] * 3,
        *[("contradicts its own numbers", ""), ("does not hold", "as printed")],
        *[("unclear", less), ("unclear", "as printed"), ("open", ""), ("not testable here", "")],
        ("examined on its page", ""),
    ]
    frame = pd.DataFrame(said, columns=["verdict", "budget"]).assign(ours=False)
    asked = pd.DataFrame([("does not hold", "as printed", True)], columns=frame.columns)
    frame = pd.concat([frame, asked])  # the book's own question: it counts for no paper
    monkeypatch.setattr(report_claims, "claims_frame", lambda paper, known, main: frame)
    assert report_claims.main_claims().iloc[0, 1:].to_dict() == {
        "main claims": 13,
        "hold": 1,
        "do not": 1,
        "hold with less": 1,
        "do not with less": 3,
        "without measuring": 2,
        "on a page": 1,
        "unclear or open": 3,
    }
