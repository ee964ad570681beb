"""What a server takes from its clients, and what it does not."""

import contextlib
import math

import attrs
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

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
from lab import Record, schema
from lab.running import rounds, run
from tests.lab.small_runs import small
from tests.sentences import refused

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


def validated(answers, form=FORM, announced=ANNOUNCED, **more):
    """The uploads that a round goes on with, and the reasons of those that it leaves out."""
    ledger = Ledger.aside()
    uploads = validate_uploads(answers, form, announced, ledger, refused="leave_out", **more)
    assert ledger.nbytes("up") == sum(one.nbytes for one in uploads.values())
    return uploads, ledger.rounds[0].get("refused", {})


def refusal(answers, form=FORM, announced=ANNOUNCED, **more) -> str:
    """The line with which a round ends."""
    with pytest.raises(UploadError) as error:
        validate_uploads(answers, form, announced, Ledger.aside(), **more)
    line = str(error.value)
    assert line.isprintable() and len(line) < 300
    return line


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


w, wide = "parameters/w", torch.ones(2, 3)
REFUSED = [
    ({"labels": 3}, "no message"),
    (Message({3: torch.ones(1)}), "mappings"),
    (Message({}, "samples"), "mappings"),
    (spoilt("x" * 10**6, torch.ones(1)), "not asked for"),
    # rows
    (spoilt("labels", torch.zeros(2).byte()), "2 rows, but 'images' has 3"),
    (good(1), "'images' has 1 rows where at least 2"),
    (good(7), "7 rows where at most 6"),
    # no plain tensors
    (spoilt(w, [1.0]), "no tensor but list"),
    (spoilt(w, wide.as_subclass(Odd)), "no tensor but Odd"),
    (spoilt(w, torch.nn.Parameter(wide)), "no tensor but Parameter"),
    (spoilt(w, wide.to_sparse()), "without plain values"),
    (spoilt(w, wide.to("meta")), "without plain values"),
    (spoilt(w, torch.ones(2, 3, requires_grad=True)), "graph"),
    (spoilt(w, torch.ones(1, 3).expand(2, 3)), "shown as many"),
    # values
    (spoilt(w, wide * 3.4e38), "out of range"),
    (spoilt(w, wide * 0), "every weight of its network is 0"),
    (spoilt(w, wide * 1e5), "update has the norm"),
    # counts
    (spoilt("counts", torch.full((10,), 2**62)), "sums to"),
    (spoilt("counts", torch.zeros(10).long()), "sums to 0, but"),
    (spoilt("counts", torch.full((10,), 2)), "announced 12 samples"),
    (spoilt("samples", 13), "is 13, outside 1 .. 12"),
    (spoilt("samples", 10**400), "not a number: a number of about 400 digits"),
    (spoilt("samples", 2.5), "not a whole number"),
    (spoilt("samples", "7" * 5000), "not a number"),
]


