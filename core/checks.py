"""Validators of settings: a bad value is answered with one clear sentence."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs

from core.errors import InputError, unknown


def number(low: float, high: float = math.inf, above: bool = False) -> Callable:
    """A finite number in [low, high], or in (low, high] when `above` is set."""

    def check(instance: Any, attribute: attrs.Attribute, value: Any) -> None:
        real = (
            isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        )
        if not real or not (low < value if above else low <= value) or value > high:
            edge = "above" if above else "of at least"
            top = "" if high == math.inf else f" and at most {high:g}"
            raise InputError(
                f"{attribute.name} must be a number {edge} {low:g}{top}, not {value!r}"
            )

    return check


def whole(low: int, optional: bool = False) -> Callable:
    """A whole number of at least `low`; `optional` also allows None."""

    def check(instance: Any, attribute: attrs.Attribute, value: Any) -> None:
        if optional and value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise InputError(
                f"{attribute.name} must be a whole number of at least {low}, not {value!r}"
            )

    return check


def one_of(kind: str, *names: str) -> Callable:
    """One of the given names."""

    def check(instance: Any, attribute: attrs.Attribute, value: Any) -> None:
        if value not in names:
            raise unknown(kind, value, names)

    return check


def on_or_off(instance: Any, attribute: attrs.Attribute, value: Any) -> None:
    """True or false."""
    if not isinstance(value, bool):
        raise InputError(f"{attribute.name} must be true or false, not {value!r}")
