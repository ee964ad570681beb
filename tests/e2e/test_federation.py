"""A real federation on this machine: a SuperLink and three SuperNodes as processes, with TLS and node
authentication. One of the nodes is killed in the middle of a round, and a stranger knocks. And the same in
Flower's simulation.
"""

import json
import os
import signal
import subprocess
import time

import attrs
import pytest

from core.errors import InputError
from core.federation import Runtime
from lab import Experiment, run

pytest.importorskip("flwr", reason="Flower is not installed: `make machines` installs it")

from lab.flower.demo import follow
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


def said(deployment: Deployment, name: str) -> str:
    path = deployment.folder / f"{name}.log"
    return path.read_text(errors="replace") if path.exists() else ""


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
        path = here.run(EXPERIMENT, **{"timeout": 30.0, "server-data": str(tmp_path / "server")})
        wait_for(lambda: here.processes["node9"].poll() is not None)
        assert "ctivate" in said(here, "node9")
        del here.processes["node9"]
        # in the second round the first node has a memory to lose
        wait_for(path.exists)
        os.killpg(here.processes["node0"].pid, signal.SIGKILL)
        record = follow(here, path, 2)
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
        record = follow(here, here.run(stated, "--federation-config", "num-supernodes=3"), 2)
    beside = run(stated, runtime=Runtime())
    assert record.status == "complete"
    assert [row["metrics"] for row in record.rounds] == [row["metrics"] for row in beside.rounds]
    assert [row["up"] for row in record.rounds] == [row["up"] for row in beside.rounds]


@pytest.mark.timeout(60)
def test_a_server_that_fails_before_its_first_round_is_not_waited_for(tmp_path, monkeypatch):
    """Its ServerApp ends and the SuperLink goes on; what Flower 1.41 answers to `flwr ls`."""
    run = {"status": "finished:failed", "status-details": "ServerApp failed: clients [0] are away"}
    answer = subprocess.CompletedProcess([], 0, json.dumps({"success": True, "runs": [run]}), "")
    monkeypatch.setattr("lab.flower.deployment.subprocess.run", lambda *_, **__: answer)
    monkeypatch.setattr("lab.flower.demo.EACH_ROUND", 1.0)
    said = r"no new round is on record after 1 s; Flower says: finished:failed, .*\[0\] are away"
    with pytest.raises(InputError, match=said):
        follow(Deployment(tmp_path), tmp_path / "record.json", 3)
