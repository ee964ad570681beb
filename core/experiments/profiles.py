"""Profiles: how much of the papers' budget is computed. Their values stand in
`book/tables/profiles.yaml`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from core.errors import InputError, unknown
from core.experiments.experiment import PROFILES, Experiment
from core.experiments.spec import (
    FIELDS,
    TABLES,
    applicable,
    as_mapping,
    check_keys,
    merged,
    read_yaml,
    replaced,
    short,
)


@attrs.frozen
class Overrides:
    """Changes to the fields of an experiment: for all, by model, by algorithm, and upper limits, in
    this order.
    """

    fields: dict[str, Any] = attrs.field(factory=dict)
    models: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    algorithms: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    limits: dict[str, int] = attrs.field(factory=dict)

    @classmethod
    def read(cls, fields: Any, data: Mapping[str, Any], where: str) -> Overrides:
        """From the parts of a specification. Raises InputError for unknown keys."""
        fields = as_mapping(fields, where)
        check_keys(fields, FIELDS - {"algorithm"}, where)
        by: dict[str, dict[str, dict[str, Any]]] = {}
        for kind in ("models", "algorithms"):
            by[kind] = {
                name: as_mapping(layer, f"{where}, {kind}, {name}")
                for name, layer in as_mapping(data.get(kind), f"{where}, {kind}").items()
            }
            for name, layer in by[kind].items():
                check_keys(layer, FIELDS - {"algorithm"}, f"{where}, {kind}, {name}")
        limits = as_mapping(data.get("limits"), f"{where}, limits")
        check_keys(limits, ("rounds", "clients", "evaluate_every"), f"{where}, limits")
        for key, value in limits.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(
                    f"{where}, limits: {key} must be a whole number of at least 1, not {value!r}"
                )
        return cls(fields, by["models"], by["algorithms"], limits)

    def settings(self) -> set[str]:
        """The hyper-parameters that are named anywhere in here."""
        layers = [self.fields, *self.models.values(), *self.algorithms.values()]
        return {key for layer in layers for key in layer.get("settings", {})}

    def over(self, fields: Mapping[str, Any], alpha: float | None) -> dict[str, Any]:
        """The changed fields; `alpha` is the Dirichlet concentration that the table's column
        states.
        """
        algorithm = fields["algorithm"]
        out = replaced(fields, applicable(self.fields, algorithm), alpha)
        model = str(out.get("model", attrs.fields_dict(Experiment)["model"].default))
        out = replaced(out, applicable(self.models.get(model, {}), algorithm), alpha)
        out = replaced(out, self.algorithms.get(algorithm, {}), alpha)
        for key, limit in self.limits.items():
            default = attrs.fields_dict(Experiment)[key].default
            out[key] = min(out.get(key, default), limit)  # type: ignore[type-var]
        return out


@attrs.frozen
class Profile:
    """A name, what it means in words, and what it changes."""

    name: str
    #: what its numbers are worth, in a sentence
    meaning: str
    #: what is reduced
    description: str
    overrides: Overrides

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
        where = f"profile {name} in {short(path)}"
        entry = as_mapping(given, where)
        check_keys(
            entry, ("meaning", "description", "overrides", "models", "algorithms", "limits"), where
        )
        for key in ("meaning", "description"):
            if not isinstance(entry.get(key), str):
                raise InputError(f"{where} needs a {key}")
        found[name] = Profile(
            name,
            entry["meaning"].strip(),
            entry["description"].strip(),
            Overrides.read(entry.get("overrides"), entry, where),
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
    return Experiment.from_dict(
        merged(chosen.overrides.over(fields, alpha), fields, {"profile": profile})
    )
