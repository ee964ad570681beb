"""Runs that were cut before their last round, which one page shows the beginning of."""

import pandas as pd
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


def test_four_times_the_work_begins_as_the_authors_run_does():
    """The sentence on the first page."""
    log = pd.read_csv(TABLES / "fedvck" / "authors_log.csv")
    log = log[(log["dataset"] == "cifar10") & (log["epoch"] == 1000)].set_index("round")
    top = [one for one in CUT if one.experiment.settings["iterations"] == 640]
    assert len(top) == 3
    for number in (1, 2):
        ours = pd.Series([100 * one.rounds[number - 1]["metrics"]["accuracy"] for one in top])
        assert abs(ours.mean() - log.loc[number, "accuracy"]) < ours.std()
