"""Messages, the ledger, and the codec of named tensors."""

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InputError
from core.federation import Ledger, Message
from core.federation.tensors import (
    in_a_row,
    pack,
    put,
    put_each,
    take,
    take_each,
    unpack,
    weights,
)
from core.models import build
from core.rng import Rng
from tests.sentences import refused


def message() -> Message:
    images = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    parts = {"parameters/w": torch.zeros(3, 4), "buffers/mean": torch.zeros(5), "images": images}
    return Message(parts, {"samples": 12})


def test_numbers_of_a_message():
    message = Message({}, {"steps": 3.0, "noise": 0.5})
    assert message.whole("steps") == 3 and message.number("noise") == 0.5
    refused("'noise' of a message must be a whole number", message.whole, "noise")
    for value in (float("nan"), True, "1", None, [1], 10**400):
        for read in (Message.number, Message.whole):
            with pytest.raises(InputError, match="'steps' of a message must be a number"):
                read(Message({}, {"steps": value}), "steps")


def test_the_ledger_adds_up_rounds_and_directions():
    assert message().sizes == {"parameters": 48, "buffers": 20, "images": 128, "meta": 15}
    ledger = Ledger()
    for _ in range(3):
        ledger.open_round()
        for _ in range(2):
            ledger.count("up", message())
        ledger.count("down", message())
    assert ledger.nbytes("up") == 2 * 211 and ledger.nbytes("down") == 211
    assert ledger.total("up") == {"parameters": 288, "buffers": 120, "images": 768, "meta": 90}
    assert sum(ledger.total("down").values()) == 3 * 211


def test_a_phase_that_comes_twice_takes_both_times(monkeypatch):
    clock = iter([0.0, 2.0, 10.0, 13.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    ledger = Ledger()
    ledger.open_round()
    for _ in range(2):
        with ledger.timed("clients"):
            pass
    assert ledger.rounds[0]["seconds"] == {"clients": 5.0}


@pytest.mark.parametrize(("device", "waited"), [("cpu", []), ("cuda:1", [torch.device("cuda:1")])])
def test_a_clock_waits_for_the_device_of_the_run_and_for_no_other(device, waited, monkeypatch):
    """A run on a CPU leaves the GPUs of its machine alone."""
    found = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: found.append(device))
    ledger = Ledger(device=torch.device(device))
    ledger.open_round()
    with ledger.timed("clients"):
        pass
    assert found == waited and ledger.rounds[0]["seconds"]["clients"] >= 0


# named tensors

NAMES = st.text("ab/.1", min_size=1, max_size=4)
TENSORS = st.dictionaries(NAMES, st.integers(0, 9).map(torch.tensor), min_size=1, max_size=3)


def network(seed):
    model = build("resnet8", 1, 8, 3, Rng(seed), width=4)
    model(torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(seed)))
    return model


@given(st.dictionaries(st.integers(0, 12), TENSORS), TENSORS)
def test_owners_come_back_in_order_and_alone(owners, others):
    state = put_each("members/", owners) | put("member/", others)
    back = take_each("members/", state)
    assert list(back) == sorted(owners)
    assert back == {owner: dict(tensors) for owner, tensors in owners.items()}
    assert take("member/", state) == others


def test_a_network_comes_back_from_below_its_prefix():
    one, other = network(0), network(1)
    state = pack(one, "student/") | pack(other) | {"student/optimiser/step": torch.tensor(1.0)}
    assert weights(state).keys() == pack(other).keys()
    assert unpack(other, state, "student/") is other
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    refused("missing", unpack, other, state, "teacher/")
    kept = {name: value.clone() for name, value in state.items()}
    with torch.no_grad():  # what is packed is a copy
        for tensor in one.state_dict().values():
            tensor.zero_()
    assert all(torch.equal(state[name], value) for name, value in kept.items())


def test_tensors_in_a_row_are_a_vector_whose_gradient_reaches_each():
    first = torch.arange(24.0, requires_grad=True)
    # laid out otherwise in memory, as weights of convolutions are
    maps = first.view(1, 4, 2, 3).contiguous(memory_format=torch.channels_last)
    row = in_a_row({"b": maps, "a": torch.tensor([[1.0], [2.0]])})
    assert row.tolist() == [1, 2, *range(24)]
    (gradient,) = torch.autograd.grad(row @ row, [first])
    assert torch.equal(gradient, 2 * first.detach())
