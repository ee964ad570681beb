"""Experiments, as plain data."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import attrs

from core import algorithms
from core.checks import coerced, number, one_of, whole
from core.errors import InputError, brief, unknown
from core.federation import Algorithm, Schedule
from core.privacy.membership import LikelihoodRatio

PROFILES = ("quick", "laptop", "converged", "paper")
VARIANTS = ("printed", "released")


def _name(instance: Any, attribute: attrs.Attribute, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise InputError(f"{attribute.name} must be a name, not {value!r}")


#: lists and mappings that one field of an experiment may hold in all
NESTED = 100


def _table(instance: Any, attribute: attrs.Attribute, value: Any) -> None:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise InputError(f"{attribute.name} must map names to values, not {brief(value)}")
    if not value:  # as most are, in thousands of experiments
        return
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise InputError(
            f"{attribute.name} must hold plain finite numbers, texts and lists, not {brief(value)}"
        ) from None
    if text.count("[") + text.count("{") > NESTED:
        raise InputError(f"{attribute.name} holds more than {NESTED} lists and mappings")


def _attack(instance: Any, attribute: attrs.Attribute, value: Any) -> None:
    _table(instance, attribute, value)
    known = attrs.fields_dict(LikelihoodRatio)
    for key in value:
        if key not in known:
            raise unknown("setting of an attack", key, known)
    LikelihoodRatio(**value)


@attrs.frozen(kw_only=True, field_transformer=coerced)
class Experiment(Schedule):
    """One run: an algorithm on a data set, federated in one way, by a schedule, with one seed.

    `evaluate_on="val"` tests on the validation split, or on a tenth of the training set, held out.
    Two experiments with the same data have the same `id`; a field left at its default does not
    enter the id, so that a field added later does not rename old runs.
    """

    algorithm: str = attrs.field(validator=_name)
    dataset: str = attrs.field(validator=_name)
    model: str = attrs.field(default="convnet", validator=_name)
    #: keyword arguments of the model, for example `{"width": 64}`
    model_options: dict[str, Any] = attrs.field(factory=dict, validator=_table)
    #: how the training set is given to the clients: a name of `core.data.partition` and its keyword
    #: arguments
    partition: dict[str, Any] = attrs.field(factory=lambda: {"name": "iid"}, validator=_table)
    #: share of the training set that is handed out
    train_fraction: float = attrs.field(default=1.0, validator=number(0, 1, above=True))
    #: "printed": the paper's values and equations; "released": those of the authors' code
    variant: str = attrs.field(default="printed", validator=one_of("variant", *VARIANTS))
    #: hyper-parameters that differ from the algorithm's defaults
    settings: dict[str, Any] = attrs.field(factory=dict, validator=_table)
    #: an attack on the uploads, by the names of `core.privacy.membership.LikelihoodRatio`; empty:
    #: none
    attack: dict[str, Any] = attrs.field(factory=dict, validator=_attack)
    seed: int = attrs.field(default=0, validator=whole(0))
    profile: str = attrs.field(default="paper", validator=one_of("profile", *PROFILES))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Experiment:
        """Build from plain data, as of a JSON record. InputError for an unknown or missing field."""
        names = attrs.fields_dict(cls)
        for key in data:
            if key not in names:
                raise unknown("experiment field", key, names)
        for key in ("algorithm", "dataset"):
            if key not in data:
                raise InputError(f"an experiment needs {key!r}")
        return cls(**data)

    def to_dict(self) -> dict[str, Any]:
        """Every field, as plain data."""
        return attrs.asdict(self)

    @functools.cached_property
    def id(self) -> str:
        """Twelve hexadecimal digits that stand for this experiment."""
        values = {name: getattr(self, name) for name in defaults()}
        stated = {name: value for name, value in values.items() if value != defaults()[name]}
        return hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()[:12]

    @functools.cached_property
    def ids(self) -> tuple[str, ...]:
        """The ids under which its record may be found: a whole Dirichlet concentration may have been
        written as 1 or as 1.0, which are two ids.
        """
        alpha = self.partition.get("alpha")
        if not isinstance(alpha, (int, float)) or alpha != int(alpha):
            return (self.id,)
        other = float(alpha) if isinstance(alpha, int) else int(alpha)
        return self.id, attrs.evolve(self, partition={**self.partition, "alpha": other}).id

    @property
    def schedule(self) -> Schedule:
        """Return the schedule of the round loop."""
        return Schedule(
            **{field.name: getattr(self, field.name) for field in attrs.fields(Schedule)}
        )

    def new_algorithm(self) -> Algorithm:
        """The algorithm with these settings and schedule. InputError for unknown names or bad values."""
        return algorithms.create(self.algorithm, self.settings, self.variant, self.schedule)


@functools.cache
def defaults() -> dict[str, Any]:
    """The value of each field of an experiment where nothing is stated."""
    bare = Experiment(algorithm="x", dataset="x").to_dict()
    return bare | {"algorithm": attrs.NOTHING, "dataset": attrs.NOTHING}
