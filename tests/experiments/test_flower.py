"""Across Flower's messages an experiment gives the record that it gives in one process."""

import copy
import itertools
import json
import math
import sys
import tomllib
from pathlib import Path

import attrs
import numpy as np
import pytest
import torch

from core.errors import InputError
from core.experiments import Experiment, make_clients, make_task, run, schema
from core.federation import Client, Message, Runtime, UploadError
from core.files import Busy, alone
from core.rng import Rng

flwr = pytest.importorskip("flwr", reason="Flower is not installed: see `make federation-demo`")

from flwr.app import ConfigRecord, Context, Error, RecordDict  # noqa: E402
from flwr.app import Message as Envelope  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects  # noqa: E402
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from core.experiments.flower import client, server, wire  # noqa: E402
from tests.algorithms.subjects import DRAWN, subjects  # noqa: E402


def test_the_app_runs_the_experiment_of_the_demonstration():
    """On digits in the place of the hospitals' own files, which are handed out unequally."""
    from core.experiments.flower import demo

    folder = Path(__file__).parents[2] / "hospitals"
    told = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    stated = Experiment.from_dict(json.loads(told["experiment"]))
    both = {"dataset": "digits", "partition": stated.partition}
    assert stated == attrs.evolve(demo.experiment(), **both)


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    """What Flower tells every process of a run about itself."""
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


#: centralized training needs the data themselves
ACROSS = {name: one for name, one in subjects().items() if one.name != "centralized"}


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
    algorithm.elsewhere = elsewhere

    def answers(question, clients, messages, form, rng):
        ask = getattr(algorithm, question)
        there = [one for one in clients if not away(one, rng)]
        return {one.id: ask([one], {one.id: messages[one.id]}, rng)[one.id] for one in there}

    algorithm.answers = answers
    return run(stated, runtime=Runtime(), algorithm=algorithm)


def stated(subject) -> Experiment:
    """An experiment with the settings of a subject of the contract."""
    settings = attrs.asdict(subject.settings, recurse=False)
    if subject.learns == "classification":
        return experiment(subject.name, settings=settings, model_options={"width": 4})
    return experiment(
        subject.name,
        settings=settings,
        dataset=DRAWN[subject.learns],
        model="unet",
        model_options={"width": 4},
        partition={"name": "iid"},
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ACROSS)
def test_the_record_across_messages_is_that_of_one_process(name, monkeypatch):
    """Of private clients, which draw from a secret of their node, where that is the run's seed, 0."""
    monkeypatch.setattr(client, "fresh_secret", lambda: torch.zeros(16, dtype=torch.uint8))
    one = stated(ACROSS[name])
    nodes = Nodes(one)
    conversing = ACROSS[name].name == "fediod"
    assert comparable(server.federate(nodes, nodes.server)) == comparable(
        one_by_one(one, elsewhere=conversing)
    )


def test_clients_test_the_model_across_messages_too():
    one = experiment(tested_by="clients")
    nodes = Nodes(one)
    assert comparable(server.federate(nodes, nodes.server)) == comparable(one_by_one(one))


def test_messages_come_back_bit_for_bit():
    generator = torch.Generator().manual_seed(0)
    sent = Message(
        {
            "a/float": torch.randn(2, 3, generator=generator),
            "b/bytes": torch.randint(0, 255, (4, 1, 2, 2), generator=generator).to(torch.uint8),
            "c/whole": torch.tensor(2**62),
            "d/none": torch.empty(0, 3, dtype=torch.int8),
            "e/strided": torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
            "f/odd": torch.tensor([float("nan"), float("-inf"), -0.0, 1e-45]),
        },
        {"samples": 2**62, "share": 0.1, "name": "é", "wanted": [1, 2], "none": []},
    )
    got = wire.message(wire.records(sent), torch.device("cpu"))
    assert got.meta == sent.meta and list(got.tensors) == list(sent.tensors)
    assert got.nbytes == sent.nbytes
    for name, tensor in sent.tensors.items():
        assert got.tensors[name].dtype == tensor.dtype and got.tensors[name].shape == tensor.shape
        assert got.tensors[name].numpy().tobytes() == tensor.contiguous().numpy().tobytes()


