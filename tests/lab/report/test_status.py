"""Coverage counts what the specifications and records hold."""

from __future__ import annotations

import html

import pytest

from lab import TableSpec
from lab.report.status import (
    coverage,
    progress,
)
from lab.report.tables import heading
from lab.report.verdict import VERDICTS
from tests.lab.report.made import record


@pytest.fixture(scope="module")
def unmeasured():
    return coverage(measured={})


def test_every_table_has_a_row_and_its_verdicts_add_up(unmeasured):
    covered = unmeasured
    assert len(covered) == len(TableSpec.all())
    assert (covered[list(VERDICTS)].sum(axis=1) == covered["cells"]).all()
    assert covered["measured"].sum() == 0 and (covered["printed"] <= covered["cells"]).all()


def test_one_measured_cell_is_counted_in_its_table_only():
    cell = next(
        cell for cell in TableSpec.find("fedvck", 13).cells("paper") if cell.stand_in is None
    )
    runs = {run.id: record(run, accuracy=cell.published.value / 100) for run in cell.experiments}
    covered = coverage("fedvck", runs).set_index("table")
    assert covered.loc["13", "measured"] >= 1 and covered.loc["13", "equivalent"] >= 1
    assert (
        covered.loc["13", "pending"] == covered.loc["13", "cells"] - covered.loc["13", "measured"]
    )
    assert covered.loc["2", "measured"] == 0


def test_progress_shows_every_table_and_only_verdicts_that_occur():
    shown = progress("fedmk", {})
    page = html.unescape(shown._repr_html_())
    assert "pending" in page and page.count("Table 1: ") == 1 and " equivalent" not in page
    assert all(heading(spec) in page for spec in TableSpec.of_paper("fedmk"))
