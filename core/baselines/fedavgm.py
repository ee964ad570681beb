"""FedAvgM: FedAvg with momentum on the server.

Hsu, Qi, Brown. Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification. 2019, Section 4.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch

from core.baselines import fedavg
from core.checks import number
from core.federation import SERVER, Message, State, Task
from core.rng import Rng


@attrs.frozen(kw_only=True)
class Settings(fedavg.Settings):
    """Local training, and the server's optimiser."""

    #: beta
    server_momentum: float = attrs.field(default=0.9, validator=number(0, 1))
    server_lr: float = attrs.field(default=1.0, validator=number(0, above=True))


class FedAvgM(fedavg.FedAvg):
    """The server follows the averaged change as a gradient with undamped momentum: v <- beta v + dw, w <- w
    - lr v, dw = w_t - sum_k n_k/n w^k, as described (the paper's experiments look ahead as Nesterov does).
    Running statistics are averaged without momentum: a variance must not overshoot below zero.
    """

    Settings = Settings
    evaluators = SERVER

    def initialise(self, task: Task, rng: Rng) -> State:
        """A fresh model, and v = 0."""
        state = super().initialise(task, rng)
        still = {
            velocity_of(name): torch.zeros_like(w)
            for name, w in state.tensors.items()
            if name.startswith("parameters/")
        }
        return State(task, state.tensors | still)

    def server_update(self, state: State, uploads: Mapping[int, Message], rng: Rng) -> State:
        """One step of the server's optimiser."""
        new = super().server_update(state, uploads, rng).tensors
        for name, average in list(new.items()):
            if name.startswith("parameters/"):
                w = state.tensors[name]
                # v <- beta v + (w_t - average)
                v = self.settings.server_momentum * state.tensors[velocity_of(name)] + (w - average)
                # w <- w - lr v
                new[name], new[velocity_of(name)] = w - self.settings.server_lr * v, v
        return attrs.evolve(state, tensors=new)


def velocity_of(name: str) -> str:
    """The name in a state of the momentum of a parameter."""
    return "velocity/" + name.removeprefix("parameters/")