def forged(data: bytes):
    content = wire.records(Message({"x": torch.zeros(2)}))
    content["tensors"]["x"] = wire.Array("float32", (2,), "numpy.ndarray", data)
    return content


def test_an_answer_comes_to_where_the_server_computes():
    """Also one to a question that had no tensors; "meta" is a place without numbers."""
    link = server.Link(None, 1, 1.0, True, device=torch.device("meta"))
    content = wire.records(Message({"counts": torch.arange(3)}))
    content["asked"] = ConfigRecord({"what": "counts"})
    read = link._read(Envelope(content, 1, "query"), "counts", math.inf)
    assert read.tensors["counts"].device.type == "meta"


def test_arrays_that_lie_about_themselves_are_refused_before_they_are_read():
    import io

    huge, objects = io.BytesIO(), io.BytesIO()
    about = {"descr": "<f4", "fortran_order": False, "shape": (2**50,)}
    np.lib.format.write_array_header_1_0(huge, about)
    np.lib.format.write_array_header_1_0(objects, about | {"descr": "|O", "shape": (1,)})
    for data in (
        huge.getvalue(),
        objects.getvalue() + b"12345678",
        b"",
        b"\x93NUMPY\x01\x00",
        b"x",
        *(
            b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
            for header in (b"{'descr': (", b"-" * 4000 + b"1", b"[" * 5000)
        ),
    ):
        with pytest.raises(InputError, match="'x' cannot be read"):
            wire.message(forged(data), torch.device("cpu"))


def test_an_upload_that_is_too_large_is_refused_by_its_size_alone():
    with pytest.raises(UploadError, match="1000 bytes where at most 999"):
        wire.message(forged(b"?" * 1000), torch.device("cpu"), most=999)
    entries = wire.records(Message({}, {"samples": 3, "note": "x" * 2000}))
    with pytest.raises(UploadError, match=r"20\d\d bytes where at most 999"):
        wire.message(entries, torch.device("cpu"), most=999)
    with pytest.raises(UploadError, match="not those of a message"):
        wire.message(RecordDict(), torch.device("cpu"))


def changed(content: RecordDict, change) -> RecordDict:
    got = wire.message(content, torch.device("cpu"))
    new = wire.records(change(got))
    new["asked"] = content["asked"]
    return new


def of_another_round(content: RecordDict) -> RecordDict:
    content["asked"]["what"] = '["clients_update", ["round", 1]]'
    return content


BAD = {
    "shape": lambda m: Message({k: v[:1] for k, v in m.tensors.items()}, m.meta),
    "finite": lambda m: Message({k: v * torch.nan for k, v in m.tensors.items()}, m.meta),
    "large": lambda m: Message({k: torch.cat([v] * 10) for k, v in m.tensors.items()}, m.meta),
    "samples": lambda m: Message(m.tensors, {"samples": 10**9}),
}


@pytest.mark.parametrize("how", [*BAD, "replayed"])
def test_a_bad_upload_is_refused_by_name_and_the_others_count_as_if_it_were_not_there(how):
    stated = experiment(refused="leave_out", rounds=2)

    def spoil(number, content):
        if number != 1:
            return content
        replay = how == "replayed" and json.loads(content["asked"]["what"])[-1][-1] == 2
        if how == "replayed":
            return of_another_round(content) if replay else content
        return changed(content, BAD[how])

    nodes = Nodes(stated, spoil=spoil, **{"wait-for-all": False})
    record = server.federate(nodes, nodes.server)
    said = " ".join([*record.notes, *(str(row.get("refused", "")) for row in record.rounds)])
    assert "client 1" in said
    rounds_without = (2,) if how == "replayed" else (1, 2)
    beside = one_by_one(
        stated, away=lambda client, rng: client.id == 1 and rng.path[-1] in rounds_without
    )
    assert [row["metrics"] for row in record.rounds] == [row["metrics"] for row in beside.rounds]


