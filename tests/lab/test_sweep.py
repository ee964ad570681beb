"""Many runs at once leave the records of runs one after the other, whatever becomes of the workers."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from core.errors import InputError
from core.files import FileError, alone
from lab import Experiment, queue
from lab.queue import Pending
from lab.ray import LOSSES, Lost, Progress, perform, sweep, workers
from lab.ray.local import LocalWorkers, ThisProcess
from lab.source import code_version

ROOT = Path(__file__).parents[2]


def item(seed: int = 0, **stated) -> Pending:
    given = {"rounds": 2, "settings": {"local_steps": 2}, "model_options": {"width": 4}}
    given |= {"algorithm": "fedavg", "dataset": "digits", "clients": 3, "profile": "quick"}
    return Pending(Experiment(**given | stated, seed=seed), "adhoc", (f"cell {seed}",), 0)


def diverging() -> Pending:
    return item(9, settings={"local_steps": 2, "lr": 1e30})


def rows(path: Path) -> list:
    return json.loads(path.read_text())["rounds"] if path.exists() else []


def records(out: Path) -> dict[str, dict]:
    """Without what may differ: times, memory, and the number of threads."""
    found = {path.name: json.loads(path.read_text()) for path in (out / "adhoc").glob("*.json")}
    for record in found.values():
        del record["peak_memory"], record["environment"]["threads"]
        for row in record["rounds"]:
            del row["seconds"]
    return found


def run(items, where, out: Path, **options) -> list[Progress]:
    """How the items stand at the end, in their order."""
    told = list(sweep(items, where, out, "cpu", "float32", **options))
    last = {one.item.experiment.id: one for one in told}
    return [last.get(one.experiment.id, Progress(one)) for one in items]


def serial(items, out: Path, workers: int = 1) -> list[Progress]:
    """In this process, with as many threads as one of so many workers has: convolutions differ in their
    last bits.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // workers))
    try:
        return run(items, ThisProcess(), out)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.timeout(300)
def test_two_local_workers_leave_the_records_of_a_serial_run(tmp_path):
    items = [item(0), diverging(), item(1), item(2)]
    for table in (
        serial(items, tmp_path / "serial", workers=2),
        run(items, workers("local:2"), tmp_path / "sweep"),
    ):
        assert [one.state for one in table] == ["complete", "failed", "complete", "complete"]
        assert [one.item for one in table] == items
        assert "diverge" in table[1].reason or "finite" in table[1].reason
        assert "round 2 of 2  accuracy " in str(table[0])
    assert records(tmp_path / "sweep") == records(tmp_path / "serial")
    assert len(records(tmp_path / "sweep")) == 4


def when(ready, act) -> threading.Thread:
    """Do something as soon as something is so, aside."""

    def watch() -> None:
        while not ready():
            time.sleep(0.005)
        act()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


@pytest.mark.timeout(300)
def test_a_run_whose_worker_is_killed_goes_on_from_its_last_round(tmp_path):
    one, where, before = item(0, rounds=6, settings={"local_steps": 20}), workers("local:1"), []
    path, _ = queue.places(one.experiment, "adhoc", tmp_path / "sweep")

    def kill() -> None:
        (process,) = where._pools[0]._processes.values()
        os.kill(process.pid, signal.SIGKILL)
        before.extend(rows(path))

    killer = when(lambda: rows(path), kill)
    (end,) = run([one], where, tmp_path / "sweep")
    killer.join()
    assert (end.state, end.losses) == ("complete", 1)
    # times differ from run to run, so equal ones were not measured twice
    kept = min(len(before), 5) - 1  # the last may be of a round whose checkpoint was not written
    assert [row["seconds"] for row in rows(path)[:kept]] == [
        row["seconds"] for row in before[:kept]
    ]
    serial([one], tmp_path / "serial")
    assert records(tmp_path / "sweep") == records(tmp_path / "serial")


