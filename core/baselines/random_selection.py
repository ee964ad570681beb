"""Random selection: so many real images of every class, chosen at random from the data of all
clients.

"R.S.@10" and "R.S.@100" of GDD-FL (MICCAI 2023, Table 1), which gives them among the results of
centralized training: so many images in all, not per client. The choice is the same as a draw from
the union of the first round's clients, but none shows its data: clients tell how many images of each
class they have, the server draws how many of those are wanted from whom, and each client sends that
many random ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import attrs
import torch

from core.checks import one_of
from core.families import condensing
from core.families.one_shot import OneShot, OneShotSettings
from core.federation import Client, Format, Ledger, Message, State
from core.rng import Rng


@attrs.frozen(kw_only=True)
class Settings(OneShotSettings):
    """Hyper-parameters; `images_per_class` counts over all clients."""

    #: of a client's images of a class: "random" ones, or the "first" ones. The code of GDD-FL takes the
    #: first of all its training folder, the same in every run; here how many come from whom is drawn
    choice: str = attrs.field(default="random", validator=one_of("choice", "random", "first"))

    @classmethod
    def released(cls) -> Self:
        """GDD-FL's code: its choice and epochs; a cosine rate, and the epoch with the best validation
        AUC, are `server_cosine` and `last_client_chooses`.
        """
        return cls(choice="first", server_epochs=100)


class RandomSelection(OneShot):
    """Real images, a few of every class, cross the network once."""

    Settings = Settings
    remote_calls = ("counts", "client_update")

    def broadcast(self, state: State, client_id: int) -> Message:
        """Numbers of images of each class that are wanted from this client."""
        return Message({}, {"wanted": state.meta["wanted"][str(client_id)]})

    def upload_format(self, state: State) -> Format:
        """8-bit images and their labels; of some clients none are wanted."""
        data = state.task.dataset
        most = data.num_classes * self.settings.images_per_class
        return condensing.images_format(data, 0, most), {}

    def round(self, state: State, clients: Sequence[Client], ledger: Ledger, rng: Rng) -> State:
        """Ask for numbers, then for images."""
        if not state.meta["spoken"]:
            form = {"counts": state.task.counts()}
            uploads = self.call_clients("counts", clients, None, (form, {}), ledger, rng)
            shares = quotas(
                torch.stack([upload.tensors["counts"].cpu() for upload in uploads.values()]),
                self.settings.images_per_class,
                rng.at("quotas"),
            )
            wanted = {str(id_): share for id_, share in zip(uploads, shares.tolist(), strict=True)}
            state = attrs.evolve(state, meta=state.meta | {"wanted": wanted})
            clients = [client for client in clients if client.id in uploads]
        return super().round(state, clients, ledger, rng)

    def counts(
        self, clients: Sequence[Client], messages: Mapping[int, Message], rngs: Sequence[Rng]
    ) -> dict[int, Message]:
        """Numbers of images of each class at every client."""
        return {client.id: Message({"counts": client.class_counts}) for client in clients}

    def client_updates(
        self, clients: Sequence[Client], messages: Mapping[int, Message], rngs: Sequence[Rng]
    ) -> dict[int, Message]:
        """Random images of each class, as many as are wanted."""
        answers = {}
        for client, rng in zip(clients, rngs, strict=True):
            wanted = torch.tensor(messages[client.id].meta["wanted"], device=client.labels.device)
            order = torch.arange(len(client))
            if self.settings.choice == "random":
                order = torch.randperm(len(client), generator=rng.at("order").generator())
            order = order.to(client.labels.device)
            order = order[client.labels[order].argsort(stable=True)]
            labels = client.labels[order]
            first = client.class_counts.cumsum(0) - client.class_counts
            rank = torch.arange(len(order), device=labels.device) - first[labels]
            chosen = rank < wanted[labels]
            answers[client.id] = Message(
                {"images": client.some(order[chosen]), "labels": labels[chosen].to(torch.uint8)}
            )
        return answers


def quotas(counts: torch.Tensor, images: int, rng: Rng) -> torch.Tensor:
    """Images of each class that come from each client when `images` are drawn from all, (K, C) int64, of
    `counts` (K, C); a class with fewer gives all it has.
    """
    shares = torch.zeros_like(counts)
    for label, column in enumerate(counts.T):
        generator = rng.at("class", label).generator()
        drawn = torch.randperm(int(column.sum()), generator=generator)[:images]
        owner = torch.searchsorted(column.cumsum(0), drawn, right=True)
        shares[:, label] = torch.bincount(owner, minlength=len(column))
    return shares
