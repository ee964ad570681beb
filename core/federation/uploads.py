"""What a server takes from its clients: a declared form with bounds, looked at before any algorithm
sees an upload. The same code serves clients in this process and behind a network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
import torch

from core.checks import is_number, is_whole
from core.errors import InputError, brief
from core.federation.fields import Field, Form
from core.federation.looks import Look, looks
from core.federation.message import Ledger, Message
from core.federation.schedule import UPDATE_NORM


class UploadError(InputError):
    """A client sent something that the server must not use: a run that failed, as one that diverges
    does.
    """

    status = 1


def announce(client_id: int, samples: int, most: int) -> int:
    """The number of samples that a client announces when a run begins, or UploadError: it is at
    least 1 and at most that of the whole training set. All its later counts are held to it.
    """
    if not is_whole(samples, 1, most):
        raise UploadError(
            f"client {brief(client_id)} announced {brief(samples)} samples, where 1 .. {most} can be"
        )
    return samples


def _refusal(client: Any, reason: str) -> UploadError:
    return UploadError(f"the upload of client {brief(client)} was refused: {reason}")


def _misshapen(message: Any, tensors: Form, meta: Form, samples: int | None) -> str | None:
    """What is wrong with an upload before its tensors' values are looked at, if anything."""
    if reason := _no_message(message):
        return reason
    for what, given, wanted in (
        ("tensor", message.tensors, tensors),
        ("entry", message.meta, meta),
    ):
        if missing := sorted(wanted.keys() - given.keys()):
            return f"{what} {missing[0]!r} is missing"
        if extra := sorted(given.keys() - wanted.keys()):
            return f"{what} {brief(extra[0])} was not asked for"
    for name, field in tensors.items():
        if reason := _misfit(message.tensors[name], field):
            return f"{name!r} {reason}"
    for name, field in meta.items():
        if reason := _out_of_bounds(message.meta[name], field, samples):
            return f"{name!r} {reason}"
    return _unequal_rows(message.tensors, tensors)


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


def _unsound(look: Look, form: Form, samples: int | None, update_norm: float) -> str | None:
    """What is wrong with the values that were looked at, if anything."""
    for name, sound in zip(form, look.sound, strict=True):
        if not sound:
            return (
                f"{name!r} holds values that are not finite or out of range "
                "(did the training diverge?)"
            )
    for (name, field), total in zip(form.items(), look.sums, strict=True):
        if field.total is None or samples is None:
            continue
        most = field.total(samples)
        if not 1 <= total <= most:
            return (
                f"{name!r} sums to {total:g}, but the client announced {samples} samples, "
                f"which allow 1 .. {most:g}"
            )
    if not look.moved <= update_norm:
        return (
            f"its update has the norm {look.moved:.3g}, and {update_norm:g} is the most that the "
            "schedule's update_norm allows (did the training diverge? a smaller lr may help)"
        )
    if look.moved and not look.alive:
        return "every weight of its network is 0"
    return None


def _copied(upload: Message, others: Mapping[int, Message], form: Form) -> str | None:
    """Whose upload this is once more, if so: equal in every bit of what is a client's own."""
    own = [name for name, field in form.items() if field.own]
    for client, other in others.items():
        if all(torch.equal(upload.tensors[name], other.tensors[name]) for name in own):
            return f"it is, bit for bit, that of client {client}; one of the two is a copy"
    return None


@attrs.define
class _Refusals:
    """Who was refused in a round, and why."""

    #: whether the first one ends the round
    end: bool
    reasons: dict[str, str] = attrs.field(factory=dict)

    def add(self, name: str, error: UploadError) -> None:
        """Raise the error where it ends the round; else remember it."""
        if self.end:
            raise error
        self.reasons[name] = str(error)


def _well_formed(
    answers: Iterable[tuple[Any, Any]],
    form: tuple[Form, Form],
    announced: Mapping[int, int],
    refusals: _Refusals,
) -> dict[int, Message]:
    """One upload of each client of the round, in the form that was asked for."""
    uploads: dict[int, Message] = {}
    for client, answer in answers:
        name, fault = str(client), None
        if type(client) is not int or client not in announced:
            name = f"stranger_{len(refusals.reasons) + 1}"
            fault = "it is no client of this round"
        elif client in uploads or name in refusals.reasons:
            uploads.pop(client, None)  # which of the two is the client's nobody can tell
            fault = "it answered twice"
        if fault := fault or _misshapen(answer, *form, announced[client]):
            refusals.add(name, _refusal(client, fault))
        else:
            uploads[client] = answer
    for client in announced.keys() - uploads.keys():
        if str(client) not in refusals.reasons:
            refusals.add(str(client), UploadError(f"client {client} sent no upload in its round"))
    return uploads


def _sound(
    uploads: Mapping[int, Message],
    form: Form,
    announced: Mapping[int, int],
    update_norm: float,
    fault_of: Callable[[Message], str | None],
    refusals: _Refusals,
) -> dict[int, Message]:
    """Those whose values can be used, and are no copy of another's."""
    sound: dict[int, Message] = {}
    alike: dict[float, dict[int, Message]] = {}
    seen = looks(uploads.values(), form)
    for (client, upload), look in zip(uploads.items(), seen, strict=True):
        others = alike.setdefault(look.mark, {}) if look.mark else {}
        fault = _unsound(look, form, announced[client], update_norm)
        if fault := fault or fault_of(upload) or _copied(upload, others, form):
            refusals.add(str(client), _refusal(client, fault))
        else:
            sound[client] = others[client] = upload
    return sound


def validate_uploads(
    answers: Iterable[tuple[Any, Any]],
    form: tuple[Form, Form],
    announced: Mapping[int, int],
    ledger: Ledger,
    *,
    refused: str = "end",
    update_norm: float = UPDATE_NORM,
    fault_of: Callable[[Message], str | None] = lambda upload: None,
    fewest: int = 1,
) -> dict[int, Message]:
    """The uploads of a round that an algorithm may see, by client, checked and counted.

    Args:
        answers: pairs of a client and what it sent, as they came in.
        form: of tensors and of meta entries, from `Algorithm.upload_format`.
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
    refusals = _Refusals(end=refused == "end")
    uploads = _well_formed(answers, form, announced, refusals)
    uploads = _sound(uploads, form[0], announced, update_norm, fault_of, refusals)
    reasons = refusals.reasons
    ledger.refuse(reasons)
    if len(uploads) < fewest:
        reason = f": {next(iter(reasons.values()))}" if reasons else ""
        raise UploadError(f"no upload of the round can be used{reason}")
    for upload in uploads.values():
        ledger.count("up", upload)
    return uploads
