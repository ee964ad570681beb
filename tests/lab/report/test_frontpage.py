"""The count of the first page: what counts, what counts once, and what does not count."""

import csv

import attrs
import pandas as pd
import pytest

from lab import TableSpec, records
from lab.forms import TABLES, read_yaml
from lab.report import charts
from lab.report.findings import FINDINGS, findings
from lab.report.frontpage import REST, by_paper, folded, headline, printed
from lab.report.tallies import directions, numbers, tally
from lab.report.verdict import FULL, REDUCED


def measured(*cells, shift=0.0):
    """Records of all seeds of some cells, with the printed accuracy moved by `shift` points."""
    some = next(iter(records().values()))
    return {
        run.id: attrs.evolve(
            some, experiment=run, metrics={"accuracy": (cell.published.value + shift) / 100}
        )
        for cell in cells
        for run in cell.experiments
    }


def cell_of(table, row, column, profile="paper", paper="fedvck"):
    return TableSpec.find_cell(f"{paper}/{table}/{row}/{column}", profile)


def test_a_finding_opens_below_its_headline():
    made = folded("* **It holds.** At 3 ± 1%. [More](x)\n* **It does not.** No.\n")
    assert made.count("```{dropdown} It ") == made.count("\n```\n") == 2
    assert "dropdown} It holds.\n:class-container: finding\n\nAt 3 ± 1%. [More](x)\n```" in made
    picture = {"It holds.": charts.bars({"a": (1.0, 0.5)}, "accuracy")}
    drawn = folded("* **It holds.** At 3 ± 1%. [More](x)\n* **It does not.** No.\n", picture)
    assert drawn.count("<figure") == 1 and drawn.index("<figure") < drawn.index("At 3 ± 1%")
    assert folded(findings()).count("{dropdown}") == len(read_yaml(FINDINGS))
    paragraphs = folded(
        "* **It holds.** At 3%.\n\n  At 4%, too. [More](x)\n* **It does not.** No.\n"
    )
    assert "finding\n\nAt 3%.\n\nAt 4%, too. [More](x)\n```\n" in paragraphs


