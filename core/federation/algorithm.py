"""The contract that every algorithm keeps."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import attrs
import torch
from torch import nn

from core.errors import InputError
from core.federation.client import Client
from core.federation.fields import Field
from core.federation.message import Ledger, Message
from core.federation.schedule import Schedule
from core.federation.task import Task
from core.federation.uploads import admit, announce
from core.progress import counted
from core.rng import Rng

#: the kinds of task, for a method that treats a pixel of a mask like any other prediction
EVERY_TASK = ("classification", "segmentation", "reconstruction")


@attrs.frozen(eq=False)
class State:
    """What the server knows between rounds: named tensors and small plain values. It is what a
    checkpoint holds.
    """

    task: Task
    tensors: dict[str, torch.Tensor] = attrs.field(factory=dict)
    meta: dict[str, Any] = attrs.field(factory=dict)


class Algorithm:
    """How a task is federated.

    An algorithm keeps nothing between calls: the server's knowledge is in `State`, a client's in
    `client.memory`, the hyper-parameters in `settings`, a frozen attrs class that stands beside the
    algorithm as its `Settings`. `schedule` says how many clients and rounds there are in all.
    """

    Settings: ClassVar[type]
    #: the kinds of task that it can serve. A class says so itself: it does not inherit it
    learns: ClassVar[tuple[str, ...]] = ("classification",)
    #: the methods that `ask` may call on the clients' side
    questions: ClassVar[tuple[str, ...]] = ("clients_update",)
    #: who can test it (`Schedule.tested_by`). A class says so itself, as for `learns`
    testers: ClassVar[tuple[str, ...]] = ("server",)
    #: whether the clients are in another process, so that `ask` alone reaches them
    elsewhere: ClassVar[bool] = False

    def __init__(self, settings: Any = None, schedule: Schedule | None = None) -> None:
        self.settings = self.Settings() if settings is None else settings
        self.schedule = schedule or Schedule()
        if self.schedule.tested_by not in vars(type(self)).get("testers", Algorithm.testers):
            raise InputError(f"tested_by must be server, not {self.schedule.tested_by}")

    @classmethod
    def serves(cls) -> tuple[str, ...]:
        """The kinds of task that this method is for."""
        return vars(cls).get("learns", Algorithm.learns)

    @property
    def private(self) -> bool:
        """Whether what leaves a client has noise that nobody else may know: the client then draws it
        from a secret of its own where it is a process of its own.
        """
        return False

    @property
    def spends(self) -> tuple[float, float] | None:
        """Epsilon and delta of all uploads of one client in a run, towards a server that reads each of
        them; None where nothing bounds them.
        """
        return None

    def among(self, clients: Sequence[Client]) -> Self:
        """This algorithm in a run of those of the clients that have data: a copy, for it may be run
        again with others.
        """
        mine = copy.copy(self)
        mine.schedule = self.schedule.among(sum(len(client) > 0 for client in clients))
        return mine

    def initialise(self, task: Task, rng: Rng) -> State:
        """The server's state before the first round."""
        raise NotImplementedError

    def broadcast(self, state: State, client_id: int) -> Message:
        """What the server sends to one client at the start of a round."""
        raise NotImplementedError

    def upload_format(self, state: State) -> tuple[dict[str, Field], dict[str, Field]]:
        """The form every upload must have: its tensors and its meta entries."""
        raise NotImplementedError

    def client_update(self, client: Client, message: Message, rng: Rng) -> Message:
        """What one client answers; it sees its own data, its own memory and the message."""
        raise NotImplementedError

    def clients_update(
        self, clients: Sequence[Client], messages: Mapping[int, Message], rng: Rng
    ) -> dict[int, Message]:
        """The answers of all clients of a round; override it to serve them in one batched
        program.
        """
        return {
            client.id: self.client_update(client, messages[client.id], rng.at("client", client.id))
            for client in counted(clients, "clients", len(clients))
        }

    def server_update(self, state: State, uploads: Mapping[int, Message], rng: Rng) -> State:
        """The server's state after it has seen the uploads."""
        raise NotImplementedError

    def round(self, state: State, clients: Sequence[Client], ledger: Ledger, rng: Rng) -> State:
        """One round: broadcast, client updates, checked and counted uploads, server update."""
        messages = {
            client.id: ledger.count("down", self.broadcast(state, client.id)) for client in clients
        }
        form = self.upload_format(state)
        uploads = self.ask("clients_update", clients, messages, form, ledger, rng)
        with ledger.timed("server"):
            return self.server_update(state, uploads, rng.at("server"))

    def ask(
        self,
        question: str,
        clients: Sequence[Client],
        messages: Mapping[int, Message] | None,
        form: tuple[Mapping[str, Field], Mapping[str, Field]],
        ledger: Ledger,
        rng: Rng,
        among: Sequence[Client] = (),
    ) -> dict[int, Message]:
        """The clients' answers of that form to one question, checked and counted.

        A question is a method of the clients' side that takes what `clients_update` takes, and gives
        what it gives; `questions` names it. Without `messages` nothing comes along with it. What goes
        down is counted by the caller. Where only some of the round's clients are asked, `among` are all
        of them: the round goes on with the others if no answer is left.
        """
        if messages is None:
            messages = {client.id: Message({}) for client in clients}
        with ledger.timed("clients"):
            answers = self.answers(question, clients, messages, form, rng)
        return self.admit(answers, form, clients, ledger, fewest=int(len(among) <= len(clients)))

    def answers(
        self,
        question: str,
        clients: Sequence[Client],
        messages: Mapping[int, Message],
        form: tuple[Mapping[str, Field], Mapping[str, Field]],
        rng: Rng,
    ) -> dict[int, Message]:
        """What all clients say to a question: here they are at hand. Where they are elsewhere, this is
        what a network takes the place of.
        """
        return getattr(self, question)(clients, messages, rng)

    def admit(
        self,
        answers: Mapping[int, Message],
        form: tuple[Mapping[str, Field], Mapping[str, Field]],
        clients: Sequence[Client],
        ledger: Ledger,
        fewest: int = 1,
    ) -> dict[int, Message]:
        """The answers of these clients that have the form, counted; see `uploads.admit`.

        Every upload of every algorithm comes by here before anything is computed from it.
        """
        return admit(
            answers.items(),
            form,
            {
                client.id: announce(client.id, len(client), len(client.task.dataset.train))
                for client in clients
            },
            ledger,
            refused=self.schedule.refused,
            update_norm=self.schedule.update_norm,
            fault_of=self.fault,
            fewest=fewest,
        )

    def fault(self, upload: Message) -> str | None:
        """What is wrong with an upload beyond what its form tells, if anything; every answer to every
        question comes by here.
        """
        return None

    def model(self, state: State) -> nn.Module | list[nn.Module]:
        """What is tested: one model, or a list with one model per client."""
        raise NotImplementedError

    def measures(self, state: State) -> dict[str, float]:
        """What an algorithm says of its result beside the task's metrics, by name, after the last
        round.

        They enter the last round's metrics, and so the record; a name must not be that of a metric
        of the task.
        """
        return {}
