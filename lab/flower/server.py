"""The ServerApp: the round loop, with clients that are elsewhere."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from flwr.app import Context, RecordDict
from flwr.app import Message as Envelope
from flwr.serverapp import Grid, ServerApp

from core import data
from core.checks import LARGEST, is_whole
from core.errors import InputError, brief, printable
from core.federation import Algorithm, Field, Message, State, Task
from core.rng import Rng
from lab import schema
from lab.experiment import Experiment
from lab.flower import wire
from lab.flower.client import DAY, runtime
from lab.record import ADHOC, Record
from lab.running import make_task, run, task_on

log = logging.getLogger("flwr")
app = ServerApp()
#: seconds between two looks for answers
POLL = 1.0
#: more bytes than NumPy's format adds to a tensor, and than an entry has
HEADER = 256


@attrs.define(eq=False)
class Remote:
    """A client as the server knows it: a number, how many samples it says it has, and its node."""

    id: int
    samples: int
    node: int
    task: Task | None = None

    def __len__(self) -> int:
        return self.samples

    def copy(self) -> Remote:
        """Return the client itself: it remembers nothing here."""
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise InputError(
            f"this algorithm asks for {name!r} of client {self.id}, which never leaves it; it cannot "
            "run across a network"
        )


def most_bytes(tensors: Mapping[str, Field], meta: Mapping[str, Field]) -> int:
    """The most bytes that an upload with tensors and entries of this form can have."""
    total = HEADER * len(meta)
    for field in tensors.values():
        numbers = math.prod(field.most if length is None else length for length in field.shape)
        total += numbers * field.dtype.itemsize + HEADER
    return total


@attrs.define(eq=False)
class Link:
    """The server's end of the network."""

    grid: Grid
    expected: int
    #: seconds that a node has for an answer
    timeout: float
    #: whether a round waits for nodes that are away, or goes on without them
    wait: bool
    #: samples that a hospital may say it has, by which it is weighted; 0: any number
    most: int = 0
    clients: dict[int, Remote] = attrs.field(factory=dict)
    #: what a record says of nodes that were away or refused
    notes: list[str] = attrs.field(factory=list)
    #: where the server computes: answers are read to there
    device: torch.device = attrs.field(factory=lambda: torch.device("cpu"))

    def note(self, text: str) -> None:
        """Say it now, and in the record, once, in one line that a record can hold."""
        text = printable(" ".join(text.split())[: schema.TEXT])
        if text not in self.notes:
            log.warning(text)
            self.notes.append(text)

    def _exchange(
        self,
        contents: Mapping[int, RecordDict],
        kind: str,
        seconds: float | None = None,
        sent: dict[str, int] | None = None,
    ) -> Iterator[Envelope]:
        """Send to nodes, and the answers that come within so many seconds (default: `timeout`). `sent`
        has messages to these nodes that had no answer yet, by their number; it is kept up to date.
        """
        seconds = self.timeout if seconds is None else seconds
        sent = {} if sent is None else sent
        life = DAY if self.wait else max(self.timeout, 60.0) * 2
        envelopes = [Envelope(content, node, kind, ttl=life) for node, content in contents.items()]
        numbers = list(self.grid.push_messages(envelopes))
        if len(numbers) < len(envelopes):
            raise InputError("Flower does not take messages of this size: see its log")
        # without a number: to a node that has just gone
        sent |= {number: node for number, node in zip(numbers, contents, strict=True) if number}
        end = time.monotonic() + seconds
        while sent:
            for reply in self.grid.pull_messages(list(sent)):
                source = reply.metadata.src_node_id
                sent.pop(reply.metadata.reply_to_message_id, None)
                for number in [number for number, node in sent.items() if node == source]:
                    del sent[number]  # the same question once more, which needs no other answer
                yield reply
            if time.monotonic() >= end:
                break
            time.sleep(POLL)

    def meet(self) -> None:
        """Ask nodes that are new who they are. A node that is no client of this run is refused."""
        known = {client.node for client in self.clients.values()}
        silent = {node: RecordDict() for node in self.grid.get_node_ids() if node not in known}
        for reply in self._exchange(dict(silent), "query.introduce") if silent else ():
            node = reply.metadata.src_node_id
            if silent.pop(node, None) is None:  # Flower itself answers for a node that went away
                continue
            if reply.has_error():
                self.note(f"node {node} was refused: it does not say which client it is")
            elif wrong := self._enter(node, reply.content):
                self.note(f"node {node} was refused: {wrong}")
        for node in silent:
            self.note(f"node {node} does not say which client it is")

    def _enter(self, node: int, content: RecordDict) -> str:
        """Enter a node as the client that it says it is; what is wrong with it, if anything."""
        about = content.get(wire.META) or {}
        number, samples = about.get("client"), about.get("samples")
        if not is_whole(number, 0, self.expected - 1):
            return f"{brief(number)} is no client of this run"
        if not is_whole(samples, 0, self.most or LARGEST):
            return f"{brief(samples)} is no number of samples of this run"
        if len(content) > 1 or len(about) > 2:
            return "it says more than that"
        before = self.clients.get(number)
        if before is None:
            self.clients[number] = Remote(number, samples, node)
        elif before.samples == samples and before.node not in self.grid.get_node_ids():
            before.node = node
            self.note(f"client {number} is back, as node {node}")
        else:
            return f"client {number} is another node"
        return ""

    def gather(self, patience: float) -> list[Remote]:
        """All clients, as soon as they are there. Raises InputError after so many seconds."""
        end = time.monotonic() + patience
        while len(self.clients) < self.expected:
            if time.monotonic() > end:
                away = sorted(set(range(self.expected)) - set(self.clients))
                raise InputError(f"clients {away} did not come within {patience:g} seconds")
            self.meet()
            if len(self.clients) < self.expected:
                time.sleep(0.5)
        return [self.clients[number] for number in range(self.expected)]

    def call(
        self,
        question: str,
        clients: Sequence[Remote],
        messages: Mapping[int, Message],
        rng: Rng,
        most: int,
    ) -> dict[int, Message]:
        """The clients' answers to a question, in order; missing or unreadable ones are named. A run that
        waits for all asks anew after `timeout`, doubled each time, and takes the first answer.
        """
        asked = json.dumps([question, rng.path])
        round_ = " ".join(str(part) for part in rng.path if part != "client")
        kind = "train" if question == "client_update" else "query"
        answers: dict[int, Message] = {}
        waiting, sent, seconds = list(clients), dict[str, int](), self.timeout
        while waiting:
            by_node = {client.node: client for client in waiting}
            contents = {
                node: wire.records(messages[client.id], asked) for node, client in by_node.items()
            }
            for reply in self._exchange(contents, kind, seconds, sent):
                client = by_node.pop(reply.metadata.src_node_id, None)
                if client is None:  # Flower itself answers for a node that went away
                    continue
                if reply.has_error():  # asking again would end in the same way
                    self.note(f"client {client.id} failed in {round_}: {reply.error.reason}")
                    continue
                try:
                    answers[client.id], _ = wire.message(reply.content, self.device, most, asked)
                except InputError as error:
                    self.note(f"the upload of client {client.id} was refused: {error}")
            waiting = list(by_node.values())
            for client in waiting:
                goes = "waits for it" if self.wait else "goes on without it"
                self.note(f"client {client.id} does not answer; {round_} {goes}")
            if not self.wait:
                break
            if waiting:
                seconds *= 2 if sent else 1  # it may need longer than that: not asked anew so soon
                time.sleep(POLL)
                self.meet()
        return {client.id: answers[client.id] for client in clients if client.id in answers}


