"""FedMix: an approximation of mixup under mean augmented federated learning.

Yoon, Shin, Hwang, Yang. FedMix: Approximation of Mixup under Mean Augmented Federated Learning.
ICLR 2021, Eq. 3 and 4, Algorithms 1 and 2. No code of the authors is at hand. Two public programs
(smduan/FedMix, and a baseline proposed for adap/flower, pull request 2213, until its last commit) make
the Taylor term B times too small in a batch of B, because they average over the batch twice.

Before training, every client sends averages of its images and of their one-hot labels, and receives
those of all clients, its own among them (Algorithm 1). A batch is mixed with one average. The
first-order term follows Algorithm 2, lambda d l_1 / dx . x_g with l_1 = (1 - lambda) l; Eq. 3
leaves out its factor 1 - lambda, a difference of order lambda^2, which is what the expansion drops
anyhow. x is the input of the network, that is, normalised.

Where the paper is silent: averages travel as 8-bit images, as FedVCK counts images, and as float32
labels. No average is of fewer images than `mean_batch` unless its client has fewer, and a client
with a single image sends none: it would be the image. A client sends its averages in the first
round it takes part in, and receives those it lacks in every round it takes part in: with all
clients active that is once. FedVCK's Tables 5 and 9 count the models only; the averages are the
column "Initialization" of its Table 10.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs
import torch
from torch import nn
from torch.nn import functional as F

from core.baselines import fedavg
from core.checks import number, whole
from core.federation import CLASSIFICATION, SERVER, Client, Field, Ledger, Message, State, Task
from core.federation.tensors import put, put_each, take, take_each
from core.rng import Rng
from core.training import Objective

#: what an average has
PARTS = ("images", "labels")


@attrs.frozen(kw_only=True)
class Settings(fedavg.Settings):
    """Local training, and the mixing."""

    #: lambda, the share of an average in a mixed image: 0.05 on CIFAR-10, 0.1 on CIFAR-100, 0.2 on
    #: FEMNIST
    mixup: float = attrs.field(default=0.05, validator=number(0, 1))
    #: M_k, the least number of images behind an average: 5 in smduan/FedMix. None: all images of a
    #: client, so that it sends one, which is the paper's own default
    mean_batch: int | None = attrs.field(default=5, validator=whole(2, optional=True))


class FedMix(fedavg.FedAvg):
    """FedAvg whose clients mix their images with averages from all clients, by a Taylor expansion."""

    Settings = Settings
    task_kinds = CLASSIFICATION
    evaluators = SERVER
    remote_calls = ("averages", "client_update")

    def initialise(self, task: Task, rng: Rng) -> State:
        """A fresh model; no averages yet."""
        return State(task, super().initialise(task, rng).tensors, {"averaged": [], "sent": {}})

    def round(self, state: State, clients: Sequence[Client], ledger: Ledger, rng: Rng) -> State:
        """Averages of clients that take part for the first time go up, then a round of FedAvg."""
        return super().round(self._averaged(state, clients, ledger, rng), clients, ledger, rng)

    def _averaged(self, state: State, clients: Sequence[Client], ledger: Ledger, rng: Rng) -> State:
        """The state with the averages of clients that are new, where images are mixed."""
        known = state.meta["averaged"]
        new = [client for client in clients if client.id not in known]
        if new and self.settings.mixup:
            form = averages_format(state)
            streams = rng.at("averages")
            answers = self.call_clients("averages", new, None, (form, {}), ledger, streams, clients)
            if not answers:
                return state
            piece = {
                f"averages/{len(known)}/{name}": torch.cat(
                    [answer.tensors[f"averages/{name}"] for answer in answers.values()]
                )
                for name in PARTS
            }
            meta = state.meta | {"averaged": [*known, *answers]}
            state = attrs.evolve(state, tensors=state.tensors | piece, meta=meta)
        return state

    def averages(
        self, clients: Sequence[Client], messages: Mapping[int, Message], rngs: Sequence[Rng]
    ) -> dict[int, Message]:
        """The averages that clients send."""
        return {
            client.id: averages(client, self.settings.mean_batch, rng)
            for client, rng in zip(clients, rngs, strict=True)
        }

    def broadcast(self, state: State, client_id: int) -> Message:
        """The global model, and the averages that came since the client's last upload."""
        message, had = (
            super().broadcast(state, client_id),
            state.meta["sent"].get(str(client_id), 0),
        )
        pieces = take_each("averages/", state.tensors)
        new = {first: piece for first, piece in pieces.items() if first >= had}
        return Message(message.tensors | put_each("averages/", new))

    def client_update(self, client: Client, message: Message, rng: Rng) -> Message:
        """Local training, with the averages kept that came along."""
        client.memory |= put("averages/", take("averages/", message.tensors))
        return super().client_update(client, message, rng)

    def server_update(self, state: State, uploads: Mapping[int, Message], rng: Rng) -> State:
        """The average of the models; who sent one has all averages."""
        sent = dict.fromkeys(map(str, uploads), len(state.meta["averaged"]))
        state = attrs.evolve(state, meta=state.meta | {"sent": state.meta["sent"] | sent})
        return super().server_update(state, uploads, rng)

    def objective(self, client: Client, received: Message, rng: Rng) -> Objective:
        """The approximate mixup loss of a batch and one average, drawn anew for every batch."""
        if not self.settings.mixup:
            return super().objective(client, received, rng)
        images, shares = remembered_averages(client.memory)
        if not len(shares):
            return super().objective(client, received, rng)
        task, draws = client.task, rng.generator(shares.device)
        loss = self.settings.data_loss(task, client.labels)

        def objective(model: nn.Module, batch: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            chosen = torch.randint(len(shares), (1,), generator=draws, device=shares.device)

            def outputs(inputs: torch.Tensor) -> torch.Tensor:
                with task.runtime.autocast():
                    return model(inputs)

            return mixup_loss(
                outputs,
                loss,
                task.inputs(batch),
                labels,
                task.inputs(images[chosen]),
                shares[chosen],
                self.settings.mixup,
            )

        return objective


def mixup_loss(
    model: Callable[[torch.Tensor], torch.Tensor],
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    y: torch.Tensor,
    x_g: torch.Tensor,
    y_g: torch.Tensor,
    share: float,
) -> torch.Tensor:
    """The loss of Algorithm 2, a scalar: mixup to first order in lambda.

    Args:
        model: from inputs (B, C, H, W) to logits, twice differentiable.
        loss: from logits and labels, or shares of classes, to the mean loss.
        x, y: a batch and its labels (B,); x_g (1, C, H, W), y_g (1, classes): an average and its
            shares of classes.
        share: lambda.
    """
    x = ((1 - share) * x).requires_grad_()
    outputs = model(x)
    # l_1 = (1 - lambda) l(f((1 - lambda) x), y)
    own = (1 - share) * loss(outputs, y)
    # l_2 = lambda l(f((1 - lambda) x), y_g)
    other = share * loss(outputs, y_g.expand(len(y), -1))
    # l_3 = lambda d l_1 / dx . x_g; l_1 is the mean over the batch, so the sum over images is the mean
    # of their terms
    (gradient,) = torch.autograd.grad(own, x, create_graph=True)
    return own + other + share * (gradient * x_g).sum()


def averages_format(state: State) -> dict[str, Field]:
    """The form that a client's averages must have; a client with a single image has none."""
    data = state.task.dataset
    rows = partial(Field, least=0, most=len(data.train))
    return {
        "averages/images": rows((None, data.channels, data.size, data.size), torch.uint8),
        "averages/labels": rows((None, data.num_classes), torch.float32, low=0, high=1),
    }


def remembered_averages(memory: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """All remembered averages, as they came: images (M, C, H, W) uint8, shares (M, classes)."""
    pieces = take_each("averages/", memory).values()
    images, labels = (torch.cat([piece[name] for piece in pieces]) for name in PARTS)
    return images, labels


def averages(client: Client, mean_batch: int | None, rng: Rng) -> Message:
    """Averages of a client's images, rounded to 8 bits, and of their one-hot labels, in random groups
    of at least `mean_batch` images (or all) of almost equal sizes; none of a single image.
    """
    samples, classes, device = len(client), client.task.dataset.num_classes, client.labels.device
    groups = 0 if samples < 2 else max(1, samples // (mean_batch or samples))
    order = torch.randperm(samples, generator=rng.generator()).to(device)
    size, longer = divmod(samples, groups) if groups else (0, 0)
    one_hot, sums = F.one_hot(client.labels, classes), []
    for count, length in ((longer, size + 1), (groups - longer, size)):
        rows, order = order[: count * length].view(count, length), order[count * length :]
        sums.append(
            [
                each[rows].sum(1, dtype=torch.float32) / max(length, 1)
                for each in (client.images, one_hot)
            ]
        )
    images, shares = (torch.cat(parts) for parts in zip(*sums, strict=True))
    return Message({"averages/images": images.round().to(torch.uint8), "averages/labels": shares})
