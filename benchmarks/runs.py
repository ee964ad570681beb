"""One round of FedAvg with its server, beside the same work as most code writes it: client by client, in
float32, with a new copy of every batch and a loss that is printed.

    python benchmarks/runs.py
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from core.federation import Client, Runtime, distribute
from core.rng import Rng
from timing import keep, options, race, some_of, whole_run

CLIENTS, IMAGES, WIDTH, BATCH = 2, 320, 128, 64


def plain(clients: list[Client]) -> None:
    """A local epoch of each client, then the mean of the state dictionaries."""
    states = []
    for client in clients:
        # its weights in PyTorch's own layout
        model: Any = client.task.new_model(Rng(0)).to(memory_format=torch.contiguous_format)
        pairs = TensorDataset(client.task.dataset.normalise(client.images), client.labels)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9, weight_decay=1e-6)
        model.train()
        for images, labels in DataLoader(pairs, BATCH, shuffle=True, generator=Rng(1).generator()):
            optimiser.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimiser.step()
            loss.item()
        states.append(model.state_dict())
    {name: sum(state[name] for state in states) / len(states) for name in states[0]}


def measure(runtime: Runtime, dataset: str, pairs: int) -> dict[str, Any]:
    """Runs an hour, and the ratio to the plain loop."""
    task = some_of(dataset, IMAGES, runtime, width=WIDTH)
    clients = distribute(task, {"name": "iid"}, CLIENTS, seed=0)
    settings = {"batch_size": BATCH, "local_epochs": 1}

    def ours(seed: int) -> None:
        whole_run(clients, "fedavg", settings)

    return {"fedavg": race(ours, lambda seed: plain(clients), "plain", pairs)}


if __name__ == "__main__":
    given = options(__doc__, "cifar10", peer=False).parse_args()
    here = Runtime.choose(given.device, given.precision)
    what = f"one round of FedAvg with its server, {CLIENTS} clients, {IMAGES} images of {given.dataset}, "
    what += f"ConvNet-{WIDTH}, against a plain loop in float32"
    keep("run", what, measure(here, given.dataset, given.pairs), here)
