"""Flower's nodes without a network, for the tests of a federation across machines."""

import itertools
import json

import attrs
import pytest

from core.federation import Runtime
from core.federation.tensors import fingerprint
from core.rng import SecretRng
from lab import Experiment, run

flwr = pytest.importorskip("flwr", reason="Flower is not installed: see `make federation-demo`")

from flwr.app import Context, Error, RecordDict  # noqa: E402
from flwr.app import Message as Envelope  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects  # noqa: E402
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from lab.flower import client  # noqa: E402
from tests.algorithms.subjects import DRAWN  # noqa: E402


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    """What Flower tells every process of a run about itself."""
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def experiment(algorithm: str = "fedavg", **stated) -> Experiment:
    return Experiment(
        **{
            "algorithm": algorithm,
            "dataset": "digits",
            "model_options": {"width": 8},
            "clients": 3,
            "rounds": 2,
            "partition": {"name": "dirichlet", "alpha": 0.5},
            "settings": {"local_steps": 3} if algorithm == "fedavg" else {},
            "profile": "quick",
        }
        | stated
    )


class Nodes(Grid):
    """Flower's grid without a network: every message becomes bytes and a message again on its way,
    as it does between processes, and each node has a Context of its own.
    """

    def __init__(self, stated: Experiment, numbers=(0, 1, 2), spoil=None, **config) -> None:
        self.config = {"experiment": json.dumps(stated.to_dict()), "patience": 2.0} | config
        self.contexts = {
            100 + place: self.context(number, 100 + place) for place, number in enumerate(numbers)
        }
        self.spoil = spoil or (lambda number, content: content)
        self.away: set[int] = set()
        self.times = 1
        #: answers on their way by the number of their message, each with the looks that it still takes
        self.replies: dict[str, tuple[int, Envelope]] = {}
        self.looks: dict[int, int] = {}
        self.numbers = itertools.count()

    def context(self, number, node) -> Context:
        return Context(1, node, {"partition-id": number}, RecordDict(), self.config)

    @property
    def server(self) -> Context:
        return Context(1, 0, {}, RecordDict(), self.config)

    def get_node_ids(self):
        return [node for node in self.contexts if node not in self.away]

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            number, node = f"message {next(self.numbers)}", message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = number
            introduces = message.metadata.message_type == "query.introduce"
            reply = self.reply(message, node, introduces)
            self.replies[number] = 0 if introduces else self.looks.get(node, 0), reply
            numbers.append(number)
        return numbers

    def pull_messages(self, numbers):
        there = []
        for number in numbers:
            looks, reply = self.replies[number]
            self.replies[number] = looks - 1, reply
            if not looks:
                there.append(self.replies.pop(number)[1])
        return there

    def reply(self, message, node, introduces):
        if node in self.away:  # the SuperLink answers, as node 1
            reply = Envelope(Error(3, "node unavailable"), reply_to=message)
            reply.metadata._src_node_id = 1
            return reply
        try:
            for _ in range(self.times):
                reply = client.app(self.copied(message, node), self.contexts[node])
            if not introduces:
                reply.content = self.spoil(node - 100, reply.content)
        except Exception as error:  # Flower answers for an app that fails
            reply = Envelope(Error(0, str(error)), reply_to=message)
            reply.metadata._src_node_id = node
            return reply
        return self.copied(reply, node)

    @staticmethod
    def copied(message: Envelope, node: int) -> Envelope:
        parts = get_all_nested_objects(message.content)
        wire_form = {name: part.deflate() for name, part in parts.items()}
        message.content = inflate_object_from_contents(message.content.object_id, wire_form)
        message.metadata._src_node_id = node
        return message

    create_message = send_and_receive = set_run = run = None


def comparable(record) -> dict:
    found = attrs.asdict(record)
    del found["peak_memory"]
    for row in found["rounds"]:
        del row["seconds"]
    return found


def one_by_one(stated: Experiment, elsewhere: bool = False, away=lambda client, rng: False):
    """The record in one process, with each client computed by itself; `away` says of whom nothing is
    heard.
    """
    algorithm = stated.new_algorithm()
    algorithm.remote = elsewhere
    here = algorithm.at_clients

    def at_clients(call, clients, messages, rng, form):
        found = {}
        for one in (one for one in clients if not away(one, rng)):
            message = messages[one.id]
            asked = json.dumps([call, rng.path]) + json.dumps(message.meta, sort_keys=True)
            identity = fingerprint(asked, message.tensors)
            path = (f"1-{stated.id}-{one.id}-{identity}", *rng.path)
            # of a private node whose secret is the run's seed
            mine = SecretRng(stated.seed, path) if algorithm.private else rng
            found[one.id] = here(call, [one], {one.id: messages[one.id]}, mine)[one.id]
        return found

    algorithm.at_clients = at_clients
    return run(stated, runtime=Runtime(), algorithm=algorithm)


def of_subject(subject) -> Experiment:
    """An experiment with the settings of a subject of the contract."""
    settings = attrs.asdict(subject.settings, recurse=False)
    if subject.task_kind == "classification":
        return experiment(subject.name, settings=settings, model_options={"width": 4})
    return experiment(
        subject.name,
        settings=settings,
        dataset=DRAWN[subject.task_kind],
        model="unet",
        model_options={"width": 4},
        partition={"name": "iid"},
    )