class Book:
    """Workers on paper: they note what they are given and lose what they are told to lose."""

    def __init__(self, capacity, lose=(), raises=None):
        self.capacity, self.lose, self.raises = capacity, list(lose), raises
        self.begun, self.stopped = [], False

    def submit(self, job):
        (item,) = job.args
        self.begun.append(item.experiment.seed)
        return len(self.begun) - 1

    def finished(self, handles, seconds):
        if self.raises:
            raise self.raises
        seed = self.begun[handles[0]]
        if seed in self.lose:
            self.lose.remove(seed)
            return [(handles[0], Lost())]
        return [(handles[0], "no")]

    def stop(self):
        self.stopped = True


def test_the_order_of_the_queue_is_kept_and_a_lost_run_is_the_next(tmp_path):
    where = Book(2, lose=[1])
    table = run([item(seed) for seed in range(5)], where, tmp_path)
    assert where.begun == [0, 1, 2, 1, 3, 4] and where.stopped
    assert [one.losses for one in table] == [0, 1, 0, 0, 0]
    where = Book(1, lose=[0] * (LOSSES + 1))
    (one,) = run([item(0)], where, tmp_path)
    assert where.begun == [0] * (LOSSES + 1)
    assert one.state == "failed" and "lost" in str(one) and "\n" not in str(one)


def test_a_sweep_stops_its_workers_however_it_ends(tmp_path, monkeypatch):
    """Time is up, Ctrl-C, nobody there, other code: that is said once, and not with every run left."""
    where = Book(1)
    (one,) = run([item(0)], where, tmp_path, until=time.time() - 1)
    assert one.state == "queued" and where.begun == [] and where.stopped
    for where, error in (
        (Book(1, raises=KeyboardInterrupt), KeyboardInterrupt),
        (Book(0), InputError),
        (Book(-1), InputError),
    ):
        with pytest.raises(error):
            run([item(0)], where, tmp_path)
        assert where.stopped
    where = Book(1)
    table = sweep([item(0), item(1)], where, tmp_path, "cpu", "float32")
    assert [next(table).state, next(table).state] == ["running", "failed"]
    monkeypatch.setattr("lab.source.source", dict)
    with pytest.raises(FileError, match="program changed"):
        next(table)
    assert where.begun == [0] and where.stopped


