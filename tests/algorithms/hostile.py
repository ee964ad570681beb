"""Uploads as no honest client sends them, drawn by hypothesis from a declared form; and what a form
promises, said once more in NumPy.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.federation import Field, Ledger, Message, UploadError, validate_uploads

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
NUMBERS = st.one_of(
    st.integers(-3, 300),
    st.sampled_from([2**31, 2**62, 10**400, -(2**63), 2.5, 3.4e38, 1e308]),
    st.floats(allow_nan=True, allow_infinity=True),
)
JUNK = st.one_of(NUMBERS, st.none(), st.booleans(), st.text(max_size=3), st.builds(object))
FORMS = (
    lambda tensor: tensor,
    lambda tensor: tensor.to_sparse(),
    lambda tensor: tensor.to("meta"),
    lambda tensor: tensor.float().requires_grad_(),
    lambda tensor: tensor[:1].expand(max(3, len(tensor)), *tensor.shape[1:]),
    lambda tensor: tensor.transpose(0, -1),
    lambda tensor: tensor[:-1],
    lambda tensor: torch.cat([tensor, tensor[:1]]),
)


@st.composite
def tensors(draw: st.DrawFn, good: torch.Tensor) -> torch.Tensor:
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
    return draw(st.sampled_from(FORMS))(tensor)


@st.composite
def uploads(draw: st.DrawFn, good: Message) -> Any:
    """An upload like a good one with one or two things in it changed."""
    parts: dict[str, dict[str, Any]] = {"tensors": dict(good.tensors), "meta": dict(good.meta)}
    for _ in range(draw(st.integers(1, 2))):
        kind = draw(st.sampled_from(["tensors", "meta"]))
        name = draw(st.sampled_from([*parts[kind], "more"]))
        if kind == "tensors" and name in good.tensors and draw(st.booleans()):
            parts[kind][name] = draw(tensors(good.tensors[name]))
        elif draw(st.booleans()):
            parts[kind][name] = draw(JUNK)
        else:
            parts[kind].pop(name, None)
    return Message(**parts)


def conforms(
    message: Message, form: Mapping[str, Field], meta: Mapping[str, Field], samples: int
) -> bool:
    """Say whether an upload is what its form promises; computed in NumPy and float64."""
    if message.tensors.keys() != form.keys() or message.meta.keys() != meta.keys():
        return False
    rows, moved = set(), 0.0
    for name, field in form.items():
        tensor = message.tensors[name]
        if (tensor.dtype, tensor.requires_grad, tensor.dim()) != (
            field.dtype,
            False,
            len(field.shape),
        ):
            return False
        values = tensor.double().numpy()
        for length, wanted in zip(values.shape, field.shape, strict=True):
            rows |= {length} if wanted is None else set()
            least, most = (field.least, field.most) if wanted is None else (wanted, wanted)
            if not least <= length <= most:
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
    good: Message, form: Mapping[str, Field], meta: Mapping[str, Field], client: int, samples: int
) -> None:
    """Whatever is sent in the place of a good upload is refused in one line that names the client,
    or is what the form promises; no other error comes out.
    """

    @settings(
        max_examples=12,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(uploads(good))
    def refused_or_conforms(upload: Message) -> None:
        try:
            validate_uploads([(client, upload)], (form, meta), {client: samples}, Ledger.aside())
        except UploadError as error:
            assert f"client {client} " in str(error)
            assert "\n" not in str(error) and len(str(error)) < 300
        else:
            assert conforms(upload, form, meta, samples)

    assert conforms(good, form, meta, samples)
    refused_or_conforms()
