"""What a server takes from its clients: a declared form with bounds, looked at before any algorithm
sees an upload. The same code serves clients in this process and behind a network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
import torch

from core.checks import is_number, is_whole
from core.errors import InputError, brief
from core.federation.message import Ledger, Message
from core.federation.schedule import UPDATE_NORM

#: no sound number of a network, an answer or a normalised image is further from 0
LARGEST = 1e6


class UploadError(InputError):
    """A client sent something that the server must not use."""


def as_announced(samples: int) -> int:
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
    one.
    """

    shape: tuple[int | None, ...]
    dtype: torch.dtype
    low: float = -math.inf
    high: float = math.inf
    most: int = 0
    total: Callable[[int], float] | None = None
    near: torch.Tensor | None = attrs.field(default=None, eq=False, repr=False)

    @property
    def bounds(self) -> tuple[float, float]:
        """Between which the values must lie."""
        limit = LARGEST if self.dtype.is_floating_point else math.inf
        return max(self.low, -limit), min(self.high, limit)


def announce(client_id: int, samples: int, most: int) -> int:
    """The number of samples that a client announces when a run begins, or UploadError: it is at
    least 1 and at most that of the whole training set. All its later counts are held to it.
    """
    if not is_whole(samples, 1, most):
        raise UploadError(
            f"client {brief(client_id)} announced {brief(samples)} samples, where 1 .. {most} can be"
        )
    return samples


Form = Mapping[str, Field]


def check_upload(
    message: Message,
    tensors: Form,
    meta: Form,
    client_id: int,
    *,
    samples: int | None = None,
    update_norm: float = UPDATE_NORM,
) -> Message:
    """Hand on an upload that has exactly the announced form, or raise UploadError.

    Names, kinds, shapes, dtypes, sizes, finiteness, ranges, sums of counts and the norm of the
    update are looked at, in this order, before the server computes anything. `samples` is what the
    client announced when the run began; without it sums of counts are not looked at.
    """

    def refuse(reason: str) -> None:
        raise UploadError(f"the upload of client {brief(client_id)} was refused: {reason}")

    if reason := _no_message(message):
        refuse(reason)
    for what, given, wanted in (
        ("tensor", message.tensors, tensors),
        ("entry", message.meta, meta),
    ):
        if missing := sorted(wanted.keys() - given.keys()):
            refuse(f"{what} {missing[0]!r} is missing")
        if extra := sorted(given.keys() - wanted.keys()):
            refuse(f"{what} {brief(extra[0])} was not asked for")
    for name, field in tensors.items():
        if reason := _misfit(message.tensors[name], field):
            refuse(f"{name!r} {reason}")
    if reason := _unequal_rows(message.tensors, tensors):
        refuse(reason)
    for name, field in meta.items():
        if reason := _out_of_bounds(message.meta[name], field, samples):
            refuse(f"{name!r} {reason}")
    if reason := _unsound(message.tensors, tensors, samples, update_norm):
        refuse(reason)
    return message


def _no_message(message: Any) -> str | None:
    """Why something is no message at all, if so."""
    if not isinstance(message, Message):
        return f"it is no message but {type(message).__name__}"
    for part in (message.tensors, message.meta):
        if not isinstance(part, dict) or not all(isinstance(name, str) for name in part):
            return "its tensors and its entries must be mappings of names"
    return None


def _misfit(tensor: Any, field: Field) -> str | None:
    """What is wrong with the form of a tensor, if anything."""
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
        if wanted is None and length > field.most:
            return f"has {length} rows where at most {field.most} are allowed"
        if wanted is not None and length != wanted:
            return f"has shape {tuple(tensor.shape)} and not {field.shape}"
        if length > 1 and stride == 0:
            return "is one value that is shown as many"
    return None


def _unequal_rows(given: Mapping[str, torch.Tensor], form: Form) -> str | None:
    """What is wrong where tensors that belong together have not the same number of rows."""
    rows = {
        name: length
        for name, field in form.items()
        for length, wanted in zip(given[name].shape, field.shape, strict=True)
        if wanted is None
    }
    first = next(iter(rows), None)
    for name, length in rows.items():
        if length != rows[first]:  # type: ignore[index]
            return f"{name!r} has {length} rows, but {first!r} has {rows[first]}"  # type: ignore[index]
    return None


