"""Runs of one's own, summed up over seeds, on numbers that can be checked by hand."""

from __future__ import annotations

import math

import attrs
import pytest

from core import algorithms
from core.errors import InputError
from lab import Experiment
from lab.__main__ import main
from lab.profiles import apply
from lab.report.summary import ALWAYS, MEASURED, summary_frame
from tests.lab.report import made


def record(accuracy, settings, algorithm="fedavg", status="complete", **fields):
    """A run of one round by default; in each 3 MB are sent up and 1 MB down, on two threads in 1.5 s."""
    stated = {"algorithm": algorithm, "dataset": "digits", "settings": settings, "rounds": 1}
    return of_experiment(Experiment(**stated | fields), accuracy, status)


def of_experiment(experiment, accuracy, status="complete"):
    one, sent = made.record(experiment, accuracy=accuracy), experiment.rounds * 2**20
    sizes = {"up": 3 * 2**20, "down": 2**20, "seconds": {"train": 1.5}}
    return attrs.evolve(
        one,
        settings={"lr": 0.01} | experiment.settings,
        fingerprint="f" * 64,
        code="c" * 12,
        environment={"threads": 2},
        status=status,
        rounds=[row | sizes for row in one.rounds[: experiment.rounds]],
        bytes={"up": {"model": 3 * sent}, "down": {"model": sent}},
    )


def summed_up(*found, against=None):
    return summary_frame(found, against)


def test_a_row_stands_for_all_seeds_of_a_setting():
    """Mean 50 and 62; standard deviation of 48 and 52: sqrt 8."""
    frame = summed_up(
        *(record(score, {"lr": 0.1}, seed=seed) for seed, score in enumerate((0.48, 0.52))),
        record(0.62, {"lr": 0.3}),
    )
    assert frame.lr.tolist() == [0.1, 0.3]
    assert frame.seeds.tolist() == [2, 1]
    assert frame["mean"].tolist() == pytest.approx([50, 62])
    assert frame["std"][0] == pytest.approx(math.sqrt(8)) and math.isnan(frame["std"][1])
    assert frame.MB.tolist() == [4, 4] and frame["core seconds"].tolist() == [3, 3]


def test_what_is_alike_in_all_runs_of_an_algorithm_is_not_shown():
    """Another algorithm has another rate, and only it has mu: neither tells two runs apart."""
    frame = summed_up(
        record(0.5, {}, rounds=3, partition={"name": "dirichlet", "alpha": 0.1}),
        record(0.6, {}, rounds=3, partition={"name": "dirichlet", "alpha": 1}),
        record(0.7, {"lr": 0.5, "mu": 0.1}, algorithm="fedprox", rounds=3),
    )
    assert not {"lr", "mu", "rounds", "clients"} & set(frame)
    assert frame.split.tolist() == ["alpha 0.1", "alpha 1", "iid"]


def test_what_follows_from_variant_and_profile_is_not_shown():
    """Both have values of their own for some twenty settings; what is stated besides is told."""

    def run(profile, variant, **settings):
        stated = {"algorithm": "fedvck", "dataset": "digits", "variant": variant, "rounds": 3}
        asked = apply(profile, stated | {"settings": settings})
        used = algorithms.create("fedvck", asked.settings, variant).settings
        return attrs.evolve(of_experiment(asked, 0.5), settings=attrs.asdict(used))

    frame = summed_up(run("laptop", "printed"), run("laptop", "released"), run("quick", "printed"))
    assert list(frame)[:5] == [*ALWAYS, "variant"] and list(frame)[5] == "seeds"
    frame = summed_up(run("laptop", "printed"), run("laptop", "released", server_steps=100))
    assert set(frame) - {*ALWAYS, *MEASURED} == {"variant", "server_steps"}
    assert frame["server_steps"].tolist() == [30, 100]


def test_options_of_the_model_and_of_the_split_are_told_by_whose_they_are():
    frame = summed_up(
        record(0.5, {}, model_options={"width": 8}),
        record(0.6, {}, model_options={"width": 16}),
        record(0.7, {}, model_options={"width": 16}, rounds=3),
    )
    told = frame[["model.width", "rounds"]].itertuples(index=False)
    assert set(map(tuple, told)) == {(8, 1), (16, 1), (16, 3)}


def test_a_default_that_is_stated_is_the_same_setting():
    frame = summed_up(record(0.5, {}), record(0.5, {"lr": 0.01}), record(0.7, {}, seed=1))
    assert frame.seeds.tolist() == [2]
    assert frame["mean"].tolist() == pytest.approx([60])


def test_runs_are_compared_seed_by_seed_with_the_named_setting():
    """By hand: differences 2 and 4 points, mean 3, t interval 3 ± 6.314 * sqrt(2) / sqrt(2)."""
    rows = summed_up(
        *(record(0.50 + 0.10 * seed, {"lr": 0.1}, seed=seed) for seed in (0, 1)),
        *(record(0.52 + 0.12 * seed, {"lr": 0.3}, seed=seed) for seed in (0, 1, 2)),
        against="lr=0.1",
    )
    own, other = rows.to_dict("records")
    assert (own["pairs"], other["pairs"]) == (0, 2) and math.isnan(own["lead"])
    assert [other["lead"], other["low"], other["high"]] == pytest.approx(
        [3, -3.314, 9.314], abs=1e-3
    )


