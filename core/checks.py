"""Settings: validators, which answer a bad value with one clear sentence, and settings as parts of
others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeGuard, TypeVar

import attrs
import numpy as np

from core.errors import InputError, brief, unknown

#: no whole number that a setting takes is larger
LARGEST = 2**31 - 1
#: the largest number that a float32 holds
LARGEST_FLOAT = (2 - 2**-23) * 2.0**127


def is_number(value: Any) -> bool:
    """True where a value is a finite number that a float can hold; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number of more than 308 digits
        return False


def is_whole(value: Any, low: int = 0, high: int = LARGEST) -> TypeGuard[int]:
    """True where a value is a whole number in [low, high]; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def check_number(
    name: str, value: Any, low: float, high: float = LARGEST_FLOAT, above: bool = False
) -> None:
    """Raise InputError for what is no number in [low, high], or in (low, high] with `above`."""
    within = is_number(value) and (low < value if above else low <= value)
    if not within or value > high:
        edge = "above" if above else "of at least"
        # everybody's bound is said only to who is beyond it
        top = f" and at most {high:g}" if high < LARGEST_FLOAT or within else ""
        raise InputError(f"{name} must be a number {edge} {low:g}{top}, not {brief(value)}")


def check_whole(name: str, value: Any, low: int, high: int = LARGEST) -> None:
    """Raise InputError, naming `name`, for what is no whole number in [low, high]."""
    if not is_whole(value, low, high):
        top = f" and at most {high}" if is_whole(value, low, value) else ""
        raise InputError(
            f"{name} must be a whole number of at least {low}{top}, not {brief(value)}"
        )


def check_kind(name: str, value: Any, kind: type) -> None:
    """Raise InputError for what is no `kind`; `name` is what the message calls it."""
    if not isinstance(value, kind):
        raise InputError(f"{name} must be an instance of {kind.__name__}, not {brief(value)}")


def plain(value: Any) -> Any:
    """A value with NumPy's numbers and arrays in it as Python's."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def coerced(cls: type, fields: list[attrs.Attribute]) -> list[attrs.Attribute]:
    """Field transformer of attrs: each value is made `plain`."""
    return [field.evolve(converter=plain) for field in fields]


def shown_briefly(cls: type, fields: list[attrs.Attribute]) -> list[attrs.Attribute]:
    """Field transformer of attrs: the class's repr shows each value `brief`."""
    return [field.evolve(repr=brief if field.repr is True else field.repr) for field in fields]


Part = TypeVar("Part")


def number(low: float, high: float = LARGEST_FLOAT, above: bool = False) -> Callable:
    """A number in [low, high], or in (low, high] when `above` is set."""

    def check(instance: Any, attribute: attrs.Attribute, value: Any) -> None:
        check_number(attribute.name, value, low, high, above)

    return check


#: beta_1 of Adam: PyTorch's takes none of 1
beta_1 = number(0, 0.999)


def whole(low: int, optional: bool = False, high: int = LARGEST) -> Callable:
    """A whole number in [low, high]; `optional` also allows None."""

    def check(instance: Any, attribute: attrs.Attribute, value: Any) -> None:
        if value is not None or not optional:
            check_whole(attribute.name, value, low, high)

    return check


def one_of(kind: str, *names: str) -> Callable:
    """One of the given names."""

    def check(instance: Any, attribute: attrs.Attribute, value: Any) -> None:
        if value not in names:
            raise InputError(f"{attribute.name}: {unknown(kind, value, names)}")

    return check


def on_or_off(instance: Any, attribute: attrs.Attribute, value: Any) -> None:
    """True or false."""
    if not isinstance(value, bool):
        raise InputError(f"{attribute.name} must be true or false, not {brief(value)}")


def part(settings: Any, kind: type[Part], prefix: str = "", **given: Any) -> Part:
    """Settings of another class: `given` values, then prefixed ones of `settings`, then defaults."""
    names = [f.name for f in attrs.fields(kind)]  # type: ignore[arg-type]
    values = {
        name: getattr(settings, prefix + name) for name in names if hasattr(settings, prefix + name)
    }
    return kind(**values | given)
