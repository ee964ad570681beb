"""Runs that were cut before their last round, which one page shows the beginning of."""

import pytest

from core.experiments import TableSpec, records
from core.experiments.importing import records_below
from core.experiments.spec import TABLES

CUT = records_below(TABLES.parent / "cut")
LADDER = {
    run.id: run.rounds
    for cell in TableSpec.find("fedvck", "ladder").cells("converged")
    for run in cell.experiments
}


@pytest.mark.parametrize("record", CUT, ids=lambda record: record.experiment.id)
def test_a_cut_run_is_the_beginning_of_a_run_that_is_still_missing(record):
    known = records()
    assert record.status == "running"
    assert 2 <= len(record.rounds) < LADDER[record.experiment.id]
    assert [one["round"] for one in record.rounds] == list(range(1, len(record.rounds) + 1))
    assert record.experiment.id not in known, "the whole run is here: remove the file in book/cut"
    (alike,) = {
        one.fingerprint
        for one in known.values()
        if one.experiment.dataset == record.experiment.dataset
    }
    assert record.fingerprint == alike
