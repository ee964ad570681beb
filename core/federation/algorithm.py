"""The contract that every algorithm keeps, with all roles that a method can play.

Every method writes

* `initialise`: the server's state before the first round;
* `broadcast`: what goes down to a client at the start of a round;
* `upload_format`: the form that every upload must have;
* `client_update`: what goes up from a client; or `client_updates`, where many clients are computed as one
  batched program. The contract derives the one that is not written;
* `server_update`: the new state, from the uploads;
* `model`: what is tested.

A method may also say for which tasks it is (`task_kinds`), what it uses of a network beside its outputs
(`network_parts`), who can test it (`evaluators`), what else the server calls on its clients
(`remote_calls`, called in a `round` of its own), what is wrong with an upload beyond its form
(`upload_fault`), what is measured at the end (`measures`), and what protects its uploads (`private`,
`privacy_budget`).

Families have roles of their own, which their classes describe: `FedAvg` (`loss` or `objective`, `network`,
`start`, `batches`, `answer`, `combined`), `OwnModels` (models that stay with their clients), `Condensing`
(`client_updates` for clients that upload images) and, below it, `OneShotCondensing` (`condense`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import attrs
import torch
from torch import nn

from core.checks import check_kind, shown_briefly
from core.errors import InputError, brief
from core.federation.client import Client
from core.federation.message import Ledger, Message
from core.federation.schedule import Schedule
from core.federation.task import Task
from core.federation.validation import Format, check_announced, validate_uploads
from core.progress import counted
from core.rng import Rng

#: task kinds: of a method that needs classes of images, and of one that treats a pixel of a mask like any
#: other prediction
CLASSIFICATION: tuple[str, ...] = ("classification",)
EVERY_TASK: tuple[str, ...] = ("classification", "segmentation", "reconstruction")
#: evaluators of a method that the server alone can test
SERVER: tuple[str, ...] = ("server",)


@attrs.frozen(eq=False, field_transformer=shown_briefly)
class State:
    """The server's knowledge between rounds, held by checkpoints: named tensors, plain values."""

    task: Task
    tensors: dict[str, torch.Tensor] = attrs.field(factory=dict)
    meta: dict[str, Any] = attrs.field(factory=dict)


