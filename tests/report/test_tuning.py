"""The choice of hyper-parameters: even-handed, and what the laptop profile says."""

import collections

import attrs
import pytest

from core.experiments import Record
from core.experiments.profiles import Profile
from core.experiments.tables import TableSpec
from core.report.tuning import PROFILE, TABLE, tuning_frame, tuning_table


def cells():
    return TableSpec.find(*TABLE).cells(PROFILE)


def made_up(accuracy):
    """A record for every try, with `accuracy(row, dataset)`."""
    return {cell.experiments[0].id: Record(
        cell.experiments[0], {}, "", {}, "", "complete",
        metrics={"accuracy": accuracy(cell.row, cell.experiments[0].dataset)}) for cell in cells()}


def test_every_method_has_the_same_number_of_tries_on_the_same_data():
    tries = collections.defaultdict(set)
    for cell in cells():
        (experiment,) = cell.experiments
        assert experiment.evaluate_on == "val" and experiment.seed == 0
        tries[experiment.algorithm, experiment.dataset].add(experiment.id)
    assert {len(ids) for ids in tries.values()} == {4}
    budgets = {(e.dataset, e.rounds, e.clients, str(e.partition)) for cell in cells() for e in cell.experiments}
    assert len(budgets) == len({dataset for _, dataset in tries})


def test_the_try_with_the_highest_mean_is_chosen():
    first = cells()[0].row
    method = first.rsplit(" ", 1)[0]
    # the second try wins on one set, the third on the other and in the mean
    values = {f"{method} 2": (0.9, 0.1), f"{method} 3": (0.5, 0.6)}
    sets = sorted({cell.experiments[0].dataset for cell in cells()})
    measured = made_up(lambda row, dataset: values.get(row, (0.2, 0.2))[sets.index(dataset)])
    frame = tuning_frame(measured)
    mine = frame[frame["algorithm"] == cells()[0].experiments[0].algorithm]
    assert mine["chosen"].tolist() == [False, False, True, False]
    assert mine["mean"].tolist() == pytest.approx([20, 50, 55, 20])
    assert (frame.groupby("algorithm")["chosen"].sum() == 1).all()
    assert (tuning_table(measured)["chosen"] == "✓").sum() == frame["algorithm"].nunique()


def test_nothing_is_chosen_before_all_tries_are_measured():
    measured = made_up(lambda row, dataset: 0.5)
    lost = cells()[0].experiments[0]
    del measured[lost.id]
    frame = tuning_frame(measured)
    assert not frame.loc[frame["algorithm"] == lost.algorithm, "chosen"].any()
    assert frame.loc[frame["algorithm"] != lost.algorithm, "chosen"].any()


def test_the_laptop_profile_holds_what_was_chosen():
    """From the book's own records: a profile that drifts away from them fails here."""
    layers = Profile.load(PROFILE).overrides.algorithms
    for row in tuning_frame().query("chosen").to_dict("records"):
        settings = attrs.asdict(_default(row["algorithm"])) | layers.get(row["algorithm"], {}).get("settings", {})
        for name, value in row["settings"].items():
            assert settings[name] == value, f"{row['algorithm']}: {name} is {settings[name]}, but {value} was chosen"


def _default(algorithm):
    from core import algorithms

    return algorithms.create(algorithm).settings
