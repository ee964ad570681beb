"""A whole federation on this machine: a SuperLink and SuperNodes as processes, with TLS and node
authentication, which talk over the loopback address only.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from core.data import Dataset
from core.errors import InputError
from core.federation import Client
from lab.experiment import Experiment
from lab.flower import keys
from lab.record import ADHOC, REPOSITORY

APP = REPOSITORY / "hospitals"
HOST = "127.0.0.1"
#: seconds within which a SuperLink has to listen
STARTS = 120.0


def free_port() -> int:
    """A port of this machine that nobody uses now."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        return found.getsockname()[1]


def write_data(folder: Path, name: str, dataset: Dataset, clients: Sequence[Client]) -> None:
    """Each hospital's images in a folder of its own, `node0`, `node1`, …, and the test images in
    `server`.

    The layout asks for training and test images in each file; where there must be none stands one
    black image.
    """
    black = np.zeros((1, *dataset.test.images.shape[1:]), np.uint8), np.zeros(1, np.int64)
    test = dataset.test.images.numpy(), dataset.test.labels.numpy()
    contents = {"server": (black, test)}
    for client in clients:
        mine = client.images.cpu().numpy(), client.labels.cpu().numpy()
        contents[f"node{client.id}"] = (mine, black)
    for place, splits in contents.items():
        arrays = {"classes": np.array(dataset.classes)}
        for word, (images, labels) in zip(("train", "test"), splits, strict=True):
            last = images.transpose(0, 2, 3, 1)
            arrays[f"{word}_images"] = last[..., 0] if last.shape[-1] == 1 else last
            arrays[f"{word}_labels"] = labels[:, None]
        (folder / place).mkdir(parents=True, exist_ok=True)
        np.savez(folder / place / f"{name}.npz", **arrays)  # type: ignore[arg-type]


class Deployment:
    """The processes of a federation, below a folder; leaving the block stops them all."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.processes: dict[str, subprocess.Popen] = {}
        scripts = Path(sys.executable).parent
        self.environment = os.environ | {
            "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONPATH": str(REPOSITORY),
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_worker_niceness": "0",  # Ray's 15 lets simulated nodes starve on a busy machine
        }

    def __enter__(self) -> Self:
        keys.tls(self.folder / "keys")
        (self.folder / "flwr").mkdir(exist_ok=True)
        (self.folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "demo"\n\n[superlink.demo]\naddress = "{HOST}:{self.port}"\n'
            f"root-certificates = {json.dumps(str(self.folder / 'keys' / 'ca.crt'))}\n"
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in reversed(list(self.processes)):
            self.stop(name)

    def start(self, name: str, *command: str) -> None:
        """Begin a process, with its children in a group of their own; it writes to `NAME.log`."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                env=self.environment,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self, name: str) -> None:
        """End a process and its children."""
        process = self.processes.pop(name)
        for one in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, one)
                process.wait(10)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue

    def command(self, *arguments: str) -> str:
        """Run `flwr …`; what it printed. Raises InputError where it fails."""
        if shutil.which("flwr", path=self.environment["PATH"]) is None:
            raise InputError("there is no flwr here: make machines, or pip install -e '.[flower]'")
        done = subprocess.run(
            ["flwr", *arguments],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise InputError(f"flwr {arguments[0]} failed: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def superlink(self, *, simulated: bool = False) -> None:
        """Start the server's end and wait until it listens; a simulated federation needs no nodes."""
        keys_ = self.folder / "keys"
        self.start(
            "superlink",
            *("flower-superlink", "--host", HOST, "--port", str(self.port)),
            *("--ssl-ca-certfile", str(keys_ / "ca.crt")),
            *("--ssl-certfile", str(keys_ / "server.pem")),
            *("--ssl-keyfile", str(keys_ / "server.key")),
            *("--simulation" if simulated else "--enable-supernode-auth",),
            "--disable-runtime-dependency-installation",
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
        """Make a node's key and tell the server its public half."""
        _, public = keys.node(self.folder / "keys", f"node{number}")
        self.command("supernode", "register", str(public), "demo")

    def node(self, number: int) -> None:
        """Start a node; again after `stop`, it is the same node."""
        config = (
            f"partition-id={number} data={json.dumps(str(self.folder / f'node{number}'))} "
            f"memory={json.dumps(str(self.folder / f'node{number}'))}"
        )
        self.start(
            f"node{number}",
            *("flower-supernode", "--superlink", f"{HOST}:{self.port}"),
            *("--root-certificates", str(self.folder / "keys" / "ca.crt")),
            *("--auth-supernode-private-key", str(self.folder / "keys" / f"node{number}")),
            *("--host", HOST, "--port", str(free_port()), "--node-config", config),
        )

    def status(self) -> str:
        """What Flower says of the last run: how it stands, and why it ended."""
        run = json.loads(self.command("ls", "demo", "--format", "json"))["runs"][0]
        return ", ".join(filter(None, [run["status"], run["status-details"]]))

    def run(self, experiment: Experiment, **config: str | float | bool) -> Path:
        """Begin a run; the file in which its record will stand."""
        return self._run(experiment, {"server-data": str(self.folder / "server"), **config})

    def simulate(self, experiment: Experiment) -> Path:
        """Begin a run on nodes that Flower simulates here, from this machine's own data."""
        nodes = f"num-supernodes={experiment.clients}"
        return self._run(experiment, {}, "--federation-config", nodes)

    def _run(self, experiment: Experiment, config: Mapping[str, object], *options: str) -> Path:
        records = self.folder / "records"
        stated = {"experiment": json.dumps(experiment.to_dict()), "out": str(records), **config}
        overrides = self.folder / "run.toml"
        overrides.write_text(
            "".join(f"{name} = {json.dumps(value)}\n" for name, value in stated.items())
        )
        self.command("run", str(APP), "demo", "--run-config", str(overrides), *options)
        return records / ADHOC / f"{experiment.id}.json"
