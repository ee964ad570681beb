"""The ClientApp: one node, one client.

A node says in its configuration which client it is (`partition-id`), where its data lie (`data`, a
folder; without it the node takes its part of a data set that it has whole, for simulations), where
it keeps its memory over a restart (`memory`, a folder; without it the memory lives as long as
Flower's Context) and what it gives away at most over all its runs (`epsilon`, `delta`, see `budget`).

Memory, secret, noise and account go by one key: run, experiment and client. So another experiment
under the number of a run begins anew, and draws other noise; so does another question of the same round.

The server knows the seed of the run, and so all that is drawn from it. A private client draws from
a secret of its node instead: or the server could draw the same noise and take it off again. The
generator stays PyTorch's, which is not made for secrets.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from core import data
from core.checks import is_whole
from core.errors import InputError, unknown
from core.federation import Client, Runtime, owner
from core.federation.tensors import fingerprint, put, take
from core.files import FileError, alone, damaged, read_tensors, write_tensors
from core.rng import Rng, SecretRng
from lab.experiment import Experiment
from lab.flower import wire
from lab.flower.budget import charge
from lab.running import make_clients, make_task, task_on

app = ClientApp()
#: bytes of a node's own randomness
SECRET = 16
#: seconds that a question waits while the node answers another one of the same run
DAY = 86400.0
log = logging.getLogger(__name__)
Answer = Callable[[Message, Context], Message]


def discreet(answer: Answer) -> Answer:
    """Log errors at the node alone; the server hears in a sentence what it may know: no
    path, nothing of a file, and of an error of the program its kind alone.
    """

    @functools.wraps(answer)
    def answered(message: Message, context: Context) -> Message:
        try:
            return answer(message, context)
        except Exception as error:
            log.warning("a question of run %s has no answer: %s", context.run_id, error)
            text = str(error) if isinstance(error, InputError) else type(error).__name__
            if isinstance(error, FileError) or "/" in text or "\\" in text:
                text = "this node cannot answer; its own log says why"
            raise InputError(text) from None

    return answered


def runtime(context: Context) -> Runtime:
    """The device and precision that the run's configuration names."""
    config = context.run_config
    return Runtime.choose(str(config.get("device", "cpu")), str(config.get("precision", "float32")))


def _folder(context: Context, name: str) -> str | None:
    """A folder of the node's configuration."""
    value = context.node_config.get(name)
    return None if value is None else str(value)


@functools.lru_cache(maxsize=8)
def _clients(
    text: str, folder: str | None, number: int | None, where: Runtime
) -> tuple[Experiment, list[Client]]:
    """An experiment and its client of a number, on a folder's data; without folder all clients."""
    stated = Experiment.from_dict(json.loads(text))
    if folder is None or number is None:
        return stated, make_clients(stated, make_task(stated, where))
    task = task_on(data.load(stated.dataset, root=Path(folder)), stated, where)
    return stated, [owner(task, number, stated.seed, stated.train_fraction)]


def experiment_and_client(context: Context) -> tuple[Experiment, Client]:
    """The experiment, and this node's client, without its memory. Raises FileError where the data of the
    run cannot be had here: the names of its files are the node's own.
    """
    text, number = str(context.run_config["experiment"]), context.node_config.get("partition-id")
    if not is_whole(number, 0):
        raise InputError("this node needs a whole number partition-id in its --node-config")
    folder = _folder(context, "data")
    try:
        experiment, clients = _clients(text, folder, folder and number, runtime(context))  # type: ignore[arg-type]
    except InputError as error:
        raise FileError(f"the data of this run: {error}") from None
    if number >= experiment.clients:
        raise InputError(f"partition-id must be 0 .. {experiment.clients - 1}, not {number}")
    return experiment, clients[0 if folder else number]


def key_of(context: Context, experiment: Experiment, client: int) -> str:
    """The name of all that a node keeps of a client in a run of an experiment."""
    return f"{context.run_id}-{experiment.id}-{client}"


def fresh_secret() -> torch.Tensor:
    """(SECRET,) uint8 from the operating system."""
    return torch.tensor(list(os.urandom(SECRET)), dtype=torch.uint8)


