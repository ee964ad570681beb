"""A client: its data and what it remembers."""

from __future__ import annotations

import math

import attrs
import torch

from core.checks import check_kind, shown_briefly
from core.data.partition import split as split_over_clients
from core.errors import InputError
from core.federation.task import Task
from core.rng import Rng


@attrs.frozen(eq=False, field_transformer=shown_briefly)
class Rows:
    """Rows of an array that many share, by their numbers: they are copied when they are asked for."""

    array: torch.Tensor
    rows: torch.Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def read(self) -> torch.Tensor:
        """The rows, a copy."""
        return self.array[self.rows]


@attrs.define(eq=False, field_transformer=shown_briefly)
class Client:
    """One participant.

    `images` (N, C, H, W) uint8 and `labels`, what they are to be predicted as (`Split.targets`: (N,)
    int64 of a classification), lie on the task's device and never leave the client. `memory` holds
    named tensors that a client keeps from round to round; it is checkpointed and never sent.
    """

    id: int
    task: Task
    _images: torch.Tensor | Rows
    labels: torch.Tensor
    memory: dict[str, torch.Tensor] = attrs.field(factory=dict)

    def copy(self) -> Client:
        """Return the client with a copy of its memory: what one learns in place the other does not."""
        memory = {name: value.clone() for name, value in self.memory.items()}
        return attrs.evolve(self, memory=memory)

    @property
    def images(self) -> torch.Tensor:
        """The client's images; where it holds rows of an array, they are made at every call."""
        return self._images.read() if isinstance(self._images, Rows) else self._images

    def some(self, rows: torch.Tensor) -> torch.Tensor:
        """Copies of some images only, by places (n,) at the client or a mask (N,)."""
        if isinstance(self._images, Rows):
            return self._images.array[self._images.rows[rows]]
        return self._images[rows]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def class_counts(self) -> torch.Tensor:
        """Samples of each class, (C,) int64; pixels of masks."""
        return self.task.class_counts(self.labels)


def distribute(
    task: Task, partition: dict, clients: int | None, seed: int, train_fraction: float = 1.0
) -> list[Client]:
    """Return clients with the training set distributed over them by `core.data.partition.split`: each
    has an index over the one array of images, and a copy of its targets.

    With `train_fraction`, each keeps a random share of its part, rounded up; rows held out for
    validation are left out. A client may be empty. InputError when all are.
    """
    check_kind("task", task, Task)
    train, device = task.dataset.train, task.runtime.device
    images, targets = train.images.to(device), train.targets.to(device)
    parts = split_over_clients(partition, train, clients, seed)
    if not any(len(part) for part in parts):
        raise InputError("the partition leaves every client without data")
    rows_of = [
        _usable(task, number, torch.as_tensor(part, dtype=torch.int64), seed, train_fraction).to(
            device
        )
        for number, part in enumerate(parts)
    ]
    return [
        Client(number, task, Rows(images, rows), targets[rows])
        for number, rows in enumerate(rows_of)
    ]


def owner(task: Task, number: int, seed: int, train_fraction: float = 1.0) -> Client:
    """The client to which all of the task's training data belong, where each has data of its own;
    what is left out of them is as in `distribute`.
    """
    train, device = task.dataset.train, task.runtime.device
    rows = _usable(task, number, torch.arange(len(train)), seed, train_fraction)
    return Client(number, task, train.images[rows].to(device), train.targets[rows].to(device))


def _usable(
    task: Task, number: int, rows: torch.Tensor, seed: int, train_fraction: float
) -> torch.Tensor:
    """Rows of a client's part that it may use."""
    if task.dataset.held_out is not None:
        rows = rows[~torch.isin(rows, task.dataset.held_out)]
    if train_fraction == 1:
        return rows
    draws = Rng(seed).at("train_fraction", number).generator()
    order = torch.randperm(len(rows), generator=draws)
    # less its rounding: in floats 0.07 of 100 is a little above 7
    count = math.ceil(train_fraction * len(rows) - 1e-9)
    return rows[order[:count].sort().values]
