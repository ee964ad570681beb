"""The choice of hyper-parameters: even-handed, and what the laptop profile says."""

import collections

import attrs
import pytest

from core.condensation import Extraction
from lab import TableSpec
from lab.profiles import Profile
from lab.report import table_frame
from lab.report.frames import table_runs
from lab.report.results import reporting_rules
from lab.report.tuning import PROFILE, TABLE, tuning_frame, tuning_table
from tests.lab.report.made import record


def cells():
    return TableSpec.find(*TABLE).cells(PROFILE)


def made_up(accuracy):
    """A record for every try, with `accuracy(row, dataset)`."""
    runs = [(cell.experiments[0], cell.row) for cell in cells()]
    return {run.id: record(run, accuracy=accuracy(row, run.dataset)) for run, row in runs}


def test_every_method_has_the_same_number_of_tries_on_the_same_data():
    tries = collections.defaultdict(set)
    for cell in cells():
        (experiment,) = cell.experiments
        assert experiment.evaluate_on == "val" and experiment.seed == 0
        tries[experiment.algorithm, experiment.dataset].add(experiment.id)
    assert {len(ids) for ids in tries.values()} == {4}
    budgets = {
        (e.dataset, e.rounds, e.clients, str(e.partition))
        for cell in cells()
        for e in cell.experiments
    }
    assert len(budgets) == len({dataset for _, dataset in tries})


def test_the_try_with_the_highest_mean_is_chosen():
    first = cells()[0].row
    method = first.rsplit(" ", 1)[0]
    # the second try wins on one set and in the arithmetic mean, the third in the geometric one
    values = {f"{method} 2": (0.9, 0.1), f"{method} 3": (0.4, 0.4)}
    sets = sorted({cell.experiments[0].dataset for cell in cells()})
    measured = made_up(lambda row, dataset: values.get(row, (0.2, 0.2))[sets.index(dataset)])
    frame = tuning_frame(measured)
    mine = frame[frame["algorithm"] == cells()[0].experiments[0].algorithm]
    assert mine["chosen"].tolist() == [False, False, True, False]
    assert mine["mean"].tolist() == pytest.approx([20, 30, 40, 20])
    assert (frame.groupby("algorithm")["chosen"].sum() == 1).all()
    assert (tuning_table(measured)["chosen"] == "✓").sum() == frame["algorithm"].nunique()


def test_the_laptop_profile_holds_what_was_chosen():
    """From the book's own records: a profile that drifts away from them fails here."""
    profile = Profile.load(PROFILE)
    rows = tuning_frame().query("chosen").to_dict("records")
    assert rows
    for row in rows:
        algorithm = row["algorithm"]
        settings = attrs.asdict(_default(algorithm)) | profile.algorithms.get(algorithm, {}).get(
            "settings", {}
        )
        for name, value in row["settings"].items():
            assert settings[name] == value, (
                f"{row['algorithm']}: {name} is {settings[name]}, but {value} was chosen"
            )


@pytest.mark.parametrize(("table", "tries"), [(1, "tuning"), (3, "tuning"), (1, "tuning_cifar10")])
def test_the_tables_of_fedmk_hold_what_was_chosen(table, tries):
    """The tuned rows have the best learning rates, and FedMK's defaults are its best try."""
    frame = tuning_frame(None, ("fedmk", tries), "paper")
    rows = {
        row.fields["algorithm"]: row.fields["settings"]
        for row in TableSpec.find("fedmk", table).rows
        if row.name.endswith(", tuned")
    }
    assert (frame.groupby("algorithm")["settings"].size() == 4).all() and set(
        frame["algorithm"]
    ) == {*rows, "fedmk"}
    for try_ in frame.query("chosen").to_dict("records"):
        held = attrs.asdict(_default(try_["algorithm"])) | rows.get(try_["algorithm"], {})
        assert {name: held[name] for name in try_["settings"]} == try_["settings"]


@pytest.mark.parametrize("table", [1, 3, 4])
def test_the_tables_of_fedmk_hold_the_schedule_that_was_chosen(table):
    """The one with the highest mean of the last five rounds over three seeds, on held-out images."""
    runs = table_runs("fedmk", "schedule", ["laptop"])
    assert runs.groupby("row").size().eq(3).all() and runs["row"].nunique() == 4
    best = reporting_rules(runs)["mean of last five"].idxmax()[1]
    chosen = next(row for row in TableSpec.find("fedmk", "schedule").rows if row.name == best)
    held = next(row for row in TableSpec.find("fedmk", table).rows if row.name == "FedMK")
    assert held.fields["settings"] == chosen.fields["settings"]


@pytest.mark.parametrize("table", [1, 4, 5, "figure2", "figure4", "figure5"])
def test_the_tables_of_fedmk_hold_the_reading_that_was_chosen_on_cifar10(table):
    """That of one network with the highest accuracy on held-out images."""
    spec = TableSpec.find("fedmk", "readings_cifar10")
    tried = table_frame("fedmk", "readings_cifar10", "paper").set_index("row")["measured"]
    ours = [row.name for row in spec.rows if "model_options" not in row.fields]
    assert tried[ours].notna().all() and len(ours) == 4
    chosen = next(cell for cell in spec.cells("paper") if cell.row == tried[ours].idxmax())
    columns = 0
    for cell in TableSpec.find("fedmk", table).cells("paper"):
        run = cell.experiments[0] if cell.experiments else None
        if run and run.algorithm == "fedmk" and cell.column.startswith("cifar10-"):
            assert _extraction(run) == _extraction(chosen.experiments[0])
            columns += 1
    assert columns


def _extraction(run):
    """How a client of FedMK makes its knowledge, and the server's rates."""
    settings = run.new_algorithm().settings
    names = (*attrs.fields_dict(Extraction), "images_per_class", "round_decay", "last_lr")
    return {name: getattr(settings, name) for name in names}


@pytest.mark.parametrize("table", [1, 6, 7])
def test_the_tables_of_fediod_hold_what_was_chosen(table):
    frame = tuning_frame(None, ("fediod", "tuning"), "laptop")
    assert (frame.groupby("algorithm")["settings"].size() == 4).all()
    chosen = {
        try_["algorithm"]: try_["settings"] for try_ in frame.query("chosen").to_dict("records")
    }
    for cell in TableSpec.find("fediod", table).cells("laptop"):
        run = cell.experiments[0]
        if run.variant == "released":  # it has the rates of the authors' script
            continue
        held, best = attrs.asdict(run.new_algorithm().settings), chosen.get(run.algorithm, {})
        assert {name: held[name] for name in best} == best, run.algorithm


def test_the_script_of_fediod_has_the_rates_that_were_chosen():
    """Its row with tries has the best of four on held-out images; its own rates are one of them."""
    spec = TableSpec.find("fediod", "rates")
    runs = table_runs("fediod", "rates", ["laptop"])
    scores = {run.row: run.record.metrics["accuracy"] for run in runs.itertuples()}
    assert len(scores) == len(spec.rows) == 4
    best = next(row for row in spec.rows if row.name == max(scores, key=lambda name: scores[name]))
    held = next(
        row
        for row in TableSpec.find("fediod", 1).rows
        if row.name.endswith(", ten times the rates")
    )
    rates = ("gan_lr", "student_lr")
    for name in rates:
        assert held.fields["settings"][name] == best.fields["settings"][name]


def _default(algorithm):
    from core import algorithms

    return algorithms.create(algorithm).settings
