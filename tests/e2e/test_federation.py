"""A real federation on this machine: a SuperLink and three SuperNodes as processes, with TLS and node
authentication. One of the nodes is killed in the middle of a round, and a stranger knocks. And the same in
Flower's simulation.
"""

import os
import signal
import threading
import time

import attrs
import pytest

from core.federation import Runtime
from lab import Experiment, run

pytest.importorskip("flwr", reason="Flower is not installed: `make machines` installs it")

from lab.flower.deployment import Deployment, write_data
from lab.running import make_clients, make_task

#: moon's clients remember their last model
EXPERIMENT = Experiment(
    algorithm="moon",
    dataset="hospital",
    model_options={"width": 8},
    clients=3,
    rounds=2,
    settings={"local_steps": 20},
    profile="quick",
)
PARTITION = {"name": "dirichlet", "alpha": 0.5}


def wait_for(ready, seconds: float = 500) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, "it did not come to that in time"
        time.sleep(0.1)


@pytest.mark.timeout(900)
def test_a_killed_node_comes_back_and_the_record_is_that_of_one_process(tmp_path):
    stated = attrs.evolve(EXPERIMENT, dataset="digits", partition=PARTITION)
    task = make_task(stated, Runtime())
    clients = make_clients(stated, task)
    with Deployment(tmp_path) as here:
        write_data(tmp_path, "hospital", task.dataset, clients)
        here.superlink()
        for number in range(3):
            here.register(number)
            here.node(number)
        # a key that was never registered
        (tmp_path / "node9").mkdir()
        here.node(9)
        assert {one.stat().st_mode & 0o77 for one in tmp_path.glob("*.key")} == {0}
        wait_for(lambda: here.processes["node9"].poll() is not None)
        assert "ctivate" in (tmp_path / "node9.log").read_text(errors="replace")
        del here.processes["node9"]

        ended = threading.Event()

        def kill() -> None:
            """In the second round the first node has a memory to lose. It comes back as soon as the SuperLink
            notices that it was away.
            """
            wait_for(lambda: any((tmp_path / "records").glob("adhoc/*.json")))
            os.killpg(here.processes["node0"].pid, signal.SIGKILL)
            while not ended.wait(5):
                if here.processes["node0"].poll() is not None:
                    here.node(0)

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            config = {"timeout": 30.0, "server-data": str(tmp_path / "server")}
            record = here.run(EXPERIMENT, **config)
        finally:
            ended.set()
            killer.join()
        groups = [process.pid for process in here.processes.values()]
    assert record.status == "complete"
    beside = run(EXPERIMENT, task=task, clients=clients)
    assert [row["metrics"] for row in record.rounds] == [row["metrics"] for row in beside.rounds]
    assert [row["up"] for row in record.rounds] == [row["up"] for row in beside.rounds]
    assert any("client 0 does not answer; round 2 waits for it" in note for note in record.notes)
    for group in groups:
        with pytest.raises(ProcessLookupError):
            os.killpg(group, 0)


@pytest.mark.timeout(600)
def test_a_simulated_run_ends_with_the_record_of_one_process(tmp_path):
    stated = attrs.evolve(EXPERIMENT, dataset="digits", partition=PARTITION)
    with Deployment(tmp_path) as here:
        here.superlink(simulated=True)
        record = here.run(stated, "--federation-config", "num-supernodes=3")
    beside = run(stated, runtime=Runtime())
    assert record.status == "complete"
    assert [row["metrics"] for row in record.rounds] == [row["metrics"] for row in beside.rounds]
    assert [row["up"] for row in record.rounds] == [row["up"] for row in beside.rounds]
