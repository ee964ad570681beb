"""The ClientApp: one node, one client.

A node says in its configuration which client it is (`partition-id`), where its data lie (`data`, a
folder; without it the node takes its part of a data set that it has whole, for simulations), where
it keeps its memory over a restart (`memory`, a folder; without it the memory lives as long as
Flower's Context) and what it gives away at most over all its runs (`epsilon`, see `budget`).

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
from collections.abc import Iterator
from pathlib import Path

import attrs
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from core import data
from core.checks import is_whole
from core.errors import InputError, unknown
from core.federation import Client, Runtime, Task, owner
from core.federation.tensors import fingerprint, put, take
from core.files import alone, damaged, read_tensors, write_tensors
from core.rng import Rng, SecretRng
from lab.experiment import Experiment
from lab.flower import wire
from lab.flower.budget import charge
from lab.running import make_clients, make_task, task_on

app = ClientApp()
MEMORY = "memory"
#: bytes of a node's own randomness
SECRET = 16
#: seconds that a question waits while the node answers another one of the same run
DAY = 86400.0
log = logging.getLogger(__name__)


def runtime(context: Context) -> Runtime:
    """The device and precision that the run's configuration names."""
    config = context.run_config
    return Runtime.choose(str(config.get("device", "cpu")), str(config.get("precision", "float32")))


@functools.lru_cache(maxsize=8)
def _task(experiment: str, folder: str | None, where: Runtime) -> tuple[Experiment, Task]:
    """An experiment and its task; with the data below a folder in the place of this machine's."""
    stated = Experiment.from_dict(json.loads(experiment))
    if folder is None:
        return stated, make_task(stated, where)
    return stated, task_on(data.load(stated.dataset, root=Path(folder)), stated, where)


@functools.lru_cache(maxsize=8)
def _clients(experiment: str, where: Runtime) -> list[Client]:
    stated, task = _task(experiment, None, where)
    return make_clients(stated, task)


@functools.lru_cache(maxsize=8)
def _owner(experiment: str, folder: str, number: int, where: Runtime) -> Client:
    stated, task = _task(experiment, folder, where)
    return owner(task, number, stated.seed, stated.train_fraction)


def own(context: Context) -> tuple[Experiment, Client]:
    """The experiment, and this node's client, without its memory."""
    text, config = str(context.run_config["experiment"]), context.node_config
    number = config.get("partition-id")
    if not is_whole(number):
        raise InputError("this node needs a whole number partition-id in its --node-config")
    where = runtime(context)
    folder = config.get("data")
    with _untold():
        experiment, _ = _task(text, None if folder is None else str(folder), where)
    if not 0 <= number < experiment.clients:
        raise InputError(f"partition-id must be 0 .. {experiment.clients - 1}, not {number}")
    with _untold():
        if folder is None:
            client = _clients(text, where)[number]
        else:
            client = _owner(text, str(folder), number, where)
    return experiment, client


@contextlib.contextmanager
def _untold() -> Iterator[None]:
    """What is wrong with a node's data goes into its own log: the names of its files are its own."""
    try:
        yield
    except InputError as error:
        log.warning("the data of this run cannot be had here: %s", error)
        raise InputError(
            "this node cannot have the data of the run; its own log says why"
        ) from None


def _kept(context: Context, client: Client) -> Path | None:
    folder = context.node_config.get(MEMORY)
    return folder and Path(str(folder)) / f"{context.run_id}-{client.id}.safetensors"  # type: ignore[return-value]


def fresh_secret() -> torch.Tensor:
    """(SECRET,) uint8 from the operating system."""
    return torch.tensor(list(os.urandom(SECRET)), dtype=torch.uint8)


