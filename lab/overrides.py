"""Overrides: where the fields of an experiment come from, and which of them set a value."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from core import algorithms
from lab.experiment import defaults
from lab.forms import OPEN

#: Dirichlet concentration where a data set replaces another and the original says none
DEFAULT_ALPHA = 0.5


@attrs.frozen(eq=False)
class Override:
    """Fields of an experiment that one place states."""

    #: the file and the keys that lead to the place: "fedvck/3.yaml, columns, pathmnist-0.05"
    where: str
    fields: Mapping[str, Any]
    #: the model for which alone it counts
    model: str | None = None
    #: whether settings that the algorithm does not have are left out
    fitting: bool = False
    #: whether its values are upper limits
    limits: bool = False

    def changes_to(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return its changes of the fields so far."""
        if self.model is not None and fields.get("model", defaults()["model"]) != self.model:
            return {}
        if self.limits:
            now = {key: fields.get(key, defaults()[key]) for key in self.fields}
            return {key: most for key, most in self.fields.items() if now[key] > most}
        if self.fitting and "settings" in self.fields:
            known = algorithms.settings_fields(fields["algorithm"])
            settings = self.fields["settings"].items()
            if known is not None:
                return {**self.fields, "settings": {k: v for k, v in settings if k in known}}
        return self.fields


@attrs.frozen(eq=False)
class Merged:
    """Fields of an experiment, merged from overrides of which a later one prevails."""

    fields: dict[str, Any]
    #: what was changed, by which place
    steps: tuple[tuple[str, Mapping[str, Any]], ...]

    def history(self) -> dict[str, list[tuple[Any, str]]]:
        """The values that each field had and the places that set them, the last one in force; an
        entry of `OPEN` is called `settings.lr`. What was dropped later is not there.
        """
        fields: dict[str, Any] = {}
        places: dict[str, list[tuple[Any, str]]] = {}
        for where, changed in self.steps:
            fields = combined(fields, changed)
            values = opened(fields)
            places = {key: places.get(key, []) for key in values}
            for key in opened(changed):
                places[key] = [*places[key], (values[key], where)]
        return places


def merge(overrides: Iterable[Override], alpha: float | None = None) -> Merged:
    """Merge overrides in order, key by key. Another data set replaces a split file or natural partition by
    a Dirichlet one of the original's `alpha`, with the files' size cap, unless one is stated.
    """
    fields: dict[str, Any] = {}
    steps: list[tuple[str, Mapping[str, Any]]] = []
    for override in overrides:
        if not (changed := override.changes_to(fields)):
            continue
        before, fields = fields, combined(fields, changed)
        steps.append((override.where, changed))
        moved = fields.get("dataset") != before.get("dataset") and "partition" not in changed
        if moved and _kind(before) in ("file", "natural"):
            drawn = {"name": "dirichlet", "alpha": alpha or DEFAULT_ALPHA, "cap": True}
            steps.append((f"{override.where}, as its data set is another", {"partition": drawn}))
            fields = combined(fields, {"partition": drawn})
    return Merged(fields, tuple(steps))


def opened(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, with those of `OPEN` entry by entry."""
    values: dict[str, Any] = {}
    for key, value in fields.items():
        values |= {f"{key}.{name}": v for name, v in value.items()} if key in OPEN else {key: value}
    return values


def combined(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of an experiment, new over old, merged key by key; but another kind of partition replaces the
    old one, and another model drops the old one's options.
    """
    fields = dict(old)
    if "model" in new and new["model"] != fields.get("model"):
        fields.pop("model_options", None)
    if _kind(new) not in (None, _kind(old)):
        fields.pop("partition", None)
    return _deep(fields, new)


def _kind(fields: Mapping[str, Any]) -> Any:
    """The name of the partition; None where the fields have none."""
    partition = fields.get("partition")
    return partition.get("name") if isinstance(partition, dict) else None


def _deep(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(old)
    for key, value in new.items():
        before = both.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            both[key] = _deep(before, value)
        else:
            both[key] = copy.deepcopy(value)
    return both
