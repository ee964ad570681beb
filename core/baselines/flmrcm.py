"""FL-MRCM: federated averaging whose clients align what they encode with one site.

Guo, Wang, Zhou, Jiang, Patel. Multi-institutional Collaborations for Improving Deep Learning-based
Magnetic Resonance Image Reconstruction Using Federated Learning. CVPR 2021.

In each round one client, the target, sends what the server's model makes of some of its images at the
bottleneck. Every other client trains a domain identifier to tell these from its own, and its encoder
not to let it. Where the target does not take part, its latest answer is used; until its first there
is no alignment, and a run in which it never is ends with an error. The identifier is a 1x1 convolution,
ReLU and another; the paper does not describe its own further.

The authors' code (guopengf/FL-MRCM) differs. There every client has the target's images and encodes some
of them anew in each step with its own network; gradients flow through both sides, whose labels are
exchanged; the identifier makes one decision of an image's 2,048 pooled numbers; networks count equally
in the average; the target is the site that is tested, so each has a run of its own; images are divided
by their deviation, which leaves lambda_adv of 1 less weight beside the error. Nothing but what crosses
the network of the paper's Algorithm crosses it here. From the code are the identifier's rate, ten times
that of its networks, both under RMSprop there (here the networks learn by SGD, the identifier by Adam),
and that its optimiser goes on from round to round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import nn
from torch.nn import functional

from core.baselines import fedavg
from core.checks import number, whole
from core.errors import InputError, listed
from core.federation import (
    SERVER,
    Client,
    Field,
    Ledger,
    Message,
    Schedule,
    State,
    Task,
    pack,
    train,
)
from core.federation.tensors import pack_optimiser, take, unpack, unpack_optimiser
from core.models import UNet, fresh
from core.rng import Rng
from core.training import Objective, adam, take_step


@attrs.frozen(kw_only=True)
class Settings(fedavg.Settings):
    """Settings of FedAvg and of the alignment; `latents` is our own value, `identifier_lr` the code's."""

    #: the client that the others align with
    target: int = attrs.field(default=0, validator=whole(0))
    #: how many of its images it encodes in a round, drawn with replacement
    latents: int = attrs.field(default=16, validator=whole(1))
    #: lambda_adv
    adversarial: float = attrs.field(default=1.0, validator=number(0))
    identifier_lr: float = attrs.field(default=1e-3, validator=number(0, above=True))


