"""Across Flower's messages an experiment gives the record that it gives in one process."""

import json

import pytest
import torch

from core.errors import InputError
from core.federation import Message, UploadError

flwr = pytest.importorskip("flwr", reason="Flower is not installed: see `make federation-demo`")

from flwr.app import ConfigRecord, RecordDict  # noqa: E402

from lab.flower import client, server, wire  # noqa: E402
from tests.algorithms.subjects import subjects  # noqa: E402
from tests.lab.flower_nodes import (  # noqa: E402, F401
    Nodes,
    comparable,
    experiment,
    identity,
    of_subject,
    one_by_one,
)

#: centralized training needs the data themselves
ACROSS = {name: one for name, one in subjects().items() if one.name != "centralized"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ACROSS)
def test_the_record_across_messages_is_that_of_one_process(name, monkeypatch):
    """Of private clients, which draw from a secret of their node, where that is the run's seed, 0."""
    monkeypatch.setattr(client, "fresh_secret", lambda: torch.zeros(16, dtype=torch.uint8))
    one = of_subject(ACROSS[name])
    nodes = Nodes(one)
    conversing = ACROSS[name].name == "fediod"
    assert comparable(server.federate(nodes, nodes.server)) == comparable(
        one_by_one(one, elsewhere=conversing)
    )


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
    got, asked = wire.message(wire.records(sent, "what"), torch.device("cpu"))
    assert asked == "what"
    assert got.meta == sent.meta and list(got.tensors) == list(sent.tensors)
    assert got.nbytes == sent.nbytes
    for name, tensor in sent.tensors.items():
        assert got.tensors[name].dtype == tensor.dtype and got.tensors[name].shape == tensor.shape
        assert got.tensors[name].numpy().tobytes() == tensor.contiguous().numpy().tobytes()


def forged(data: bytes, dtype: str = "float32", **more) -> RecordDict:
    content = wire.records(Message({"x": torch.zeros(2)}), "q")
    content["tensors"]["x"] = wire.Array(dtype, (2,), "numpy.ndarray", data)
    for name, record in more.items():
        content[name] = record
    return content


def in_numpys_format(header: bytes, rest: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + rest


def header(dtype: str = "<f4", shape: str = "(2,)") -> bytes:
    return f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()


@pytest.mark.parametrize(
    "data",
    [
        in_numpys_format(header(shape=f"({2**50},)")),
        in_numpys_format(header("|O", "(1,)"), b"12345678"),
        in_numpys_format(header(shape="(1, 2)"), bytes(8)),  # the record says (2,)
        in_numpys_format(header("<i4"), bytes(8)),  # and float32
        *map(in_numpys_format, (b"{'descr': (", b"-" * 4000 + b"1", b"[" * 5000)),
        *(b"", b"\x93NUMPY\x01\x00", b"x"),
    ],
    ids=lambda data: str(data[:70]),
)
def test_arrays_that_lie_about_themselves_are_refused_before_they_are_read(data):
    with pytest.raises(InputError, match="'x' cannot be read"):
        wire.message(forged(data), torch.device("cpu"))
    sound = forged(in_numpys_format(header(), bytes(8)))
    assert wire.message(sound, torch.device("cpu"))[0].tensors["x"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (forged(b"?" * 999), "1000 bytes where at most 999"),  # and the name
        (wire.records(Message({}, {"samples": 3, "note": "x" * 2000}), "q"), r"20\d\d bytes"),
        (wire.records(Message({}, {"x" * 2000: 3}), "q"), r"20\d\d bytes"),
        (RecordDict(), "not those of a message"),
        (forged(b"", beside=ConfigRecord({"all": "images"})), "not those of a message"),
        (forged(b"", asked=ConfigRecord({"what": "q", "more": 1})), "another round"),
        (forged(b"", asked=ConfigRecord({"what": "p"})), "another round"),
    ],
)
def test_what_is_too_much_or_beside_a_message_is_refused_unread(content, said):
    with pytest.raises(UploadError, match=said):
        wire.message(content, torch.device("cpu"), 999, "q")


def changed(content: RecordDict, change) -> RecordDict:
    return wire.records(
        change(wire.message(content, torch.device("cpu"))[0]), content["asked"]["what"]
    )


BAD = {
    "shape": lambda m: Message({k: v[:1] for k, v in m.tensors.items()}, m.meta),
    "finite": lambda m: Message({k: v * torch.nan for k, v in m.tensors.items()}, m.meta),
    "large": lambda m: Message({k: torch.cat([v] * 10) for k, v in m.tensors.items()}, m.meta),
    "samples": lambda m: Message(m.tensors, {"samples": 10**9}),
}


@pytest.mark.parametrize("how", [*BAD, "replayed", "away", "failing"])
def test_a_round_goes_on_without_a_client_that_is_bad_or_gone_and_names_it(how):
    """As if it were not there; a client whose program fails is not asked for ever."""
    stated = experiment(refused="leave_out", rounds=2)

    def spoil(number, content):
        if how == "away":  # before its turn in the first round
            nodes.away = {101}
        if number != 1:
            return content
        if how == "failing":
            raise RuntimeError("the disk is full")
        if how != "replayed":
            return changed(content, BAD[how])
        if json.loads(content["asked"]["what"])[-1][1] == 1:
            return content
        message = wire.message(content, torch.device("cpu"))[0]
        return wire.records(message, '["client_update", ["round", 1]]')

    waits = {} if how == "failing" else {"wait-for-all": False}
    nodes = Nodes(stated, spoil=spoil, **waits)
    record = server.federate(nodes, nodes.server)
    said = " ".join([*record.notes, *(str(row.get("refused", "")) for row in record.rounds)])
    expected = {"failing": "failed in round 1: the disk is full", "away": "does not answer"}
    assert f"client 1 {expected.get(how, '')}" in said and record.status == "complete"
    rounds_without = (2,) if how == "replayed" else (1, 2)
    beside = one_by_one(
        stated, away=lambda client, rng: client.id == 1 and rng.path[1] in rounds_without
    )
    assert [row["metrics"] for row in record.rounds] == [row["metrics"] for row in beside.rounds]


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


@pytest.mark.parametrize("numbers", [(0, 1, 2, 7), (0, 1, 2, 1)])
def test_a_node_that_is_no_client_of_the_run_is_refused_and_named(numbers):
    stated = experiment(rounds=1)
    nodes = Nodes(stated, numbers)
    record = server.federate(nodes, nodes.server)
    assert any("node 103 was refused" in note for note in record.notes)
    assert record.metrics == one_by_one(stated).metrics


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


@pytest.mark.parametrize(
    "said",
    [
        None,
        {"client": 0, "samples": "5"},
        {"client": 0, "samples": -5},
        {"client": 7, "samples": 3},
        {"client": 0, "samples": 3, "names": ["Ann"]},
        "silent",
    ],
    ids=str,
)
def test_a_node_that_does_not_say_who_it_is_is_refused_and_the_others_are_not(said):
    grid = Nodes(experiment())
    answers = grid.pull_messages

    def with_a_liar(numbers):
        for reply in answers([number for number in numbers if number in grid.replies]):
            if reply.metadata.src_node_id == 100:
                if said == "silent":
                    continue
                reply.content = RecordDict({} if said is None else {wire.META: ConfigRecord(said)})
            yield reply

    grid.pull_messages = with_a_liar
    link = server.Link(grid, 3, timeout=0.1, wait=False)
    link.meet()
    assert sorted(link.clients) == [1, 2]
    assert len(link.notes) == 1 and "node 100 " in link.notes[0]