def _recall(
    context: Context, client: Client, question: str
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """A client's memory, and its node's secret, (SECRET,) uint8: from its file, which the last of
    several questions wrote, or, in a node without a folder, from the Context.

    When a question comes a second time, because its answer was lost, it is the memory that the
    client had when the question came first; so the answer is the same. `question` is a fingerprint
    of its address and of all that came with it: one that comes with other things is another.
    """
    path, last, kept = _kept(context, client), "", dict[str, torch.Tensor]()
    if path is not None and path.exists():
        kept, about = read_tensors(path, "memory", str(client.task.runtime.device))
        if "asked" not in about:
            raise damaged("memory", path, InputError("it does not say what was asked"))
        last = about["asked"]
    elif MEMORY in context.state:
        kept = wire.tensors(context.state[MEMORY], client.task.runtime.device)  # type: ignore[arg-type]
        last = str(context.state["asked"]["what"])  # type: ignore[index, call-overload]
    secret = kept["secret"] if "secret" in kept else fresh_secret()
    return take("before/" if last == question else "after/", kept), secret


def _remember(
    context: Context,
    client: Client,
    before: dict[str, torch.Tensor],
    secret: torch.Tensor,
    question: str,
) -> None:
    kept = put("before/", before) | put("after/", client.memory) | {"secret": secret}
    context.state[MEMORY] = wire.arrays(kept)
    context.state["asked"] = ConfigRecord({"what": question})
    if path := _kept(context, client):
        # a copy of each: before and after may share tensors
        plain = {name: value.cpu().contiguous().clone() for name, value in kept.items()}
        write_tensors(path, plain, {"asked": question}, secret=True)


@contextlib.contextmanager
def _one_at_a_time(context: Context, client: Client, private: bool) -> Iterator[None]:
    """Flower begins a process for each message. Two that know the same memory would draw the same
    noise, and their answers together would show what it hides. Raises InputError for a private run at
    a node with data of its own and without a folder in which one can wait for the other.
    """
    path = _kept(context, client)
    if path is not None:
        with alone(path.with_suffix(".lock"), "another question of this run", DAY):
            yield
    elif private and "data" in context.node_config:
        raise InputError("a private run needs a memory folder in the --node-config")
    else:
        yield


@app.query("introduce")
def introduce(message: Message, context: Context) -> Message:
    """Which client this is, and how many samples it has."""
    _, client = own(context)
    about = ConfigRecord({"client": client.id, "samples": len(client)})
    return Message(RecordDict({wire.META: about}), reply_to=message)


@app.train()
@app.query()
def answer(message: Message, context: Context) -> Message:
    """What the algorithm's clients answer to a question of the server, for this one client.

    Raises InputError for a question that the algorithm does not have, for a run that the node's own
    budget does not allow, and for a private one where the node has data of its own and no folder.
    """
    experiment, client = own(context)
    asked = str(message.content["asked"]["what"])  # type: ignore[index, call-overload]
    question, path = json.loads(asked)
    algorithm = experiment.new_algorithm()
    if question not in algorithm.remote_calls:
        raise unknown(f"remote call of {experiment.algorithm}", question, algorithm.remote_calls)
    folder = context.node_config.get(MEMORY)
    charge(context, client.id, experiment.id, algorithm, None if folder is None else str(folder))
    received = wire.message(message.content, client.task.runtime.device)
    identity = fingerprint(asked + json.dumps(received.meta, sort_keys=True), received.tensors)
    with _one_at_a_time(context, client, algorithm.private):
        before, secret = _recall(context, client, identity)
        # all draws below the same node of the tree of random streams as in one process
        rng = Rng(experiment.seed, tuple(path))
        if algorithm.private:
            rng = SecretRng(int.from_bytes(bytes(secret.tolist())), rng.path)
        client = attrs.evolve(client, memory=before).copy()  # some learn in place
        answers = algorithm.at_clients(question, [client], {client.id: received}, rng)
        content = wire.records(answers[client.id])
        _remember(context, client, before, secret, identity)
    content["asked"] = ConfigRecord({"what": asked})
    return Message(content, reply_to=message)
