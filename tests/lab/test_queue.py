"""The queue: what waits in which order, and what becomes of the files of a run."""

import json
import subprocess
import sys
import time

import attrs
import pytest
import torch

from core.errors import InputError
from core.federation import Runtime
from core.files import Busy, FileError, alone
from lab import Record, TableSpec, queue, record, records
from tests.lab.small_runs import small


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
    assert not [path for path in (tmp_path / "checkpoints").rglob("*") if path.is_file()]


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


@pytest.mark.parametrize(
    "shown, address",
    [
        ("fedmk/2/w/o iteration/cifar10-0.5", "fedmk/2/w-o-iteration/cifar10-0.5"),
        ("fedmk/2/w/o iteration", "fedmk/2/w-o-iteration"),
        ("fedmk/5/tau=1/", "fedmk/5/tau-1"),  # and not tau-10
    ],
)
def test_a_name_may_be_as_the_table_shows_it(shown, address, tmp_path):
    some = queue.pending("quick", tmp_path, shown)
    assert some and all(f"{cell}/".startswith(f"{address}/") for one in some for cell in one.cells)
    assert some == queue.pending("quick", tmp_path, address)


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


class Held(dict):
    """Records that are no files."""

    def readable(self):
        return list(self.values())


def test_a_damaged_record_of_another_table_does_not_stop_the_queue(tmp_path):
    before = [item.experiment.id for item in queue.pending("quick", tmp_path, "fedmk/1")]
    (tmp_path / "gddfl").mkdir()
    other = TableSpec.find("gddfl", 1).cells("quick")[0].experiments[0]
    (tmp_path / "gddfl" / f"{other.id}.json").write_text("{")
    assert [item.experiment.id for item in queue.pending("quick", tmp_path, "fedmk/1")] == before
    with pytest.raises(InputError, match=other.id):
        queue.pending("quick", tmp_path, "gddfl/1")


def test_runs_that_a_larger_budget_has_answered_come_last(tmp_path, monkeypatch):
    cells = TableSpec.find("fedmk", 1).cells("laptop")
    record, *_ = queue.measure(small(), "adhoc", out=tmp_path, runtime=Runtime())
    for known, last in ((cells[0].experiments, True), (cells[0].experiments[:1], False)):
        monkeypatch.setattr(
            queue, "records", lambda root, runs=known: Held({r.id: record for r in runs})
        )
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
        monkeypatch.setattr(
            queue, "records", lambda root, done=done: Held({done.experiment.id: done})
        )
        assert len(queue.pending("converged", tmp_path, "fedmk/1")) == len(waiting) - 1
    other = attrs.evolve(some, profile="paper", rounds=some.rounds + 1)
    monkeypatch.setattr(
        queue, "records", lambda root: Held({other.id: attrs.evolve(record, experiment=other)})
    )
    assert len(queue.pending("converged", tmp_path, "fedmk/1")) == len(waiting)


def test_a_failed_run_is_tried_again_only_with_other_code(tmp_path, monkeypatch):
    diverging = attrs.evolve(small(), settings={"local_steps": 20, "lr": 1e30})
    assert not queue.failed_before(diverging, "adhoc", tmp_path)
    with pytest.raises(InputError, match="not finite"):
        queue.measure(diverging, "adhoc", out=tmp_path, runtime=Runtime())
    assert queue.failed_before(diverging, "adhoc", tmp_path)
    monkeypatch.setattr(queue, "code_version", lambda name: "other")
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
    attacked = [checkpoint.with_suffix(f".attack{kind}.safetensors") for kind in ("", ".rounds")]
    for path in (checkpoint, *attacked):
        path.write_bytes(b"left")
    assert not queue.measure(small(), "adhoc", out=tmp_path, runtime=Runtime())[2]
    assert not any(path.exists() for path in (checkpoint, *attacked))


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