class Algorithm:
    """A way to federate a task.

    An algorithm keeps nothing between calls: the server's knowledge is in `State`, a client's in
    `client.memory`, the hyper-parameters in `settings`, a frozen attrs class beside the algorithm.
    `schedule` says how many clients and rounds there are in all.
    """

    Settings: ClassVar[type]
    #: the kinds of task that it serves
    task_kinds: ClassVar[tuple[str, ...]] = CLASSIFICATION
    #: who can test it, by the names of `Schedule.tested_by`
    evaluators: ClassVar[tuple[str, ...]] = SERVER
    #: what it uses of a network beside its outputs, of "embed" and "classifier" and parts of these
    network_parts: ClassVar[tuple[str, ...]] = ()
    #: the methods that `call_clients` may run on the clients' side
    remote_calls: ClassVar[tuple[str, ...]] = ("client_update",)
    #: whether the clients are in other processes, so that `call_clients` alone reaches them
    remote: ClassVar[bool] = False

    def __init__(self, settings: Any = None, schedule: Schedule | None = None) -> None:
        self.settings = self.Settings() if settings is None else settings
        self.schedule = Schedule() if schedule is None else schedule
        check_kind("schedule", self.schedule, Schedule)
        if not attrs.has(type(self.settings)):
            raise InputError(
                f"settings must be {type(self).__name__}.Settings(...), not {brief(settings)}"
            )
        if self.schedule.tested_by not in self.evaluators:
            raise InputError(f"tested_by must be server, not {self.schedule.tested_by}")

    def among(self, clients: Sequence[Client]) -> Self:
        """A copy for a run with those of the clients that have data."""
        algorithm = copy.copy(self)
        algorithm.schedule = self.schedule.among(sum(len(client) > 0 for client in clients))
        return algorithm

    # what a method writes

    def initialise(self, task: Task, rng: Rng) -> State:
        """Return the server's state before the first round."""
        raise NotImplementedError

    def broadcast(self, state: State, client_id: int) -> Message:
        """Return what the server sends to one client at the start of a round."""
        raise NotImplementedError

    def upload_format(self, state: State) -> Format:
        """Return the form that every upload must have: of its tensors and of its meta entries."""
        raise NotImplementedError

    def client_update(self, client: Client, message: Message, rng: Rng) -> Message:
        """Return what one client uploads; it sees its own data, its own memory and the message."""
        return self.client_updates([client], {client.id: message}, [rng])[client.id]

    def client_updates(
        self, clients: Sequence[Client], messages: Mapping[int, Message], rngs: Sequence[Rng]
    ) -> dict[int, Message]:
        """Return what several clients upload, by id; each has its own random stream, so uploads the same
        alone. Where `client_update` is written it serves them one after the other.
        """
        pairs = zip(clients, rngs, strict=True)
        return {
            client.id: self.client_update(client, messages[client.id], rng)
            for client, rng in counted(pairs, "clients", len(clients))
        }

    @property
    def one_by_one(self) -> bool:
        """True where the method has written `client_update`."""
        return type(self).client_update is not Algorithm.client_update

    def server_update(self, state: State, uploads: Mapping[int, Message], rng: Rng) -> State:
        """Return the server's state after it has seen the uploads."""
        raise NotImplementedError

    def model(self, state: State) -> nn.Module | list[nn.Module]:
        """Return what is tested: one model, or a list with one model per client."""
        raise NotImplementedError

    # what a method may write

    def round(self, state: State, clients: Sequence[Client], ledger: Ledger, rng: Rng) -> State:
        """Run one round: broadcast, client updates, validated and counted uploads, server update."""
        messages = {
            client.id: ledger.count("down", self.broadcast(state, client.id)) for client in clients
        }
        form, streams = self.upload_format(state), rng.at("client")
        uploads = self.call_clients("client_update", clients, messages, form, ledger, streams)
        with ledger.timed("server"):
            return self.server_update(state, uploads, rng.at("server"))

    def upload_fault(self, upload: Message) -> str | None:
        """Fault of an upload, or of any answer to a remote call, beyond what its form tells."""
        return None

    def measures(self, state: State) -> dict[str, float]:
        """Return what the method says of its result after the last round, by name; it is added to the
        task's metrics in the record, so no name may be that of one.
        """
        return {}

    @property
    def private(self) -> bool:
        """True where what leaves a client has noise that nobody else may know: the client then draws it
        from a secret of its own where it is a process of its own.
        """
        return False

    @property
    def privacy_budget(self) -> tuple[float, float] | None:
        """Epsilon and delta of all uploads of one client in a run, towards a server that reads each of
        them; None where nothing bounds them.
        """
        return None

    # how the server reaches the clients

    def call_clients(
        self,
        call: str,
        clients: Sequence[Client],
        messages: Mapping[int, Message] | None,
        form: Format,
        ledger: Ledger,
        rng: Rng,
        in_round: Sequence[Client] = (),
    ) -> dict[int, Message]:
        """Return the clients' answers to a remote call, validated and counted.

        Args:
            call: one of `remote_calls`; a method with the signature of `client_updates`.
            messages: what goes down with it, counted by the caller; None: nothing.
            form: of the answers.
            rng: a client's stream is the one below this at its id.
            in_round: all clients of the round where only some are called: the round then goes on with
                the others if no answer is left.
        """
        if messages is None:
            messages = {client.id: Message({}) for client in clients}
        with ledger.timed("clients"):
            answers = self.at_clients(call, clients, messages, rng, form)
        fewest = int(len(in_round) <= len(clients))
        return self.validate(answers, form, clients, ledger, fewest=fewest)

    def at_clients(
        self,
        call: str,
        clients: Sequence[Client],
        messages: Mapping[int, Message],
        rng: Rng,
        form: Format | None = None,
    ) -> dict[int, Message]:
        """Run a remote call where the clients are: here, in this process. A network takes the place of
        this method; `form` tells it how large an answer can be.
        """
        rngs = [rng.at(client.id) for client in clients]
        if call != "client_update":
            return getattr(self, call)(clients, messages, rngs)
        if self.one_by_one:
            return Algorithm.client_updates(self, clients, messages, rngs)
        return self.client_updates(clients, messages, rngs)

    def validate(
        self,
        answers: Mapping[int, Message],
        form: Format,
        clients: Sequence[Client],
        ledger: Ledger,
        fewest: int = 1,
    ) -> dict[int, Message]:
        """Return the clients' answers that are valid, counted; all uploads of all algorithms come by here."""
        announced = {
            client.id: check_announced(client.id, len(client), len(client.task.dataset.train))
            for client in clients
        }
        return validate_uploads(
            answers.items(),
            form,
            announced,
            ledger,
            refused=self.schedule.refused,
            update_norm=self.schedule.update_norm,
            fault_of=self.upload_fault,
            fewest=fewest,
        )