def test_a_round_goes_on_without_a_node_that_went_away_where_the_run_says_so():
    stated = experiment(refused="leave_out", rounds=2)

    def spoil(number, content):
        nodes.away = {101}  # before its turn in the first round
        return content

    nodes = Nodes(stated, spoil=spoil, **{"wait-for-all": False})
    record = server.federate(nodes, nodes.server)
    assert [note for note in record.notes if "client 1" in note] == [
        "client 1 does not answer; round 1 goes on without it",
        "client 1 does not answer; round 2 goes on without it",
    ]
    beside = one_by_one(stated, away=lambda client, rng: client.id == 1)
    assert [row["metrics"] for row in record.rounds] == [row["metrics"] for row in beside.rounds]


def test_a_client_whose_program_fails_is_named_and_not_asked_for_ever():
    stated = experiment(refused="leave_out", rounds=1)

    def spoil(number, content):
        if number == 1:
            raise RuntimeError("the disk is full")
        return content

    nodes = Nodes(stated, spoil=spoil)
    record = server.federate(nodes, nodes.server)
    assert record.notes == ["client 1 failed in round 1: the disk is full"]
    assert record.status == "complete"


def test_a_round_waits_for_a_node_that_comes_back_as_another():
    stated = experiment(rounds=1)
    calls = []

    def spoil(number, content):
        calls.append(number)
        if len(calls) == 1:  # client 1 goes away and comes back under another number
            nodes.away = {101}
            nodes.contexts[104] = nodes.context(1, 104)
        return content

    nodes = Nodes(stated, spoil=spoil)
    record = server.federate(nodes, nodes.server)
    assert calls == [0, 2, 4]
    assert "client 1 is back, as node 104" in record.notes
    assert record.metrics == one_by_one(stated).metrics


def test_an_answer_that_takes_longer_than_the_timeout_is_taken(monkeypatch):
    """Asked anew it would take as long again; a look is longer than the timeout here."""
    monkeypatch.setattr(server, "POLL", 0.01)
    stated = experiment(rounds=2)
    asked = []
    nodes = Nodes(stated, spoil=lambda number, content: asked.append(number) or content)
    nodes.config["timeout"] = 0.001
    nodes.looks = {101: 5}
    record = server.federate(nodes, nodes.server)
    assert "client 1 does not answer; round 1 waits for it" in record.notes
    assert record.metrics == one_by_one(stated).metrics
    # the time that it has doubles: after 0.001 s, 0.002, 0.004, 0.008 it is asked anew
    assert 4 <= asked.count(1) <= 12 and asked.count(0) == asked.count(2) == 2
    # what is still on its way answers nothing of the next round
    assert not [note for note in record.notes if "another round" in note]


def test_a_question_that_flower_does_not_take_ends_the_run():
    nodes = Nodes(experiment(rounds=1))
    nodes.push_messages = lambda messages: []
    with pytest.raises(InputError, match="messages of this size"):
        server.federate(nodes, nodes.server)


@pytest.mark.parametrize("numbers", [(0, 1, 2, 7), (0, 1, 2, 1)])
def test_a_node_that_is_no_client_of_the_run_is_refused_and_named(numbers):
    stated = experiment(rounds=1)
    nodes = Nodes(stated, numbers)
    record = server.federate(nodes, nodes.server)
    assert any("node 103 was refused" in note for note in record.notes)
    assert record.metrics == one_by_one(stated).metrics


def test_a_run_without_its_clients_says_who_is_missing():
    nodes = Nodes(experiment(), (0, 2), patience=0.1)
    with pytest.raises(InputError, match=r"clients \[1\] did not come"):
        server.federate(nodes, nodes.server)


def test_a_record_that_is_complete_is_not_overwritten(tmp_path):
    """Another federation of the same experiment, whose data may have changed, or which may break."""
    stated = experiment(rounds=1)
    nodes = Nodes(stated, out=str(tmp_path))
    server.federate(nodes, nodes.server)
    (path,) = tmp_path.glob("*/*.json")
    before = path.read_bytes()
    with pytest.raises(InputError, match=f"{path.name} holds this run's record: move it away"):
        server.federate(nodes, nodes.server)
    assert path.read_bytes() == before


