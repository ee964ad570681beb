"""Validation of uploads: a form with bounds, which a method declares for what its clients send, and the
check of every upload before an algorithm sees it, be its client in this process or behind a network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import attrs
import torch

from core.checks import is_number, is_whole
from core.errors import InputError, brief
from core.federation.message import Ledger, Message
from core.federation.schedule import UPDATE_NORM

#: no sound number of a network, an answer or a normalised image is further from 0; FedIOD cuts answers
#: here that are made private with more noise
LARGEST = 1e6


class UploadError(InputError):
    """A client sent what the server must not use; the run fails, as one that diverges."""

    status = 1


def each_once(samples: int) -> int:
    """The largest sum of a client's counts (`Field.total`) where each of its samples counts once."""
    return samples


@attrs.frozen
class Field:
    """The form of one tensor of an upload, or of one entry of its meta.

    `shape` has None where the length is the client's choice: a number of rows, the same in all
    tensors of the upload, from `least` to `most`. `low` and `high` bound the values (labels lie in 0 ..
    C-1); floating-point values are never further from 0 than `LARGEST`. Counts have a `total`: they
    sum to at least 1 and at most to it, a function of the samples that the client announced. `near` is
    the tensor that the client started from: an update's norm is taken over all tensors that have
    one. Raises InputError for labels of more classes than one byte holds.
    """

    shape: tuple[int | None, ...]
    dtype: torch.dtype
    low: float = -math.inf
    high: float = math.inf
    least: int = 1
    most: int = 0
    total: Callable[[int], float] | None = None
    near: torch.Tensor | None = attrs.field(default=None, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.dtype == torch.uint8 and 255 < self.high < math.inf:
            raise InputError(f"labels travel as one byte: {self.high + 1} classes are too many")

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the largest value."""
        limit = LARGEST if self.dtype.is_floating_point else math.inf
        return max(self.low, -limit), min(self.high, limit)

    @property
    def identifies(self) -> bool:
        """True where two clients have this in common only if one copied from the other: what was
        learnt or drawn. Two may have the same numbers of samples, or the same labels.
        """
        return self.dtype.is_floating_point or len(self.shape) > 1


#: of the tensors of an upload, or of the entries of its meta
Form = Mapping[str, Field]
#: of an upload: of its tensors and of its meta
Format = tuple[dict[str, Field], dict[str, Field]]


def network_form(tensors: Mapping[str, torch.Tensor]) -> dict[str, Field]:
    """The form of what a client sends that trained these networks: tensors like them. The running
    variances of batch normalisation (`.../running_var`) are not negative.
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


def check_announced(client_id: int, samples: int, most: int) -> int:
    """Return the number of samples that a client announces when a run begins: all its later counts are
    held to it. Raises UploadError where it is not from 1 to that of the whole training set.
    """
    if not is_whole(samples, 1, most):
        raise UploadError(
            f"client {brief(client_id)} announced {brief(samples)} samples, where 1 .. {most} can be"
        )
    return samples


def validate_uploads(
    answers: Iterable[tuple[Any, Any]],
    form: Format,
    announced: Mapping[int, int],
    ledger: Ledger,
    *,
    refused: str = "end",
    update_norm: float = UPDATE_NORM,
    fault_of: Callable[[Message], str | None] = lambda upload: None,
    fewest: int = 1,
) -> dict[int, Message]:
    """Return the uploads of a round that an algorithm may see, by client, and count them.

    Args:
        answers: pairs of a client and what it sent, as they came in.
        form: see `Algorithm.upload_format`.
        announced: the clients of the round, with the numbers of samples that they announced when
            the run began. Only they may answer, and each of them once. Of two uploads that are the
            same in every bit the one that came first stays: whose it is nobody can tell, but it
            counts once.
        ledger: where uploads are counted, and those that were refused are named.
        refused: "end" ends the round at the first upload that is refused; "leave_out" goes on
            without those.
        fault_of: what an algorithm finds wrong with an upload that has the form, if anything.
        fewest: how many must be left.

    Raises UploadError for the first refused upload where that ends the round, and where fewer than
    `fewest` are left.
    """
    reasons: dict[str, str] = {}

    def refuse(name: str, reason: str) -> None:
        if refused == "end":
            raise UploadError(reason)
        reasons[name] = reason

    received: dict[int, Message] = {}
    for client, answer in answers:
        name, fault = str(client), None
        if type(client) is not int or client not in announced:
            name = f"stranger_{len(reasons) + 1}"
            fault = "it is no client of this round"
        elif client in received or name in reasons:
            received.pop(client, None)  # which of the two is the client's nobody can tell
            fault = "it answered twice"
        if fault := fault or _misshapen(answer, *form, announced[client]):
            refuse(name, f"the upload of client {brief(client)} was refused: {fault}")
        else:
            received[client] = answer
    for client in announced:
        if client not in received and str(client) not in reasons:
            refuse(str(client), f"client {client} sent no upload in its round")

    uploads: dict[int, Message] = {}
    similar: dict[Any, dict[int, Message]] = {}
    statistics = _statistics(received.values(), form[0])
    for (client, upload), values in zip(received.items(), statistics, strict=True):
        mark = _mark(values, form[0])
        others = {} if mark is None else similar.setdefault(mark, {})
        fault = _unsound(values, form[0], announced[client], update_norm)
        if fault := fault or fault_of(upload) or _copied(upload, others, form[0]):
            refuse(str(client), f"the upload of client {client} was refused: {fault}")
        else:
            uploads[client] = others[client] = upload

    ledger.refuse(reasons)
    if len(uploads) < fewest:
        first = f": {next(iter(reasons.values()))}" if reasons else ""
        raise UploadError(f"no upload of the round can be used{first}")
    for upload in uploads.values():
        ledger.count("up", upload)
    return uploads


def _misshapen(message: Any, tensors: Form, meta: Form, samples: int) -> str | None:
    """Say what is wrong with an upload before the values of its tensors are read, if anything."""
    if not isinstance(message, Message):
        return f"it is no message but {type(message).__name__}"
    for part in (message.tensors, message.meta):
        if not isinstance(part, dict) or not all(isinstance(name, str) for name in part):
            return "its tensors and its entries must be mappings of names"
    given: Mapping[str, Any]
    for what, given, form in (
        ("tensor", message.tensors, tensors),
        ("entry", message.meta, meta),
    ):
        if missing := sorted(form.keys() - given.keys()):
            return f"{what} {missing[0]!r} is missing"
        if extra := sorted(given.keys() - form.keys()):
            return f"{what} {brief(extra[0])} was not asked for"
    for name, field in meta.items():
        if reason := _bad_entry(message.meta[name], field, samples):
            return f"{name!r} {reason}"
    rows: dict[str, int] = {}
    for name, field in tensors.items():
        if reason := _bad_tensor(message.tensors[name], field):
            return f"{name!r} {reason}"
        if None in field.shape:
            rows[name] = message.tensors[name].shape[field.shape.index(None)]
    for name, length in rows.items():
        if length != (wanted := rows[first := next(iter(rows))]):
            return f"{name!r} has {length} rows, but {first!r} has {wanted}"
    return None


def _bad_entry(value: Any, field: Field, samples: int) -> str | None:
    if not is_number(value):
        return f"is not a number: {brief(value)}"
    if not field.dtype.is_floating_point and not isinstance(value, int):
        return f"is not a whole number: {brief(value)}"
    low, high = field.bounds
    if field.total is not None:
        high = min(high, field.total(samples))
    if not low <= value <= high:
        return f"is {brief(value)}, outside {low:g} .. {high:g}"
    return None


def _bad_tensor(tensor: Any, field: Field) -> str | None:
    if type(tensor) is not torch.Tensor:
        return f"is no tensor but {type(tensor).__name__}"
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        return "is a tensor without plain values"
    if tensor.requires_grad:
        return "carries a graph of gradients"
    if field.near is not None and tensor.device != field.near.device:
        return f"lies on {tensor.device} and not on {field.near.device}"
    if tensor.dtype != field.dtype:
        return f"is {tensor.dtype} and not {field.dtype}"
    if len(tensor.shape) != len(field.shape):
        return f"has shape {tuple(tensor.shape)} and not {field.shape}"
    for length, stride, wanted in zip(tensor.shape, tensor.stride(), field.shape, strict=True):
        if wanted is None and not field.least <= length <= field.most:
            edge = f"at least {field.least}" if length < field.least else f"at most {field.most}"
            return f"has {length} rows where {edge} are allowed"
        if wanted is not None and length != wanted:
            return f"has shape {tuple(tensor.shape)} and not {field.shape}"
        if length > 1 and stride == 0:
            return "is one value that is shown as many"
    return None


class _Values(NamedTuple):
    """Extremes, sum and squared distance from an update's start, of a tensor."""

    low: float
    high: float
    total: float
    moved: float

    @property
    def all_zero(self) -> bool:
        return not (self.low < 0 or self.high > 0)


def _statistics(uploads: Collection[Message], form: Form) -> list[dict[str, _Values]]:
    """The upload statistics, by tensor; of all uploads with one wait for a GPU."""
    rows = [_values(each.tensors[name], field) for each in uploads for name, field in form.items()]
    together = [row.to(rows[0].device, non_blocking=True) for row in rows]
    numbers = iter(torch.stack(together).tolist() if rows else [])
    return [{name: _Values(*next(numbers)) for name in form} for _ in uploads]


def _values(tensor: torch.Tensor, field: Field) -> torch.Tensor:
    """The fields of `_Values`, (4,) float64."""
    if not tensor.numel():
        return torch.tensor([math.inf, -math.inf, 0.0, 0.0], dtype=torch.float64)
    low, high = tensor.aminmax()
    total = moved = torch.zeros_like(low, dtype=torch.float64)
    if field.total is not None:
        total = tensor.sum(dtype=torch.float64)
    if field.near is not None:
        moved = (tensor - field.near).float().square().sum(dtype=torch.float64)
    return torch.stack([low.double(), high.double(), total, moved])


def _unsound(
    values: Mapping[str, _Values], form: Form, samples: int, update_norm: float
) -> str | None:
    """Say what is wrong with the values of an upload, if anything."""
    for name, field in form.items():
        low, high = field.bounds
        if not (low <= values[name].low and values[name].high <= high):  # also where one is NaN
            return (
                f"{name!r} holds values that are not finite or out of range "
                "(did the training diverge?)"
            )
        total, most = values[name].total, field.total and field.total(samples)
        if most is not None and not 1 <= total <= most:
            return (
                f"{name!r} sums to {total:g}, but the client announced {samples} samples, "
                f"which allow 1 .. {most:g}"
            )
    networks = {name for name, field in form.items() if field.near is not None}
    moved = math.sqrt(sum(values[name].moved for name in networks))
    if not moved <= update_norm:
        return (
            f"its update has the norm {moved:.3g}, and {update_norm:g} is the most that the "
            "schedule's update_norm allows (did the training diverge? a smaller lr may help)"
        )
    weights = [values[name].all_zero for name in networks if len(form[name].shape) > 1]
    if moved and weights and all(weights):
        return "every weight of its network is 0"
    return None


def _mark(values: Mapping[str, _Values], form: Form) -> tuple | None:
    """Return what copies of an upload share; None for a network as received, or zeros."""
    own = {name: values[name] for name, field in form.items() if field.identifies}
    learnt = [
        value.moved > 0 if form[name].near is not None else not value.all_zero
        for name, value in own.items()
    ]
    return tuple((value.low, value.high) for value in own.values()) if any(learnt) else None


def _copied(upload: Message, others: Mapping[int, Message], form: Form) -> str | None:
    """Say whose upload this is once more, if it is: equal in all that identifies a client."""
    own = [name for name, field in form.items() if field.identifies]
    for client, other in others.items():
        if all(torch.equal(upload.tensors[name], other.tensors[name]) for name in own):
            return f"it is, bit for bit, that of client {client}; one of the two is a copy"
    return None
