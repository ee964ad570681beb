"""Messages, and the ledger that counts them."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import attrs
import torch

from core.checks import is_number, shown_briefly
from core.errors import InputError, brief
from core.federation.runtime import finish

Direction = Literal["up", "down"]


@attrs.frozen(eq=False, field_transformer=shown_briefly)
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
        """A finite number of `meta`. Raises InputError where it is none."""
        value = self.meta.get(name)
        if not is_number(value):
            raise InputError(f"{name!r} of a message must be a number, not {brief(value)}")
        return value  # type: ignore[return-value]

    def whole(self, name: str) -> int:
        """A whole number of `meta`. Raises InputError where it is none."""
        value = self.number(name)
        if value != int(value):
            raise InputError(f"{name!r} of a message must be a whole number, not {value!r}")
        return int(value)


@attrs.define(field_transformer=shown_briefly)
class Ledger:
    """The cost of every round: bytes up and down by kind of content, and seconds by phase; and which uploads
    were refused. Communication tables are read off it. Refused uploads and tests are not counted.
    """

    rounds: list[dict[str, dict[str, Any]]] = attrs.field(factory=list)
    #: where the run computes: a phase ends when this has done what it was given
    device: torch.device = attrs.field(factory=lambda: torch.device("cpu"))

    @classmethod
    def aside(cls) -> Ledger:
        """A ledger of one round, for what is no part of a run's cost."""
        ledger = cls()
        ledger.open_round()
        return ledger

    def open_round(self) -> None:
        """Begin a new round; later entries belong to it."""
        self.rounds.append({"up": {}, "down": {}, "seconds": {}})

    def count(self, direction: Direction, message: Message) -> Message:
        """Enter one message and hand it on."""
        entry = self.rounds[-1][direction]
        for kind, size in message.sizes.items():
            entry[kind] = entry.get(kind, 0) + size
        return message

    def refuse(self, reasons: Mapping[str, str]) -> None:
        """Enter the uploads of the latest round that were refused: reasons by client."""
        if reasons:
            self.rounds[-1].setdefault("refused", {}).update(reasons)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the wall time of the block to a phase ("clients", "server", "evaluate")."""
        start = time.perf_counter()
        try:
            yield
        finally:
            finish(self.device)
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
