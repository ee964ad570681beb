"""A whole federation on this machine: a SuperLink and SuperNodes as processes, with TLS and node
authentication, which talk over the loopback address only.

In a real one every institution makes its own key and hands out the public half only, and the
server's certificate comes from an authority that all trust.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch

from core.data import Dataset
from core.data.npz import write_npz
from core.errors import InputError
from core.federation import Client
from lab.experiment import Experiment
from lab.record import ADHOC, REPOSITORY, Record

HOST = "127.0.0.1"
#: a certificate for this machine's own address, which is its own authority, for a day
CERTIFICATE = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:secp384r1 -nodes -days 1 -subj "
    "/CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout server.key -out server.pem"
)
#: a node's key, as Flower's documentation has it
NODE_KEY = ("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", "", "-f")
#: seconds within which a SuperLink has to listen
STARTS = 120.0


def free_port() -> int:
    """A port of this machine that nobody uses now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def write_data(folder: Path, name: str, dataset: Dataset, clients: Sequence[Client]) -> None:
    """Each hospital's images in `node0`, `node1`, …, the test images in `server`; one black image stands
    where the layout asks for some and there are none.
    """
    test = dataset.test
    black = torch.zeros_like(test.images[:1]), torch.zeros(1, dtype=torch.int64)
    parts = {"server": (black, (test.images, test.labels))}
    for client in clients:
        parts[f"node{client.id}"] = (client.images.cpu(), client.labels.cpu()), black
    for place, halves in parts.items():
        arrays = {"classes": np.array(dataset.classes)}
        for word, (images, labels) in zip(("train", "test"), halves, strict=True):
            arrays[f"{word}_images"] = images.permute(0, 2, 3, 1).numpy()
            arrays[f"{word}_labels"] = labels[:, None].numpy()
        (folder / place).mkdir(parents=True, exist_ok=True)
        write_npz(folder / place / f"{name}.npz", arrays)


class Deployment:
    """The processes of a federation, below a folder; leaving the block stops them all."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.processes: dict[str, subprocess.Popen] = {}
        self.environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONPATH": str(REPOSITORY),
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_worker_niceness": "0",  # Ray's 15 lets simulated nodes starve on a busy machine
        }

    def __enter__(self) -> Self:
        self.command(*CERTIFICATE.split())
        (self.folder / "flwr").mkdir(exist_ok=True)
        (self.folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "demo"\n\n[superlink.demo]\naddress = "{HOST}:{self.port}"\n'
            f"root-certificates = {json.dumps(str(self.folder / 'server.pem'))}\n"
        )
        return self

    def __exit__(self, *error: object) -> None:
        for name in reversed(list(self.processes)):
            self.stop(name)

    def start(self, name: str, *command: str) -> None:
        """Begin a process, with its children in a group of their own; it writes to `NAME.log`."""
        with (self.folder / f"{name}.log").open("ab") as log:
            how = {"env": self.environment, "cwd": self.folder, "start_new_session": True}
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, **how)  # type: ignore[call-overload]

    def stop(self, name: str) -> None:
        """End a process and its children."""
        process = self.processes.pop(name)
        for ending in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, ending)
                process.wait(10)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue

    def command(self, *command: str) -> str:
        """Output of a command, whose new files are private to the user. InputError where it fails."""
        how = {"env": self.environment, "cwd": self.folder, "capture_output": True, "text": True}
        try:
            done = subprocess.run(command, umask=0o077, **how)  # type: ignore[call-overload]
        except FileNotFoundError:
            needs = "make machines, or pip install -e '.[flower]'; openssl and ssh-keygen"
            raise InputError(f"there is no {command[0]} here: a federation needs {needs}") from None
        if done.returncode:
            said = (done.stderr or done.stdout).strip()
            raise InputError(f"{' '.join(command[:2])} failed: {said}")
        return done.stdout

    def superlink(self, *, simulated: bool = False) -> None:
        """Start the server's end and wait until it listens; a simulated federation needs no nodes."""
        self.start(
            "superlink",
            *("flower-superlink", "--host", HOST, "--port", str(self.port)),
            *("--ssl-ca-certfile", "server.pem", "--ssl-certfile", "server.pem"),
            *("--ssl-keyfile", "server.key", "--disable-runtime-dependency-installation"),
            *("--simulation" if simulated else "--enable-supernode-auth",),
        )
        end = time.monotonic() + STARTS
        while True:
            try:
                socket.create_connection((HOST, self.port), 1).close()
                return
            except OSError:
                if self.processes["superlink"].poll() is not None or time.monotonic() > end:
                    raise InputError(
                        f"the SuperLink does not start; see {self.folder / 'superlink.log'}"
                    ) from None
                time.sleep(0.2)

    def register(self, number: int) -> None:
        """Tell the server the public half of a node's key."""
        self.command("flwr", "supernode", "register", str(self.key(number)) + ".pub", "demo")

    def key(self, number: int) -> Path:
        """A node's key, made when it is first asked for."""
        path = self.folder / f"node{number}.key"
        if not path.exists():
            self.command(*NODE_KEY, str(path))
        return path

    def node(self, number: int) -> None:
        """Start a node; again after `stop`, it is the same node."""
        place = json.dumps(str(self.folder / f"node{number}"))
        self.start(
            f"node{number}",
            *("flower-supernode", "--superlink", f"{HOST}:{self.port}"),
            *("--root-certificates", "server.pem", "--host", HOST, "--port", str(free_port())),
            *("--auth-supernode-private-key", str(self.key(number))),
            *("--node-config", f"partition-id={number} data={place} memory={place}"),
        )

    def run(self, experiment: Experiment, *options: str, **config: str | float) -> Record:
        """Run an experiment with `config` and Flower's `options`, whose log is printed meanwhile, and return
        its record. InputError where it leaves none.
        """
        records = self.folder / "records"
        stated = {"experiment": json.dumps(experiment.to_dict()), "out": str(records), **config}
        overrides = self.folder / "run.toml"
        overrides.write_text(
            "".join(f"{name} = {json.dumps(value)}\n" for name, value in stated.items())
        )
        app, how = str(REPOSITORY / "hospitals"), ("--run-config", str(overrides), "--stream")
        command = ("flwr", "run", app, "demo", *how, *options)
        subprocess.run(command, env=self.environment, cwd=self.folder, check=False)
        return Record.load(records / ADHOC / f"{experiment.id}.json", "Flower's log says why")
