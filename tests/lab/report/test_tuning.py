"""The choice of hyper-parameters: even-handed, and what profiles and tables say."""

import collections

import attrs
import pytest

from core import algorithms
from core.condensation import Extraction
from lab import TableSpec
from lab.profiles import Profile
from lab.report import table_frame
from lab.report.frames import table_runs
from lab.report.results import by_rule
from lab.report.tuning import PROFILE, TABLE, tuning_frame, tuning_table
from tests.lab.report.made import record

CELLS = TableSpec.find(*TABLE).cells(PROFILE)


def test_every_method_has_the_same_number_of_tries_on_the_same_data():
    tries, budgets = collections.defaultdict(set), set()
    for cell in CELLS:
        (run,) = cell.experiments
        assert run.evaluate_on == "val" and run.seed == 0
        tries[run.algorithm, run.dataset].add(run.id)
        budgets.add((run.dataset, run.rounds, run.clients, str(run.partition)))
    assert {len(ids) for ids in tries.values()} == {4}
    assert len(budgets) == len({dataset for _, dataset in tries})


def test_the_try_with_the_highest_mean_is_chosen():
    method = CELLS[0].row.rsplit(" ", 1)[0]
    # the second try wins on one set and in the arithmetic mean, the third in the geometric one
    values = {f"{method} 2": (0.9, 0.1), f"{method} 3": (0.4, 0.4)}
    sets = sorted({cell.experiments[0].dataset for cell in CELLS})
    measured = {
        run.id: record(run, accuracy=values.get(cell.row, (0.2, 0.2))[sets.index(run.dataset)])
        for cell in CELLS
        for run in cell.experiments
    }
    frame = tuning_frame(measured)
    first = frame[frame["algorithm"] == CELLS[0].experiments[0].algorithm]
    assert first["chosen"].tolist() == [False, False, True, False]
    assert first["mean"].tolist() == pytest.approx([20, 30, 40, 20])
    assert (frame.groupby("algorithm")["chosen"].sum() == 1).all()
    assert (tuning_table(measured)["chosen"] == "✓").sum() == frame["algorithm"].nunique()


def chosen(*where):
    """The settings of the best of four tries of each algorithm, by the book's own records."""
    frame = tuning_frame(None, *where)
    assert (frame.groupby("algorithm")["settings"].size() == 4).all()
    return frame[frame["chosen"]].set_index("algorithm")["settings"].to_dict()


def default(algorithm):
    return attrs.asdict(algorithms.create(algorithm).settings)


def row_of(paper, table, name):
    return next(row for row in TableSpec.find(paper, table).rows if row.name == name)


def test_the_laptop_profile_holds_what_was_chosen():
    profile, best = Profile.load(PROFILE), chosen()
    assert best
    for algorithm, settings in best.items():
        held = default(algorithm) | profile.algorithms.get(algorithm, {}).get("settings", {})
        assert {name: held[name] for name in settings} == settings, algorithm


@pytest.mark.parametrize(("table", "tries"), [(1, "tuning"), (3, "tuning"), (1, "tuning_cifar10")])
def test_the_tables_of_fedmk_hold_what_was_chosen(table, tries):
    """The tuned rows have the best learning rates, and FedMK's defaults are its best try."""
    best, rows = chosen(("fedmk", tries), "paper"), TableSpec.find("fedmk", table).rows
    tuned = [row.fields for row in rows if row.name.endswith(", tuned")]
    tuned = {fields["algorithm"]: fields["settings"] for fields in tuned}
    assert best.keys() == {*tuned, "fedmk"}
    for algorithm, settings in best.items():
        held = default(algorithm) | tuned.get(algorithm, {})
        assert {name: held[name] for name in settings} == settings


@pytest.mark.parametrize("table", [1, 3, 4])
def test_the_tables_of_fedmk_hold_the_schedule_that_was_chosen(table):
    """The one with the highest mean of the last five rounds over three seeds, on held-out images."""
    runs = table_runs("fedmk", "schedule", ["laptop"])
    assert runs.groupby("row").size().eq(3).all() and runs["row"].nunique() == 4
    best = by_rule(runs).groupby("row")["mean of last five"].mean().idxmax()
    best = row_of("fedmk", "schedule", best)
    assert row_of("fedmk", table, "FedMK").fields["settings"] == best.fields["settings"]


@pytest.mark.parametrize("table", [1, 4, 5, "figure2", "figure4", "figure5"])
def test_the_tables_of_fedmk_hold_the_interpretation_that_was_chosen_on_cifar10(table):
    """That of one network with the highest accuracy on held-out images."""
    spec = TableSpec.find("fedmk", "interpretations_cifar10")
    tried = table_frame("fedmk", "interpretations_cifar10", "paper").set_index("row")["measured"]
    ours = [row.name for row in spec.rows if "model_options" not in row.fields]
    assert tried[ours].notna().all() and len(ours) == 4
    best = next(cell for cell in spec.cells("paper") if cell.row == tried[ours].idxmax())
    runs = [
        cell.experiments[0]
        for cell in TableSpec.find("fedmk", table).cells("paper")
        if cell.experiments and cell.column.startswith("cifar10-")
    ]
    found = [extraction(run) for run in runs if run.algorithm == "fedmk"]
    assert found and all(one == extraction(best.experiments[0]) for one in found)


def extraction(run):
    """How a client of FedMK makes its knowledge, and the server's rates."""
    settings = run.new_algorithm().settings
    names = (*attrs.fields_dict(Extraction), "images_per_class", "round_decay", "last_lr")
    return {name: getattr(settings, name) for name in names}


@pytest.mark.parametrize("table", [1, 6, 7])
def test_the_tables_of_fediod_hold_what_was_chosen(table):
    best = chosen(("fediod", "tuning"), "laptop")
    for cell in TableSpec.find("fediod", table).cells("laptop"):
        run = cell.experiments[0]
        if run.variant != "released":  # it has the rates of the authors' script
            held, settings = attrs.asdict(run.new_algorithm().settings), best.get(run.algorithm, {})
            assert {name: held[name] for name in settings} == settings, run.algorithm


def test_the_script_of_fediod_has_the_rates_that_were_chosen():
    """Its row with tries has the best of four on held-out images; its own rates are one of them."""
    runs = table_runs("fediod", "rates", ["laptop"])
    scores = {run.row: run.record.metrics["accuracy"] for run in runs.itertuples()}
    assert len(scores) == len(TableSpec.find("fediod", "rates").rows) == 4
    best = row_of("fediod", "rates", max(scores, key=scores.get)).fields["settings"]
    rows = TableSpec.find("fediod", 1).rows
    (held,) = (row for row in rows if row.name.endswith(", ten times the rates"))
    rates = ("gan_lr", "student_lr")
    assert [held.fields["settings"][name] for name in rates] == [best[name] for name in rates]
