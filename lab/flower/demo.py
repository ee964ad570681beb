"""`make federation-demo`: three hospitals and a server on this machine, from keys to a record.
`make federation-simulation`: the same rounds in Flower's simulation, whose nodes are Ray's workers.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import attrs

from core import data
from core.errors import InputError
from core.federation import Client, Runtime, Task, distribute
from lab.experiment import Experiment
from lab.flower.deployment import Deployment, write_data
from lab.record import Record
from lab.running import run

HOSPITALS = 3
#: images of a hospital, so that the demonstration ends while one looks on
MOST = 300
#: seconds within which the next round must be on record: in the first Flower begins and the nodes come
EACH_ROUND = 900.0
#: two blocks: a third one would leave one pixel of the digits' eight
MODEL = {"width": 32, "depth": 2}


def hospitals() -> tuple[Task, list[Client]]:
    """The three largest centres of HAM10000 where it is at hand, else three parts of the digits."""
    found = {info.name: info for info in data.available()}
    name = "ham10000" if found["ham10000"].present else "digits"
    dataset = data.load(name, size=32 if name == "ham10000" else None)
    task = Task(dataset, "convnet", MODEL, Runtime())
    centres = task.dataset.train.centre
    if centres is None:
        clients = distribute(task, {"name": "dirichlet", "alpha": 0.3}, HOSPITALS, 0)
    else:
        count = int(centres.max()) + 1
        clients = distribute(task, {"name": "natural"}, count, 0)
    largest = sorted(clients, key=len, reverse=True)[:HOSPITALS]
    return task, [
        Client(number, task, client.images[:MOST], client.labels[:MOST])
        for number, client in enumerate(largest)
    ]


def experiment() -> Experiment:
    """A short FedVCK."""
    return Experiment(
        algorithm="fedvck",
        dataset="hospital",
        model_options=MODEL,
        clients=HOSPITALS,
        rounds=3,
        settings={
            "iterations": 80,
            "image_lr": 1.0,
            "clip_norm": 30.0,
            "estimator": "expectation",
            "pool": 1,
            "server_steps": 100,
            "server_lr": 0.01,
        },
        profile="quick",
    )


def alone(task: Task, clients: list[Client]) -> float:
    """The accuracy that the hospitals reach by themselves, on average, with as many batches as the
    server takes.
    """
    together = experiment()
    stated = attrs.evolve(
        together,
        algorithm="standalone",
        settings={"local_steps": together.settings["server_steps"]},
    )
    return run(stated, task=task, clients=clients).metrics["accuracy"]


def follow(deployment: Deployment, path: Path, rounds: int) -> Record:
    """Print a line for every round; the record when it is complete.

    A node that ends is started again, as a service manager would do it: the server takes it back
    when it has missed the old one's sign of life. Raises InputError where the SuperLink ends, and
    where no new round is on record for `EACH_ROUND` seconds.
    """
    shown, again, end = 0, 0.0, time.monotonic() + EACH_ROUND
    while True:
        record = Record.load(path) if path.exists() else None
        for row in record.rounds[shown:] if record else ():
            print(
                f"round {row['round']} of {rounds}: accuracy {100 * row['metrics']['accuracy']:.1f}%, "
                f"{row['up'] / 1000:.0f} kB up, {row['down'] / 1000:.0f} kB down"
            )
            shown, end = shown + 1, time.monotonic() + EACH_ROUND
        if record and record.status != "running":
            return record
        ended = [name for name, one in deployment.processes.items() if one.poll() is not None]
        if "superlink" in ended:
            raise InputError(f"the server ended; see {deployment.folder / 'superlink.log'}")
        if time.monotonic() > end:
            raise InputError(
                f"no new round is on record after {EACH_ROUND:g} s; Flower says: {deployment.status()}"
            )
        if ended and time.monotonic() > again:
            again = time.monotonic() + 5
            for name in ended:
                deployment.node(int(name.removeprefix("node")))
        time.sleep(0.5)


def deployed(here: Deployment) -> Record:
    """Three nodes with keys, each with its own folder; at the end, what a hospital has alone."""
    stated = experiment()
    task, clients = hospitals()
    write_data(here.folder, stated.dataset, task.dataset, clients)
    sizes = ", ".join(str(len(client)) for client in clients)
    print(f"{task.dataset.name}: {sizes} images in three folders; test images at the server")
    here.superlink()
    print(f"SuperLink at {here.port}, with TLS; nodes come with a registered key")
    for number in range(HOSPITALS):
        here.register(number)
        here.node(number)
    record = follow(here, here.run(stated), stated.rounds)
    print(f"a hospital's own model, on average: accuracy {100 * alone(task, clients):.1f}%")
    return record


def simulated(here: Deployment) -> Record:
    """Flower makes the nodes; each takes its part of the digits."""
    partition = {"name": "dirichlet", "alpha": 0.3}
    stated = attrs.evolve(experiment(), dataset="digits", partition=partition)
    here.superlink(simulated=True)
    print(f"SuperLink at {here.port}, with TLS; it simulates {HOSPITALS} hospitals with Ray")
    return follow(here, here.simulate(stated), stated.rounds)


def main(arguments: Sequence[str]) -> int:
    """Everything, and nothing left behind but what was said."""
    how = simulated if "--simulated" in arguments else deployed
    with tempfile.TemporaryDirectory(prefix="federation-") as folder:
        with Deployment(Path(folder)) as here:
            record = how(here)
        print(f"all stopped; {record.status}" + "".join(f"\n{note}" for note in record.notes))
        return 0 if record.status == "complete" else 1


if __name__ == "__main__":
    # whoever ends this ends the processes of the federation too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main(sys.argv[1:]))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
