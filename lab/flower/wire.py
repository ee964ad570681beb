"""A message as Flower's records, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from core.errors import InputError, one_line
from core.federation import Message, UploadError

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
except ImportError:
    raise InputError("this needs Flower: make machines, or pip install -e '.[flower]'") from None

#: the records of a message, and of the question that it belongs to, which an answer repeats
TENSORS, META, ASKED = "tensors", "meta", "asked"


def arrays(tensors: Mapping[str, torch.Tensor]) -> ArrayRecord:
    """Named tensors as an ArrayRecord, in NumPy's own format."""
    return ArrayRecord(
        {name: Array(value.detach().cpu().contiguous().numpy()) for name, value in tensors.items()}
    )


def tensors(record: ArrayRecord, device: torch.device) -> dict[str, torch.Tensor]:
    """The tensors of an ArrayRecord. Raises InputError for one that is not what it says it is."""
    return {name: _tensor(name, array).to(device) for name, array in record.items()}


def _tensor(name: str, array: Array) -> torch.Tensor:
    """An array whose bytes are of the shape and type that its record states."""
    try:
        values = array.numpy()
        if (tuple(array.shape), array.dtype) != (values.shape, str(values.dtype)):
            raise ValueError("it says two things about itself")
        return torch.from_numpy(values)
    except Exception as error:  # of NumPy's reader, for a header that it cannot parse
        raise InputError(f"the tensor {name!r} cannot be read: {one_line(error, 120)}") from None


def records(message: Message, asked: str) -> RecordDict:
    """A message as it travels, with the question that it belongs to."""
    meta, question = ConfigRecord(dict(message.meta)), ConfigRecord({"what": asked})
    return RecordDict({TENSORS: arrays(message.tensors), META: meta, ASKED: question})


def _entry_bytes(value: Any) -> int:
    """Bytes of an entry's value; a number has 8."""
    if isinstance(value, list):
        return sum(map(_entry_bytes, value))
    return len(value) if isinstance(value, str | bytes) else 8


def message(
    content: RecordDict, device: torch.device, most: float = math.inf, asked: str | None = None
) -> tuple[Message, str]:
    """The message that arrived, on a device, and its question. UploadError, before parsing, for more than
    `most` bytes, another question than `asked`, or further content; InputError for bad tensors.
    """
    kinds = {TENSORS: ArrayRecord, META: ConfigRecord, ASKED: ConfigRecord}
    if content.keys() != kinds.keys() or any(
        not isinstance(content[name], kind) for name, kind in kinds.items()
    ):
        raise UploadError(f"it holds the records {sorted(content)} and not those of a message")
    question = dict(content[ASKED])
    if question.keys() != {"what"} or asked not in (None, question["what"]):
        raise UploadError("it belongs to another round")
    size = sum(len(name) + len(array.data) for name, array in content[TENSORS].items())
    size += sum(len(name) + _entry_bytes(value) for name, value in content[META].items())
    if size > most:
        raise UploadError(f"it has {size} bytes where at most {most:.0f} are allowed")
    meta = {
        name: list(value) if isinstance(value, list) else value
        for name, value in content[META].items()
    }
    return Message(tensors(content[TENSORS], device), meta), str(question["what"])