def test_every_row_of_published_csv_is_a_printed_number():
    for path in TABLES.glob("*/published.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            assert printed(path.parent.name) == len(list(csv.DictReader(file)))
    assert "print 955 numbers" in headline(numbers({}))


def test_accuracies_at_the_papers_budget_are_compared():
    met, missed = (cell_of(11, row, "cifar10-0.05") for row in ("FedAvg", "FedProx"))
    rows = numbers(measured(met) | measured(missed, shift=20))
    assert rows["verdict"].value_counts().to_dict() == {"equivalent": 1, "different": 1}
    assert set(rows["budget"]) == {FULL} and set(rows["kind"]) == {"results"}
    said = headline(rows)
    assert "2 accuracies and scores are compared: 1 equivalent, 0 consistent, 1 different" in said
    assert (
        "1 that differ 1 are of other methods, 1 of them above print; 0 are of the paper's" in said
    )
    table = by_paper(rows).set_index("")
    assert table.loc["results: different", "FedVCK"] == 1
    assert table.loc["numbers in print", "FedVCK"] == 432
    assert table.loc[REST, "FedVCK"] == 430


@pytest.mark.parametrize(
    ("papers", "told"), [(("fedmk", "fedmk"), True), (("fedmk", "fediod"), False)]
)
def test_that_all_results_are_of_one_papers_tables_is_said(papers, told):
    rows = compared(papers, "paper")
    assert ("All are of FedMK's tables" in headline(rows)) == told
    assert ("(1 of FedMK, 1 of FedIOD)" in headline(rows)) != told


def test_verdicts_about_less_condensation_than_the_authors_are_said_to_be():
    assert "profile converged, where" not in headline(compared(("fedvck",), "paper"))
    assert ". 2 of all are measured at the profile converged, where condensation" in headline(
        compared(("fedvck", "fedvck"), "converged")
    )


def compared(papers, profile):
    """A number of each of these papers that differs from print, as `numbers` has them."""
    frame = pd.DataFrame({"paper": papers, "own": True, "kind": "results", "budget": FULL})
    return frame.assign(profile=profile, verdict="different", difference=-1.0)


def test_pairs_of_one_seed_count_for_none_that_chance_decides():
    pairs = pd.DataFrame(
        {"paper": "fedmk", "ordered": [1, -1, 0, 0] * 20, "seeds": [3, 3, 3, 1] * 20}
    )
    assert "20 are ordered as printed" in headline(pairs=pairs)
    assert "equal some 3 each way" in headline(pairs=pairs)


def test_costs_of_smaller_runs_are_not_counted_among_those_of_the_papers():
    row = {"paper": "fedvck", "own": True, "kind": "costs", "verdict": "equivalent"}
    rows = pd.DataFrame([row | {"budget": FULL}, row | {"budget": REDUCED}])
    assert "Of 1 costs 1 are equivalent." in headline(rows)


def test_a_number_at_full_size_counts_where_its_column_is_shown_with_less_work():
    """One row at `converged`, three at `laptop`: the table shows these, the count takes both."""
    full = TableSpec.find_cell("fedvck/11/FedAvg/cifar10-0.05", "converged")
    less = (
        TableSpec.find_cell(f"fedvck/11/{row}/cifar10-0.05", "laptop")
        for row in ("FedAvg", "FedProx", "MOON")
    )
    runs = measured(full)
    for cell in less:
        runs |= measured(cell, shift=10)
    rows = numbers(runs).query("kind == 'results'")
    counts = rows.groupby("budget")["verdict"].agg(list).to_dict()
    assert counts.pop(FULL) == ["equivalent"]
    assert [len(said) for said in counts.values()] == [2]


def test_the_columns_of_the_table_add_up_to_what_is_printed():
    table = by_paper().set_index("")
    assert table.iloc[1:].sum().tolist() == table.loc["numbers in print"].tolist()
    assert table.ge(0).all(axis=None)


def test_a_setting_that_is_read_back_is_no_result():
    cell = cell_of(9, "FedVCK", "cifar10-0.05/condensation_ratio_percent")
    runs = measured(cell)
    share = next(iter(runs.values()))
    runs = {
        key: attrs.evolve(one, settings=share.settings | {"share": 0.02})
        for key, one in runs.items()
    }
    rows = numbers(runs)
    assert "settings" in set(rows["kind"]) and "results" not in set(rows["kind"])
    assert "no accuracies and scores are compared yet" in headline(rows)


def test_each_test_set_of_a_run_is_a_number_of_its_own():
    """Table 4 of FedIOD: one run is tested on three sites by four measures, and on their average."""
    cells = [cell for cell in TableSpec.find("fediod", 4).cells("paper") if cell.row == "FedAvg"]
    runs = {}
    for run in cells[0].experiments:
        scores = {cell.record_metric: 0.1 + run.seed / 100 for cell in cells}
        runs |= {
            run.id: attrs.evolve(next(iter(records().values())), experiment=run, metrics=scores)
        }
    assert len(cells) == 16 and len(numbers(runs)) == 16


def test_every_number_of_a_table_counts_once():
    """Measured in full, FedMK's Table 1 gives as many numbers as its rows in `published.csv`."""
    with (TABLES / "fedmk" / "published.csv").open(encoding="utf-8", newline="") as file:
        in_print = sum(row["table"] == "1" for row in csv.DictReader(file))
    spec = TableSpec.find("fedmk", 1)
    runs = measured(*(cell for cell in spec.cells("paper") if cell.published))
    assert len(numbers(runs)) == in_print == tally(runs).loc["results", "equivalent"]


def test_a_run_of_ten_rounds_does_not_stand_under_a_hundred():
    hundred = cell_of(14, "FedVCK", "cifar10-100-rounds", "laptop")
    ten = cell_of(14, "FedVCK", "cifar10-10-rounds", "laptop")
    assert [run.id for run in hundred.experiments] == [run.id for run in ten.experiments]
    assert hundred.cut == "the laptop profile stops after 10 of 100 rounds" and ten.cut is None
    rows = numbers(measured(ten))
    assert len(rows.query("paper == 'fedvck'")) == 1 and set(rows["budget"]) == {REDUCED}


@pytest.mark.parametrize("rows", [numbers({})])
def test_without_records_nothing_is_claimed(rows):
    assert rows.empty and directions({}).empty
    said = headline(rows, directions({}))
    assert "no accuracies and scores are compared yet" in said and "nothing is compared" in said


def test_a_pair_of_rows_counts_once():
    """Both cells of a pair compare with each other, and two tables may hold the same runs."""
    pair = [cell_of(11, row, "cifar10-0.05", "laptop") for row in ("FedVCK", "FedAvg")]
    known = measured(*pair)
    for cell, shift in zip(pair, (0.0, 0.02), strict=True):
        for run in cell.experiments:  # so that differences spread
            score = known[run.id].metrics["accuracy"] + run.seed * shift
            known[run.id] = attrs.evolve(known[run.id], metrics={"accuracy": score})
    assert directions(known).to_dict("records") == [{"paper": "fedvck", "ordered": 1, "seeds": 3}]
    said = headline(numbers(known), directions(known))
    assert "1 pairs of rows are compared: 1 are ordered as printed, 0 the other way" in said
    assert "(FedVCK 1 and 0)" in said
