"""Tables say which means are over runs that were not computed alike."""

import attrs
import pytest

from lab import TableSpec
from lab.report.frames import table_frame
from lab.report.tables import table
from tests.lab.report.made import measure, one


@pytest.fixture
def cells():
    """Two rows of one column."""
    every = [cell for cell in TableSpec.find("fedvck", 3).cells("paper") if not cell.stand_in]
    return [cell for cell in every if cell.column == every[0].column][:2]


def computed(cell, *environments):
    """Runs of a cell, one for each pair of a precision and a device."""
    runs = measure(cell, [0.5, 0.6, 0.7][: len(environments)])
    names = ("precision", "device")
    return {
        name: attrs.evolve(run, environment=dict(zip(names, where, strict=True)))
        for (name, run), where in zip(runs.items(), environments, strict=True)
    }


def test_a_mean_over_several_versions_of_the_program_says_so(cells):
    cell = cells[0]
    runs, key = measure(cell, [0.5, 0.6, 0.7]), (cell.row, cell.column)
    alike = table_frame("fedvck", 3, measured=runs)
    assert one(alike, *key)["codes"] == 1 and alike["codes"].sum() == 1
    assert "versions of the program" not in table("fedvck", 3, measured=runs).details
    runs[cell.experiments[1].id].code = "another"
    assert one(table_frame("fedvck", 3, measured=runs), *key)["codes"] == 2
    styler = table("fedvck", 3, measured=runs)
    assert "Means over runs of several versions of the program: 1." in styler.details
    assert "2 versions of the program" in styler.details and "2 versions" in styler.to_html()
    assert "versions" not in styler.note


def test_a_mean_over_several_precisions_says_so(cells):
    fast, plain = ("bfloat16", "cpu"), ("float32", "cpu")
    for environments, reckoned in (
        ([plain, plain], "float32"),
        ([plain, fast], "bfloat16 and float32"),
        ([plain, fast, ("bfloat16", "cuda")], "bfloat16 and bfloat16 on cuda and float32"),
    ):
        runs, mixed = computed(cells[0], *environments), len(set(environments)) > 1
        found = one(table_frame("fedvck", 3, measured=runs), cells[0].row, cells[0].column)
        assert found["reckoned"] == reckoned
        styler = table("fedvck", 3, measured=runs)
        assert (f"; {reckoned}; " in styler.to_html()) == mixed
        remark = f"computed in {reckoned}, 1 of the means in more than one; "
        assert styler.details.count(remark) == mixed == ("computed in" in styler.details)


def test_rows_in_different_precisions_are_told_once_below_the_table(cells):
    """No mean mixes them, but a difference seed by seed does."""
    first, second = cells
    runs = computed(first, *[("float32", "cpu")] * 2) | computed(second, *[("bfloat16", "cpu")] * 2)
    styler = table("fedvck", 3, measured=runs)
    assert styler.details.count("computed in bfloat16 and float32; differences") == 1
    assert "bfloat16" not in styler.to_html() and "of the means" not in styler.details
    next(iter(runs.values())).environment["precision"] = "<b>"
    assert "computed in &lt;b&gt; and" in table("fedvck", 3, measured=runs).details
