"""Tables: what a cell shows is what the specification prints and the records measured."""

from __future__ import annotations

import contextlib
import io
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import attrs
import pandas as pd
import pytest
from bs4 import BeautifulSoup

from lab import TableSpec
from lab.cli.cells import table_in_columns
from lab.profiles import Profile
from lab.report.frames import evidence_frame, metrics_frame, table_frame
from lab.report.tables import ACROSS, formatted, heading, progress, table
from tests.lab.report.made import measure, one, record


@pytest.fixture
def cells():
    """Two rows of one column of FedVCK's Table 3, whose data are the paper's own."""
    every = [cell for cell in TableSpec.find("fedvck", 3).cells("paper") if not cell.substitute]
    return [cell for cell in every if cell.column == every[0].column][:2]


def soup(*args, **how):
    return BeautifulSoup(table(*args, **how)._repr_html_(), "html.parser")


def grids(page):
    """The tables of a page that are not the list of all cells."""
    return [one for one in page.find_all("table") if "sentences" not in one["class"]]


def texts(page):
    return [td.get_text(" ") for grid in grids(page) for td in grid.find_all("td")]


def test_mean_spread_and_difference_are_in_the_unit_of_print(cells):
    printed = cells[0].published.value
    values = [printed / 100 + shift for shift in (-0.001, 0.0, 0.007)]
    frame = table_frame("fedvck", 3, measured=measure(cells[0], values))
    row = one(frame, cells[0].row, cells[0].column)
    assert row["profile"] == "paper" and row["seeds"] == row["wanted"] == 3
    assert row["measured"] == pytest.approx(100 * statistics.fmean(values))
    assert row["std"] == pytest.approx(100 * statistics.stdev(values))
    assert row["difference"] == pytest.approx(0.2) and row["verdict"] == "equivalent"


def test_all_metrics_of_the_runs_behind_a_table_column_after_column(cells):
    first, second, _ = cells[0].experiments
    runs = {first.id: record(first, accuracy=0.5, gap=7.0), second.id: record(second, accuracy=0.6)}
    frame = metrics_frame("fedvck", 3, measured=runs).set_index("seed")
    assert set(frame["row"]) == {cells[0].row} and set(frame["column"]) == {cells[0].column}
    assert frame["accuracy"].to_dict() == {first.seed: 0.5, second.seed: 0.6}
    assert frame.at[first.seed, "gap"] == 7.0 and pd.isna(frame.at[second.seed, "gap"])
    assert metrics_frame("fedvck", 3, "laptop", runs).empty
    every = [
        run for cell in TableSpec.find("fediod", 6).cells("laptop") for run in cell.experiments
    ]
    frame = metrics_frame(
        "fediod", 6, "laptop", {run.id: record(run, accuracy=0.5) for run in every}
    )
    assert (frame["column"] != frame["column"].shift()).sum() == frame["column"].nunique() == 2


def test_of_profiles_that_measure_as_much_the_fullest_is_shown():
    spec, runs = TableSpec.find("fedvck", 3), {}
    assert set(table_frame("fedvck", 3, measured={})["profile"]) == {"paper"}
    for profile in ("quick", "laptop", "paper"):
        cell = spec.cells(profile)[0]
        runs |= measure(cell, [0.5])
        shown = one(table_frame("fedvck", 3, measured=runs), cell.row, cell.column)
        assert shown["profile"] == profile
    # numbers of "quick" say nothing, so that any number of them hides none of another profile
    for cell in spec.cells("quick"):
        runs |= measure(cell, [0.5])
    shown = one(table_frame("fedvck", 3, measured=runs), spec.rows[0].name, spec.columns[0].name)
    assert shown["profile"] == "paper"


def test_every_column_is_shown_at_the_profile_that_measures_most_of_it():
    spec = TableSpec.find("fedmk", 1)
    cells = {
        profile: {(cell.row, cell.column): cell for cell in spec.cells(profile)}
        for profile in ("laptop", "paper")
    }
    runs = (
        measure(cells["paper"]["FedAvg", "mnist-1"], [0.5] * 3)
        | measure(cells["laptop"]["FedAvg", "mnist-1"], [0.4] * 3)
        | measure(cells["laptop"]["FedAvg", "cifar10-1"], [0.31, 0.30, 0.32])
        | measure(cells["laptop"]["FedMK", "cifar10-1"], [0.41, 0.39, 0.42])
    )
    frame = table_frame("fedmk", 1, measured=runs)
    assert frame.groupby("column")["profile"].nunique().eq(1).all()
    of_column = frame.drop_duplicates("column").set_index("column")["profile"]
    assert dict(of_column[of_column == "laptop"]) == {"cifar10-1": "laptop"}
    assert one(frame, "FedAvg", "mnist-1")["measured"] == pytest.approx(50)
    assert one(frame, "FedAvg", "cifar10-1")["verdict"] == "direction agrees"
    page = soup("fedmk", 1, measured=runs).get_text()
    assert "at the budget paper (mnist-1) or laptop (cifar10-1)." in page
    assert Profile.load("laptop").meaning in page and spec.title in page
    # a longer run of one method hides none of those that a shorter budget compares
    runs |= measure(cells["paper"]["FedAvg", "cifar10-1"], [0.4] * 3)
    assert one(table_frame("fedmk", 1, measured=runs), "FedMK", "cifar10-1")["seeds"] == 3
    # what is not measured goes with the fullest profile of the table
    laptop = measure(cells["laptop"]["FedAvg", "cifar10-1"], [0.3])
    assert set(table_frame("fedmk", 1, measured=laptop)["profile"]) == {"laptop"}


