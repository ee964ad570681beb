"""What an attacker on the server hears in a round."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from core.errors import InputError
from core.federation import Algorithm, Client, Ledger, Message, State
from core.rng import Rng


def overheard(
    algorithm: Algorithm, state: State, clients: list[Client], rng: Rng
) -> tuple[State, tuple[State, Mapping[int, Message], Rng]]:
    """The state after a round, and what the server made it of: the one upload of each client. Raises
    InputError for a method that asks for no such upload, or for images beside it.
    """
    listening, heard, large = copy.copy(algorithm), [], []

    def listen(state: State, uploads: Mapping[int, Message], rng: Rng) -> State:
        heard.append((state, uploads, rng))
        return algorithm.server_update(state, uploads, rng)

    def listen_to(call: str, *given: Any, **named: Any) -> dict[int, Message]:
        answers = algorithm.call_clients(call, *given, **named)
        tensors = [one for answer in answers.values() for one in answer.tensors.values()]
        if any(one.ndim > 2 for one in tensors):  # images, or the weights of a convolution
            large.append(call)
        return answers

    listening.server_update = listen  # type: ignore[method-assign]
    listening.call_clients = listen_to  # type: ignore[method-assign]
    after = listening.round(state, clients, Ledger.aside(), rng)
    if len(heard) != 1 or len(large) > 1:
        also = f", as it asks for {' and '.join(large)}" if len(large) > 1 else ""
        raise InputError(
            f"the attack needs one upload of each client in a round, which {type(algorithm).__name__} "
            f"does not have{also}"
        )
    return after, heard[0]
