"""Messages and the ledger."""

import json
import time

import pytest
import torch

from core.errors import InputError
from core.federation import Ledger, Message


def message() -> Message:
    return Message(
        {
            "parameters/w": torch.zeros(3, 4),
            "buffers/mean": torch.zeros(5),
            "images": torch.zeros(2, 1, 8, 8, dtype=torch.uint8),
        },
        {"samples": 12},
    )


def test_bytes_are_counted_by_kind_in_the_wire_dtype():
    assert message().sizes == {
        "parameters": 48,
        "buffers": 20,
        "images": 128,
        "meta": len(json.dumps({"samples": 12})),
    }
    assert message().nbytes == 48 + 20 + 128 + 15


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "1", None, [1], 10**400])
def test_what_is_no_number_in_a_message_is_named(value):
    for read in (Message.number, Message.whole):
        with pytest.raises(InputError, match="'steps' of a message must be a number"):
            read(Message({}, {"steps": value}), "steps")


def test_numbers_of_a_message():
    message = Message({}, {"steps": 3.0, "noise": 0.5})
    assert message.whole("steps") == 3 and message.number("noise") == 0.5
    with pytest.raises(InputError, match="'noise' of a message must be a whole number"):
        message.whole("noise")


def test_the_ledger_adds_up_rounds_and_directions():
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