def test_other_data_are_named():
    cell = next(cell for cell in TableSpec.find("fedvck", 3).cells("laptop") if cell.substitute)
    runs = measure(cell, [0.6, 0.6, 0.6])
    substitute = one(table_frame("fedvck", 3, measured=runs), cell.row, cell.column)["substitute"]
    page = soup("fedvck", 3, measured=runs).get_text()
    assert "in place of" in substitute and substitute in page
    assert page.count("60.00 ± 0.00†") == 1 and page.count("†") == 2  # one cell, one note


def test_the_grid_shows_every_printed_number_once_in_parts_that_fit_a_page():
    page, spec = soup("fedvck", 2, measured={}), TableSpec.find("fedvck", 2)
    printed = sorted(cell.published.text for cell in spec.cells("paper"))
    assert sorted(re.search(r"printed +(\S+)", text)[1] for text in texts(page)) == printed
    assert max(len(grid.thead.find_all("th")) - 1 for grid in grids(page)) <= ACROSS
    heads = [th.get_text() for grid in grids(page) for th in grid.thead.find_all("th")[1:]]
    assert heads == [column.name for column in spec.columns]


def test_a_cell_holds_seeds_and_verdict_and_the_list_the_rest(cells):
    exact = cells[0].published.value / 100
    page = soup("fedvck", 3, measured=measure(cells[0], [exact] * 3))
    (told,) = (text for text in texts(page) if "measured" in text)
    assert "n = 3" in told and "equivalent" in told
    rows = page.find("table", class_="sentences").find_all("tr")
    assert len(rows) == 1 + len(table_frame("fedvck", 3, measured={}))
    listed = rows[1].get_text()
    assert "3 of 3" in listed and "+0.00" in listed and "fedcon run --cell" in rows[2].get_text()
    wide = measure(cells[0], [exact - 0.01, exact + 0.03, exact + 0.07])
    assert "seeds would decide" in soup("fedvck", 3, measured=wide).get_text()


def test_a_part_of_a_wide_table_has_its_columns_in_the_order_asked_for():
    page = soup("gddfl", 1, measured={}, columns=["transmitted", "iid"])
    heads = [th.get_text() for grid in grids(page) for th in grid.thead.tr.find_all("th")]
    assert [name for name in heads if name] == ["transmitted", "iid"]
    assert "Upper bound" not in page.get_text() and "in part" in page.get_text()
    assert "centralized" not in page.find("table", class_="sentences").get_text()


def test_columns_without_a_number_of_ours_are_folded():
    spec = TableSpec.find("fedvck", "3")
    cell = next(one for one in spec.cells("laptop") if one.column == "octmnist-0.02")
    page = soup("fedvck", 3, "laptop", measured=measure(cell, [0.5]))
    open_, *folded = grids(page)
    assert [th.get_text() for th in open_.thead.find_all("th")] == ["", "octmnist-0.02"]
    assert all(grid.find_parent("details") for grid in folded) and not open_.find_parent("details")
    assert "Columns without a number of ours: pathmnist-0.05, " in page.get_text()
    nothing = soup("fedmk", 2, measured={})
    assert nothing.summary.get_text().startswith(
        "Table 2: Ablation of the parts of FedMK. Nothing is measured yet"
    )
    assert all(grid.find_parent("details") for grid in grids(nothing))


def test_the_same_table_gives_the_same_bytes_in_every_process():
    """Python orders sets of texts in another way in each process: no order of a table comes from one."""
    code = (
        "from lab.report.tables import table\n"
        "for paper, name in [('fedmk', 3), ('fedvck', 6), ('gddfl', 1)]:\n"
        "    print(table(paper, name)._repr_html_())"
    )
    other = subprocess.run(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
        env=os.environ | {"PYTHONHASHSEED": "1"},
        check=True,
    )
    with contextlib.redirect_stdout(io.StringIO()) as one:
        exec(code)
    assert one.getvalue() == other.stdout.decode() and other.stdout.count(b"<table") >= 6