def test_memory_survives_a_restart_where_the_node_has_a_folder_for_it(tmp_path):
    stated = experiment("moon", settings={"local_steps": 2}, rounds=3)
    nodes = Nodes(stated)
    for context in nodes.contexts.values():
        context.node_config["memory"] = str(tmp_path)

    def forget(number, content):
        nodes.contexts[100 + number].state = RecordDict()  # a new process knows nothing
        return content

    nodes.spoil = forget
    assert comparable(server.federate(nodes, nodes.server)) == comparable(one_by_one(stated))
    kept = list(tmp_path.glob("*.safetensors"))
    # it holds the node's secret
    assert kept and {one.stat().st_mode & 0o777 for one in kept} == {0o600}
    for context in nodes.contexts.values():
        del context.node_config["memory"]
    nodes = Nodes(stated, spoil=forget)
    assert comparable(server.federate(nodes, nodes.server)) != comparable(one_by_one(stated))


def limited(folder, epsilon, run=1, **settings):
    """Nodes with a budget of their own, in a run of private FedKD."""
    given = {
        "private": True,
        "protects": "upload",
        "full_epsilon": 4.0,
        "local_steps": 2,
        "pool": 40,
    }
    nodes = Nodes(experiment("fedkd", settings=given | settings, rounds=1))
    for node, context in nodes.contexts.items():
        context.node_config |= {"memory": str(folder / str(node)), "epsilon": epsilon}
        context.run_id = run
    return nodes


def test_a_hospital_takes_part_while_its_own_budget_lasts(tmp_path, caplog):
    """Two runs of epsilon 4 are within 9, whatever the server says; a third is not."""
    for number in (1, 2):
        nodes = limited(tmp_path, 9.0, number)
        assert server.federate(nodes, nodes.server).status == "complete"
        assert server.federate(limited(tmp_path, 9.0, number), nodes.server)  # entered once
    nodes = limited(tmp_path, 9.0, 3)
    with pytest.raises(InputError, match="sent no upload"):
        server.federate(nodes, nodes.server)
    assert "epsilon 9 at most; with this run it would be 12" in caplog.text
    spent = json.loads((tmp_path / "100" / "spent.json").read_text())
    assert [entry.split("/")[::2] for entry in spent] == [["1", "0"], ["2", "0"]]
    assert set(spent.values()) == {4.0}


def test_a_hospital_with_a_budget_answers_nothing_without_a_bound(tmp_path, caplog):
    nodes = limited(tmp_path, 9.0, private=False)
    with pytest.raises(InputError, match="sent no upload"):
        server.federate(nodes, nodes.server)
    assert "asks for answers without a bound" in caplog.text
    nodes = limited(tmp_path, 9.0, delta=0.1)  # hardly any noise, whatever epsilon says
    with pytest.raises(InputError, match="sent no upload"):
        server.federate(nodes, nodes.server)
    assert "takes a delta of 1e-05 at most, and the run has 0.1" in caplog.text
    nodes = limited(tmp_path, 9.0)
    for context in nodes.contexts.values():
        del context.node_config["memory"]
    with pytest.raises(InputError, match="sent no upload"):
        server.federate(nodes, nodes.server)
    assert "needs a memory folder" in caplog.text


def test_a_server_cannot_call_whatever_it_likes():
    nodes = Nodes(experiment())
    content = wire.records(Message({}))
    content["asked"] = wire.ConfigRecord({"what": '["initialise", []]'})
    with pytest.raises(InputError, match="no question of fedavg named 'initialise'"):
        client.app(Envelope(content, 100, "query"), nodes.contexts[100])


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_question_that_comes_twice_gets_the_same_answer(tmp_path, on_disk):
    stated = experiment("moon", settings={"local_steps": 2}, rounds=3)
    nodes = Nodes(stated)
    nodes.times = 2  # the first answer is lost
    if on_disk:
        for context in nodes.contexts.values():
            context.node_config["memory"] = str(tmp_path)
        nodes.spoil = lambda number, content: (
            setattr(nodes.contexts[100 + number], "state", RecordDict()) or content
        )
    assert comparable(server.federate(nodes, nodes.server)) == comparable(one_by_one(stated))


def test_an_algorithm_that_looks_into_its_clients_is_refused():
    stated = experiment("centralized", settings={"local_steps": 1}, rounds=1)
    nodes = Nodes(stated)
    with pytest.raises(InputError, match="never leaves it"):
        server.federate(nodes, nodes.server)


