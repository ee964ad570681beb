"""Experiments, records, the queue and imports."""

import json
import subprocess
import sys
import time
from types import SimpleNamespace

import attrs
import numpy as np
import pytest
import torch

from core.errors import InputError
from core.experiments import (
    Experiment,
    Record,
    TableSpec,
    importing,
    make_task,
    queue,
    record,
    records,
)
from core.experiments.running import run
from core.federation import Runtime, Task
from core.files import Busy, FileError, alone
from tests.data import layouts

PLAIN = {"algorithm": "fedavg", "dataset": "digits"}


def test_an_id_stands_for_the_data():
    one = Experiment.from_dict(PLAIN)
    assert (
        one.id
        == Experiment.from_dict({**PLAIN, "clients": 10, "settings": {}}).id
        == Experiment(**PLAIN).id
    )
    others = [
        {"seed": 1},
        {"profile": "quick"},
        {"settings": {"lr": 0.1}},
        {"clients": 9},
        {"variant": "released"},
    ]
    assert len({one.id, *(Experiment.from_dict(PLAIN | other).id for other in others)}) == 6
    assert Experiment.from_dict(json.loads(json.dumps(one.to_dict()))) == one


def test_the_order_of_settings_does_not_matter():
    a, b = ({"lr": 0.1, "momentum": 0.5}, {"momentum": 0.5, "lr": 0.1})
    assert Experiment(**PLAIN, settings=a).id == Experiment(**PLAIN, settings=b).id


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"algorithm": "fedavg"},
        PLAIN | {"aplha": 1},
        PLAIN | {"clients": 0},
        PLAIN | {"rounds": 1.5},
        PLAIN | {"active": 11},
        PLAIN | {"train_fraction": 0},
        PLAIN | {"train_fraction": 1.1},
        PLAIN | {"seed": True},
        PLAIN | {"profile": "fast"},
        PLAIN | {"settings": {"lr": float("nan")}},
        PLAIN | {"settings": [1]},
        PLAIN | {"partition": {1: 2}},
        PLAIN | {"dataset": ""},
    ],
)
def test_bad_experiments_are_refused(fields):
    with pytest.raises(InputError):
        Experiment.from_dict(fields)


def small(**changes) -> Experiment:
    return Experiment(
        **PLAIN,
        clients=2,
        rounds=3,
        settings={"local_steps": 1},
        model_options={"width": 4},
        profile="quick",
        **changes,
    )


def test_a_record_comes_back_as_it_was_written(tmp_path):
    record, path, computed = queue.measure(small(), "adhoc", out=tmp_path, runtime=Runtime())
    assert computed and record.status == "complete" and len(record.rounds) == 3
    assert Record.load(path) == record
    assert record.metrics == record.rounds[-1]["metrics"] and 0 <= record.metrics["accuracy"] <= 1
    assert sum(record.bytes["up"].values()) == sum(row["up"] for row in record.rounds)
    assert records(tmp_path) == {small().id: record}
    assert record.settings["lr"] == 0.01 and record.settings["local_steps"] == 1


def test_a_record_that_was_replaced_is_read_again(tmp_path, monkeypatch):
    _, path, _ = queue.measure(small(), "adhoc", out=tmp_path, runtime=Runtime())
    (first,) = records(tmp_path).values()
    loads = []
    load = Record.load
    monkeypatch.setattr(Record, "load", lambda path: loads.append(path) or load(path))
    assert records(tmp_path) == {first.experiment.id: first} and not loads
    path.write_text(path.read_text().replace('"notes": []', '"notes": ["!"]'))
    assert records(tmp_path)[first.experiment.id].notes == ["!"] and loads == [path]
    path.write_text("{")
    with pytest.raises(InputError, match=path.name):
        records(tmp_path)


def test_what_was_measured_is_not_measured_again(tmp_path):
    queue.measure(small(), "adhoc", out=tmp_path, runtime=Runtime())
    stamp = next((tmp_path / "adhoc").glob("*.json")).stat().st_mtime_ns
    _, path, computed = queue.measure(small(), "adhoc", out=tmp_path, runtime=Runtime())
    assert not computed and path.stat().st_mtime_ns == stamp


