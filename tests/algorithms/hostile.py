"""Uploads as no honest client sends them, drawn by hypothesis from a declared form; and what a form
promises, said once more in NumPy.

`python -m tests.algorithms.hostile 500 3` draws 500 for every form of every algorithm, with seed 3.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from core.federation import Field, Ledger, Message, UploadError, validate_uploads

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
NUMBERS = st.one_of(
    st.integers(-3, 300),
    st.sampled_from([2**31, 2**62, 10**18, 10**400, -(2**63), 2.5, 1e30, 3.4e38, 1e308]),
    st.floats(allow_nan=True, allow_infinity=True),
)
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    NUMBERS,
    st.text(max_size=3),
    st.lists(st.integers(), max_size=3),
    st.builds(object),
    st.builds(lambda: np.zeros(3)),
)
FORMS = {
    "plain": lambda tensor: tensor,
    "sparse": lambda tensor: tensor.to_sparse(),
    "without values": lambda tensor: tensor.to("meta"),
    "a graph": lambda tensor: tensor.float().requires_grad_(),
    "a parameter": lambda tensor: torch.nn.Parameter(tensor.float()),
    "shown as many": lambda tensor: tensor[:1].expand(max(3, len(tensor)), *tensor.shape[1:]),
    "turned": lambda tensor: tensor.transpose(0, -1),
    "shorter": lambda tensor: tensor[:-1],
    "longer": lambda tensor: torch.cat([tensor, tensor[:1]]),
    "flat": lambda tensor: tensor.flatten(),
}


@st.composite
def tensors(draw: st.DrawFn, good: torch.Tensor) -> Any:
    """A tensor that is like a good one, but for its dtype, one of its values or its form."""
    dtype = draw(st.one_of(st.just(good.dtype), st.sampled_from(DTYPES)))
    tensor = good.detach().to(dtype).contiguous().clone()
    if tensor.numel() and draw(st.booleans()):
        which = slice(None) if draw(st.booleans()) else slice(0, 1)
        # the dtype may not be able to hold it
        with contextlib.suppress(OverflowError, RuntimeError, ValueError, TypeError):
            tensor.view(-1)[which] = draw(NUMBERS)
    if not tensor.dim() or not len(tensor):
        return tensor
    return FORMS[draw(st.one_of(st.just("plain"), st.sampled_from(sorted(FORMS))))](tensor)


@st.composite
def uploads(draw: st.DrawFn, good: Message) -> Any:
    """An upload like a good one with one or two things in it changed, or something else entirely."""
    if draw(st.integers(0, 19)) == 0:
        return draw(JUNK)
    parts = {"tensors": dict(good.tensors), "meta": dict(good.meta)}
    for _ in range(draw(st.integers(1, 2))):
        kind = draw(st.sampled_from(["tensors", "meta"]))
        part = parts[kind]
        name = draw(st.sampled_from([*part, "more"]))
        action = draw(st.sampled_from(["change", "junk", "drop"]))
        if action == "drop":
            part.pop(name, None)
        elif action == "junk" or kind == "meta" or name not in good.tensors:
            part[name] = draw(NUMBERS if kind == "meta" and action == "change" else JUNK)
        else:
            part[name] = draw(tensors(good.tensors[name]))
    return Message(parts["tensors"], parts["meta"])


def conforms(
    message: Message, form: Mapping[str, Field], meta: Mapping[str, Field], samples: int
) -> bool:
    """Say whether an upload is what its form promises; computed in NumPy and float64."""
    if message.tensors.keys() != form.keys() or message.meta.keys() != meta.keys():
        return False
    rows, moved = set(), 0.0
    for name, field in form.items():
        tensor = message.tensors[name]
        if (
            tensor.dtype != field.dtype
            or tensor.requires_grad
            or len(tensor.shape) != len(field.shape)
        ):
            return False
        values = tensor.double().numpy()
        for length, wanted in zip(values.shape, field.shape, strict=True):
            rows |= {length} if wanted is None else set()
            if length != wanted and wanted is not None:
                return False
            if wanted is None and not field.least <= length <= field.most:
                return False
        limit = 1e6 if field.dtype.is_floating_point else math.inf
        low, high = max(field.low, -limit), min(field.high, limit)
        if not (np.isfinite(values) & (values >= low) & (values <= high)).all():
            return False
        if field.total is not None and not 1 <= values.sum() <= field.total(samples):
            return False
        if field.near is not None:
            moved += np.square(values - field.near.double().numpy()).sum()
    for name, field in meta.items():
        value = message.meta[name]
        high = min(field.high, field.total(samples) if field.total else math.inf)
        if type(value) not in (int, float) or not field.low <= value <= high:
            return False
    return len(rows) <= 1 and moved**0.5 <= 1e4 * (1 + 1e-6)


def nothing_gets_by(
    good: Message,
    form: Mapping[str, Field],
    meta: Mapping[str, Field],
    client: int,
    samples: int,
    examples: int = 12,
    luck: int | None = None,
) -> None:
    """Whatever is sent in the place of a good upload is refused in one line that names the client,
    or is what the form promises; no other error comes out. `luck` draws other examples.
    """

    def validate(upload: Any) -> None:
        validate_uploads([(client, upload)], (form, meta), {client: samples}, Ledger.aside())

    validate(good)
    assert conforms(good, form, meta, samples)

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=luck is None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(uploads(good))
    def refused_or_conforms(upload: Any) -> None:
        try:
            validate(upload)
        except UploadError as error:
            assert f"client {client} " in str(error)
            assert "\n" not in str(error) and len(str(error)) < 300
        else:
            assert conforms(upload, form, meta, samples)

    (refused_or_conforms if luck is None else seed(luck)(refused_or_conforms))()


def every_form(examples: int, luck: int) -> int:
    """So many examples for every form of every algorithm; returns how many forms there are."""
    from tests.algorithms import subjects, watching

    done = 0
    for name, subject in subjects.subjects().items():
        forms = {}
        seen = watching.watch(subject)
        for message, tensors, meta, id_ in seen.checked:
            forms.setdefault(tuple(sorted({**tensors, **meta})), (message, tensors, meta, id_))
        for good, tensors, meta, id_ in forms.values():
            size = len(next(client for client in seen.clients if client.id == id_))
            nothing_gets_by(good, tensors, meta, id_, size, examples, luck)
        done += len(forms)
        print(f"{name}: {len(forms)} forms, {examples} uploads each", flush=True)
    return done


if __name__ == "__main__":  # python -m tests.algorithms.hostile 500 3
    wanted, luck = (int(text) for text in [*sys.argv[1:], "500", "0"][:2])
    print(every_form(wanted, luck), "forms: nothing got by")
