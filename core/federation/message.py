"""What crosses the network, how it is counted and how it is checked."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import attrs
import torch

from core.errors import InputError

Direction = Literal["up", "down"]


@attrs.frozen(eq=False)
class Message:
    """All that crosses the network between the server and one client, in either direction.

    `tensors` are in their wire dtype: condensed images travel as uint8 where a paper counts one
    byte a pixel. The name of a tensor starts with its kind, as in `parameters/classifier.weight` or
    `prototypes/logits`; the ledger counts by kind. `meta` holds small plain values, such as the
    number of samples behind an update.
    """

    tensors: dict[str, torch.Tensor]
    meta: dict[str, int | float | str | list] = attrs.field(factory=dict)

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes by kind of content; `meta` is counted as JSON text."""
        sizes: Counter[str] = Counter()
        for name, tensor in self.tensors.items():
            sizes[name.split("/", 1)[0]] += tensor.numel() * tensor.element_size()
        if self.meta:
            sizes["meta"] += len(json.dumps(self.meta))
        return dict(sizes)

    @property
    def nbytes(self) -> int:
        """Bytes in all."""
        return sum(self.sizes.values())

    def number(self, name: str) -> float:
        """A number of `meta`. Raises InputError where it is none."""
        value = self.meta.get(name)
        if not isinstance(value, (int, float)):
            raise InputError(f"{name!r} of a message must be a number, not {value!r}")
        return value

    def whole(self, name: str) -> int:
        """A number of `meta`, without what stands behind the point. Raises InputError where it is
        none.
        """
        return int(self.number(name))


@attrs.define
class Ledger:
    """What every round cost: bytes up and down by kind of content, and seconds by phase.

    All traffic is entered here, so the communication tables are read off the ledger and not worked
    out from a formula.
    """

    rounds: list[dict[str, dict[str, float]]] = attrs.field(factory=list)

    def open_round(self) -> None:
        """Begin a new round; later entries belong to it."""
        self.rounds.append({"up": {}, "down": {}, "seconds": {}})

    def count(self, direction: Direction, message: Message, times: int = 1) -> Message:
        """Enter one message and hand it on; with `times`, as many messages of that form."""
        entry = self.rounds[-1][direction]
        for kind, size in message.sizes.items():
            entry[kind] = entry.get(kind, 0) + size * times
        return message

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the wall time of the block to a phase ("clients", "server", "evaluate")."""
        start = time.perf_counter()
        try:
            yield
        finally:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            entry = self.rounds[-1]["seconds"]
            entry[phase] = entry.get(phase, 0.0) + time.perf_counter() - start

    def nbytes(self, direction: Direction) -> int:
        """Bytes of the latest round in one direction, over all clients."""
        return int(sum(self.rounds[-1][direction].values()))

    def total(self, direction: Direction) -> dict[str, int]:
        """Bytes of the whole run in one direction, by kind of content."""
        total: Counter[str] = Counter()
        for entry in self.rounds:
            total.update({kind: int(size) for kind, size in entry[direction].items()})
        return dict(total)


@attrs.frozen
class Field:
    """What one tensor of an upload must look like.

    `shape` has None where the length is the client's choice; that length must not exceed `most`.
    `low` and `high` bound the values (labels lie in 0 .. C-1).
    """

    shape: tuple[int | None, ...]
    dtype: torch.dtype
    low: float = -math.inf
    high: float = math.inf
    most: int = 0


class UploadError(InputError):
    """A client sent something that the server must not use."""


def check_upload(
    message: Message, tensors: Mapping[str, Field], meta: Mapping[str, Field], client_id: int
) -> Message:
    """Hand on an upload that has exactly the announced form, or raise UploadError.

    Names, shapes, dtypes, sizes, finiteness and ranges are looked at before the server computes
    anything. `meta` values must be numbers within their field's bounds.
    """

    def refuse(reason: str) -> None:
        raise UploadError(f"the upload of client {client_id} was refused: {reason}")

    for what, given, wanted in (
        ("tensor", message.tensors, tensors),
        ("entry", message.meta, meta),
    ):
        if missing := sorted(wanted.keys() - given.keys()):
            refuse(f"{what} {missing[0]!r} is missing")
        if extra := sorted(given.keys() - wanted.keys()):
            refuse(f"{what} {extra[0]!r} was not asked for")
    for name, field in tensors.items():
        if reason := _misfit(message.tensors[name], field):
            refuse(f"{name!r} {reason}")
    for name, field in meta.items():
        if reason := _out_of_bounds(message.meta[name], field):
            refuse(f"{name!r} {reason}")
    sound = {name: _sound(message.tensors[name], field) for name, field in tensors.items()}
    if sound and not bool(
        torch.stack(list(sound.values())).all()
    ):  # one look for all tensors: one host sync
        bad = next(name for name, fine in sound.items() if not fine)
        refuse(
            f"{bad!r} holds values that are not finite or out of range (did the training diverge?)"
        )
    return message


def _misfit(tensor: torch.Tensor, field: Field) -> str | None:
    """What is wrong with the form of a tensor, if anything."""
    if tensor.dtype != field.dtype:
        return f"is {tensor.dtype} and not {field.dtype}"
    if len(tensor.shape) != len(field.shape):
        return f"has shape {tuple(tensor.shape)} and not {field.shape}"
    for length, wanted in zip(tensor.shape, field.shape, strict=True):
        if wanted is None and length > field.most:
            return f"has {length} rows where at most {field.most} are allowed"
        if wanted is not None and length != wanted:
            return f"has shape {tuple(tensor.shape)} and not {field.shape}"
    return None


def _out_of_bounds(value: Any, field: Field) -> str | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return f"is not a number: {value!r}"
    if not field.low <= value <= field.high:
        return f"is {value}, outside {field.low} .. {field.high}"
    return None


def _sound(tensor: torch.Tensor, field: Field) -> torch.Tensor:
    """A boolean on the tensor's device: all values finite and within bounds."""
    if field.low == -math.inf and field.high == math.inf:
        return torch.isfinite(tensor).all()
    return (torch.isfinite(tensor) & (tensor >= field.low) & (tensor <= field.high)).all()
