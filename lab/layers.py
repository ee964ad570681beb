"""The layers that the fields of an experiment are merged from, and which of them set a value."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import attrs

from core import algorithms
from core.checks import is_whole
from core.errors import InputError
from lab.spec import as_mapping

#: Dirichlet concentration where a data set replaces another and the original says none
DEFAULT_ALPHA = 0.5
#: the fields whose entries are values of their own
OPEN = ("model_options", "settings", "attack")
#: fields that are whole numbers of at least 1
COUNTS = ("rounds", "clients", "evaluate_every")


@attrs.frozen(eq=False)
class Layer:
    """Fields of an experiment that one place states."""

    #: the file and the keys that lead to the place: "fedvck/3.yaml, columns, pathmnist-0.05"
    where: str
    fields: Mapping[str, Any]

    @classmethod
    def read(cls, value: Any, where: str) -> Layer:
        """From a part of a specification. Raises InputError when it is not a mapping, and for a field
        of another type than it has to be merged with others.
        """
        fields = dict(as_mapping(value, where))
        for key in OPEN:
            if key in fields:
                fields[key] = as_mapping(fields[key], f"{where}, {key}")
        for key in COUNTS:
            if key in fields and not is_whole(fields[key], 1):
                raise InputError(
                    f"{where}: {key} must be a whole number of at least 1, not {fields[key]!r}"
                )
        for key in ("algorithm", "model", "dataset"):
            if key in fields and not isinstance(fields[key], str):
                raise InputError(f"{where}: {key} must be a name, not {fields[key]!r}")
        return cls(where, fields)

    def applicable(self, algorithm: str) -> Layer:
        """The layer without the settings that the algorithm does not have; all are kept for one
        that is not written yet.
        """
        known = algorithms.settings_fields(algorithm)
        if known is None or "settings" not in self.fields:
            return self
        settings = {key: value for key, value in self.fields["settings"].items() if key in known}
        return Layer(self.where, {**self.fields, "settings": settings})


@attrs.frozen
class Step:
    """A value, and the place that set it."""

    value: Any
    where: str


@attrs.frozen(eq=False)
class Stack:
    """Fields of an experiment, merged from layers of which a later one prevails."""

    #: the Dirichlet concentration that a table's column states
    alpha: float | None = None
    layers: tuple[Layer, ...] = ()
    fields: dict[str, Any] = attrs.field(factory=dict)

    def put(self, layer: Layer) -> Stack:
        """The stack with one more layer.

        A split file or a natural partition belongs to its data set: a layer with another data set
        brings a Dirichlet partition with the concentration `alpha` of the original in its place,
        drawn with the size cap that the files were drawn with, unless it states a partition itself.
        """
        if not layer.fields:
            return self
        stack = Stack(self.alpha, (*self.layers, layer), merged(self.fields, layer.fields))
        moves = stack.fields.get("dataset") != self.fields.get("dataset")
        bound = _kind(self.fields) in ("file", "natural")
        if not moves or not bound or "partition" in layer.fields:
            return stack
        alpha = DEFAULT_ALPHA if self.alpha is None else self.alpha
        drawn = {"name": "dirichlet", "alpha": alpha, "cap": True}
        return stack.put(Layer(f"{layer.where}, as its data set is another", {"partition": drawn}))

    def history(self) -> dict[str, list[Step]]:
        """The steps that led to each value, the last one in force; an entry of `OPEN` is called
        `settings.lr`. What a later layer dropped is not there.
        """
        fields: dict[str, Any] = {}
        found: dict[str, list[Step]] = {}
        for layer in self.layers:
            fields = merged(fields, layer.fields)
            values = opened(fields)
            found = {key: found.get(key, []) for key in values}
            for key in opened(layer.fields):
                found[key] = [*found[key], Step(values[key], layer.where)]
        return found


def opened(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, with those of `OPEN` entry by entry."""
    values: dict[str, Any] = {}
    for key, value in fields.items():
        values |= {f"{key}.{name}": v for name, v in value.items()} if key in OPEN else {key: value}
    return values


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of an experiment, the new ones over the old; dictionaries merge key by key.

    Two exceptions keep what does not belong together apart: another kind of partition replaces the
    earlier one whole, and another model drops the options of the earlier one.
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
        kept = both.get(key)
        if isinstance(kept, dict) and isinstance(value, dict):
            both[key] = _deep(kept, value)
        else:
            both[key] = copy.deepcopy(value)
    return both