@pytest.mark.parametrize(
    ("value", "std", "unit", "text"),
    [
        (46.3, 1.234, "percent", "46.30 ± 1.23"),
        (0.5561, 0.01, "auc", "0.5561 ± 0.0100"),
        (None, None, "percent", ""),
        (12.2, pd.NA, "MB", "12.20"),
    ],
)
def test_numbers(value, std, unit, text):
    assert formatted(value, std, unit) == text


def test_a_terminal_tells_a_difference_as_finely_as_its_margin():
    """The paper has an area of 0.514, and a hundredth is half of the margin."""
    cells = TableSpec.find("fedvck", 12).cells("paper")
    cell = next(one for one in cells if one.metric == "mia_auc_mean" and one.published)
    value = cell.published.value + 0.0123
    known = {run.id: record(run, mia_auc_mean=value) for run in cell.experiments}
    shown = table_in_columns(table_frame("fedvck", 12, "paper", known))
    (line,) = (text for text in shown.splitlines() if f"{value:.4f}" in text)
    assert cell.published.text in line and " 0.0123 " in line


def test_means_that_mix_versions_or_precisions_say_so(cells):
    runs, key = measure(cells[0], [0.5, 0.6, 0.7]), (cells[0].row, cells[0].column)
    alike = table_frame("fedvck", 3, measured=runs)
    assert one(alike, *key)["codes"] == 1 and alike["codes"].sum() == 1
    assert "versions of the program" not in soup("fedvck", 3, measured=runs).get_text()
    runs[cells[0].experiments[1].id].code = "another"
    for run, where in zip(runs, ("bfloat16", "float32", "<b>"), strict=True):
        runs[run] = attrs.evolve(runs[run], environment={"precision": where, "device": "cuda"})
    found = one(table_frame("fedvck", 3, measured=runs), *key)
    mixed = "<b> on cuda and bfloat16 on cuda and float32 on cuda"
    assert found["codes"] == 2 and found["reckoned"] == mixed
    page = soup("fedvck", 3, measured=runs).get_text()
    assert "Means over runs of several versions of the program: 1." in page
    assert f"computed in {mixed}; differences of rows" in page
    assert page.count("60.00 ± 10.00‡") == 1 and page.count("‡") == 2  # one cell, one note


def test_each_cell_is_at_its_best_budget_and_another_interpretation_is_a_row():
    """Table 11 at 0.05: FedVCK at the paper's size, MOON on a laptop; below them FedVCK near the paper."""
    found = evidence_frame("fedvck", 11).query("column == 'cifar10-0.05'").set_index("row")
    near = "FedVCK as released, Adam, twice (table nearest)"
    assert found.loc[["FedVCK", "MOON", near], "profile"].tolist() == [
        "converged",
        "laptop",
        "converged",
    ]
    assert found.loc["FedVCK", "printed"] == found.loc[near, "printed"]
    assert found.loc[near, "measured"] > 60 > found.loc["FedVCK", "measured"]
    assert "FedAvg (table nearest)" not in found.index  # the same runs
    # a laptop's cell is compared with what laptops have of the rows that are shown at another budget
    at_laptop = table_frame("fedvck", 11, "laptop").query("column == 'cifar10-0.05'")
    assert found.loc["MOON", "reason"] == at_laptop.set_index("row").loc["MOON", "reason"]
    page = soup("fedvck", 11)
    assert "directions are judged between rows of one budget" in page.get_text()
    rows = [row.get_text(" ") for row in page.find_all("table")[-1].find_all("tr")]
    assert any("FedVCK" in row and "laptop" in row for row in rows)  # the other budget of its cell


def counted(paper, runs):
    """By the title of a table: its cells, those that are printed and measured, and counts of verdicts."""
    page = BeautifulSoup(progress(paper, runs)._repr_html_(), "html.parser")
    rows = [[cell.text for cell in row.find_all("td")] for row in page.find_all("tr")[1:]]
    return {
        title: (
            [*map(int, counts)],
            {name: int(n) for n, name in (part.split(" ", 1) for part in said.split(", "))},
        )
        for title, _, *counts, said in rows
    }


def test_every_table_has_a_row_and_its_verdicts_add_up():
    found = counted("fedmk", {})
    assert list(found) == [heading(spec) for spec in TableSpec.of_paper("fedmk")]
    for (cells, printed, measured), verdicts in found.values():
        assert sum(verdicts.values()) == cells >= printed and measured == 0
        assert verdicts.keys() <= {"pending", "not testable here"}


def test_one_measured_cell_is_counted_in_its_table_only():
    cells = TableSpec.find("fedvck", 13).cells("paper")
    cell = next(cell for cell in cells if cell.substitute is None)
    runs = {run.id: record(run, accuracy=cell.published.value / 100) for run in cell.experiments}
    found = counted("fedvck", runs)
    (cells, _, measured), verdicts = found[heading(cell.spec)]
    assert verdicts["equivalent"] >= 1 and verdicts["pending"] == cells - measured < cells
    assert found[heading(TableSpec.find("fedvck", 2))][0][2] == 0
