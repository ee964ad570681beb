"""What is seen in a run of a subject: messages, answers, and what a method changes."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import attrs
import torch

from core.federation import (
    Algorithm,
    Client,
    Ledger,
    Message,
    RoundResult,
    State,
    rounds,
    validate_uploads,
)
from core.federation import algorithm as algorithm_module
from tests.algorithms.subjects import SEED, Subject, crowd, task


def contents(thing: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Named tensors and plain values in states, messages and clients, but not in their memories."""
    if isinstance(thing, (State, Message)):
        yield from contents(thing.tensors, f"{at}tensors/")
        yield from contents(thing.meta, f"{at}meta/")
    elif isinstance(thing, Client):
        yield from contents({"images": thing.images, "labels": thing.labels}, f"{at}{thing.id}/")
    elif isinstance(thing, Mapping):
        for name, value in thing.items():
            yield from contents(value, f"{at}{name}/")
    elif isinstance(thing, (list, tuple)):
        for number, value in enumerate(thing):
            yield from contents(value, f"{at}{number}/")
    elif thing is None or isinstance(thing, (torch.Tensor, str, int, float)):
        yield at.rstrip("/"), thing


def differences(one: Any, other: Any) -> list[str]:
    """Where two of them differ, bit for bit."""
    one, other = dict(contents(one)), dict(contents(other))
    return sorted(one.keys() ^ other.keys()) + [
        name
        for name in one.keys() & other.keys()
        if not (
            one[name].dtype == other[name].dtype and torch.equal(one[name], other[name])
            if isinstance(one[name], torch.Tensor)
            else one[name] == other[name]
        )
    ]


def pieces(tensors: Mapping[str, torch.Tensor]) -> set[bytes]:
    """Return the rows of tensors as bytes, without those that are too short to be recognised."""
    return {
        row.tobytes()
        for tensor in tensors.values()
        for row in (tensor.flatten(1) if tensor.dim() > 1 else tensor.reshape(1, -1)).numpy()
        if row.nbytes >= 16 and (row != row[0]).any()
    }


@attrs.define
class Watched:
    """What was seen in a run."""

    results: list[RoundResult]
    clients: list[Client]
    #: (ledger, round from 0, direction, message)
    counted: list[tuple[Ledger, int, str, Message]] = attrs.field(factory=list)
    #: what clients got and answered
    served: list[tuple[str, Message]] = attrs.field(factory=list)
    #: (message, its tensors' form, its meta's form, client)
    checked: list[tuple[Message, Mapping, Mapping, int]] = attrs.field(factory=list)
    #: (client, memory and answer among others, memory and answer alone)
    alone: list[tuple[int, dict, dict]] = attrs.field(factory=list)
    changed: list[str] = attrs.field(factory=list)
    leaked: list[str] = attrs.field(factory=list)

    @property
    def ledger(self) -> Ledger:
        return self.results[-1].ledger


GUARDED = ("broadcast", "at_clients", "server_update", "round", "model", "measures")


@functools.cache
def watch(subject: Subject) -> Watched:
    """A run under eyes that change nothing."""
    seen = Watched([], crowd(subject.task_kind))
    # with the schedule of the run, which goes on with a copy: what is watched is bound to this one
    algorithm = subject.new().among(seen.clients)
    _watch_calls(algorithm, subject, seen)
    for name in GUARDED:
        _guard(algorithm, name, seen)
    with ExitStack() as patches:
        _watch_network(seen, patches)
        for result in rounds(algorithm, task(subject.task_kind), seen.clients, SEED):
            # a later round must not reach into it
            kept = copy.deepcopy(dict(contents(result.state.tensors)))
            seen.results.append(
                attrs.evolve(result, state=attrs.evolve(result.state, tensors=kept))
            )
    return seen


def _guard(algorithm: Algorithm, name: str, seen: Watched) -> None:
    """Note what a method changes of what it is given."""
    plain = getattr(algorithm, name)

    def guarded(*given: Any) -> Any:
        before = copy.deepcopy(dict(contents(given)))
        result = plain(*given)
        seen.changed += [f"{name} changes {what}" for what in differences(before, given)]
        return result

    setattr(algorithm, name, guarded)


def _watch_calls(algorithm: Algorithm, subject: Subject, seen: Watched) -> None:
    """Note what comes to clients; ask each by itself before it answers among the others."""
    plain = algorithm.at_clients

    def by_itself(call: str, client: Client, messages: Any, rng: Any, form: Any) -> Message:
        if call == "client_update":
            return subject.new().client_update(client, messages[client.id], rng.at(client.id))
        return subject.new().at_clients(call, [client], messages, rng, form)[client.id]

    def at_clients(call: str, clients: Any, messages: Any, rng: Any, form: Any) -> dict:
        live = {client.id: client for client in clients}
        seen.clients[:] = [live.get(client.id, client) for client in seen.clients]
        sent = [messages[client.id] for client in clients]
        seen.served += [("down", one) for one in sent if one.tensors or one.meta]
        twins = [client.copy() for client in reversed(clients)]
        alone = {
            twin.id: (by_itself(call, twin, messages, rng, form), twin.memory) for twin in twins
        }
        answers = plain(call, clients, messages, rng, form)
        for client in clients:
            if call == "client_update":
                seen.served.append(("up", answers[client.id]))
            both = (answers[client.id], client.memory), alone[client.id]
            # a later round may add to a memory
            seen.alone.append((client.id, *copy.deepcopy([dict(contents(one)) for one in both])))
        return answers

    algorithm.at_clients = at_clients  # type: ignore[method-assign]


def _watch_network(seen: Watched, patches: ExitStack) -> None:
    """Note all messages that are counted or validated, and what they give away."""
    count, crossed = Ledger.count, set[bytes]()

    def counting(ledger: Ledger, direction: str, message: Message) -> Message:
        seen.counted.append((ledger, len(seen.results), direction, message))
        rows = pieces(message.tensors)
        for client in seen.clients:
            own = {"images": client.images} | (client.memory if direction == "down" else {})
            if rows & (pieces(own) - crossed):
                seen.leaked.append(f"{sorted(message.tensors)} going {direction}")
        crossed.update(rows)
        return count(ledger, direction, message)

    def validating(
        answers: Iterable, form: tuple, announced: Mapping, *more: Any, **named: Any
    ) -> dict:
        answers = list(answers)
        seen.checked += [(message, *form, id_) for id_, message in answers]
        return validate_uploads(answers, form, announced, *more, **named)

    patches.enter_context(patch.object(Ledger, "count", counting))
    patches.enter_context(patch.object(algorithm_module, "validate_uploads", validating))