class Identifier(nn.Module):
    """C^k: a logit for each place of a latent map (N, D, h, w), positive for the client's own."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        width = 16  # our own value
        self.hidden = nn.Conv2d(depth, width, 1)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        """Logits (N, 1, h, w)."""
        return self.out(self.hidden(latents).relu())


def identifier_loss(own: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """L_advC = - E[log C(z_s)] - E[log(1 - C(z_t))] of logits: what an identifier minimises."""
    return functional.softplus(-own).mean() + functional.softplus(target).mean()


def encoder_loss(own: torch.Tensor) -> torch.Tensor:
    """L_advE = - 1/2 E[log C(z_s)] - 1/2 E[log(1 - C(z_s))] of logits: what an encoder minimises. It is
    least, log 2, where the identifier cannot tell.
    """
    return (functional.softplus(-own).mean() + functional.softplus(own).mean()) / 2


class FLMRCM(fedavg.FedAvg):
    """FedAvg, with L_recon + lambda_adv L_adv at the clients."""

    Settings = Settings
    task_kinds = ("reconstruction", "segmentation")
    evaluators = SERVER
    remote_calls = ("client_update", "encode")

    def __init__(self, settings: Any = None, schedule: Schedule | None = None) -> None:
        """Raises InputError for a target that is no client of the schedule."""
        super().__init__(settings, schedule)
        if self.settings.target >= self.schedule.clients:
            raise InputError(
                f"target must be one of the {self.schedule.clients} clients, which are counted from 0, "
                f"not {self.settings.target}"
            )

    def initialise(self, task: Task, rng: Rng) -> State:
        """A fresh model. Raises InputError for a network without an encoder of maps."""
        encoder(task.new_model(rng.at("model")))
        return super().initialise(task, rng)

    def broadcast(self, state: State, client_id: int) -> Message:
        """The global model; and what the target made of its images, for all but the target."""
        message = super().broadcast(state, client_id)
        if client_id == self.settings.target or "latents" not in state.tensors:
            return message
        return Message({**message.tensors, "latents": state.tensors["latents"]})

    def round(self, state: State, clients: Sequence[Client], ledger: Ledger, rng: Rng) -> State:
        """Encode at the target, then a round of FedAvg. InputError where the target never takes part."""
        target = [client for client in clients if client.id == self.settings.target]
        if target:
            id_ = self.settings.target
            messages = {id_: ledger.count("down", super().broadcast(state, id_))}
            form = {"latents": Field(self._form(state.task), torch.float32)}
            given = self.call_clients(
                "encode", target, messages, (form, {}), ledger, rng.at("encode", "client"), clients
            )
            if id_ in given:
                said = {"latents": given[id_].tensors["latents"]}
                state = attrs.evolve(state, tensors=state.tensors | said)
        elif self.schedule.active is None and "latents" not in state.tensors:
            raise InputError(
                f"the target, client {self.settings.target}, is not among the clients that have data: "
                f"{listed([str(client.id) for client in clients])}"
            )
        return super().round(state, clients, ledger, rng)

    def measures(self, state: State) -> dict[str, float]:
        """FedAvg's. Raises InputError where the target never took part: the result is that of FedAvg."""
        if "latents" not in state.tensors:
            raise InputError(
                f"the target, client {self.settings.target}, was heard in none of the "
                f"{self.schedule.rounds} rounds, so that nobody aligned with it"
            )
        return super().measures(state)

    def _form(self, task: Task) -> tuple[int, ...]:
        """The shape of what a target sends."""
        data = task.dataset
        blank = torch.zeros(1, data.channels, data.size, data.size, device=task.runtime.device)
        with torch.no_grad():
            last = encoder(task.new_model(Rng(0)).eval()).encode(blank)[-1]
        return (self.settings.latents, *last.shape[1:])

    def encode(
        self, clients: Sequence[Client], messages: Mapping[int, Message], rngs: Sequence[Rng]
    ) -> dict[int, Message]:
        """z_t = E(x_t) of images drawn at random."""
        answers = {}
        for client, rng in zip(clients, rngs, strict=True):
            draws = rng.generator()
            rows = torch.randint(len(client), (self.settings.latents,), generator=draws)
            model = encoder(client.task.model_from(messages[client.id].tensors).eval())
            images = client.task.inputs(client.some(rows.to(client.labels.device)))
            with torch.no_grad(), client.task.runtime.autocast():
                answers[client.id] = Message({"latents": model.encode(images)[-1].float()})
        return answers

    def client_update(self, client: Client, message: Message, rng: Rng) -> Message:
        """Local SGD on L_recon + lambda_adv L_advE, with a step of the identifier before each."""
        latents = message.tensors.get("latents")
        if latents is None:
            return super().client_update(client, message, rng)
        s = self.settings
        identifier = fresh(
            Identifier,
            latents.shape[1],
            rng=Rng(rng.seed).at("identifier", client.id),
            device=client.task.runtime.device,
        )
        optimiser = adam(identifier.parameters(), s.identifier_lr)
        if take("identifier/", client.memory):
            unpack(identifier, client.memory, "identifier/")
            unpack_optimiser(optimiser, identifier, client.memory, "identifier/adam/")
        model = self.start(client, message)
        train(
            model,
            client.images,
            client.labels,
            s,
            self.aligned(client.task, identifier, optimiser, latents),
            rng,
            steady=False,  # Adam counts the identifier's steps on the host
        )
        client.memory |= pack(identifier, "identifier/")
        client.memory |= pack_optimiser(optimiser, identifier, "identifier/adam/")
        return self.answer(client, model)

    def aligned(
        self,
        task: Task,
        identifier: Identifier,
        optimiser: torch.optim.Optimizer,
        latents: torch.Tensor,
    ) -> Objective:
        """A client's loss beside the target's `latents`; a call is a step of the identifier."""

        def objective(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            with task.runtime.autocast():
                outputs, maps = encoder(model).answer(task.inputs(images))
            own = maps.float()
            take_step(identifier_loss(identifier(own.detach()), identifier(latents)), optimiser)
            # L_recon + lambda_adv L_advE
            return task.loss(outputs, labels) + self.settings.adversarial * encoder_loss(
                identifier(own)
            )

        return objective


def encoder(model: nn.Module) -> UNet:
    """A network that has an encoder. Raises InputError for another one."""
    if not isinstance(model, UNet):
        raise InputError("FL-MRCM aligns what an encoder makes: it needs the model 'unet'")
    return model