def test_a_clock_that_runs_out_leaves_a_run_that_goes_on(tmp_path):
    import time

    cut, _, _ = queue.measure(
        small(), "adhoc", out=tmp_path, runtime=Runtime(), deadline=time.monotonic()
    )
    assert cut.status == "running" and len(cut.rounds) < 3 and records(tmp_path) == {}
    whole, _, _ = queue.measure(small(), "adhoc", out=tmp_path, runtime=Runtime())
    assert whole.status == "complete" and whole.rounds[: len(cut.rounds)] == cut.rounds
    assert not list((tmp_path / "checkpoints").glob("*.safetensors"))


def test_import_copies_what_is_complete_and_keeps_what_is_there(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    for seed in range(2):
        queue.measure(small(seed=seed), "adhoc", out=there, runtime=Runtime())
    unfinished = Record.load(there / "adhoc" / f"{small(seed=1).id}.json")
    unfinished.status = "running"
    unfinished.save(there / "adhoc" / f"{small(seed=1).id}.json")
    assert importing.import_records(there, here) == importing.Imported(new=1, known=0, unfinished=1)
    kept = here / "adhoc" / f"{small().id}.json"
    before = kept.read_bytes()
    changed = attrs.evolve(Record.load(kept), notes=["measured elsewhere"])
    changed.save(there / "adhoc" / kept.name)
    assert importing.import_records(there, here) == importing.Imported(new=0, known=1, unfinished=1)
    assert kept.read_bytes() == before
    # other files are not called damaged, and nobody is told to delete them
    (there / "adhoc" / "manifest.json").write_text('{"a": 1}')
    with pytest.raises(InputError, match=r"manifest\.json is no record of a run; import takes"):
        importing.import_records(there, here)


def test_records_of_other_data_under_the_same_name_stay_apart(tmp_path):
    """Of two copies of a data set in another order the means would be of two things."""
    here, there = tmp_path / "here", tmp_path / "there"
    for out, seed in ((here, 0), (there, 1)):
        queue.measure(small(seed=seed), "adhoc", out=out, runtime=Runtime())
    (path,) = there.glob("adhoc/*.json")
    attrs.evolve(Record.load(path), fingerprint="0" * 64).save(path)
    with pytest.raises(InputError, match="measured on other data than other records"):
        importing.import_records(there, here)
    assert len(list(here.glob("adhoc/*.json"))) == 1
    # nor do two of one folder lie in one table, where the book has none
    queue.measure(small(seed=2), "adhoc", out=there, runtime=Runtime())
    with pytest.raises(InputError, match="measured on other data than other records"):
        importing.import_records(there, tmp_path / "nowhere")


def test_the_queue_holds_each_run_once_and_leaves_out_what_is_done(tmp_path):
    waiting = queue.pending("quick", tmp_path)
    for item in waiting[::40]:
        leads = [TableSpec.find_cell(cell, "quick").experiments for cell in item.cells]
        assert all(item.experiment.id in {run.id for run in runs} for runs in leads)
    ids = [item.experiment.id for item in waiting]
    assert len(ids) == len(set(ids)) > 0
    assert [item.experiment.seed for item in waiting] == sorted(
        item.experiment.seed for item in waiting
    )
    first = waiting[0].experiment
    record, *_ = queue.measure(first, "adhoc", out=tmp_path, runtime=Runtime())
    after = {item.experiment.id: item for item in queue.pending("quick", tmp_path)}
    assert first.id not in after
    # what other seeds of the same run are expected to take
    cost = sum(sum(row["seconds"].values()) for row in record.rounds)
    told = {item.experiment.seed: item.core_seconds for item in after.values() if item.core_seconds}
    assert set(told) == {1, 2}
    assert all(value == cost * record.environment["threads"] for value in told.values())


@pytest.mark.parametrize("only", ["fedmk/1", "FedMK/1/", "fedmk/1/FedAvg/mnist-0.5", "feddm"])
def test_the_queue_of_a_table_a_cell_or_an_algorithm(only, tmp_path):
    some = queue.pending("quick", tmp_path, only)
    assert 0 < len(some) < len(queue.pending("quick", tmp_path))
    name = only.strip("/").lower()
    for item in some:
        assert item.experiment.algorithm == name or all(
            f"{cell.lower()}/".startswith(f"{name}/") for cell in item.cells
        )


def test_the_queue_of_what_does_not_exist(tmp_path):
    with pytest.raises(InputError, match="'fedmk/99' is no paper, table, cell or algorithm"):
        queue.pending("quick", tmp_path, "fedmk/99")


def test_a_table_is_run_at_the_profiles_that_it_names(tmp_path):
    """The ladder of budgets has its rungs at `converged`; a choice of settings, none."""
    for profile, ladder, tuning in (("converged", True, False), ("laptop", False, True)):
        tables = {
            cell.rsplit("/", 2)[0]
            for item in queue.pending(profile, tmp_path)
            for cell in item.cells
        }
        assert ("fedvck/ladder" in tables, "reference/tuning" in tables) == (ladder, tuning)
    # whoever names a table or a cell has it
    assert queue.pending("converged", tmp_path, "reference/tuning")
    assert not queue.pending("converged", tmp_path, "fedmk")
    assert not queue.pending("converged", tmp_path, "FedMK/")


def test_runs_that_a_larger_budget_has_answered_come_last(tmp_path, monkeypatch):
    cells = TableSpec.find("fedmk", 1).cells("laptop")
    record, *_ = queue.measure(small(), "adhoc", out=tmp_path, runtime=Runtime())
    for known, last in ((cells[0].experiments, True), (cells[0].experiments[:1], False)):
        monkeypatch.setattr(queue, "records", lambda root, runs=known: {r.id: record for r in runs})
        waiting = queue.pending("quick", tmp_path, "fedmk/1")
        answered = [item.answered for item in waiting]
        assert answered == sorted(answered) and any(answered) == last
        for item in waiting:
            assert item.answered == (last and item.cells == (cells[0].address,))


def test_a_run_that_another_profile_has_on_record_is_not_waited_for(tmp_path, monkeypatch):
    """The baselines of FedMK's Table 1 take no less at `converged` than at `paper`."""
    waiting = queue.pending("converged", tmp_path, "fedmk/1")
    some = next(item.experiment for item in waiting if item.experiment.algorithm == "fedavg")
    record, *_ = queue.measure(small(), "adhoc", out=tmp_path, runtime=Runtime())
    for profile in ("paper", "laptop"):
        done = attrs.evolve(record, experiment=attrs.evolve(some, profile=profile))
        monkeypatch.setattr(queue, "records", lambda root, done=done: {done.experiment.id: done})
        assert len(queue.pending("converged", tmp_path, "fedmk/1")) == len(waiting) - 1
    other = attrs.evolve(some, profile="paper", rounds=some.rounds + 1)
    monkeypatch.setattr(
        queue, "records", lambda root: {other.id: attrs.evolve(record, experiment=other)}
    )
    assert len(queue.pending("converged", tmp_path, "fedmk/1")) == len(waiting)


def test_a_failed_run_is_tried_again_only_with_other_code(tmp_path, monkeypatch):
    diverging = attrs.evolve(small(), settings={"local_steps": 20, "lr": 1e30})
    assert not queue.failed_before(diverging, "adhoc", tmp_path)
    with pytest.raises(InputError, match="not finite"):
        queue.measure(diverging, "adhoc", out=tmp_path, runtime=Runtime())
    assert queue.failed_before(diverging, "adhoc", tmp_path)
    monkeypatch.setattr(queue, "code_version", lambda: "other")
    assert not queue.failed_before(diverging, "adhoc", tmp_path)


def test_a_file_that_holds_another_run_is_named_and_not_taken_for_this_one(tmp_path):
    _, path, _ = queue.measure(small(seed=1), "adhoc", out=tmp_path, runtime=Runtime())
    wrong = path.with_name(f"{small().id}.json")
    path.rename(wrong)
    with pytest.raises(InputError, match=f"{wrong.name} holds another run, {small(seed=1).id}"):
        queue.measure(small(), "adhoc", out=tmp_path, runtime=Runtime())


def test_a_check_leaves_the_files_of_one_that_is_running_alone(tmp_path):
    """Nothing is removed before the lock is held."""
    record, path, _ = queue.measure(small(), "adhoc", out=tmp_path, runtime=Runtime())
    other = attrs.evolve(record, environment=record.environment | {"torch": "another"})
    other.save(path)
    lock = queue.places(small(), "adhoc", tmp_path)[1].with_suffix(".lock")
    with alone(lock, "this test"), pytest.raises(Busy, match="another process"):
        queue.measure_anew(small(), "adhoc", tmp_path, Runtime())
    assert Record.load(path) == other
    anew, _, computed = queue.measure_anew(small(), "adhoc", tmp_path, Runtime())
    assert computed and anew.environment == record.environment
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_what_other_code_left_stays_until_there_is_something_in_its_place(tmp_path):
    """An algorithm of one's own is changed, and the new run is cut, or fails."""
    record, path, _ = queue.measure(small(), "adhoc", out=tmp_path, runtime=Runtime())
    attrs.evolve(record, code="0" * 12).save(path)
    wanted = {"out": tmp_path, "runtime": Runtime(), "stale": lambda one: one.code != record.code}
    cut, _, _ = queue.measure(small(), "adhoc", deadline=time.monotonic(), **wanted)
    old = path.with_name(f"{path.name}.old")
    assert cut.status == "running" and json.loads(old.read_text())["code"] == "0" * 12
    # the next change begins anew, also where a run was cut
    attrs.evolve(cut, code="1" * 12).save(path)
    whole, _, computed = queue.measure(small(), "adhoc", **wanted)
    assert computed and whole.rounds[0]["metrics"] == record.rounds[0]["metrics"]
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_a_run_by_its_settings_leaves_a_cells_checkpoint_alone(tmp_path):
    queue.measure(small(), "adhoc", out=tmp_path, runtime=Runtime())
    cut = {"out": tmp_path, "runtime": Runtime(), "deadline": time.monotonic()}
    first, _, _ = queue.measure(small(), "fedmk", **cut)
    queue.measure(small(), "adhoc", out=tmp_path, runtime=Runtime())
    assert first.status == "running" and queue.places(small(), "fedmk", tmp_path)[1].exists()


def test_a_run_is_the_books_where_a_table_asks_for_it(tmp_path, monkeypatch):
    """One that was run by its settings is set aside, and imported to the paper of its table."""
    book, own = tmp_path / "results", tmp_path / "own"
    monkeypatch.setattr(record, "RESULTS", book)
    monkeypatch.setattr(queue, "RESULTS", book)
    monkeypatch.setattr(importing, "RESULTS", book)
    asked = small(seed=1)
    for one in (small(), asked):
        queue.measure(one, "adhoc", out=own, runtime=Runtime())
    cell = SimpleNamespace(experiments=(asked,), paper="reference")
    table = SimpleNamespace(cells=lambda profile: [cell])
    monkeypatch.setattr(importing.TableSpec, "all", lambda: [table])
    assert importing.import_records(own) == importing.Imported(new=2, known=0, unfinished=0)
    assert records().keys() == {asked.id} and (book / "adhoc" / f"{small().id}.json").exists()
    assert importing.import_records(own) == importing.Imported(new=0, known=2, unfinished=0)
    # a run that was begun here and ended elsewhere
    here = book / "reference" / f"{asked.id}.json"
    attrs.evolve(Record.load(here), status="running").save(here)
    assert importing.import_records(own) == importing.Imported(new=1, known=1, unfinished=0)
    assert Record.load(here).status == "complete"
    assert queue.measure(small(), "reference", runtime=Runtime())[2]


@pytest.mark.parametrize("way", ["precision", "threads"])
def test_a_check_counts_what_was_computed_in_the_same_way_only(way, tmp_path):
    """It goes on where it was cut; another precision, or number of threads, is another run."""
    threads, ran = torch.get_num_threads(), []
    other = Runtime(precision="bfloat16") if way == "precision" else Runtime()
    try:
        for runtime, number in ((Runtime(), threads), (other, threads + (way == "threads"))):
            torch.set_num_threads(number)
            for _ in range(2):
                ran.append(queue.measure_anew(small(), "adhoc", tmp_path, runtime)[0])
            found = ran[-1].environment
            assert (found["precision"], found["threads"]) == (runtime.precision, number)
    finally:
        torch.set_num_threads(threads)
    # times differ from run to run
    assert ran[0] == ran[1] and ran[2] == ran[3] and ran[1] != ran[2]


def test_the_queue_stops_before_its_time_is_up(tmp_path, monkeypatch):
    """Of more runs than there is time for: 2 seconds, and as many again for a busy machine."""
    many = [
        queue.Pending(attrs.evolve(small(), seed=seed), "adhoc", ("one",), 1)
        for seed in range(10_000)
    ]
    queue.measure(small(), "warm", out=tmp_path, runtime=Runtime())  # what is slow only once
    began = time.monotonic()
    outcomes = [outcome for _, outcome in queue.run_pending(many, 1 / 30, tmp_path, Runtime())]
    assert 1 < time.monotonic() - began < 4 and len(outcomes) < len(many)
    assert {outcome.status for outcome in outcomes} <= {"complete", "running"}


def test_the_queue_goes_on_beside_a_damaged_record(tmp_path):
    items = [
        queue.Pending(attrs.evolve(small(), seed=seed), "adhoc", ("one",), 1) for seed in range(2)
    ]
    path, _ = queue.places(items[0].experiment, "adhoc", tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    assert not queue.failed_before(items[0].experiment, "adhoc", tmp_path)
    assert not queue.done_before(items[0], tmp_path)
    first, second = (outcome for _, outcome in queue.run_pending(items, 5, tmp_path, Runtime()))
    assert "damaged" in str(first) and second.status == "complete"
    assert queue.done_before(items[1], tmp_path)


def test_a_class_that_is_tested_and_never_taught_is_named(tmp_path, monkeypatch):
    """Labels from 0 in one half of the user's file and from 1 in the other."""
    monkeypatch.setenv("FEDCON_DATA", str(tmp_path))
    layouts.npz(tmp_path / "clinic.npz", test_labels=np.arange(6)[:, None] % 3 + 1)
    with pytest.raises(InputError, match="the test set of clinic has class 3, of which"):
        run(attrs.evolve(small(), dataset="clinic"), runtime=Runtime())


def test_a_test_that_gives_no_number_ends_the_run(tmp_path, monkeypatch):
    """A record with it could be read by nobody."""
    monkeypatch.setattr(Task, "evaluate", lambda *_: {"accuracy": float("nan")})
    with pytest.raises(InputError, match="the test after round 1 gives 'accuracy' = nan"):
        run(small(), runtime=Runtime(), record=tmp_path / "r.json")
    found = Record.load(tmp_path / "r.json")
    assert found.status == "failed" and not found.rounds


@pytest.mark.parametrize("given", ["\x1b[31m red", "\x00", "\ud800", "x" * 5000, "two\nlines"])
def test_whatever_ends_a_run_its_record_can_be_read(given, tmp_path, monkeypatch):
    """A damaged one would end every table that looks into its folder."""

    def fail(*_):
        raise InputError(given)

    monkeypatch.setattr(Task, "evaluate", fail)
    with pytest.raises(InputError):
        queue.measure(small(), "adhoc", out=tmp_path, runtime=Runtime())
    assert records(tmp_path) == {} and queue.failed_before(small(), "adhoc", tmp_path)


@pytest.mark.parametrize(
    "metrics", [{"accuracy": 1.5}, {"accuracy": 0.5, "a b": 1.0}, {"loss": 1.0}]
)
def test_a_round_that_no_record_can_hold_ends_the_run_and_is_not_written(
    metrics, tmp_path, monkeypatch
):
    monkeypatch.setattr(Task, "evaluate", lambda *_: metrics)
    with pytest.raises(InputError, match="round 1"):
        run(small(), runtime=Runtime(), record=tmp_path / "r.json")
    found = Record.load(tmp_path / "r.json")
    assert found.status == "failed" and not found.rounds and "round 1" in found.notes[0]


def test_a_record_that_could_not_be_read_is_not_written(tmp_path):
    found = record.new_record(small(), make_task(small(), Runtime()))
    found.notes.append("\x1b")
    with pytest.raises(InputError, match="notes"):
        found.save(tmp_path / "r.json")
    assert not list(tmp_path.iterdir())


def test_a_run_that_another_process_is_at_is_left_to_it(tmp_path):
    """The lock is of the system, so a process that was killed holds none."""
    _, checkpoint = queue.places(small(), "adhoc", tmp_path)
    code = (
        "import sys; from pathlib import Path; from core.files import alone\n"
        "with alone(Path(sys.argv[1]), 'it'): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(checkpoint.with_suffix(".lock"))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=record.REPOSITORY
    ) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(FileError, match="another process"):
            queue.measure(small(), "adhoc", out=tmp_path, runtime=Runtime())
        assert not list(tmp_path.rglob("*.json"))
        other.kill()
    assert queue.measure(small(), "adhoc", out=tmp_path, runtime=Runtime())[2]


def test_a_checkpoint_that_a_kill_left_beside_a_complete_record_goes(tmp_path):
    queue.measure(small(), "adhoc", out=tmp_path, runtime=Runtime())
    _, checkpoint = queue.places(small(), "adhoc", tmp_path)
    attacked = checkpoint.with_suffix(".attack.safetensors")
    checkpoint.write_bytes(b"left")
    attacked.write_bytes(b"left")
    assert not queue.measure(small(), "adhoc", out=tmp_path, runtime=Runtime())[2]
    assert not checkpoint.exists() and not attacked.exists()


def test_the_queue_goes_on_after_an_error_of_any_kind(tmp_path, monkeypatch):
    """Such as of a library that is out of memory: the next run has its turn, and the line says
    which kind it was.
    """
    items = queue.pending("quick", tmp_path)[:3]
    true = queue.run

    def run(experiment, **named):
        if experiment.id == items[0].experiment.id:
            raise RuntimeError("out of memory:\n  tried to allocate")
        if experiment.id == items[1].experiment.id:
            raise MemoryError
        return true(attrs.evolve(small(), seed=experiment.seed), **named)

    monkeypatch.setattr(queue, "run", run)
    first, second, third = (
        outcome for _, outcome in queue.run_pending(items, 5, tmp_path, Runtime())
    )
    assert str(first) == "RuntimeError: out of memory: tried to allocate"
    assert str(second) == "MemoryError" and isinstance(second, InputError)
    assert third.status == "complete"


def test_every_record_of_the_book_stands_for_what_it_ran():
    """A record's experiment gives the settings that the record holds, also where `released()` has
    changed since; a setting that is newer than the record has its default.
    """
    for one in records().values():
        settings = one.experiment.new_algorithm().settings
        now = json.loads(json.dumps(attrs.asdict(settings)))
        newer = {
            field.name: field.default
            for field in attrs.fields(type(settings))
            if field.name not in one.settings
        }
        assert now == one.settings | newer, one.experiment.id


def test_a_method_for_other_data_is_a_mistake_and_leaves_no_record(tmp_path):
    path = tmp_path / "record.json"
    with pytest.raises(InputError, match="is a method for"):
        run(Experiment(algorithm="fedad", dataset="digits", profile="quick"), record=path)
    assert not path.exists()


@pytest.mark.parametrize(
    "partition, said",
    [
        ({"name": "iid"}, "iid"),
        ({"name": "dirichlet", "alpha": 0.05}, "alpha 0.05"),
        ({"name": "file", "file": "splits/of_ten.json"}, "of_ten"),
    ],
)
def test_the_line_of_a_run_names_its_split(partition, said, tmp_path):
    from core.cli.run import _summary

    record = next(iter(records().values()))
    known = attrs.evolve(record, experiment=attrs.evolve(record.experiment, partition=partition))
    head, row, _ = _summary(known, tmp_path).splitlines()
    assert row[head.index("split") :].startswith(said)