def test_a_node_with_its_own_folder_has_the_data_of_that_folder_only(tmp_path):
    task = make_task(experiment(), Runtime())
    part = make_clients(experiment(), task)[1]
    arrays = {
        "train_images": part.images[:, 0].numpy(),
        "train_labels": part.labels.numpy()[:, None],
        "test_images": task.dataset.test.images[:, 0].numpy(),
        "test_labels": task.dataset.test.labels.numpy()[:, None],
        "classes": np.array(task.dataset.classes),
    }
    np.savez(tmp_path / "clinic.npz", **arrays)
    stated = experiment(dataset="clinic")
    config = {"experiment": json.dumps(stated.to_dict())}
    context = Context(1, 5, {"partition-id": 1, "data": str(tmp_path)}, RecordDict(), config)
    _, found = client.own(context)
    assert found.id == 1 and torch.equal(found.images, part.images)
    assert torch.equal(found.labels, part.labels)


def test_validation_images_are_those_of_the_servers_folder_or_it_says_so(tmp_path):
    """A node leaves its own tenth, and the share that the experiment leaves, out of what it learns."""
    task = make_task(experiment(), Runtime())
    part, test = make_clients(experiment(), task)[1], task.dataset.test
    arrays = {
        "train_images": part.images[:, 0].numpy(),
        "train_labels": part.labels.numpy()[:, None],
        "test_images": test.images[:, 0].numpy(),
        "test_labels": test.labels.numpy()[:, None],
        "classes": np.array(task.dataset.classes),
    }
    np.savez(tmp_path / "clinic.npz", **arrays)
    stated = experiment(dataset="clinic", evaluate_on="val", train_fraction=0.5)
    config = {"experiment": json.dumps(stated.to_dict()), "server-data": str(tmp_path)}
    with pytest.raises(InputError, match="no validation images"):
        server.server_task(stated, Context(1, 0, {}, RecordDict(), config), 10)
    node = Context(1, 5, {"partition-id": 1, "data": str(tmp_path)}, RecordDict(), config)
    held_out = math.ceil(len(part) / 10)
    assert len(client.own(node)[1]) == math.ceil((len(part) - held_out) / 2)
    some = {"val_images": arrays["test_images"][:7], "val_labels": arrays["test_labels"][:7]}
    np.savez(tmp_path / "clinic.npz", **arrays, **some)
    found = server.server_task(stated, Context(1, 0, {}, RecordDict(), config), 10)
    assert len(found.dataset.val) == 7 and len(found.dataset.train) == 10


@pytest.mark.parametrize("learns", DRAWN)
def test_a_dense_task_is_deployed_with_folders_at_nodes_and_server(learns, tmp_path):
    one = experiment(
        dataset=DRAWN[learns],
        model="unet",
        model_options={"width": 4},
        settings={"local_steps": 2, "batch_size": 4},
        clients=2,
        rounds=1,
    )
    task = make_task(one, Runtime())
    train = task.dataset.train
    nodes = Nodes(one, (0, 1), **{"server-data": str(tmp_path)})
    for context in nodes.contexts.values():
        context.node_config["data"] = str(tmp_path)
    record = server.federate(nodes, nodes.server)
    clients = [Client(number, task, train.images, train.masks) for number in range(2)]
    beside = run(one, task=task, clients=clients)
    assert record.metrics == pytest.approx(beside.metrics, rel=1e-3)
    known = server.server_task(one, nodes.server, 7)
    assert known.learns == learns and len(known.dataset.train) == 7
    assert not known.dataset.train.images.any() and not known.dataset.train.masks.any()


def test_without_flower_one_line_says_what_to_install(monkeypatch):
    import importlib

    monkeypatch.setitem(sys.modules, "flwr.app", None)
    with pytest.raises(InputError, match=r"pip install .*\[flower\]"):
        importlib.reload(wire)
    monkeypatch.undo()
    importlib.reload(wire)


