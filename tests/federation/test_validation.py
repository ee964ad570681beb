"""What a server takes from its clients, and what it does not."""

import contextlib
import math

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from core.errors import InputError
from core.federation import (
    Field,
    Ledger,
    Message,
    Runtime,
    UploadError,
    each_once,
    network_form,
    validate_uploads,
)
from core.federation.algorithm import Algorithm
from lab import Experiment, Record, schema
from lab.running import make_clients, make_task, rounds, run

MODEL = torch.ones(2, 3)
FORM = (
    {
        "images": Field((None, 1, 2, 2), torch.uint8, least=2, most=6),
        "labels": Field((None,), torch.uint8, low=0, high=9, least=2, most=6),
        "parameters/w": Field((2, 3), torch.float32, near=MODEL),
        "counts": Field((10,), torch.int64, low=0, total=each_once),
    },
    {"samples": Field((), torch.int64, low=1, total=each_once)},
)
ANNOUNCED = {0: 12, 1: 20, 2: 7}


def good(rows: int = 3, samples: int = 5, of: int = 0) -> Message:
    """What a client sends; its images say whose it is."""
    return Message(
        {
            "images": torch.full((rows, 1, 2, 2), of, dtype=torch.uint8),
            "labels": torch.arange(rows).byte(),
            "parameters/w": MODEL + 1,
            "counts": torch.tensor([samples] + 9 * [0]),
        },
        {"samples": samples},
    )


def opened() -> Ledger:
    ledger = Ledger()
    ledger.open_round()
    return ledger


def spoilt(name, value) -> Message:
    """A good upload with one tensor or entry in the place of another."""
    upload = good()
    part = upload.meta if name in upload.meta else upload.tensors
    if value is None:
        del part[name]
    else:
        part[name] = value
    return upload


class Odd(torch.Tensor):
    """A subclass may do anything in any operation."""