@pytest.mark.parametrize(
    ("against", "said"),
    [
        ("fedavg", r"fits 2 rows and must name one; they differ in lr \(0\.1, 0\.3\)$"),
        ("fedavg,lr=7", "fits 0 rows"),
        ("speed=1", "no setting in which these runs differ"),
        ("mean=50", "no setting in which these runs differ"),
    ],
)
def test_a_setting_to_compare_with_must_be_one(against, said):
    with pytest.raises(InputError, match=said):
        summed_up(record(0.5, {"lr": 0.1}), record(0.5, {"lr": 0.3}), against=against)


@pytest.mark.parametrize(
    "other",
    [
        {"clients": 3},
        {"train_fraction": 0.5},
        {"partition": {"name": "dirichlet", "alpha": 0.5, "min_size": 5}},
    ],
)
def test_runs_on_other_data_are_no_pairs(other):
    mine = {"clients": 10, "partition": {"name": "dirichlet", "alpha": 0.5}}
    found = [
        record(0.5 + 0.1 * seed, {}, seed=seed, algorithm=name, **mine | more)
        for seed in (0, 1)
        for name, more in (("fedavg", {}), ("fedprox", other), ("moon", {}))
    ]
    rows = summed_up(*found, against="fedavg").set_index("algorithm")
    assert rows["pairs"].to_dict() == {"fedavg": 0, "fedprox": 0, "moon": 2}


@pytest.fixture
def folder(tmp_path):
    failed = record(0.5, {"lr": 0.7}, status="failed")
    failed.notes = ["the loss is not a number"]
    running = record(0.5, {"lr": 0.5}, status="running")
    (tmp_path / "adhoc").mkdir()
    for one in (record(0.5, {"lr": 0.1}), record(0.25, {"lr": 0.3}), failed, running):
        one.save(tmp_path / "adhoc" / f"{one.experiment.id}.json")
    return tmp_path


def test_a_folder_is_listed_with_what_failed_and_how_many_are_not_finished(capsys, folder):
    assert main(["runs", str(folder)]) == 0
    head, *rows, failed, last = capsys.readouterr().out.splitlines()
    assert head.split()[4:7] == ["lr", "seeds", "metric"]
    assert [row.split()[-6:] for row in rows] == [
        ["1", "accuracy", "50.00", "-", "4.00", "3.0"],
        ["1", "accuracy", "25.00", "-", "4.00", "3.0"],
    ]
    assert failed.startswith("failed: fedavg, seed 0 (") and failed.endswith(
        ": the loss is not a number"
    )
    assert last.startswith("1 more not finished")


@pytest.mark.parametrize(
    ("change", "column"),
    [
        ({"code": "d" * 12}, "code"),
        ({"fingerprint": "a" * 64}, "data"),
        ({"environment": {"threads": 2, "device": "cpu", "precision": "float32"}}, "precision"),
    ],
)
def test_no_mean_is_over_several_programs_data_or_precisions(change, column):
    """A name may stand for two data sets."""
    first, second = record(0.4, {}, seed=0), record(0.6, {}, seed=1)
    first.environment |= {"device": "cpu", "precision": "bfloat16"}
    second.environment |= {"device": "cpu", "precision": "bfloat16"}
    assert summed_up(first, second).seeds.tolist() == [2]
    for name, value in change.items():
        setattr(second, name, value)
    apart = summed_up(first, second)
    assert apart.seeds.tolist() == [1, 1] and column in apart


def test_a_folder_becomes_a_file(capsys, folder):
    assert main(["runs", str(folder), "--csv", str(folder / "mine.csv")]) == 0
    assert capsys.readouterr().out.startswith("written: ")
    first = (folder / "mine.csv").read_text().splitlines()
    assert first[0].startswith("algorithm,dataset,split,profile,lr,seeds") and len(first) == 3
    assert main(["runs", str(folder), "--csv", str(folder / "none" / "mine.csv")]) == 1
    assert "error: Cannot save" in capsys.readouterr().err


def test_a_folder_without_records_is_named(capsys, tmp_path):
    assert main(["runs", str(tmp_path)]) == 2
    assert "there are no records below" in capsys.readouterr().err
    (tmp_path / "one.json").write_text("{}")
    assert main(["runs", str(tmp_path / "one.json")]) == 2
    assert "one.json; give the folder" in capsys.readouterr().err


def test_a_table_counts_records_of_ones_own(capsys, tmp_path):
    """A cell of a table that has no record of the book at this profile."""
    from lab import TableSpec, records

    cell = next(c for c in TableSpec.find("fedmk", "1").cells("quick") if "svhn" in c.column)
    run = cell.experiments[0]
    assert run.id not in records()
    of_experiment(run, 0.1234).save(tmp_path / "fedmk" / f"{run.id}.json")
    assert main(["table", "fedmk/1", "--profile", "quick", "--records", str(tmp_path)]) == 0
    assert "12.34" in capsys.readouterr().out
    asked = [cell.address, "--profile", "quick", "--records", str(tmp_path)]
    assert main(["explain", *asked]) == 0
    said = capsys.readouterr().out
    assert f"seed {run.seed}  12.34    {tmp_path}/fedmk/{run.id}.json" in said