@pytest.mark.parametrize(
    "said",
    [
        None,
        {"client": [0], "samples": 3},
        {"client": 0},
        {"client": 0, "samples": "5"},
        {"client": 0, "samples": 0.5},
        {"client": 0, "samples": -5},
        {"client": 7, "samples": 3},
    ],
    ids=str,
)
def test_a_node_that_does_not_say_who_it_is_is_refused_and_the_others_are_not(said):
    grid = Nodes(experiment())
    answers = grid.pull_messages

    def with_a_liar(numbers):
        for reply in answers(numbers):
            if reply.metadata.src_node_id == 100:
                reply.content = RecordDict({} if said is None else {wire.META: ConfigRecord(said)})
            yield reply

    grid.pull_messages = with_a_liar
    link = server.Link(grid, 3, timeout=5.0, wait=False)
    link.meet()
    assert sorted(link.clients) == [1, 2]
    assert len(link.notes) == 1 and "node 100 was refused" in link.notes[0]


def test_a_note_fits_into_a_record():
    link = server.Link(Nodes(experiment()), 3, timeout=5.0, wait=False)
    link.note("client 0 failed:\nTraceback\x07 " + "x" * 5000)
    (text,) = link.notes
    assert text.isprintable() and len(text) <= schema.TEXT and text.startswith("client 0 failed: T")


def test_the_server_cannot_take_the_noise_of_a_private_client_off():
    """It knows seed and path of every draw; a node's secret is its own, and stays while it runs, so
    that a question asked twice gets one noise.
    """
    stated = experiment(
        "fedkd",
        settings={"private": True, "protects": "upload", "local_steps": 2, "pool": 40},
        rounds=1,
    )
    algorithm, task = stated.new_algorithm(), make_task(stated, Runtime())
    state = algorithm.initialise(task, Rng(0).at("initialise"))
    question, path = algorithm.broadcast(state, 0), ["round", 1]

    def votes(nodes):
        content = wire.records(question)
        asked = json.dumps(["clients_update", path])
        content["asked"] = wire.ConfigRecord({"what": asked})
        reply = client.app(Envelope(content, 100, "query"), nodes.contexts[100])
        return wire.message(reply.content, torch.device("cpu")).tensors["votes/noisy"]

    nodes, others = Nodes(stated), Nodes(stated)
    first = votes(nodes)
    assert torch.equal(first, votes(nodes)) and not torch.equal(first, votes(others))
    member = make_clients(stated, task)[0]
    guess = algorithm.clients_update([member], {0: question}, Rng(0, tuple(path)))[0]
    assert not torch.equal(first, guess.tensors["votes/noisy"])


def private_votes():
    """A private FedKD's nodes, and a function that asks one of their contexts, with a message whose
    entries may be changed.
    """
    stated = experiment(
        "fedkd",
        settings={"private": True, "protects": "upload", "local_steps": 2, "pool": 40},
        rounds=1,
    )
    algorithm, task = stated.new_algorithm(), make_task(stated, Runtime())
    honest = algorithm.broadcast(algorithm.initialise(task, Rng(0)), 0)

    def ask(context, question="clients_update", **change):
        content = wire.records(Message({}, honest.meta | change))
        content["asked"] = wire.ConfigRecord({"what": json.dumps([question, ["round", 1]])})
        return client.app(Envelope(content, 100, "query"), context)

    return Nodes(stated), ask


def test_a_private_node_answers_the_same_address_with_another_content_as_another_question():
    """Or a server would get the votes on as many images as it likes, with one noise."""
    nodes, ask = private_votes()
    ask(nodes.contexts[100])
    ask(nodes.contexts[100])
    with pytest.raises(InputError, match="privacy budget"):
        ask(nodes.contexts[100], seed=7)


def test_two_questions_at_once_do_not_get_the_same_noise(tmp_path):
    """Flower begins a process for each message, with the Context as it was: the second has to know of the
    first by the node's folder.
    """
    nodes, ask = private_votes()
    first, second = nodes.contexts[100], nodes.context(0, 100)
    first.node_config["memory"] = second.node_config["memory"] = str(tmp_path)
    ask(first, "teach")
    second.state = copy.deepcopy(first.state)  # both know what the node knew then
    ask(first)
    with pytest.raises(InputError, match="privacy budget"):
        ask(second, seed=7)


