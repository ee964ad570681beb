"""What a part of an upload must look like: the form that a method declares."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import attrs
import torch

from core.errors import InputError

#: no sound number of a network, an answer or a normalised image is further from 0; FedIOD cuts answers
#: here that are made private with more noise
LARGEST = 1e6


def announced_samples(samples: int) -> int:
    """The most that counts of a client with so many samples sum to, where each sample counts once."""
    return samples


@attrs.frozen
class Field:
    """What one tensor of an upload, or one entry of its meta, must look like.

    `shape` has None where the length is the client's choice: a number of rows, the same in all
    tensors of the upload, and at most `most`. `low` and `high` bound the values (labels lie in 0 ..
    C-1); floating-point values are never further from 0 than `LARGEST`. Counts have a `total`: they
    sum to at least 1 and at most to it, a function of the samples that the client announced. `near` is
    the tensor that the client started from: an update's norm is taken over all tensors that have
    one. Raises InputError for labels of more classes than one byte holds.
    """

    shape: tuple[int | None, ...]
    dtype: torch.dtype
    low: float = -math.inf
    high: float = math.inf
    most: int = 0
    total: Callable[[int], float] | None = None
    near: torch.Tensor | None = attrs.field(default=None, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.dtype == torch.uint8 and 255 < self.high < math.inf:
            raise InputError(f"labels travel as one byte: {self.high + 1} classes are too many")

    @property
    def bounds(self) -> tuple[float, float]:
        """Between which the values must lie."""
        limit = LARGEST if self.dtype.is_floating_point else math.inf
        return max(self.low, -limit), min(self.high, limit)

    @property
    def own(self) -> bool:
        """Whether two clients have this in common only where one copied from the other: what was
        learnt or drawn. Two may have the same numbers of samples, or the same labels.
        """
        return self.dtype.is_floating_point or len(self.shape) > 1


#: of the tensors of an upload, or of the entries of its meta
Form = Mapping[str, Field]
#: of an upload: of its tensors and of its meta
Format = tuple[dict[str, Field], dict[str, Field]]


def network_form(tensors: Mapping[str, torch.Tensor]) -> dict[str, Field]:
    """What a client sends that trained these networks: tensors of the same form. The running variances
    of batch normalisation (`.../running_var`) are not negative, which no training can make them.
    """
    return {
        name: Field(
            tuple(value.shape),
            value.dtype,
            low=0.0 if name.endswith("running_var") else -math.inf,
            near=value,
        )
        for name, value in tensors.items()
    }