w = "parameters/w"
REFUSED = {
    "not a message": ({"labels": 3}, "no message"),
    "no answer at all": (None, "no message"),
    "tensors that are a list": (Message([torch.ones(1)]), "mappings"),
    "names that are numbers": (Message({3: torch.ones(1)}), "mappings"),
    "entries that are a text": (Message({}, "samples"), "mappings"),
    "one label less than images": (
        spoilt("labels", torch.zeros(2).byte()),
        "2 rows, but 'images' has 3",
    ),
    "no labels": (spoilt("labels", torch.zeros(0).byte()), "'labels' has 0 rows where at least 2"),
    "too few images": (good(1), "'images' has 1 rows where at least 2"),
    "one label more": (spoilt("labels", torch.zeros(4).byte()), "4 rows, but"),
    "too many rows": (good(7), "7 rows where at most 6"),
    "a class that is none": (spoilt("labels", torch.tensor([0, 1, 10]).byte()), "out of range"),
    "an image missing": (spoilt("images", None), "missing"),
    "a list for a tensor": (spoilt(w, [1.0]), "no tensor but list"),
    "a text for a tensor": (spoilt(w, "x"), "no tensor but str"),
    "a number for a tensor": (spoilt(w, 3), "no tensor but int"),
    "an array for a tensor": (spoilt(w, np.ones((2, 3))), "no tensor but ndarray"),
    "a subclass of tensors": (spoilt(w, torch.ones(2, 3).as_subclass(Odd)), "no tensor but Odd"),
    "a parameter": (spoilt(w, torch.nn.Parameter(torch.ones(2, 3))), "no tensor but Parameter"),
    "a sparse tensor": (spoilt(w, torch.ones(2, 3).to_sparse()), "without plain values"),
    "a tensor without values": (spoilt(w, torch.ones(2, 3, device="meta")), "without plain values"),
    "a graph": (spoilt(w, torch.ones(2, 3, requires_grad=True)), "graph"),
    "one value shown as many": (spoilt(w, torch.ones(1, 3).expand(2, 3)), "shown as many"),
    "another dtype": (spoilt(w, torch.ones(2, 3).double()), "float64 and not"),
    "another shape": (spoilt(w, torch.ones(3, 2)), "has shape"),
    "NaN": (spoilt(w, torch.full((2, 3), torch.nan)), "not finite"),
    "infinity": (spoilt(w, torch.full((2, 3), -torch.inf)), "not finite"),
    "1e30": (spoilt(w, torch.full((2, 3), 1e30)), "out of range"),
    "3.4e38": (spoilt(w, torch.full((2, 3), 3.4e38)), "out of range"),
    "a network of zeros": (spoilt(w, torch.zeros(2, 3)), "every weight of its network is 0"),
    "a network of negative zeros": (spoilt(w, -torch.zeros(2, 3)), "every weight"),
    "a step of 1e5": (spoilt(w, torch.full((2, 3), 1e5)), "update has the norm"),
    "counts of 2^62": (spoilt("counts", torch.full((10,), 2**62)), "sums to"),
    "counts below zero": (spoilt("counts", torch.full((10,), -1)), "out of range"),
    "counts of nothing": (spoilt("counts", torch.zeros(10).long()), "sums to 0, but"),
    "counts above the samples": (spoilt("counts", torch.full((10,), 2)), "announced 12 samples"),
    "no samples": (spoilt("samples", 0), "is 0, outside 1 .. 12"),
    "more samples than announced": (spoilt("samples", 13), "is 13, outside 1 .. 12"),
    "10^18 samples": (spoilt("samples", 10**18), "outside"),
    "10^400 samples": (spoilt("samples", 10**400), "not a number: a number of about 400 digits"),
    "1e308 samples": (spoilt("samples", 1e308), "not a whole number"),
    "2.5 samples": (spoilt("samples", 2.5), "not a whole number"),
    "NaN samples": (spoilt("samples", float("nan")), "not a number"),
    "true samples": (spoilt("samples", True), "not a number"),
    "samples in words": (spoilt("samples", "7" * 5000), "not a number"),
    "a name of a million letters": (spoilt("x" * 10**6, torch.ones(1)), "not asked for"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("refused", ["end", "leave_out"])
def test_a_bad_upload_is_refused_in_one_line(name, refused):
    bad, reason = REFUSED[name]
    ledger, answers = opened(), [(0, bad), (1, good(of=1)), (2, good(of=2))]
    if refused == "end":
        with pytest.raises(UploadError) as error:
            validate_uploads(answers, FORM, ANNOUNCED, ledger)
        line = str(error.value)
        assert ledger.rounds[0]["up"] == {}
    else:
        uploads = validate_uploads(answers, FORM, ANNOUNCED, ledger, refused=refused)
        assert uploads == {1: answers[1][1], 2: answers[2][1]}
        line = ledger.rounds[0]["refused"]["0"]
        assert ledger.nbytes("up") == 2 * good().nbytes
    assert "upload of client 0 was refused" in line and reason in line
    assert "\n" not in line and len(line) < 300


def test_a_variance_below_zero_is_refused():
    """Averaged, it would leave a model whose outputs are no numbers."""
    names = (
        "buffers/norm.running_mean",
        "buffers/norm.running_var",
        "generator/buffers/running_var",
    )
    form = network_form(dict.fromkeys(names, torch.ones(3)))
    below = torch.tensor([1.0, -0.25, 1.0])
    for name in names:
        ledger, sent = opened(), dict.fromkeys(names, torch.full((3,), 0.5)) | {name: below}
        with contextlib.nullcontext() if "mean" in name else pytest.raises(UploadError, match=name):
            validate_uploads([(0, Message(sent, {}))], (form, {}), {0: 12}, ledger)


STRANGERS = {
    "a client of another round": 3,
    "a client that nobody has": 99,
    "a negative client": -1,
    "a client in words": "1",
    "a million words": "x" * 10**6,
    "a true client": True,
    "half a client": 1.5,
    "no client": None,
    "a tensor": torch.ones(3, 3),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_only_the_clients_of_the_round_are_heard(name):
    answers = [*((one, good(of=one)) for one in ANNOUNCED), (STRANGERS[name], good(of=9))]
    with pytest.raises(UploadError, match="no client of this round") as error:
        validate_uploads(answers, FORM, ANNOUNCED, opened())
    assert len(str(error.value)) < 300
    ledger = opened()
    assert set(validate_uploads(answers, FORM, ANNOUNCED, ledger, refused="leave_out")) == set(
        ANNOUNCED
    )
    ((name, reason),) = ledger.rounds[0]["refused"].items()
    assert schema.NAME.fullmatch(name) and reason.isprintable()


def test_every_stranger_is_named_in_a_way_that_a_record_can_hold():
    answers = [(one, good(of=9)) for one in STRANGERS.values()]
    ledger = opened()
    validate_uploads([(0, good()), *answers], FORM, {0: 8}, ledger, refused="leave_out")
    assert len(ledger.rounds[0]["refused"]) == len(STRANGERS)


def test_who_answers_twice_is_not_heard_at_all():
    """Nobody can tell which of the answers is the client's; a third one does not help."""
    answers = [(one, good(of=one)) for one in (0, 1, 2, 1, 1)]
    with pytest.raises(UploadError, match="client 1 was refused: it answered twice"):
        validate_uploads(answers, FORM, ANNOUNCED, opened())
    assert set(validate_uploads(answers, FORM, ANNOUNCED, opened(), refused="leave_out")) == {0, 2}


def test_a_client_that_does_not_answer_is_named():
    answers = [(0, good(of=0)), (2, good(of=2))]
    with pytest.raises(UploadError, match="client 1 sent no upload"):
        validate_uploads(answers, FORM, ANNOUNCED, opened())
    ledger = opened()
    assert set(validate_uploads(answers, FORM, ANNOUNCED, ledger, refused="leave_out")) == {0, 2}
    assert "no upload" in ledger.rounds[0]["refused"]["1"]


def test_a_round_without_a_sound_upload_ends():
    with pytest.raises(UploadError, match="no upload of the round can be used"):
        validate_uploads([(0, None)], FORM, ANNOUNCED, opened(), refused="leave_out")


def test_a_question_to_some_of_a_round_may_end_without_an_answer():
    ledger = opened()
    how = {"refused": "leave_out", "fewest": 0}
    assert validate_uploads([(0, None)], FORM, ANNOUNCED, ledger, **how) == {}
    assert "0" in ledger.rounds[-1]["refused"]
    assert validate_uploads([], FORM, ANNOUNCED, ledger, **how) == {}


def test_the_bound_of_the_norm_is_a_setting():
    """The update is 1 in each of six numbers."""
    answers = [(one, good(of=one)) for one in ANNOUNCED]
    validate_uploads(answers, FORM, ANNOUNCED, opened(), update_norm=6**0.5 + 1e-6)
    with pytest.raises(UploadError, match="update_norm"):
        validate_uploads(answers, FORM, ANNOUNCED, opened(), update_norm=6**0.5 - 1e-6)


def test_the_norm_is_that_of_all_tensors_of_a_network():
    """Two of them move by 1 in each of six numbers."""
    form = {name: Field((2, 3), torch.float32, near=MODEL) for name in ("w", "v")}, {}
    answers = [(0, Message({"w": MODEL + 1, "v": MODEL - 0.5 - 0.5}))]
    validate_uploads(answers, form, {0: 1}, opened(), update_norm=12**0.5 + 1e-6)
    with pytest.raises(UploadError, match=r"the norm 3\.46"):
        validate_uploads(answers, form, {0: 1}, opened(), update_norm=12**0.5 - 1e-6)


# an upload that came from another client


def test_a_copy_is_named_and_counts_once():
    """Whose it was nobody can tell, so it is the first that stays; other numbers and labels beside
    the same network and images make it no other one.
    """
    copy = good(samples=7, of=0)
    copy.tensors["labels"] = torch.tensor([4, 4, 4]).byte()
    answers = [(0, good(of=0)), (1, copy), (2, good(of=2))]
    words = "upload of client 1 was refused: it is, bit for bit, that of client 0"
    with pytest.raises(UploadError, match=words):
        validate_uploads(answers, FORM, ANNOUNCED, opened())
    ledger = opened()
    assert set(validate_uploads(answers, FORM, ANNOUNCED, ledger, refused="leave_out")) == {0, 2}
    assert words in ledger.rounds[0]["refused"]["1"]


@pytest.mark.parametrize("change", ["the last bit", "two values that change places"])
def test_what_is_no_copy_stays(change):
    other = good(of=0)
    near = other.tensors[w]
    near[0, 0], near[0, 1] = 2.25, 2.5
    mine = Message({name: value.clone() for name, value in other.tensors.items()}, other.meta)
    if change == "the last bit":
        mine.tensors[w][1, 2] = torch.nextafter(mine.tensors[w][1, 2], torch.tensor(9.0))
    else:
        mine.tensors[w][0, 0], mine.tensors[w][0, 1] = 2.5, 2.25
    assert len(validate_uploads([(0, mine), (1, other)], FORM, {0: 12, 1: 12}, opened())) == 2


def test_clients_may_have_the_same_numbers_and_nothing_else():
    """Samples of each class, labels, and an answer in which nothing is a client's own."""
    answers = [(0, good()), (1, good())]
    for _, answer in answers:  # the network that was received, black images
        answer.tensors[w] = MODEL.clone()
    assert len(validate_uploads(answers, FORM, {0: 12, 1: 12}, opened())) == 2
    counts = ({"counts": FORM[0]["counts"], "labels": FORM[0]["labels"]}, {})
    same = {name: good().tensors[name] for name in counts[0]}
    answers = [(0, Message(same)), (1, Message(same))]
    assert len(validate_uploads(answers, counts, {0: 12, 1: 12}, opened())) == 2


@given(
    arrays(np.float32, 12, elements=st.sampled_from([0.0, -0.0, 1.0, 1.5, -2.0])),
    arrays(np.float32, 12, elements=st.sampled_from([0.0, -0.0, 1.0, 1.5, -2.0])),
)
def test_only_what_is_equal_in_value_is_a_copy(one, other):
    """However it lies in memory."""
    form = ({"x": Field((3, 4), torch.float32)}, {})
    first = torch.from_numpy(one.reshape(3, 4))
    second = torch.from_numpy(np.asfortranarray(other.reshape(3, 4)))
    answers = [(0, Message({"x": first})), (1, Message({"x": second}))]
    kept = validate_uploads(answers, form, {0: 1, 1: 1}, opened(), refused="leave_out")
    copied = np.array_equal(one, other) and one.any()
    assert len(kept) == (1 if copied else 2)


def test_a_class_that_one_byte_does_not_hold_is_refused():
    Field((None,), torch.uint8, low=0, high=255, most=6)
    with pytest.raises(InputError, match="one byte: 257 classes are too many"):
        Field((None,), torch.uint8, low=0, high=256, most=6)


def test_uploads_are_judged_one_by_one():
    """Of six uploads of several sizes one has a value that is no number, one is too far from where it
    started, one is another's copy.
    """
    form = {"w": Field((2, 3), torch.float32, near=MODEL)}
    form["images"] = Field((None, 2), torch.float32, low=-1, high=1, most=9)
    draws = torch.Generator().manual_seed(3)
    answers = [
        (
            client,
            Message(
                {
                    "w": MODEL + torch.rand(2, 3, generator=draws),
                    "images": torch.rand(1 + client // 2, 2, generator=draws),
                }
            ),
        )
        for client in range(6)
    ]
    answers[1][1].tensors["images"][0, 1] = math.nan
    answers[2][1].tensors["w"][1, 2] = 1e5
    answers[5] = (5, Message(dict(answers[4][1].tensors)))
    ledger = opened()
    kept = validate_uploads(
        answers, (form, {}), dict.fromkeys(range(6), 9), ledger, refused="leave_out"
    )
    assert list(kept) == [0, 3, 4]
    refused = ledger.rounds[-1]["refused"]
    assert list(refused) == ["1", "2", "5"] and "'images' holds" in refused["1"]
    assert "norm" in refused["2"] and "that of client 4" in refused["5"]


# whole rounds

VALIDATE = Algorithm.validate

TINY = Experiment(
    algorithm="random_selection",
    dataset="digits",
    clients=4,
    rounds=1,
    settings={"images_per_class": 2, "server_steps": 2},
    model_options={"width": 4},
    profile="quick",
)


@pytest.fixture
def fewer_labels(monkeypatch):
    """Client 1 leaves one label out, which moved the labels of all clients behind it."""

    def hostile(self, answers, *rest, **more):
        bad = answers[1]
        if "labels" not in bad.tensors:  # they say first how many they have
            return VALIDATE(self, answers, *rest, **more)
        labels = bad.tensors["labels"][1:]
        short = Message(bad.tensors | {"labels": labels}, bad.meta)
        return VALIDATE(self, {**answers, 1: short}, *rest, **more)

    monkeypatch.setattr(Algorithm, "validate", hostile)


def test_labels_of_others_cannot_be_moved(fewer_labels):
    with pytest.raises(
        UploadError, match="client 1 was refused: 'labels' has 6 rows, but 'images' has 7"
    ):
        list(rounds(TINY))


def test_a_round_goes_on_without_what_it_refused_and_says_so(fewer_labels, monkeypatch, tmp_path):
    """As if the client had not been there; the record names it."""
    lenient = attrs.evolve(TINY, refused="leave_out")
    record = run(lenient, runtime=Runtime(), record=tmp_path / "r.json")
    assert record.status == "complete"
    assert list(record.rounds[0]["refused"]) == ["1"]
    assert Record.load(tmp_path / "r.json") == record
    task = make_task(TINY, Runtime())
    (result,) = rounds(lenient, task=task, clients=make_clients(TINY, task))

    def without_1(self, answers, form, clients, ledger, **more):
        if "labels" in form[0]:
            answers = {one: sent for one, sent in answers.items() if one != 1}
            clients = [client for client in clients if client.id != 1]
        return VALIDATE(self, answers, form, clients, ledger, **more)

    monkeypatch.setattr(Algorithm, "validate", without_1)
    (without,) = rounds(TINY, task=task, clients=make_clients(TINY, task))
    assert all(torch.equal(a, without.state.tensors[n]) for n, a in result.state.tensors.items())


def test_neither_setting_renames_an_experiment():
    assert TINY.id == attrs.evolve(TINY, refused="end", update_norm=1e4).id
    assert TINY.id != attrs.evolve(TINY, refused="leave_out").id
    assert TINY.id != attrs.evolve(TINY, update_norm=1.0).id
