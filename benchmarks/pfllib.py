"""FedAvg beside PFLlib's own server, clients and loader (https://github.com/TsingZ0/PFLlib), from a
checkout: the same images, split and network, the same steps of plain SGD. Their program imports h5py.

    python benchmarks/pfllib.py ../PFLlib
"""

from __future__ import annotations

import contextlib
import io
import statistics
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from core.federation import Client, Runtime, Task, distribute
from core.rng import Rng
from timing import clock, keep, options, race, some_of, whole_run

ROUNDS, CLIENTS, EPOCHS, BATCH, LR, WIDTH = 3, 10, 1, 64, 0.05, 128


class Options(SimpleNamespace):
    """Options of their program: those that are not named are off."""

    def __getattr__(self, name: str) -> int:
        return 0


def write(path: Path, images: torch.Tensor, labels: torch.Tensor) -> None:
    """A client's images as their loader reads them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, data=np.array({"x": images.numpy(), "y": labels.numpy()}, dtype=object))


def theirs(task: Task, clients: list[Client], seed: int) -> tuple[float, nn.Module]:
    """Seconds of a round, but for the first, which tests, and the server's last network."""
    from flcore.servers.serveravg import FedAvg

    marks: list[float] = []

    class Server(FedAvg):
        def select_clients(self) -> Any:
            marks.append(clock())
            return super().select_clients()

        def aggregate_parameters(self) -> None:
            super().aggregate_parameters()
            marks.append(clock())

        def save_results(self) -> None: ...

    given = Options(
        algorithm="FedAvg",
        dataset="same",
        device=task.runtime.device,
        model=task.new_model(Rng(seed).at("model")),
        num_classes=task.dataset.num_classes,
        num_clients=len(clients),
        join_ratio=1.0,
        global_rounds=ROUNDS - 1,  # it takes one more
        eval_gap=ROUNDS,
        time_threthold=float("inf"),
        local_epochs=EPOCHS,
        batch_size=BATCH,
        local_learning_rate=LR,
        learning_rate_decay_gamma=1.0,
    )
    test, normalise = task.dataset.test, task.dataset.normalise
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder, "dataset", "same")
        for k, client in enumerate(clients):
            write(here / f"train/{k}.npz", normalise(client.images.cpu()), client.labels.cpu())
            part = slice(k, None, len(clients))
            write(here / f"test/{k}.npz", normalise(test.images[part]), test.labels[part])
        Path(folder, "system").mkdir()
        with (
            contextlib.chdir(Path(folder, "system")),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            server = Server(given, 0)
            server.train()
    rounds = [end - start for start, end in zip(marks[::2], marks[1::2], strict=True)]
    return statistics.fmean(rounds[1:]), server.global_model


def main() -> None:
    """Time both in turn, and print and keep what was found."""
    given = options(__doc__, "cifar10").parse_args()
    sys.path.insert(0, str(given.checkout.resolve() / "system"))
    runtime = Runtime.choose(given.device, given.precision)
    task = some_of(given.dataset, given.images, runtime, width=WIDTH, norm="instance")
    clients = distribute(task, {"name": "iid"}, CLIENTS, seed=0)
    settings = {"lr": LR, "momentum": 0.0, "weight_decay": 0.0, "batch_size": BATCH}
    settings |= {"local_epochs": EPOCHS}

    def ours(seed: int) -> tuple[float, Any]:
        start = clock()
        model = whole_run(clients, "fedavg", settings, rounds=ROUNDS, seed=seed)
        return (clock() - start) / ROUNDS, model

    found = race(ours, lambda seed: theirs(task, clients, seed), "PFLlib", given.pairs, task)
    what = f"a round of FedAvg, {CLIENTS} clients, {given.images} images of {given.dataset}, "
    what += f"{EPOCHS} epochs in batches of {BATCH}, ConvNet-{WIDTH} with instance norm"
    keep("run-pfllib", what, {"fedavg, PFLlib": found}, runtime)


if __name__ == "__main__":
    main()
