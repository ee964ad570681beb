"""Profiles: how much of the papers' budget is computed. Their values stand in
`book/tables/profiles.yaml`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from core import algorithms
from core.errors import InputError, unknown
from lab.experiment import PROFILES, Experiment
from lab.layers import COUNTS, Layer, Stack
from lab.spec import (
    FIELDS,
    TABLES,
    as_mapping,
    check_keys,
    read_yaml,
    short,
)


@attrs.frozen(eq=False)
class Overrides:
    """Changes to the fields of an experiment: for all, by model, by algorithm, and upper limits, in
    this order.
    """

    fields: Layer
    models: dict[str, Layer]
    algorithms: dict[str, Layer]
    limits: Layer

    @classmethod
    def read(cls, fields: Layer, data: Mapping[str, Any], where: str) -> Overrides:
        """From the parts of a specification. Raises InputError for unknown keys."""
        check_keys(fields.fields, FIELDS - {"algorithm"}, fields.where)
        by: dict[str, dict[str, Layer]] = {"models": {}, "algorithms": {}}
        for kind, layers in by.items():
            for name, given in as_mapping(data.get(kind), f"{where}, {kind}").items():
                inside = f"{where}, {kind}, {name}"
                layers[name] = Layer.read(given, inside)
                check_keys(layers[name].fields, FIELDS - {"algorithm"}, inside)
        limits = Layer.read(data.get("limits"), f"{where}, limits")
        check_keys(limits.fields, COUNTS, limits.where)
        return cls(fields, by["models"], by["algorithms"], limits)

    def layers(self) -> list[Layer]:
        """All that is stated in here."""
        return [self.fields, *self.models.values(), *self.algorithms.values(), self.limits]

    def settings(self) -> set[str]:
        """The hyper-parameters that are named anywhere in here."""
        return {key for layer in self.layers() for key in layer.fields.get("settings", {})}

    def settings_of(self, algorithm: str) -> dict[str, Any]:
        """The hyper-parameters that are stated for one algorithm."""
        layer = self.algorithms.get(algorithm)
        return dict(layer.fields.get("settings", {})) if layer else {}

    def over(self, stack: Stack) -> Stack:
        """The stack with those of the layers that concern its model and its algorithm."""
        algorithm, defaults = stack.fields["algorithm"], attrs.fields_dict(Experiment)
        stack = stack.put(self.fields.applicable(algorithm))
        model = stack.fields.get("model", defaults["model"].default)
        if model in self.models:
            stack = stack.put(self.models[model].applicable(algorithm))
        if algorithm in self.algorithms:
            stack = stack.put(self.algorithms[algorithm])
        above = {
            key: limit
            for key, limit in self.limits.fields.items()
            if stack.fields.get(key, defaults[key].default) > limit
        }
        return stack.put(Layer(self.limits.where, above))


#: what a profile says of itself
_TEXTS = ("budget", "beside_print", "description")


@attrs.frozen
class Profile:
    """A name, what it means in words, and what it changes."""

    name: str
    #: how much it computes, and how its numbers are held against print: two halves of a sentence
    budget: str
    beside_print: str
    #: what is reduced
    description: str
    overrides: Overrides

    @property
    def meaning(self) -> str:
        """What its numbers are worth, in a sentence."""
        return f"{self.budget}; {self.beside_print}."

    @classmethod
    def load(cls, name: str, root: Path | None = None) -> Profile:
        """The profile of that name. Raises InputError for an unknown one or a bad file."""
        known = profiles(root)
        if name not in known:
            raise unknown("profile", name, known)
        return known[name]


def profiles(root: Path | None = None) -> dict[str, Profile]:
    """All profiles by name, in the order of their file: `profiles.yaml` in `root`, or the book's
    where it has none.
    """
    path = (root or TABLES) / "profiles.yaml"
    if not path.exists():
        path = TABLES / "profiles.yaml"
    return _read(path, path.stat().st_mtime_ns if path.exists() else 0)


@functools.lru_cache(maxsize=8)
def _read(path: Path, _stamp: int) -> dict[str, Profile]:
    data = read_yaml(path)
    if set(data) != set(PROFILES):
        raise InputError(
            f"{short(path)} must describe the profiles {', '.join(PROFILES)}, not {', '.join(data)}"
        )
    found = {}
    for name, given in data.items():
        where = f"{path.name}, {name}"
        entry = as_mapping(given, where)
        check_keys(entry, (*_TEXTS, "overrides", "models", "algorithms", "limits"), where)
        for key in _TEXTS:
            if not isinstance(entry.get(key), str):
                raise InputError(f"{where} needs a {key}")
        found[name] = Profile(
            name,
            **{key: entry[key].strip() for key in _TEXTS},
            overrides=Overrides.read(
                Layer.read(entry.get("overrides"), f"{where}, overrides"), entry, where
            ),
        )
    return found


def apply(profile: str, fields: Mapping[str, Any]) -> Experiment:
    """The experiment that somebody asks for by hand: what is stated holds, the profile fills in the
    rest.

    Args:
        fields: fields of an `Experiment`, `algorithm` among them; the quick profile supplies the
            data set.

    Raises InputError for an unknown profile or field, and for a bad value.
    """
    chosen = Profile.load(profile)
    if "algorithm" not in fields:
        raise InputError("an experiment needs 'algorithm'")
    partition = fields.get("partition") or {}
    alpha = partition.get("alpha") if isinstance(partition, dict) else None
    by_hand = Layer.read(fields, "stated by hand")
    stack = chosen.overrides.over(Stack(alpha).put(by_hand))
    freed = _freed(fields.get("settings") or {}, stack.fields)
    stack = stack.put(Layer("stated by hand", {"settings": freed})).put(by_hand)
    return Experiment.from_dict({**stack.fields, "profile": profile})


def _freed(asked: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, None]:
    """The steps to be left out for epochs that are asked for, of a profile or an algorithm's defaults:
    where there are steps, they take the place of epochs.
    """
    variant, filled = fields.get("variant", "printed"), fields.get("settings", {})
    used = algorithms.create(fields["algorithm"], variant=variant).settings  # type: ignore[attr-defined]
    steps = [f"{name.removesuffix('epochs')}steps" for name in asked if name.endswith("_epochs")]
    return {name: None for name in steps if name in filled or getattr(used, name, None) is not None}
