"""What a server sees of the values of uploads: all that it must know before it uses one, with one wait
for a GPU.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import attrs
import torch

from core.federation.fields import Field, Form
from core.federation.message import Message

#: numbers of a tensor that are looked at together, of several uploads
AT_ONCE = 2**22


@attrs.frozen
class Look:
    """What was seen of an upload's values."""

    #: by tensor: whether all are finite and within bounds, and their sum where they are counts
    sound: list[float]
    sums: list[float]
    #: the Euclidean norm of the update, and whether some weight of the network is not 0
    moved: float
    alive: float
    #: a number that a bitwise copy has too; 0 for an upload with nothing of the client's own
    mark: float


def looks(uploads: Iterable[Message], form: Form) -> list[Look]:
    """One look at the values of all uploads, so one host sync."""
    seen = [_seen(alike, form) for alike in _alike(uploads)]
    size = len(form)
    found = torch.cat([rows.to(seen[0].device) for rows in seen]).tolist() if seen else []
    return [Look(row[:size], row[size : 2 * size], *row[2 * size :]) for row in found]


def _alike(uploads: Iterable[Message]) -> Iterator[list[Message]]:
    """Uploads in their order, those that follow each other with tensors of the same sizes and places
    together, and no more than `AT_ONCE` numbers of one tensor.
    """

    def sizes(upload: Message) -> dict[str, tuple[torch.Size, torch.device]]:
        return {name: (one.shape, one.device) for name, one in upload.tensors.items()}

    for shapes, group in itertools.groupby(uploads, sizes):
        largest = max((shape.numel() for shape, _ in shapes.values()), default=1)
        several = max(1, AT_ONCE // max(1, largest))
        alike = list(group)
        yield from (alike[k : k + several] for k in range(0, len(alike), several))


def _seen(uploads: Sequence[Message], form: Form) -> torch.Tensor:
    """The fields of a `Look`, one behind the other, for each of some uploads with tensors of the same
    sizes: (K, 2 F + 3) float64.
    """
    apart = {name: [one.tensors[name] for one in uploads] for name in form}
    # one upload may be large and is not copied
    given = {
        name: torch.stack(them) if len(them) > 1 else them[0][None] for name, them in apart.items()
    }
    place = next((each.device for each in given.values()), None)
    nothing = torch.zeros(len(uploads), device=place)
    networks = {name: field.near for name, field in form.items() if field.near is not None}
    moved = {
        name: _flat((given[name] - near).float().square()).sum(1, dtype=torch.float64)
        for name, near in networks.items()
    }
    used = {name: _flat(each != 0).any(1) for name, each in given.items()}
    weights = [used[name] for name in networks if len(form[name].shape) > 1]
    own = [name for name, field in form.items() if field.own]
    theirs = [moved[name] > 0 if name in networks else used[name] for name in own]
    marks = [_bits(given[name]) for name in own]
    columns = [
        *(_within(given[name], field) for name, field in form.items()),
        *(
            _flat(given[name]).sum(1, dtype=torch.float64) if field.total else nothing
            for name, field in form.items()
        ),
        torch.stack([*moved.values()]).sum(0).sqrt() if moved else nothing,
        torch.stack(weights).any(0) if weights else nothing + 1,
        (torch.stack(marks).sum(0) % 2**52 + 1) * torch.stack(theirs).any(0) if own else nothing,
    ]
    return torch.stack([one.double().to(place) for one in columns], 1)


def _flat(given: torch.Tensor) -> torch.Tensor:
    """(K, ...) as (K, numbers of one)."""
    return given.reshape(len(given), -1)


def _bits(given: torch.Tensor) -> torch.Tensor:
    """The sum of each tensor's bits (K, ...), read as whole numbers, (K,): exact, and so the same in
    any order.
    """
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return _flat(given.view(whole[given.element_size()])).sum(1, dtype=torch.int64)


def _within(given: torch.Tensor, field: Field) -> torch.Tensor:
    """Whether all values of each tensor (K, ...) are finite and within bounds, (K,)."""
    low, high = field.bounds
    sound = torch.isfinite(given)
    if low > -math.inf:
        sound &= given >= low
    if high < math.inf:
        sound &= given <= high
    return _flat(sound).all(1)
