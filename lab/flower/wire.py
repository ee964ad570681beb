"""A message as Flower's records, and back."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from core.errors import InputError, one_line
from core.federation import Message, UploadError
from core.files import BAD_HEADER

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
except ImportError:
    raise InputError("this needs Flower: make machines, or pip install -e '.[flower]'") from None

#: the records of a message
TENSORS, META = "tensors", "meta"


def arrays(tensors: Mapping[str, torch.Tensor]) -> ArrayRecord:
    """Named tensors as an ArrayRecord, in NumPy's own format."""
    return ArrayRecord(
        {name: Array(value.detach().cpu().contiguous().numpy()) for name, value in tensors.items()}
    )


def tensors(record: ArrayRecord, device: torch.device) -> dict[str, torch.Tensor]:
    """The tensors of an ArrayRecord. Raises InputError for one that is not what it says it is."""
    return {name: _tensor(name, array).to(device) for name, array in record.items()}


def _tensor(name: str, array: Array) -> torch.Tensor:
    """An array is parsed only when its header announces as many bytes as there are."""
    file = io.BytesIO(array.data)
    try:
        if array.stype != "numpy.ndarray" or np.lib.format.read_magic(file) != (1, 0):
            raise ValueError("it is not in NumPy's format")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        if dtype.hasobject or dtype.kind not in "biuf" or fortran:
            raise ValueError(f"it holds {dtype}")
        rest = file.read()
        if math.prod(shape) * dtype.itemsize != len(rest):
            raise ValueError(f"{shape} {dtype} are not {len(rest)} bytes")
        return torch.from_numpy(np.frombuffer(rest, dtype).reshape(shape).copy())
    except BAD_HEADER as error:
        raise InputError(f"the tensor {name!r} cannot be read: {one_line(error, 120)}") from None


def records(message: Message) -> RecordDict:
    """A message as it travels."""
    return RecordDict({TENSORS: arrays(message.tensors), META: ConfigRecord(dict(message.meta))})


def _entry_bytes(value: Any) -> int:
    """Bytes of an entry's value; a number has 8."""
    if isinstance(value, list):
        return sum(map(_entry_bytes, value))
    return len(value) if isinstance(value, str | bytes) else 8


def message(content: RecordDict, device: torch.device, most: float = math.inf) -> Message:
    """What arrived, as a message on a device.

    Raises UploadError, before anything is parsed, for more than `most` bytes or records of other
    names; and InputError for tensors that cannot be read.
    """
    if not isinstance(content.get(TENSORS), ArrayRecord) or not isinstance(
        content.get(META), ConfigRecord
    ):
        raise UploadError(f"it holds the records {sorted(content)} and not those of a message")
    size = sum(len(array.data) for array in content[TENSORS].values())
    size += sum(_entry_bytes(value) for value in content[META].values())
    if size > most:
        raise UploadError(f"it has {size} bytes where at most {most:.0f} are allowed")
    meta = {
        name: list(value) if isinstance(value, list) else value
        for name, value in content[META].items()
    }
    return Message(tensors(content[TENSORS], device), meta)
