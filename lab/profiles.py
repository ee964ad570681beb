"""Profiles: how much of the papers' budget is computed, as `book/tables/profiles.yaml` says."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from core import algorithms
from core.checks import is_number
from core.errors import InputError, unknown
from lab.experiment import PROFILES, Experiment
from lab.forms import TABLES, Fields, Limits, Part, Text, checked_values, read, read_yaml, short
from lab.overrides import Override, merge


def budget_name(profile: str) -> str:
    """Name of a profile's budget on pages and in commands; `converged` is its name in records."""
    return "reduced" if profile == "converged" else profile


class Changes(Part):
    """Changes of a profile: for all experiments, by model, by algorithm, and upper limits, in this
    order. A setting for all reaches only the algorithms that have it.
    """

    fields: Fields = Field({})
    models: dict[str, Fields] = Field({})
    algorithms: dict[str, Fields] = Field({})
    limits: Limits = Field({})

    def overrides(self, algorithm: str, where: str) -> list[Override]:
        """The changes that concern an algorithm, which stand at a place."""
        by_model = (
            Override(f"{where}, models, {name}", fields, model=name, fitting=True)
            for name, fields in self.models.items()
        )
        own = self.algorithms.get(algorithm, {})
        return [
            Override(where, self.fields, fitting=True),
            *by_model,
            Override(f"{where}, algorithms, {algorithm}", own),
            Override(f"{where}, limits", self.limits, limits=True),
        ]


class Profile(Changes):
    """A name, what it means in words, and what it changes."""

    name: str
    #: how much it computes, and how its numbers are held against the paper's: halves of a sentence
    budget: Text
    beside_print: Text
    #: what is reduced
    description: Text

    @property
    def where(self) -> str:
        """The place of its changes."""
        return f"profiles.yaml, {self.name}"

    @property
    def meaning(self) -> str:
        """Meaning of its numbers, in a sentence."""
        return f"{self.budget}; {self.beside_print}."

    @classmethod
    def load(cls, name: str, root: Path | None = None) -> Profile:
        """The profile of that name, or of that budget. InputError for an unknown one or a bad file."""
        known = profiles(root)
        name = {budget_name(stored): stored for stored in known}.get(name, name)
        if name not in known:
            raise unknown("profile", name, known)
        return known[name]


def profiles(root: Path | None = None) -> dict[str, Profile]:
    """All profiles by name, in order, of `profiles.yaml` in `root`, or else of the book."""
    path = (root or TABLES) / "profiles.yaml"
    path = path if path.exists() else TABLES / "profiles.yaml"
    return _read(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _read(path: Path, _stamp: int) -> dict[str, Profile]:
    data = read_yaml(path)
    if set(data) != set(PROFILES):
        raise InputError(
            f"{short(path)} must describe the profiles {', '.join(PROFILES)}, not {', '.join(data)}"
        )
    return {
        name: read(Profile, {"name": name, **(entry or {})}, f"{path.name}, {name}")
        for name, entry in data.items()
    }


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
    by_hand = checked_values(fields)
    partition = by_hand.get("partition") or {}
    alpha = partition.get("alpha") if isinstance(partition, dict) else None
    if isinstance(alpha, int) and is_number(alpha):  # 1 and 1.0 are two ids: one way for all
        by_hand["partition"] = {**partition, "alpha": float(alpha)}
    stated = Override("stated by hand", by_hand)
    parts = [stated, *chosen.overrides(by_hand["algorithm"], chosen.where)]
    freed = _freed(by_hand.get("settings", {}), merge(parts, alpha).fields)
    merged = merge([*parts, Override("stated by hand", {"settings": freed}), stated], alpha)
    return Experiment.from_dict({**merged.fields, "profile": chosen.name})


def _freed(asked: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, None]:
    """The steps to be left out for epochs that are asked for, of a profile or an algorithm's defaults:
    where there are steps, they take the place of epochs.
    """
    variant, filled = fields.get("variant", "printed"), fields.get("settings", {})
    used = algorithms.create(fields["algorithm"], variant=variant).settings  # type: ignore[attr-defined]
    steps = [f"{name.removesuffix('epochs')}steps" for name in asked if name.endswith("_epochs")]
    return {name: None for name in steps if name in filled or getattr(used, name, None) is not None}
