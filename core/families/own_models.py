"""Base of methods whose clients keep networks of their own, which are tested."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
from torch import nn

from core.federation import (
    Algorithm,
    Client,
    Field,
    Ledger,
    Message,
    OwnTest,
    State,
    pack,
)
from core.federation.tensors import Tensors, put_each, take, take_each, weights
from core.rng import Rng

#: where a client keeps its network in its memory
OWN = "model/"


class OwnModels(Algorithm):
    """A family in which every client remembers its own network, below `OWN`.

    Where these are what is tested (`tests_own_models`), the round ends with them beside the state, as the
    test images are the server's; where clients are elsewhere, they cross the network for that. A test
    is no part of a method, and what it sends is not counted.
    """

    remote_calls = ("client_update", "send_model")

    @property
    def clients_test(self) -> bool:
        """True where each client is tested on its own classes."""
        return self.schedule.tested_by == "clients"

    @property
    def tests_own_models(self) -> bool:
        """True where the clients' networks are tested, and not one of the server's."""
        return self.clients_test

    def round(self, state: State, clients: Sequence[Client], ledger: Ledger, rng: Rng) -> State:
        """The usual round, and the networks for the test."""
        state = super().round(state, clients, ledger, rng)
        if not self.tests_own_models:
            return state
        return self.with_client_models(state, clients, ledger, rng)

    def send_model(
        self, clients: Sequence[Client], messages: Mapping[int, Message], rngs: Sequence[Rng]
    ) -> dict[int, Message]:
        """The networks, for the test; where clients test, also how often they have each class."""
        return {
            client.id: Message(
                weights(take(OWN, client.memory))
                | ({"counts": client.class_counts} if self.clients_test else {})
            )
            for client in clients
        }

    def with_client_models(
        self, state: State, clients: Sequence[Client], ledger: Ledger, rng: Rng
    ) -> State:
        """The state with the networks of these clients beside it."""
        network = pack(state.task.new_model(Rng(0)))
        form = {name: Field(tuple(value.shape), value.dtype) for name, value in network.items()}
        if self.clients_test:
            form["counts"] = state.task.counts()
        uncounted = Ledger.aside()
        given = self.call_clients(
            "send_model", clients, None, (form, {}), uncounted, rng.at("test")
        )
        ledger.refuse(uncounted.rounds[-1].get("refused", {}))
        tested = put_each("tested/", {id_: message.tensors for id_, message in given.items()})
        return attrs.evolve(state, tensors=state.tensors | tested)

    def client_models(
        self, state: State, network: Callable[[Tensors], nn.Module] | None = None
    ) -> list[nn.Module]:
        """The clients' networks in a state; where clients test, with the classes of each."""
        tested = list(take_each("tested/", state.tensors).values())
        models = [(network or state.task.model_from)(own) for own in tested]
        if not self.clients_test:
            return models
        return [
            OwnTest(model, own["counts"] > 0) for model, own in zip(models, tested, strict=True)
        ]
