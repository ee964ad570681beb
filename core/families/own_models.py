"""What methods share whose clients keep a network of their own, and these networks are tested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
from torch import nn

from core.federation import Algorithm, Client, Field, Ledger, Message, State, pack
from core.federation.tensors import put_each, take, take_each, weights
from core.rng import Rng

#: where a client keeps its network in its memory
OWN = "model/"


class OwnModels(Algorithm):
    """Every client remembers a network of its own, below `OWN`.

    The test images are the server's. So the networks are laid beside the state for the test; where
    clients are elsewhere, they cross the network for that. A test is no part of a method, and what
    it moves is not counted.
    """

    questions = ("clients_update", "own_models")

    def own_models(
        self, clients: Sequence[Client], messages: Mapping[int, Message], rng: Rng
    ) -> dict[int, Message]:
        """The networks, for the test."""
        return {client.id: Message(weights(take(OWN, client.memory))) for client in clients}

    def laid_open(self, state: State, clients: Sequence[Client], ledger: Ledger, rng: Rng) -> State:
        """The state with the networks of these clients beside it."""
        network = pack(state.task.new_model(Rng(0)))
        form = {name: Field(tuple(value.shape), value.dtype) for name, value in network.items()}
        nothing, uncounted = {client.id: Message({}) for client in clients}, Ledger()
        uncounted.open_round()
        given = self.ask("own_models", clients, nothing, (form, {}), uncounted, rng.at("test"))
        ledger.refuse(uncounted.rounds[-1].get("refused", {}))
        tested = put_each("tested/", {id_: message.tensors for id_, message in given.items()})
        return attrs.evolve(state, tensors=state.tensors | tested)

    def tested(self, state: State) -> list[nn.Module]:
        """The networks that stand beside a state."""
        found = take_each("tested/", state.tensors)
        return [state.task.model_from(tensors) for tensors in found.values()]
