"""The queue: what waits in which order, and what becomes of the files of a run."""

import json
import time

import attrs
import pytest
import torch

from core.errors import InputError
from core.federation import Runtime
from core.files import Busy, FileError, alone
from lab import Record, TableSpec, queue
from lab.__main__ import main
from tests.data import layouts
from tests.lab.small_runs import measured, put, small, written


def measure(out, experiment=None, **named):
    return queue.measure(experiment or small(), "adhoc", out=out, runtime=Runtime(), **named)


def waiting(*experiments) -> list[queue.Pending]:
    return [queue.Pending(one, "adhoc", (f"cell {i}",), i) for i, one in enumerate(experiments)]


# --- what waits


@pytest.fixture(scope="module")
def quick(tmp_path_factory) -> list[queue.Pending]:
    """What waits at the profile where nothing is on record."""
    return queue.pending("quick", tmp_path_factory.mktemp("nothing"))


def test_the_queue_holds_each_run_once_and_leaves_out_what_is_done(quick, tmp_path):
    for item in quick[::40]:
        leads = [TableSpec.find_cell(cell, "quick").experiments for cell in item.cells]
        assert all(item.experiment in runs for runs in leads)
    ids = [item.experiment.id for item in quick]
    assert len(ids) == len(set(ids)) > 0
    seeds = [item.experiment.seed for item in quick]
    assert seeds == sorted(seeds)
    first = quick[0].experiment
    measure(tmp_path, first)
    after = [item.experiment.id for item in queue.pending("quick", tmp_path)]
    assert set(ids) - set(after) == {first.id}


@pytest.mark.parametrize(
    ("only", "address"),
    [
        ("FedMK/1/", "fedmk/1"),
        ("fedmk/2/w/o iteration/cifar10-0.5", "fedmk/2/w-o-iteration/cifar10-0.5"),
        ("fedmk/5/tau=1/", "fedmk/5/tau-1"),  # and not tau-10
    ],
)
def test_the_queue_of_a_table_or_a_cell_as_it_is_shown_or_typed(only, address, quick, tmp_path):
    some = queue.pending("quick", tmp_path, only)
    assert 0 < len(some) < len(quick)
    cells = [f"{cell.lower()}/" for one in some for cell in one.cells]
    assert all(cell.startswith(f"{address}/") for cell in cells)
    assert some == queue.pending("quick", tmp_path, address)
    of_one = queue.pending("quick", tmp_path, "feddm")
    assert {item.experiment.algorithm for item in of_one} == {"feddm"}


def test_a_table_is_run_at_the_profiles_that_it_names(tmp_path, monkeypatch):
    """The sweep of budgets has runs at `converged`; a choice of settings, none."""
    both = [TableSpec.find("fedvck", "budgets"), TableSpec.find("reference", "tuning")]
    some = [*both, *TableSpec.of_paper("fedmk")]
    monkeypatch.setattr(TableSpec, "all", lambda **named: some)
    for profile, ladder, tuning in (("converged", True, False), ("laptop", False, True)):
        items = queue.pending(profile, tmp_path)
        tables = {cell.rsplit("/", 2)[0] for item in items for cell in item.cells}
        assert ("fedvck/budgets" in tables, "reference/tuning" in tables) == (ladder, tuning)
    # whoever names a table or a cell has it
    assert queue.pending("converged", tmp_path, "reference/tuning")
    assert not queue.pending("converged", tmp_path, "fedmk")
    assert not queue.pending("converged", tmp_path, "FedMK/")


def test_a_damaged_record_of_another_table_does_not_stop_the_queue(tmp_path):
    before = queue.pending("quick", tmp_path, "fedmk/1")
    other = TableSpec.find("gddfl", 1).cells("quick")[0].experiments[0]
    put(tmp_path, "{", f"{other.id}.json", "gddfl")
    assert queue.pending("quick", tmp_path, "fedmk/1") == before
    with pytest.raises(InputError, match=other.id):
        queue.pending("quick", tmp_path, "gddfl/1")


class Held(dict):
    """Records that are no files."""

    def readable(self):
        return list(self.values())


@pytest.fixture
def held(tmp_path, monkeypatch):
    """A function that says what waits of FedMK's Table 1 where these runs are on record."""
    one = measured(tmp_path)

    def of(profile, *runs):
        known = Held({run.id: attrs.evolve(one, experiment=run) for run in runs})
        monkeypatch.setattr(queue, "records", lambda root: known)
        return queue.pending(profile, tmp_path, "fedmk/1")

    return of


def test_a_run_that_another_profile_has_on_record_is_not_waited_for(held):
    """The baselines of FedMK's Table 1 take no less at `converged` than at `paper`."""
    items = held("converged")
    some = next(item.experiment for item in items if item.experiment.algorithm == "fedavg")
    for profile in ("paper", "laptop"):
        assert len(held("converged", attrs.evolve(some, profile=profile))) == len(items) - 1
    other = attrs.evolve(some, profile="paper", rounds=some.rounds + 1)
    assert len(held("converged", other)) == len(items)


# --- one run and its files


def test_what_was_measured_is_not_measured_again(tmp_path):
    path = put(tmp_path, written())
    _, checkpoint = queue.places(small(), "adhoc", tmp_path)
    left = [checkpoint.with_suffix(f"{kind}.safetensors") for kind in ("", ".attack")]
    for one in left:  # by a kill
        one.parent.mkdir(parents=True, exist_ok=True)
        one.write_bytes(b"left")
    stamp = path.stat().st_mtime_ns
    assert measure(str(tmp_path)) == (Record.load(path), path, False)
    assert path.stat().st_mtime_ns == stamp and not any(one.exists() for one in left)