def _out_of_bounds(value: Any, field: Field, samples: int | None) -> str | None:
    if not is_number(value):
        return f"is not a number: {brief(value)}"
    if not field.dtype.is_floating_point and not isinstance(value, int):
        return f"is not a whole number: {brief(value)}"
    low, high = field.bounds
    if field.total is not None and samples is not None:
        high = min(high, field.total(samples))
    if not low <= value <= high:
        return f"is {brief(value)}, outside {low:g} .. {high:g}"
    return None


def _unsound(
    given: Mapping[str, torch.Tensor], form: Form, samples: int | None, update_norm: float
) -> str | None:
    """What is wrong with the values, if anything: one look for all tensors, so one host sync."""
    if not form:
        return None
    fine = [_within(given[name], field) for name, field in form.items()]
    bounded = [field.total is not None and samples is not None for field in form.values()]
    sums = [
        given[name].sum(dtype=torch.float64) if counted else fine[0].double()
        for name, counted in zip(form, bounded, strict=True)
    ]
    moved = [
        (given[name] - field.near).float().square().sum(dtype=torch.float64)
        for name, field in form.items()
        if field.near is not None
    ]
    norm = torch.stack(moved).sum().sqrt() if moved else torch.zeros_like(sums[0])
    looked = torch.stack([*(one.double() for one in fine), *sums, norm]).tolist()
    for name, sound in zip(form, looked, strict=False):
        if not sound:
            return (
                f"{name!r} holds values that are not finite or out of range "
                "(did the training diverge?)"
            )
    for (name, field), counted, total in zip(
        form.items(), bounded, looked[len(form) :], strict=False
    ):
        if counted and not 1 <= total <= field.total(samples):  # type: ignore[misc, arg-type]
            return (
                f"{name!r} sums to {total:g}, but the client announced {samples} samples, "
                f"which allow 1 .. {field.total(samples):g}"  # type: ignore[misc, arg-type]
            )
    if not looked[-1] <= update_norm:
        return (
            f"its update has the norm {looked[-1]:.3g}, and {update_norm:g} is the most that the "
            "setting update_norm allows (did the training diverge?)"
        )
    return None


def _within(tensor: torch.Tensor, field: Field) -> torch.Tensor:
    """A boolean on the tensor's device: all values finite and within bounds."""
    low, high = field.bounds
    sound = torch.isfinite(tensor)
    if low > -math.inf:
        sound &= tensor >= low
    if high < math.inf:
        sound &= tensor <= high
    return sound.all()


def admit(
    answers: Iterable[tuple[Any, Any]],
    form: tuple[Form, Form],
    announced: Mapping[int, int],
    ledger: Ledger,
    *,
    refused: str = "end",
    update_norm: float = UPDATE_NORM,
) -> dict[int, Message]:
    """The uploads of a round that an algorithm may see, by client, checked and counted.

    Args:
        answers: pairs of a client and what it sent, as they came in.
        form: of tensors and of meta entries, from `Algorithm.upload_format`.
        announced: the clients of the round, with the numbers of samples that they announced when
            the run began. Only they may answer, and each of them once.
        ledger: where uploads are counted, and those that were refused are named.
        refused: "end" ends the round at the first upload that is refused; "leave_out" goes on
            without those.

    Raises UploadError for the first refused upload where that ends the round, and where none is
    left.
    """
    uploads: dict[int, Message] = {}
    reasons: dict[Any, str] = {}

    def refuse(client: Any, error: UploadError) -> None:
        if refused == "end":
            raise error
        reasons[client] = str(error)

    for client, answer in answers:
        name = f"the upload of client {brief(client)} was refused"
        if isinstance(client, bool) or not isinstance(client, int) or client not in announced:
            refuse(brief(client), UploadError(f"{name}: it is no client of this round"))
        elif client in uploads or client in reasons:
            uploads.pop(client, None)  # which of the two is the client's nobody can tell
            refuse(client, UploadError(f"{name}: it answered twice"))
        else:
            try:
                uploads[client] = check_upload(
                    answer, *form, client, samples=announced[client], update_norm=update_norm
                )
            except UploadError as error:
                refuse(client, error)
    for client in announced.keys() - uploads.keys() - reasons.keys():
        refuse(client, UploadError(f"client {client} sent no upload in its round"))
    ledger.refuse({str(client): reason for client, reason in reasons.items()})
    if not uploads:
        reason = f": {next(iter(reasons.values()))}" if reasons else ""
        raise UploadError(f"no upload of the round can be used{reason}")
    for upload in uploads.values():
        ledger.count("up", upload)
    return uploads
