"""Messages, the ledger, and the check of uploads."""

import json

import pytest
import torch

from core.federation import Field, Ledger, Message, UploadError, check_upload


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


def test_many_messages_of_one_form_are_entered_at_once():
    once, each = Ledger(), Ledger()
    for ledger in (once, each):
        ledger.open_round()
    once.count("up", message(), times=5)
    for _ in range(5):
        each.count("up", message())
    assert once.rounds == each.rounds


FORMAT = {
    "labels": Field((None,), torch.int64, low=0, high=9, most=4),
    "w": Field((2, 2), torch.float32),
}
META = {"samples": Field((), torch.int64, low=1)}


def good() -> Message:
    return Message({"labels": torch.tensor([0, 9]), "w": torch.ones(2, 2)}, {"samples": 3})


def test_a_good_upload_passes_unchanged():
    upload = good()
    assert check_upload(upload, FORMAT, META, 0) is upload


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("w", None, "'w' is missing"),
        ("extra", torch.ones(1), "'extra' was not asked for"),
        ("w", torch.ones(2, 2, dtype=torch.float64), "is torch.float64 and not torch.float32"),
        ("w", torch.ones(4), "has shape"),
        ("w", torch.ones(2, 3), "has shape"),
        ("w", torch.tensor([[1.0, float("nan")], [0, 0]]), "not finite"),
        ("w", torch.tensor([[1.0, float("inf")], [0, 0]]), "not finite"),
        ("labels", torch.tensor([0, 10]), "out of range"),
        ("labels", torch.tensor([-1]), "out of range"),
        ("labels", torch.arange(5), "5 rows where at most 4"),
    ],
)
def test_a_bad_tensor_is_refused_by_name(name, value, reason):
    upload = good()
    upload.tensors.pop(name, None)
    if value is not None:
        upload.tensors[name] = value
    with pytest.raises(UploadError, match="client 7 was refused") as error:
        check_upload(upload, FORMAT, META, 7)
    assert reason in str(error.value)


@pytest.mark.parametrize("value", [0, -1, float("nan"), "3", True, None])
def test_a_bad_number_is_refused(value):
    upload = good()
    upload.meta["samples"] = value
    with pytest.raises(UploadError, match="'samples'"):
        check_upload(upload, FORMAT, META, 1)