def test_a_failed_run_is_tried_again_only_with_other_code(tmp_path, monkeypatch):
    diverging = small(settings={"local_steps": 20, "lr": 1e30})
    assert not queue.failed_before(diverging, "adhoc", tmp_path)
    with pytest.raises(InputError, match="not finite"):
        measure(tmp_path, diverging)
    assert queue.failed_before(diverging, "adhoc", tmp_path)
    monkeypatch.setattr(queue, "code_version", lambda name: "other")
    assert not queue.failed_before(diverging, "adhoc", tmp_path)


def test_a_file_that_holds_another_run_is_named_and_not_taken_for_this_one(tmp_path):
    wrong = put(tmp_path, written(1), f"{small().id}.json")
    with pytest.raises(InputError, match=f"{wrong.name} holds another run, {small(seed=1).id}"):
        measure(tmp_path)


def test_a_check_leaves_the_files_of_one_that_is_running_alone(tmp_path):
    """Nothing is removed before the lock is held."""
    environment = json.loads(written())["environment"]
    other = measured(tmp_path, environment=environment | {"torch": "another"})
    path, checkpoint = queue.places(small(), "adhoc", tmp_path)
    with alone(checkpoint.with_suffix(".lock"), "this test"), pytest.raises(Busy, match="another"):
        queue.measure_anew(small(), "adhoc", tmp_path, Runtime())
    assert Record.load(path) == other
    anew, _, computed = queue.measure_anew(small(), "adhoc", tmp_path, Runtime())
    assert computed and anew.environment == environment
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_what_other_code_left_stays_until_there_is_something_in_its_place(tmp_path):
    """An algorithm of one's own is changed; also where a run of it was cut."""
    code = json.loads(written())["code"]
    measured(tmp_path, code="0" * 12)
    stale = {"stale": lambda one: one.code != code}
    cut, path, _ = measure(tmp_path, deadline=time.monotonic(), **stale)
    old = path.with_name(f"{path.name}.old")
    assert cut.status == "running" and json.loads(old.read_text())["code"] == "0" * 12
    attrs.evolve(cut, code="1" * 12).save(path)
    whole, _, computed = measure(tmp_path, **stale)
    assert computed and whole.metrics == json.loads(written())["metrics"]
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_runs_of_no_table_have_checkpoints_of_their_own():
    """A run by its settings leaves a cell's alone."""
    assert queue.places(small(), "fedmk")[1] != queue.places(small(), "adhoc")[1]


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


# --- a name may stand for other data tomorrow


def own_set(path, more: int) -> None:
    """A data set of the user's own of three classes and more."""
    layouts.npz(path, 16, labels=3 + more)


def dealt(path, samples: int) -> None:
    """A split file that gives so many samples to two clients in turn."""
    path.write_text(json.dumps({"client_idx": [list(range(k, samples, 2)) for k in range(2)]}))


INPUTS = {
    "hospital": ({"dataset": "hospital"}, "hospital.npz", own_set, (0, 1)),
    "own28": (
        {"algorithm": "feddf", "dataset": "hospital"}
        | {"settings": {"local_steps": 1, "auxiliary": "own28", "pool": 8, "distill_steps": 1}},
        *("own28.npz", own_set, (0, 1)),
    ),
    "split.json": (
        {"partition": {"name": "file", "file": "split.json"}},
        *("split.json", dealt, (60, 30)),
    ),
}


@pytest.mark.parametrize("name", INPUTS)
def test_an_input_that_changed_is_noticed(name, tmp_path, monkeypatch):
    """By a run that goes on, and where the old number would be given as the new one's."""
    fields, file, write, (before, after) = INPUTS[name]
    monkeypatch.setenv("FEDCON_DATA", str(tmp_path))
    own_set(tmp_path / "hospital.npz", 0)
    experiment, path, out = small(**fields), tmp_path / file, tmp_path / "out"
    write(path, before)
    found, place, _ = measure(out, experiment)
    assert len(found.fingerprints[name]) == 64 and not measure(out, experiment)[2]
    assert measure(tmp_path / "cut", experiment, deadline=time.monotonic())[0].status == "running"
    write(path, after)
    with pytest.raises(InputError, match=f"{name} has changed since .* delete {place}"):
        measure(out, experiment)
    with pytest.raises(FileError, match="was begun with"):
        measure(tmp_path / "cut", experiment)
    write(path, before)
    assert measure(tmp_path / "cut", experiment)[0].metrics == found.metrics
    path.unlink()  # nothing to compare with: the record stands
    assert measure(out, experiment)[0] == found


# --- many runs


def test_a_queue_in_which_a_run_failed_ends_with_status_1(tmp_path, monkeypatch, capsys):
    """After the others had their turn; also when it is not tried again. The same command again counts
    what the folder holds.
    """
    items = waiting(small(settings={"local_steps": 20, "lr": 1e30}), small(seed=1))
    monkeypatch.setattr(queue, "pending", lambda profile, only=None: items)
    asked = ["run", "--pending", "--profile", "quick", "--out", str(tmp_path)]
    for _ in range(2):
        assert main(asked) == 1
        assert "failed" in capsys.readouterr().out.splitlines()[-1]
    items[:1] = []
    assert main(asked) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "nothing is pending here"
