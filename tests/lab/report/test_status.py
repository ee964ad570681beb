"""Progress counts what the specifications and records hold."""

from __future__ import annotations

from bs4 import BeautifulSoup

from lab import TableSpec
from lab.report.status import progress
from lab.report.tables import heading
from tests.lab.report.made import record


def shown(paper, runs):
    """By the title of a table: its cells, those that are printed and measured, and counts of verdicts."""
    page = BeautifulSoup(progress(paper, runs)._repr_html_(), "html.parser")
    rows = [[cell.text for cell in row.find_all("td")] for row in page.find_all("tr")[1:]]
    return {
        title: ([*map(int, counts)], {name: int(n) for n, _, name in map(_parts, said.split(", "))})
        for title, _, *counts, said in rows
    }


def _parts(said):
    return said.partition(" ")


def test_every_table_has_a_row_and_its_verdicts_add_up():
    found = shown("fedmk", {})
    assert list(found) == [heading(spec) for spec in TableSpec.of_paper("fedmk")]
    for (cells, printed, measured), verdicts in found.values():
        assert sum(verdicts.values()) == cells >= printed and measured == 0
        assert verdicts.keys() <= {"pending", "not testable here"}


def test_one_measured_cell_is_counted_in_its_table_only():
    cells = TableSpec.find("fedvck", 13).cells("paper")
    cell = next(cell for cell in cells if cell.stand_in is None)
    runs = {run.id: record(run, accuracy=cell.published.value / 100) for run in cell.experiments}
    found = shown("fedvck", runs)
    (cells, _, measured), verdicts = found[heading(cell.spec)]
    assert verdicts["equivalent"] >= 1 and verdicts["pending"] == cells - measured < cells
    assert found[heading(TableSpec.find("fedvck", 2))][0][2] == 0