@attrs.frozen
class Memory:
    """Memory of a node under a key: in a file, or, without a folder, in Flower's Context."""

    context: Context
    key: str

    @property
    def path(self) -> Path | None:
        """The file."""
        folder = _folder(self.context, "memory")
        return Path(folder) / f"{self.key}.safetensors" if folder else None

    @contextlib.contextmanager
    def exclusive(self, private: bool) -> Iterator[None]:
        """Answer one question at a time: Flower's processes of one memory would draw the same noise.
        InputError for a private run on own data without a folder in which one can wait for the other.
        """
        if self.path is not None:
            with alone(self.path.with_suffix(".lock"), "another question of this run", DAY):
                yield
        elif private and _folder(self.context, "data") is not None:
            raise InputError("a private run needs a memory folder in the --node-config")
        else:
            yield

    def recall(
        self, question: str, device: torch.device
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """A client's memory, and its secret, (SECRET,) uint8. For a repeated question, known by its
        fingerprint `question`, it is the memory of the first time, for the same answer.
        """
        last, stored, state = "", dict[str, torch.Tensor](), self.context.state
        if self.path is None:
            if self.key in state:
                stored = wire.tensors(state[self.key], device)  # type: ignore[arg-type]
                last = str(state[f"{self.key} asked"]["what"])  # type: ignore[index, call-overload]
        elif self.path.exists():
            stored, about = read_tensors(self.path, "memory", str(device))
            if "asked" not in about or "secret" not in stored:
                raise damaged("memory", self.path, InputError("it does not say what was asked"))
            last = about["asked"]
        secret = stored["secret"] if "secret" in stored else fresh_secret()
        return take("before/" if last == question else "after/", stored), secret

    def keep(
        self,
        before: dict[str, torch.Tensor],
        after: dict[str, torch.Tensor],
        secret: torch.Tensor,
        question: str,
    ) -> None:
        """Write down the memory before and after a question."""
        stored = put("before/", before) | put("after/", after) | {"secret": secret}
        if self.path is None:
            self.context.state[self.key] = wire.arrays(stored)
            self.context.state[f"{self.key} asked"] = ConfigRecord({"what": question})
        else:
            # a copy of each: before and after may share tensors
            plain = {name: value.cpu().contiguous().clone() for name, value in stored.items()}
            write_tensors(self.path, plain, {"asked": question}, secret=True)


@app.query("introduce")
@discreet
def introduce(message: Message, context: Context) -> Message:
    """Return the number of this client, and of its samples."""
    _, client = experiment_and_client(context)
    about = ConfigRecord({"client": client.id, "samples": len(client)})
    return Message(RecordDict({wire.META: about}), reply_to=message)


@app.train()
@app.query()
@discreet
def answer(message: Message, context: Context) -> Message:
    """The client's answer to a question of the server. InputError for an unknown question, for a run beyond
    the node's budget, and for a private one on own data without a folder.
    """
    experiment, client = experiment_and_client(context)
    received, asked = wire.message(message.content, client.task.runtime.device)
    question, path = json.loads(asked)
    algorithm = experiment.new_algorithm()
    if question not in algorithm.remote_calls:
        raise unknown(f"remote call of {experiment.algorithm}", question, algorithm.remote_calls)
    memory = Memory(context, key_of(context, experiment, client.id))
    charge(context, memory.key, algorithm, _folder(context, "memory"))
    identity = fingerprint(asked + json.dumps(received.meta, sort_keys=True), received.tensors)
    with memory.exclusive(algorithm.private):
        before, secret = memory.recall(identity, client.task.runtime.device)
        # all draws below the same node of the tree of random streams as in one process
        rng = Rng(experiment.seed, tuple(path))
        if algorithm.private:
            own_path = (f"{memory.key}-{identity}", *rng.path)
            rng = SecretRng(int.from_bytes(bytes(secret.tolist())), own_path)
        client = attrs.evolve(client, memory=before).copy()  # some learn in place
        answers = algorithm.at_clients(question, [client], {client.id: received}, rng)
        content = wire.records(answers[client.id], asked)
        memory.keep(before, client.memory, secret, identity)
    return Message(content, reply_to=message)
