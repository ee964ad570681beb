"""The four papers' algorithms, one file or package each, and the registry of all methods: the file's
name is the method's, here and in `core.baselines`.

It defines `Settings`, a frozen attrs class of hyper-parameters, and one subclass of
`core.federation.Algorithm`.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

import attrs

from core import baselines
from core.checks import check_kind, plain
from core.errors import InputError, brief, unknown
from core.federation import Algorithm, Schedule

#: algorithms of one's own, by their names
OWN: dict[str, type[Algorithm]] = {}


def register(name: str, algorithm: type[Algorithm]) -> None:
    """Name an algorithm of one's own, in this process. InputError for a name that is taken, or no class."""
    fine = isinstance(algorithm, type) and issubclass(algorithm, Algorithm)
    if not isinstance(name, str) or not name or name in names() or not fine:
        raise InputError(
            "an algorithm of your own needs a name of its own and a subclass of Algorithm, not "
            f"{brief((name, algorithm))}"
        )
    OWN[name] = algorithm


@functools.cache
def names() -> tuple[str, ...]:
    """The algorithms that are here, in alphabetical order."""
    return tuple(
        sorted(module.name for module in pkgutil.iter_modules([*__path__, *baselines.__path__]))
    )


def find(name: str) -> type[Algorithm]:
    """Return the algorithm of that name, also a registered one; InputError where there is none."""
    return OWN[name] if name in OWN else _of_the_package(name)


@functools.cache
def _of_the_package(name: str) -> type[Algorithm]:
    if name not in names():
        raise unknown("algorithm", name, [*names(), *OWN])
    papers = {module.name for module in pkgutil.iter_modules(__path__)}
    module = importlib.import_module(
        f"core.{'algorithms' if name in papers else 'baselines'}.{name}"
    )
    classes = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, Algorithm)
        and value.__module__ == module.__name__
        and not key.startswith("_")
    }
    if len(classes) != 1:
        raise InputError(
            f"{module.__file__} must hold one public algorithm, not {len(classes)} "
            f"({', '.join(classes) or 'none'}): give each its own file"
        )
    (algorithm,) = classes.values()
    own = vars(module).get("Settings")
    if own is not None and own is not getattr(algorithm, "Settings", None):
        raise InputError(
            f"{module.__file__} has a class Settings that {algorithm.__name__} does not use: write "
            "Settings = Settings in it"
        )
    return algorithm


def settings_fields(name: str) -> set[str] | None:
    """Names of an algorithm's hyper-parameters; None for an unknown algorithm."""
    return set(attrs.fields_dict(find(name).Settings)) if name in (*names(), *OWN) else None


def switches(name: str) -> dict[str, tuple[Any, Any]]:
    """The settings of an algorithm that its authors' code has other values of: the paper's and the
    released one by name. Raises InputError for an unknown algorithm.
    """
    settings: Any = find(name).Settings
    printed, released = settings(), settings.released()
    pairs = {
        field.name: (getattr(printed, field.name), getattr(released, field.name))
        for field in attrs.fields(settings)
    }
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def create(
    name: str,
    settings: Mapping[str, Any] | None = None,
    variant: str = "printed",
    schedule: Schedule | None = None,
) -> Algorithm:
    """An algorithm with the paper's or the released settings, and the given ones in their place. Raises
    InputError for an unknown algorithm, an unknown setting or a bad value.
    """
    algorithm, settings = find(name), {} if settings is None else settings
    check_kind("settings", settings, Mapping)
    base = algorithm.Settings.released() if variant == "released" else algorithm.Settings()  # type: ignore[attr-defined]
    fields = attrs.fields_dict(algorithm.Settings)
    for key in settings:
        if key not in fields:
            how = f"; `fedcon algorithms {name}` explains each"
            raise InputError(f"{unknown(f'setting of {name}', key, fields)}{how}")
    try:
        return algorithm(attrs.evolve(base, **plain(dict(settings))), schedule)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
