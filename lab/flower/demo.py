"""`make federation-demo`: three hospitals and a server on this machine, from keys to a record.
`make federation-simulation`: the same rounds in Flower's simulation, whose nodes are Ray's workers.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

import attrs

from core.errors import InputError
from core.federation import Runtime
from lab.experiment import Experiment
from lab.flower.deployment import Deployment, write_data
from lab.record import REPOSITORY, Record
from lab.running import make_clients, make_task, run


def experiment() -> Experiment:
    """The run that the app of `hospitals/` has: a short FedVCK on digits."""
    project = tomllib.loads((REPOSITORY / "hospitals" / "pyproject.toml").read_text())
    return Experiment.from_dict(json.loads(project["tool"]["flwr"]["app"]["config"]["experiment"]))


def run_deployed(deployment: Deployment) -> Record:
    """Three nodes with keys, each with its part of the digits in a folder of its own; at the end, what a
    hospital reaches alone, on average, with as many batches as the server takes.
    """
    digits = experiment()
    stated = attrs.evolve(digits, dataset="hospital", partition={"name": "iid"})
    task = make_task(digits, Runtime())
    clients = make_clients(digits, task)
    write_data(deployment.folder, stated.dataset, task.dataset, clients)
    sizes = ", ".join(str(len(client)) for client in clients)
    print(f"{sizes} images in {len(clients)} folders; test images at the server")
    deployment.superlink()
    print(f"SuperLink at {deployment.port}, with TLS; nodes come with a registered key")
    for client in clients:
        deployment.register(client.id)
        deployment.node(client.id)
    server = str(deployment.folder / "server")
    record = deployment.run(stated, **{"server-data": server})
    steps = {"local_steps": stated.settings["server_steps"]}
    alone = attrs.evolve(digits, algorithm="standalone", settings=steps)
    own = run(alone, task=task, clients=clients).metrics["accuracy"]
    print(f"a hospital's own model, on average: accuracy {100 * own:.1f}%")
    return record


def run_simulated(deployment: Deployment) -> Record:
    """Flower makes the nodes; each takes its part of the digits."""
    stated = experiment()
    deployment.superlink(simulated=True)
    print(f"SuperLink at {deployment.port}, with TLS; Ray simulates {stated.clients} hospitals")
    return deployment.run(stated, "--federation-config", f"num-supernodes={stated.clients}")


def main(arguments: Sequence[str]) -> int:
    """Run a demonstration, and leave nothing behind but its output."""
    how = run_simulated if "--simulated" in arguments else run_deployed
    with tempfile.TemporaryDirectory(prefix="federation-") as folder:
        with Deployment(Path(folder)) as deployment:
            record = how(deployment)
        for row in record.rounds:
            print(
                f"round {row['round']}: accuracy {100 * row['metrics']['accuracy']:.1f}%, "
                f"{row['up'] / 1000:.0f} kB up, {row['down'] / 1000:.0f} kB down"
            )
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