def over_link(algorithm: Algorithm, link: Link) -> Algorithm:
    """Return an algorithm whose clients are called across a link."""
    kind: Any = type(algorithm)

    class OverLink(kind):
        """An algorithm as it was, but for where clients answer."""

        remote = True

        def round(self, state: State, clients: Any, ledger: Any, rng: Rng) -> State:
            """A round, with the nodes that are there now."""
            link.meet()
            log.info("round %s of %d", rng.path[-1], self.schedule.rounds)
            return super().round(state, clients, ledger, rng)

        def at_clients(
            self, call: str, clients: Any, messages: Any, rng: Rng, form: Any = None
        ) -> dict[int, Message]:
            """Asked, not computed."""
            return link.call(call, clients, messages, rng, most_bytes(*form))

    return OverLink(algorithm.settings, algorithm.schedule)


def server_task(experiment: Experiment, context: Context, samples: int) -> Task:
    """The server's task. With the folder `server-data` it has the test or validation images and the number
    of training images; without, all data, for simulations. InputError without the images it tests on.
    """
    folder = context.run_config.get("server-data")
    if not folder:
        return make_task(experiment, runtime(context))
    dataset = data.load(experiment.dataset, root=Path(str(folder)))
    if experiment.evaluate_on == "val" and not len(dataset.val):
        raise InputError(
            f"the server's data, {dataset.name} in {folder}, have no validation images to test on"
        )
    train = dataset.train
    # so many samples of which nothing is known: all 0, and no memory
    images, labels, masks = (
        None if part is None else part.new_zeros(()).expand(samples, *part.shape[1:])
        for part in (train.images, train.labels, train.masks)
    )
    unseen = data.Split(images, labels, masks=masks)  # type: ignore[arg-type]
    return task_on(attrs.evolve(dataset, train=unseen), experiment, runtime(context))


def federate(grid: Grid, context: Context) -> Record:
    """The record of the run's configuration: `experiment` (JSON), `out` (folder, or none), `timeout` and
    `patience` (s), `wait-for-all`, `most-samples`, `device`, `precision`, `server-data`.
    """
    config = context.run_config
    experiment = Experiment.from_dict(json.loads(str(config["experiment"])))
    if experiment.attack:
        raise InputError("an attack needs the clients' data, which never leave them")
    out = str(config.get("out", ""))
    path = Path(out) / ADHOC / f"{experiment.id}.json" if out else None
    if path and path.exists() and Record.load(path).status == "complete":
        raise InputError(  # it may be of other data
            f"{path} holds this run's record: move it away, or give another folder as out"
        )
    timeout = float(config.get("timeout", 600.0))
    wait, most = bool(config.get("wait-for-all", True)), int(config.get("most-samples", 0))
    link = Link(grid, experiment.clients, timeout, wait, most)
    clients = link.gather(float(config.get("patience", 120.0)))
    task = server_task(experiment, context, sum(map(len, clients)))
    link.device = task.runtime.device
    for client in clients:
        client.task = task
    record = run(
        experiment,
        task=task,
        clients=clients,  # type: ignore[arg-type]
        algorithm=over_link(experiment.new_algorithm(), link),
        record=path,
        notes=link.notes,
    )
    log.info("the last test: %s", json.dumps(record.metrics))
    return record


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the server's side, as `flwr run` starts it."""
    federate(grid, context)