@pytest.mark.parametrize(("bad", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_a_bad_upload_ends_the_round_or_is_left_out(bad, reason):
    answers = [(0, bad), (1, good(of=1)), (2, good(of=2))]
    uploads, reasons = validated(answers)
    assert uploads == {1: answers[1][1], 2: answers[2][1]}
    assert reasons["0"] == refusal(answers)
    assert "upload of client 0 was refused" in reasons["0"] and reason in reasons["0"]


@pytest.mark.parametrize("kind", ["buffers/norm.running_var", "generator/buffers/running_var"])
def test_a_variance_below_zero_is_refused(kind):
    """Averaged, it would leave a model whose outputs are no numbers; a mean may lie there."""
    form = network_form({kind: torch.ones(3), "buffers/norm.running_mean": torch.ones(3)}), {}
    below, above = torch.tensor([1.0, -0.25, 1.0]), torch.full((3,), 0.5)
    sent = [(0, Message({kind: above, "buffers/norm.running_mean": below}))]
    assert set(validated(sent, form, {0: 12})[0]) == {0}
    sent = [(0, Message({kind: below, "buffers/norm.running_mean": above}))]
    assert kind in refusal(sent, form, {0: 12})


STRANGERS = [3, -1, "1", "x" * 10**6, True, 1.5, None, torch.ones(3, 3)]


def test_only_the_clients_of_the_round_may_answer():
    """All others are named in a way that a record can hold."""
    own = [(client, good(of=client)) for client in ANNOUNCED]
    for stranger in STRANGERS:
        assert "no client of this round" in refusal([*own, (stranger, good(of=9))])
    uploads, reasons = validated([*own, *((one, good(of=9)) for one in STRANGERS)])
    assert set(uploads) == set(ANNOUNCED) and len(reasons) == len(STRANGERS)
    assert all(schema.NAME.fullmatch(name) and why.isprintable() for name, why in reasons.items())


def test_a_client_answers_once():
    """Nobody can tell which of two answers is the client's; a third one does not help."""
    twice = [(one, good(of=one)) for one in (0, 1, 2, 1, 1)]
    assert "client 1 was refused: it answered twice" in refusal(twice)
    assert set(validated(twice)[0]) == {0, 2}
    never = twice[:1] + twice[2:3]
    assert "client 1 sent no upload" in refusal(never)
    uploads, reasons = validated(never)
    assert set(uploads) == {0, 2} and "no upload" in reasons["1"]


def test_a_round_without_a_sound_upload_ends_and_a_call_to_some_of_its_clients_may():
    line = refusal([(0, None)], refused="leave_out")
    assert "no upload of the round can be used" in line
    assert validated([(0, None)], fewest=0)[0] == validated([], fewest=0)[0] == {}


def test_the_norm_is_that_of_all_tensors_of_a_network_and_its_bound_a_setting():
    """Two of them move by 1 in each of six numbers."""
    form = {name: Field((2, 3), torch.float32, near=MODEL) for name in ("w", "v")}, {}
    sent = [(0, Message({"w": MODEL + 1, "v": MODEL - 0.5 - 0.5}))]
    assert validated(sent, form, {0: 1}, update_norm=12**0.5 + 1e-6)[0]
    assert "the norm 3.46" in refusal(sent, form, {0: 1}, update_norm=12**0.5 - 1e-6)


# an upload that came from another client


def test_a_copy_is_named_and_counts_once():
    """Whose it was nobody can tell: the first stays. Other numbers beside it do not hide it."""
    copy = good(samples=7, of=0)
    copy.tensors["labels"] = torch.tensor([4, 4, 4]).byte()
    answers = [(0, good(of=0)), (1, copy), (2, good(of=2))]
    words = "upload of client 1 was refused: it is, bit for bit, that of client 0"
    assert words in refusal(answers)
    uploads, reasons = validated(answers)
    assert set(uploads) == {0, 2} and words in reasons["1"]


def test_clients_may_have_the_same_numbers_and_nothing_else():
    """Samples of each class, labels, and an answer in which nothing is a client's own."""
    answers = [(0, good()), (1, good())]
    for _, answer in answers:  # the network that was received, black images
        answer.tensors[w] = MODEL.clone()
    assert len(validated(answers, FORM, {0: 12, 1: 12})[0]) == 2
    counts = ({"counts": FORM[0]["counts"], "labels": FORM[0]["labels"]}, {})
    same = {name: good().tensors[name] for name in counts[0]}
    answers = [(0, Message(same)), (1, Message(same))]
    assert len(validated(answers, counts, {0: 12, 1: 12})[0]) == 2


VALUES = arrays(np.float32, 12, elements=st.sampled_from([0.0, -0.0, 1.0, 1.5, -2.0]))
ROW = np.arange(12, dtype=np.float32)


@given(VALUES, VALUES)
@example(ROW, np.nextafter(ROW, np.float32(99)))
@example(ROW, ROW[[1, 0, *range(2, 12)]])
def test_only_what_is_equal_in_value_is_a_copy(one, other):
    """However it lies in memory."""
    form = ({"x": Field((3, 4), torch.float32)}, {})
    first = torch.from_numpy(one.reshape(3, 4))
    second = torch.from_numpy(np.asfortranarray(other.reshape(3, 4)))
    answers = [(0, Message({"x": first})), (1, Message({"x": second}))]
    copied = np.array_equal(one, other) and one.any()
    assert len(validated(answers, form, {0: 1, 1: 1})[0]) == (1 if copied else 2)


def test_a_class_that_one_byte_does_not_hold_is_refused():
    Field((None,), torch.uint8, low=0, high=255, most=6)
    more = {"low": 0, "high": 256, "most": 6}
    refused("one byte: 257 classes are too many", Field, (None,), torch.uint8, **more)


# uploads as no honest client sends them, drawn by hypothesis

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
NUMBERS = st.one_of(
    st.integers(-2, 14),
    st.sampled_from([300, 2**31, 2**62, 10**400, -(2**63), 2.5, 3.4e38, 1e308]),
    st.floats(allow_nan=True, allow_infinity=True),
)
JUNK = st.one_of(NUMBERS, st.none(), st.booleans(), st.text(max_size=3), st.builds(object))
FORMS = (
    lambda tensor: tensor,
    lambda tensor: tensor.to_sparse(),
    lambda tensor: tensor.to("meta"),
    lambda tensor: tensor.float().requires_grad_(),
    lambda tensor: tensor[:1].expand(max(3, len(tensor)), *tensor.shape[1:]),
    lambda tensor: tensor.transpose(0, -1),
    lambda tensor: tensor[:-1],
    lambda tensor: torch.cat([tensor, tensor[:1]]),
)


@st.composite
def tensors(draw, good):
    """A tensor that is like a good one, but for its dtype, one of its values or its form."""
    dtype = draw(st.one_of(st.just(good.dtype), st.sampled_from(DTYPES)))
    tensor = good.detach().to(dtype).contiguous().clone()
    if tensor.numel() and draw(st.booleans()):
        which = slice(None) if draw(st.booleans()) else slice(0, 1)
        # the dtype may not be able to hold it
        with contextlib.suppress(OverflowError, RuntimeError, ValueError, TypeError):
            tensor.view(-1)[which] = draw(NUMBERS)
    if not tensor.dim() or not len(tensor):
        return tensor
    return draw(st.sampled_from(FORMS))(tensor)


@st.composite
def uploads(draw, good):
    """An upload like a good one with one or two things in it changed."""
    parts = {"tensors": dict(good.tensors), "meta": dict(good.meta)}
    for _ in range(draw(st.integers(1, 2))):
        kind = draw(st.sampled_from(["tensors", "meta"]))
        name = draw(st.sampled_from([*parts[kind], "more"]))
        if kind == "tensors" and name in good.tensors and draw(st.booleans()):
            parts[kind][name] = draw(tensors(good.tensors[name]))
        elif draw(st.booleans()):
            parts[kind][name] = draw(JUNK)
        else:
            parts[kind].pop(name, None)
    return Message(**parts)


def conforms(message, form, meta, samples):
    """Say whether an upload is what its form promises; computed in NumPy and float64."""
    if message.tensors.keys() != form.keys() or message.meta.keys() != meta.keys():
        return False
    rows, moved = set(), 0.0
    for name, field in form.items():
        tensor = message.tensors[name]
        if (tensor.dtype, tensor.requires_grad, tensor.dim()) != (
            field.dtype,
            False,
            len(field.shape),
        ):
            return False
        values = tensor.double().numpy()
        for length, wanted in zip(values.shape, field.shape, strict=True):
            rows |= {length} if wanted is None else set()
            least, most = (field.least, field.most) if wanted is None else (wanted, wanted)
            if not least <= length <= most:
                return False
        limit = 1e6 if field.dtype.is_floating_point else math.inf
        low, high = max(field.low, -limit), min(field.high, limit)
        if not (np.isfinite(values) & (values >= low) & (values <= high)).all():
            return False
        if field.total is not None and not 1 <= values.sum() <= field.total(samples):
            return False
        if field.near is not None:
            moved += np.square(values - field.near.double().numpy()).sum()
    for name, field in meta.items():
        value = message.meta[name]
        high = min(field.high, field.total(samples) if field.total else math.inf)
        if type(value) not in (int, float) or not field.low <= value <= high:
            return False
    return len(rows) <= 1 and moved**0.5 <= 1e4 * (1 + 1e-6)


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(uploads(good()))
def test_what_is_drawn_at_random_is_refused_or_what_the_form_promises(upload):
    """In one line that names the client; no other error comes out."""
    try:
        validate_uploads([(0, upload)], FORM, {0: 12}, Ledger.aside())
    except UploadError as error:
        assert "client 0 " in str(error) and "\n" not in str(error) and len(str(error)) < 300
    else:
        assert conforms(upload, *FORM, 12)
    assert conforms(good(), *FORM, 12)


# whole rounds

VALIDATE = Algorithm.validate

FEW = {"images_per_class": 2, "server_steps": 2}
TINY = small(algorithm="random_selection", clients=4, rounds=1, settings=FEW)


def test_a_round_goes_on_as_if_a_refused_client_had_not_been_there(monkeypatch, tmp_path):
    """Client 1 leaves one label out, which would move the labels of all clients behind it."""

    def hostile(self, answers, form, *rest, **more):
        if "labels" in form[0]:  # the clients say first how many they have
            labels = answers[1].tensors["labels"][1:]
            bad = Message(answers[1].tensors | {"labels": labels}, answers[1].meta)
            answers = {**answers, 1: bad}
        return VALIDATE(self, answers, form, *rest, **more)

    def without_1(self, answers, form, clients, ledger, **more):
        if "labels" in form[0]:
            answers = {one: sent for one, sent in answers.items() if one != 1}
            clients = [client for client in clients if client.id != 1]
        return VALIDATE(self, answers, form, clients, ledger, **more)

    monkeypatch.setattr(Algorithm, "validate", hostile)
    with pytest.raises(UploadError, match="'labels' has 6 rows, but 'images' has 7"):
        list(rounds(TINY))
    lenient = attrs.evolve(TINY, refused="leave_out")
    record = run(lenient, runtime=Runtime(), record=tmp_path / "r.json")
    assert record.status == "complete" and list(record.rounds[0]["refused"]) == ["1"]
    assert Record.load(tmp_path / "r.json") == record
    (result,) = rounds(lenient)
    monkeypatch.setattr(Algorithm, "validate", without_1)
    (without,) = rounds(TINY)
    assert all(torch.equal(a, without.state.tensors[n]) for n, a in result.state.tensors.items())
