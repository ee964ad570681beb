"""Tables: what a cell shows is what the specification prints and the records measured."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from core.errors import InputError
from lab import TableSpec
from lab.cli.cells import table_in_columns
from lab.profiles import Profile
from lab.report.frames import metrics_frame, table_frame
from lab.report.style import measure as measure_name
from lab.report.tables import ACROSS, formatted, heading, table
from tests.lab.report.made import measure, one, record


@pytest.fixture
def paper_cell():
    return next(
        cell for cell in TableSpec.find("fedvck", 3).cells("paper") if cell.stand_in is None
    )


def test_mean_spread_and_difference_are_in_the_unit_of_print(paper_cell):
    printed = paper_cell.published.value
    values = [printed / 100 + shift for shift in (-0.001, 0.0, 0.007)]
    frame = table_frame("fedvck", 3, measured=measure(paper_cell, values))
    row = one(frame, paper_cell.row, paper_cell.column)
    assert row["profile"] == "paper" and row["seeds"] == row["wanted"] == 3
    assert row["measured"] == pytest.approx(100 * statistics.fmean(values))
    assert row["std"] == pytest.approx(100 * statistics.stdev(values))
    assert row["difference"] == pytest.approx(0.2)
    assert row["verdict"] == "equivalent"


def test_far_from_print_is_different(paper_cell):
    off = paper_cell.published.value / 100 - 0.10
    row = one(
        table_frame("fedvck", 3, measured=measure(paper_cell, [off] * 3)),
        paper_cell.row,
        paper_cell.column,
    )
    assert row["verdict"] == "different" and row["difference"] == pytest.approx(-10)


def test_a_wide_spread_is_said_in_the_cell(paper_cell):
    middle = paper_cell.published.value / 100 + 0.03
    runs = measure(paper_cell, [middle - 0.04, middle, middle + 0.04])
    shown = table("fedvck", 3, measured=runs)
    assert any("inconclusive" in text for text in Page(shown.to_html()).cells)
    assert "seeds would decide" in shown._repr_html_()
    exact = measure(paper_cell, [paper_cell.published.value / 100] * 3)
    assert "to decide" not in table("fedvck", 3, measured=exact)._repr_html_()


def test_two_seeds_are_shown_but_not_judged(paper_cell):
    row = one(
        table_frame("fedvck", 3, measured=measure(paper_cell, [0.5, 0.6])),
        paper_cell.row,
        paper_cell.column,
    )
    assert (
        row["measured"] == pytest.approx(55) and row["seeds"] == 2 and row["verdict"] == "pending"
    )


def test_all_metrics_of_the_runs_behind_a_table(paper_cell):
    first, second, _ = paper_cell.experiments
    runs = {first.id: record(first, accuracy=0.5, gap=7.0), second.id: record(second, accuracy=0.6)}
    frame = metrics_frame("fedvck", 3, measured=runs).set_index("seed")
    assert set(frame["row"]) == {paper_cell.row} and set(frame["column"]) == {paper_cell.column}
    assert frame["accuracy"].to_dict() == {first.seed: 0.5, second.seed: 0.6}
    assert frame.at[first.seed, "gap"] == 7.0 and pd.isna(frame.at[second.seed, "gap"])
    assert metrics_frame("fedvck", 3, "laptop", runs).empty


def test_metrics_come_column_after_column():
    runs = {
        run.id: record(run, accuracy=0.5)
        for cell in TableSpec.find("fediod", 6).cells("laptop")
        for run in cell.experiments
    }
    frame = metrics_frame("fediod", 6, "laptop", runs)
    assert (frame["column"] != frame["column"].shift()).sum() == frame["column"].nunique() == 2


def test_of_profiles_that_measure_as_much_the_fullest_is_shown():
    spec, runs = TableSpec.find("fedvck", 3), {}
    assert set(table_frame("fedvck", 3, measured={})["profile"]) == {"paper"}
    for profile in ("quick", "laptop", "paper"):
        cell = spec.cells(profile)[0]
        runs |= measure(cell, [0.5])
        assert (
            one(table_frame("fedvck", 3, measured=runs), cell.row, cell.column)["profile"]
            == profile
        )
    assert set(table_frame("fedvck", 3, "quick", measured=runs)["profile"]) == {"quick"}
    # numbers of "quick" say nothing, so that any number of them hides none of another profile
    cells = spec.cells("quick")
    for cell in cells:
        runs |= measure(cell, [0.5])
    shown = one(table_frame("fedvck", 3, measured=runs), cells[0].row, cells[0].column)
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
    html = table("fedmk", 1, measured=runs)._repr_html_()
    assert "at the profile <i>paper</i> (mnist-1) or <i>laptop</i> (cifar10-1), and" in html
    # a longer run of one method hides none of those that a shorter budget compares
    runs |= measure(cells["paper"]["FedAvg", "cifar10-1"], [0.4] * 3)
    assert one(table_frame("fedmk", 1, measured=runs), "FedMK", "cifar10-1")["seeds"] == 3
    runs |= measure(cells["paper"]["FedMK", "cifar10-1"], [0.3] * 3)
    frame = table_frame("fedmk", 1, measured=runs)
    assert one(frame, "FedMK", "cifar10-1")["measured"] == pytest.approx(30)
    # what is not measured goes with the fullest profile of the table
    laptop = measure(cells["laptop"]["FedAvg", "cifar10-1"], [0.3])
    assert set(table_frame("fedmk", 1, measured=laptop)["profile"]) == {"laptop"}


def test_unmeasured_cells_say_pending_and_how_to_run_them():
    frame = table_frame("fedvck", 2, measured={})
    assert set(frame["verdict"]) == {"pending"} and frame["measured"].isna().all()
    assert frame["command"].str.startswith("fedcon run --cell fedvck/2/").all()
    assert frame["command"].is_unique


def test_cells_without_data_have_a_command_that_asks_for_them():
    frame = table_frame("fediod", 2, measured={})
    assert set(frame["verdict"]) == {"pending"}
    assert frame["command"].str.startswith("fedcon run --cell fediod/2/").all()


def test_a_stand_in_is_named():
    cell = next(cell for cell in TableSpec.find("fedvck", 3).cells("laptop") if cell.stand_in)
    runs = measure(cell, [0.6, 0.6, 0.6])
    frame = table_frame("fedvck", 3, measured=runs)
    row = one(frame, cell.row, cell.column)
    assert "in place of" in row["stand_in"]
    page = table("fedvck", 3, measured=runs)._repr_html_()
    assert "60.00 ± 0.00†" in page and row["stand_in"] in page
    assert page.count("†") == 2  # one cell, one note


class Page(HTMLParser):
    """Texts of data cells and all opened tags of an HTML fragment."""

    def __init__(self, html):
        super().__init__()
        self.cells, self.tags, self._inside = [], [], False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "td":
            self._inside = True
            self.cells.append("")

    def handle_endtag(self, tag):
        self._inside = self._inside and tag != "td"

    def handle_data(self, data):
        if self._inside:
            self.cells[-1] += data


def test_the_grid_shows_every_printed_number_once():
    styler = table("fedvck", 2, measured={})
    grid = Page(styler.to_html())
    published = [cell.published.text for cell in TableSpec.find("fedvck", 2).cells("paper")]
    shown = [text.split("printed ")[1].split("…")[0] for text in grid.cells]
    assert shown == published and len(shown) == 100
    assert len(styler.index) == 10 and len(styler.columns) == 10


def test_a_verdict_is_told_in_words_and_no_colour_of_the_page_is_fixed(paper_cell):
    styler = table("fedvck", 3, measured=measure(paper_cell, [0.1, 0.1, 0.1]))
    page = Page(styler.to_html())
    assert any("different" in text for text in page.cells)
    css = styler.to_html().split("</style>")[0]
    assert "background-color" not in css and "color: white" not in css and "color: black" not in css
    assert ("table", {"id": "T_fedvck-3-best", "class": "dataframe core-table"}) in page.tags


def test_tooltip_and_list_hold_seeds_difference_and_command(paper_cell):
    exact = paper_cell.published.value / 100
    styler = table("fedvck", 3, measured=measure(paper_cell, [exact] * 3))
    titles = [
        attrs["title"]
        for tag, attrs in Page(styler.to_html()).tags
        if tag == "div" and "title" in attrs
    ]
    told = next(title for title in titles if "measured" in title)
    assert "3 of 3 seeds" in told and "profile paper" in told and "difference +0.00" in told
    assert sum("fedcon run --cell" in title for title in titles) == len(titles) - 1
    assert styler.details.startswith("<details")
    assert styler.details.count("<tr>") == len(titles)  # the header's row has a style


def test_a_table_of_the_book_itself_shows_no_printed_line():
    styler = table("reference", 1, measured={})
    assert "printed" not in styler.note + styler.to_html().split("</style>")[1]


def test_a_measured_cell_with_nothing_printed_shows_no_verdict():
    first, *_ = TableSpec.find("reference", 1).cells("laptop")
    styler = table("reference", 1, measured=measure(first, [0.5]))
    shown = [cell for cell in Page(styler.to_html()).cells if "50.00" in cell]
    assert shown and not any("compared" in cell for cell in shown)
    assert "verdict" not in styler.note and "not compared" in styler.details


def test_what_a_profile_means_is_said_and_what_it_reduces_is_folded():
    spec, laptop = TableSpec.find("fedmk", 4), Profile.load("laptop")
    said, _, folded = table(
        "fedmk", 4, measured=measure(spec.cells("laptop")[0], [0.5])
    ).note.partition("<details")
    assert escape(laptop.meaning) in said and escape(laptop.description) not in said
    assert folded.count("</details>") == 2 and escape(laptop.description) in folded
    assert re.sub("</?code>", "`", folded).count(escape(spec.note)) == 1
    full = table("fedmk", 4, measured=measure(spec.cells("paper")[0], [0.5])).note
    assert full.count("<details") == 1 and "What the profile" not in full


def test_what_a_table_changes_in_a_profile_is_said():
    run = TableSpec.find("fedvck", 6).cells("laptop")[0].experiments[0]
    said = table("fedvck", 6, measured={run.id: record(run, mia_auc_max=0.6)}).note
    assert (
        "In this table alone: train_fraction 0.1, attack shadows 16; "
        "fedavg local_steps none; at most rounds 1." in said
    )


def test_several_metrics_get_a_column_each_below_the_name_they_share():
    spec = TableSpec.find("gddfl", 1)
    styler = table("gddfl", 1, measured={})
    assert list(styler.columns) == [
        (column.name, measure_name(metric)) for column in spec.columns for metric in column.metrics
    ]
    headings = [
        attrs.get("colspan", "1")
        for tag, attrs in Page(styler.to_html()).tags
        if tag == "th" and "col_heading level0" in attrs.get("class", "")
    ]
    assert headings == [str(len(column.metrics)) for column in spec.columns]
    assert len(table("fedvck", 6, measured={}).columns) == 3


def test_a_part_of_a_wide_table_has_its_columns_in_the_order_asked_for():
    whole, names = table("gddfl", 1, measured={}), ["transmitted", "iid"]
    part = table("gddfl", 1, measured={}, columns=names)
    assert list(dict.fromkeys(column for column, _ in part.columns)) == names
    held = {cell.row for cell in TableSpec.find("gddfl", 1).cells("paper") if cell.column in names}
    assert (
        list(part.index) == [row for row in whole.index if row in held]
        and "Upper bound" not in part.index
    )
    for key in part.columns:
        assert part.data[key].tolist() == whole.data[key].loc[part.index].tolist()
    assert (
        part.uuid != whole.uuid and "in part" in part.to_html() and "in part" not in whole.to_html()
    )
    assert "centralized" not in part.details


def test_an_unknown_column_is_refused():
    with pytest.raises(InputError, match="did you mean 'iid'"):
        table("gddfl", 1, measured={}, columns=["idd"])


def test_names_are_escaped(monkeypatch):
    frame = table_frame("fedvck", 6, measured={})
    frame["row"] = "<script>alert(1)</script>"
    frame["note"] = '"><img src=x>'
    monkeypatch.setattr(
        "lab.report.tables.table_frame",
        lambda *_: frame.drop_duplicates(["row", "column", "metric"]),
    )
    page = table("fedvck", 6)._repr_html_()
    assert "<script>" not in page and "<img" not in page


def test_the_same_table_gives_the_same_bytes_in_every_process():
    """Python orders sets of texts in another way in each process: no order of a table comes from one."""
    shown = [("fedmk", 3), ("fedvck", 6), ("gddfl", 1), ("fediod", 2)]
    code = (
        "from lab.report.tables import table\n"
        f"for paper, name in {shown}:\n"
        "    for known in ({}, None):\n"
        "        found = table(paper, name, measured=known)\n"
        "        print(found.uuid, found._repr_html_(), found.details)"
    )
    ways = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            env=os.environ | {"PYTHONHASHSEED": seed},
        )
        for seed in ("1", "2")
    ]
    one, other = (way.communicate()[0] for way in ways)
    assert [way.returncode for way in ways] == [0, 0]
    assert one == other and one.count(b"<table") >= 2 * len(shown)


@pytest.mark.parametrize(
    ("value", "std", "unit", "text"),
    [
        (46.345, None, "percent", "46.34"),
        (46.3, 1.234, "percent", "46.30 ± 1.23"),
        (0.5561, 0.01, "auc", "0.5561 ± 0.0100"),
        (2.4, 0.02, "score", "2.4000 ± 0.0200"),
        (None, None, "percent", ""),
        (float("nan"), None, "MB", ""),
        (12.2, pd.NA, "MB", "12.20"),
    ],
)
def test_numbers(value, std, unit, text):
    assert formatted(value, std, unit) == text


def test_a_difference_is_told_as_finely_as_its_margin():
    """Print has an area of 0.514, and a hundredth is half of the margin."""
    cells = TableSpec.find("fedvck", 12).cells("paper")
    cell = next(one for one in cells if one.metric == "mia_auc_mean" and one.published)
    value = cell.published.value + 0.0123
    known = {run.id: record(run, mia_auc_mean=value) for run in cell.experiments}
    shown = table("fedvck", 12, "paper", known)
    assert "difference +0.0123" in shown.to_html() and "<td>+0.0123</td>" in shown.details
    frame = table_frame("fedvck", 12, "paper", known)
    printed = f"{cell.published.value:.4f}"
    line = next(text for text in table_in_columns(frame).splitlines() if f"{value:.4f}" in text)
    assert printed in line and " 0.0123 " in line


@pytest.mark.parametrize(
    ("paper", "name", "profile"), [("fedvkc", 2, None), ("fedvck", 99, None), ("fedvck", 2, "huge")]
)
def test_unknown_names_are_refused(paper, name, profile):
    with pytest.raises(InputError):
        table_frame(paper, name, profile, measured={})


def test_a_title_has_the_number_that_the_paper_gives():
    def titled(paper, name):
        return heading(TableSpec.find(paper, name))

    assert titled("fedmk", "figure5") == "Figure 5: More rounds on CIFAR-10"
    assert titled("fedmk", "2") == "Table 2: Ablation of the parts of FedMK"
    assert titled("fedmk", "protocol").startswith("The baselines under")


def test_a_table_without_any_measured_cell_folds_into_one_line():
    shown = table("fedmk", 2, measured={})._repr_html_()
    line = shown.partition("<summary>")[2].partition("</summary>")[0]
    assert line.startswith("Table 2: Ablation of the parts of FedMK. Nothing is measured yet")
    spec = TableSpec.find("fedmk", "2")
    some = table("fedmk", 2, measured=measure(spec.cells("paper")[0], [0.5]))
    before = some._repr_html_().partition("<table")[0]
    assert not some.summary and before.count("<details") == before.count("</details>") == 1


def test_a_wide_grid_is_shown_in_parts_that_hold_every_column_once():
    wide = table("fedvck", 9)
    parts = wide.parts() + wide.parts(rest=True)
    shown = [len(wide.columns) - len(part.hidden_columns) for part in parts]
    assert sum(shown) == len(wide.columns) > ACROSS and max(shown) <= ACROSS
    narrow = table("fedmk", 6)
    assert len(narrow.columns) <= ACROSS and narrow.parts() == [narrow]


def test_columns_without_a_number_of_ours_are_folded():
    spec = TableSpec.find("fedvck", "3")
    cell = next(one for one in spec.cells("laptop") if one.column == "octmnist-0.02")
    some = table("fedvck", 3, "laptop", measured=measure(cell, [0.5]))
    assert some.waiting == {column.name for column in spec.columns} - {"octmnist-0.02"}
    (seen,) = some.parts()
    assert len(some.columns) - len(seen.hidden_columns) == 1
    shown, _, folded = some._repr_html_().partition("Columns without a number of ours: ")
    assert folded.startswith("pathmnist-0.05, ") and shown.count("<table") == 1
    assert folded.count("The same, further columns") == len(some.parts(rest=True)) == 3


def test_measures_have_names_in_words():
    for paper in ("fedvck", "fediod", "gddfl", "fedmk", "reference"):
        for spec in TableSpec.of_paper(paper):
            for cell in spec.cells("paper"):
                assert "_" not in measure_name(cell.metric)
                assert (
                    not cell.metric.startswith("mia")
                    or "attack" in measure_name(cell.metric)
                    or "members" in measure_name(cell.metric)
                )


@pytest.mark.parametrize(
    ("table", "row", "better"),
    [("12", "FedVCK, 300 batches of the server", "lower"), ("ladder", "FedAvg", "higher")],
)
def test_which_values_are_better_is_known_where_nothing_is_printed(table, row, better):
    cells = [cell for cell in TableSpec.find("fedvck", table).cells("laptop") if cell.row == row]
    assert cells and not any(cell.published for cell in cells)
    assert {cell.better for cell in cells if cell.metric != "mia_defense_rate"} == {better}