def test_a_question_waits_for_the_one_before_it(tmp_path, monkeypatch):
    nodes, ask = private_votes()
    context = nodes.contexts[100]
    context.node_config["memory"] = str(tmp_path)
    monkeypatch.setattr(client, "DAY", 0.1)
    with (
        alone(tmp_path / "1-0.lock", "this test"),
        pytest.raises(Busy, match="another question of this run"),
    ):
        ask(context, "teach")
    ask(context, "teach")


def test_a_private_node_with_data_of_its_own_needs_a_folder(tmp_path):
    stated = experiment("fedkd", settings={"private": True, "protects": "upload"}, rounds=1)
    nodes = Nodes(stated)
    context = nodes.contexts[100]
    context.node_config["data"] = str(tmp_path)
    content = wire.records(Message({}, {}))
    content["asked"] = wire.ConfigRecord({"what": '["teach", ["round", 1]]'})
    with pytest.raises(InputError, match="needs a memory folder"):
        client.app(Envelope(content, 100, "query"), context)


def test_masks_do_not_leave_a_private_node():
    stated = Experiment.from_dict(
        {"algorithm": "fediod", "dataset": "nuclei_drawn", "model": "unet", "clients": 4}
        | {"model_options": {"width": 2}, "partition": {"name": "natural"}}
        | {"settings": {"private": True, "importance": "class_ratio"}}
    )
    nodes = Nodes(stated)
    content = wire.records(Message({}, {}))
    content["asked"] = wire.ConfigRecord({"what": '["introduce", ["round", 1]]'})
    with pytest.raises(InputError, match="private must be off"):
        client.app(Envelope(content, 100, "query"), nodes.contexts[100])


def test_a_server_does_not_hear_the_names_of_a_nodes_files(tmp_path, caplog):
    (tmp_path / "hiv_clinic.npz").write_bytes(b"")
    nodes = Nodes(experiment(dataset="hiv"))
    context = nodes.contexts[100]
    context.node_config["data"] = str(tmp_path)
    with pytest.raises(InputError, match="its own log says why") as said:
        client.app(Envelope(RecordDict(), 100, "query.introduce"), context)
    assert "hiv" not in str(said.value) and str(tmp_path) in caplog.text


def test_a_hospital_cannot_say_that_it_has_more_images_than_the_run_allows():
    nodes = Nodes(experiment(rounds=1), patience=0.1, **{"most-samples": 100})
    with pytest.raises(InputError, match=r"clients \[0, 1, 2\] did not come"):
        server.federate(nodes, nodes.server)


def test_one_account_is_for_all_that_a_node_is(tmp_path, caplog):
    """Another number, or another experiment under the number of the same run, adds to it."""
    nodes = limited(tmp_path, 9.0)
    for context in nodes.contexts.values():
        context.node_config["memory"] = str(tmp_path)
    with pytest.raises(InputError, match="client 2 sent no upload"):
        server.federate(nodes, nodes.server)  # three clients of epsilon 4 at one node
    assert "epsilon 9 at most; with this run it would be 12" in caplog.text
    assert sum(json.loads((tmp_path / "spent.json").read_text()).values()) == 8.0


def test_a_sum_that_nobody_forms_protects_nobody():
    """Across a network the server sees each upload of FedKD, which has a part of the noise."""
    nodes = Nodes(experiment("fedkd", settings={"private": True, "pool": 40}, rounds=1))
    with pytest.raises(InputError, match="protects must be upload across a network"):
        server.federate(nodes, nodes.server)


def test_a_private_client_refuses_a_server_that_asks_for_less_noise():
    stated = experiment(
        "fedkd", settings={"private": True, "protects": "upload", "local_steps": 2, "pool": 40}
    )
    algorithm, task = stated.new_algorithm(), make_task(stated, Runtime())
    client_, state = make_clients(stated, task)[0], algorithm.initialise(task, Rng(0))
    honest = algorithm.broadcast(state, 0)
    for change in ({"noise": 0.0}, {"queries": 41}):
        with pytest.raises(InputError, match="privacy budget"):
            algorithm.client_update(client_, Message({}, honest.meta | change), Rng(0))
