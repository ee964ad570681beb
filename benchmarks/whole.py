"""Some rounds of an algorithm with their server: what benches time."""

from __future__ import annotations

from typing import Any

from torch import nn

from core.algorithms import create
from core.federation import Client, Ledger, Schedule, Task
from core.rng import Rng


def whole_run(
    task: Task,
    clients: list[Client],
    name: str,
    settings: dict[str, Any],
    variant: str = "printed",
    rounds: int = 1,
    seed: int = 0,
) -> nn.Module | list[nn.Module]:
    """So many rounds of an algorithm, by the package; returns the server's network, or one for each
    client.
    """
    for client in clients:
        client.memory = {}
    # an algorithm may cut its work into as many parts as there are rounds
    schedule = Schedule(clients=len(clients), rounds=rounds)
    algorithm, ledger = create(name, settings, variant, schedule), Ledger()
    state = algorithm.initialise(task, Rng(seed))
    for number in range(1, rounds + 1):
        ledger.open_round()
        state = algorithm.round(state, clients, ledger, Rng(seed).at("round", number))
    return algorithm.model(state)
