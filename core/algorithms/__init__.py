"""The algorithms, one file each. The file name is the registry: `fedavg.py` holds the algorithm
called `fedavg`.

A file defines `Settings`, a frozen attrs class of hyper-parameters, and one subclass of
`core.federation.Algorithm`.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

import attrs

from core.errors import InputError, unknown
from core.federation import Algorithm, Schedule


@functools.cache
def names() -> tuple[str, ...]:
    """The algorithms that are here, in alphabetical order."""
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(sorted(name for name in found if not name.startswith("_")))


@functools.cache
def find(name: str) -> type[Algorithm]:
    """The algorithm of that name; raises InputError for an unknown one."""
    if name not in names():
        raise unknown("algorithm", name, names())
    module = importlib.import_module(f"core.algorithms.{name}")
    (algorithm,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Algorithm)
        and value.__module__ == module.__name__
    )
    return algorithm


def settings_fields(name: str) -> set[str] | None:
    """The names of an algorithm's hyper-parameters, or None when the algorithm is not here
    (yet).
    """
    return set(attrs.fields_dict(find(name).Settings)) if name in names() else None


def create(
    name: str,
    settings: Mapping[str, Any] | None = None,
    variant: str = "printed",
    schedule: Schedule | None = None,
) -> Algorithm:
    """An algorithm with the paper's settings, or those of its released code, and the given ones in
    their place.

    Raises InputError for an unknown algorithm, an unknown setting or a bad value.
    """
    algorithm = find(name)
    base = algorithm.Settings.released() if variant == "released" else algorithm.Settings()  # type: ignore[attr-defined]
    fields = attrs.fields_dict(algorithm.Settings)
    for key in settings or {}:
        if key not in fields:
            raise unknown(f"setting of {name}", key, fields)
    try:
        return algorithm(attrs.evolve(base, **(settings or {})), schedule)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