def test_the_queue_goes_on_after_an_error_of_any_kind(tmp_path, monkeypatch):
    """A damaged record, a run that another process is at, an error of a library, no memory, and a file
    that belongs to another run: the next one has its turn, and a line says which kind it was.
    """
    items, measure = [item(seed) for seed in range(6)], queue.measure
    path, _ = queue.places(items[0].experiment, "adhoc", tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text('{"id": ')
    assert not queue.failed_before(items[0].experiment, "adhoc", tmp_path)
    errors = {2: RuntimeError("out of memory:\n  tried"), 3: MemoryError(), 4: FileError("begun")}

    def failing(experiment, *given, **named):
        assert 0 < named["deadline"] - time.monotonic() <= 600
        if error := errors.get(experiment.seed):
            raise error
        return measure(experiment, *given, **named)

    monkeypatch.setattr("lab.ray.measure", failing)
    lock = queue.places(items[1].experiment, "adhoc", tmp_path)[1].with_suffix(".lock")
    with alone(lock, "this test"):
        table = run(items, ThisProcess(), tmp_path, until=time.time() + 600)
    states = ["failed", "cut", "failed", "failed", "stuck", "complete"]
    assert [one.state for one in table] == states
    told = ["damaged", "another process is at", "RuntimeError: out of memory: tried", "MemoryError"]
    for one, words in zip(table, [*told, "begun", "accuracy"], strict=True):
        assert words in str(one) and "\n" not in str(one)


def test_a_worker_that_is_lost_while_idle_has_a_new_one_in_its_place():
    where, outcomes = LocalWorkers(1), []
    for _ in range(3):
        ((_, outcome),) = where.finished([where.submit(os.getpid)], 100)
        outcomes.append(outcome)
        if len(outcomes) == 1:
            os.kill(outcome, signal.SIGKILL)
            while not where._pools[0]._broken:
                time.sleep(0.01)
    where.stop()
    assert isinstance(outcomes[1], Lost) and outcomes[2] not in (outcomes[0], os.getpid())


def test_a_worker_with_other_code_than_the_caller_refuses(tmp_path):
    how = item(0), tmp_path, "cpu", "float32", None
    assert "program changed" in str(perform(*how, "0" * 12))
    assert not list(tmp_path.iterdir())
    assert perform(*how, code_version()).code == code_version("fedavg")


LONG = """
import signal
import sys
from lab.__main__ import main
from lab import Experiment, queue

if __name__ == "__main__":
    # tests that a shell runs in the background ignore the signal, and so would this
    signal.signal(signal.SIGINT, signal.default_int_handler)
    long = Experiment(algorithm="fedavg", dataset="digits", rounds=10**6, evaluate_every=10**6)
    queue.pending = lambda profile, only=None: [queue.Pending(long, "adhoc", ("cell",), 0)]
    sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.timeout(300)
def test_ctrl_c_on_the_command_line_leaves_no_process(tmp_path):
    (tmp_path / "long.py").write_text(LONG)
    options = ["--device", "cpu", "--out", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, tmp_path / "long.py", "run", "--pending", "--on", "local:1", *options],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    while not list(tmp_path.glob("adhoc/*.json")) and process.poll() is None:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does: all of the group get it
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "goes on where it stopped" in said, said
    assert "Traceback" not in said and "leaked" not in said
    with pytest.raises(ProcessLookupError):  # the last of them needs a moment
        for _ in range(300):
            os.killpg(process.pid, 0)
            time.sleep(0.1)


def test_shards_part_the_queue():
    items = [item(seed).experiment for seed in range(60)]
    parts = [{e.id for e in items if queue.in_shard(e, f"{part}/4")} for part in range(1, 5)]
    assert sum(map(len, parts)) == 60 == len(set.union(*parts)) and all(parts)
    for bad in ("0/4", "5/4", "3", "a/4", "-1/4", "1/0", ""):
        with pytest.raises(InputError, match="PART/PARTS"):
            queue.in_shard(items[0], bad)


@pytest.mark.parametrize(
    ("place", "share", "said"),
    [
        *((text, None, "local:2") for text in ("local", "local:0", "local:x", "slurm", "rays", "")),
        *(("ray", share, "must be a") for share in (-1.0, float("nan"))),
        ("ray", None, r"pip install .*\[ray\]"),
    ],
)
def test_places_that_are_none_are_refused_in_one_line(place, share, said, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=said):
        workers(place, share)


@pytest.fixture
def cluster(monkeypatch):
    """Two real raylets on this machine, with one CPU each."""
    pytest.importorskip(
        "ray", reason="Ray is not installed: make machines, or pip install -e '.[ray]'"
    )
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_worker_niceness", "0")  # on a busy machine others would never run
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    here = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    here.second = here.add_node(**node)
    yield here
    here.shutdown()


@pytest.mark.timeout(500)  # many processes begin and one dies: long on a busy machine
def test_ray_survives_the_loss_of_a_node(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    items = [item(seed, rounds=6, settings={"local_steps": 60}) for seed in range(3)]
    items.insert(1, diverging())
    where = workers("ray")
    assert where.capacity == 2
    paths = [queue.places(one.experiment, "adhoc", tmp_path / "ray")[0] for one in items]
    killer = when(
        lambda: sum(0 < len(rows(path)) < 6 for path in paths) > 1,  # both nodes are busy
        lambda: cluster.remove_node(cluster.second, allow_graceful=False),
    )
    table = run(items, where, tmp_path / "ray")
    killer.join(1)
    assert not killer.is_alive()
    assert [one.state for one in table] == ["complete", "failed", "complete", "complete"]
    assert sum(one.losses for one in table) == 1
    serial(items, tmp_path / "serial")
    assert records(tmp_path / "ray") == records(tmp_path / "serial")
