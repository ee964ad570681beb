"""SCAFFOLD: control variates against client drift.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning. ICML 2020, Algorithm 1 with option II.

The other methods have NIID-Bench's rate of 0.01, which goes with a momentum of 0.9 in its
commands: in the long run a gradient then changes the weights by 0.01 / (1 - 0.9) of itself. Without
momentum the rate that goes as far is 0.1, the default here. NIID-Bench itself runs SCAFFOLD with
that momentum, and corrects the weights after each step of it. It divides by K eta_l all the same,
so that its control variates come close to ten times the mean gradient. Clients count alike in
Algorithm 1, and here; NIID-Bench weighs their models by numbers of samples.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch
from torch import nn

from core.baselines import fedavg
from core.checks import number
from core.errors import InputError
from core.federation import SERVER, Client, Format, Message, State, Task
from core.federation.tensors import in_a_row, put, take, weights
from core.rng import Rng
from core.training import Objective


@attrs.frozen(kw_only=True)
class Settings(fedavg.Settings):
    """Local training by plain SGD, as option II assumes, and the server's step."""

    lr: float = attrs.field(default=0.1, validator=number(0, above=True))
    momentum: float = attrs.field(default=0.0, validator=number(0, 1))
    #: eta_g
    server_lr: float = attrs.field(default=1.0, validator=number(0, above=True))

    def __attrs_post_init__(self) -> None:
        if self.momentum:
            raise InputError(
                "momentum must be 0: option II reads the mean gradient off the way that a client went, "
                "which only plain SGD allows"
            )


class SCAFFOLD(fedavg.FedAvg):
    """FedAvg with local steps corrected by c - c_i, the mean gradient of all clients less the client's own
    as last estimated. Uploads are twice FedAvg's; running statistics are averaged over the round.
    """

    Settings = Settings
    evaluators = SERVER

    def initialise(self, task: Task, rng: Rng) -> State:
        """A fresh model x, and c = 0."""
        state = super().initialise(task, rng)
        x = take("parameters/", state.tensors)
        zeros = {name: torch.zeros_like(value) for name, value in x.items()}
        return attrs.evolve(state, tensors=state.tensors | put("control/", zeros))

    def broadcast(self, state: State, client_id: int) -> Message:
        """x and c."""
        model = super().broadcast(state, client_id)
        return Message(model.tensors | put("control/", take("control/", state.tensors)))

    def upload_format(self, state: State) -> Format:
        """A model and the change of a control variate, which has the form of its parameters."""
        tensors, meta = super().upload_format(state)
        control = {
            name: attrs.evolve(field, near=None)
            for name, field in take("parameters/", tensors).items()
        }
        return tensors | put("control/", control), meta

    def objective(self, client: Client, received: Message, rng: Rng) -> Objective:
        """f_i(y) + <c - c_i, y>, whose gradient is g_i(y) - c_i + c."""
        plain, c = super().objective(client, received, rng), take("control/", received.tensors)
        c_i = self.control_of(client, c)
        correction = in_a_row({name: c[name] - c_i[name] for name in c})

        def objective(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            y = in_a_row(dict(model.named_parameters()))
            return plain(model, images, labels) + correction @ y

        return objective

    def client_update(self, client: Client, message: Message, rng: Rng) -> Message:
        """y_i after K corrected steps, and the change of c_i. A client keeps its new c_i also where its
        upload is refused: from then on c is no longer the mean of all c_i.
        """
        answer = super().client_update(client, message, rng)
        x, y = (take("parameters/", each.tensors) for each in (message, answer))
        c = take("control/", message.tensors)
        c_i, step = self.control_of(client, c), self.settings.steps(len(client)) * self.settings.lr
        # c_i^+ <- c_i - c + 1 / (K eta_l) (x - y_i)
        renewed = {name: c_i[name] - c[name] + (x[name] - y[name]) / step for name in c}
        client.memory = put("control/", renewed)
        change = {name: renewed[name] - c_i[name] for name in c}
        return Message(answer.tensors | put("control/", change), answer.meta)

    def server_update(self, state: State, uploads: Mapping[int, Message], rng: Rng) -> State:
        """x <- x + eta_g / |S| sum_i (y_i - x), c <- c + 1 / N sum_i (c_i^+ - c_i)."""
        # what goes up of a control variate is a change, so it starts from 0
        start = attrs.evolve(state, tensors=weights(state.tensors))
        average = self.combined(
            [upload.tensors for upload in uploads.values()], [1] * len(uploads), start
        )
        new, share = dict(state.tensors), len(uploads) / self.schedule.clients
        for name, value in average.items():
            kind = name.split("/", 1)[0]
            if kind == "parameters":
                new[name] = new[name] + self.settings.server_lr * (value - new[name])
            else:
                new[name] = new[name] + share * value if kind == "control" else value
        return attrs.evolve(state, tensors=new)

    @staticmethod
    def control_of(client: Client, c: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """c_i of Algorithm 1; 0 before a client's first round."""
        zeros = {name: torch.zeros_like(value) for name, value in c.items()}
        return take("control/", client.memory) or zeros
