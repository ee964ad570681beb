"""Forms of what is read from files, by pydantic; a mistake is one line that names file, key and cause."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import attrs
import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from core.checks import check_whole
from core.errors import InputError, brief, one_line, unknown
from lab.experiment import PROFILES, Experiment

#: where the specifications are kept: `<paper>/<table>.yaml`, `<paper>/published.csv` and
#: `profiles.yaml`
TABLES = Path(__file__).resolve().parents[1] / "book" / "tables"
#: the fields of an experiment that a specification may state; seed and profile come from elsewhere
FIELDS = frozenset(attrs.fields_dict(Experiment)) - {"seed", "profile"}
#: the fields whose entries are values of their own
OPEN = ("model_options", "settings", "attack")
#: fields that are whole numbers of at least 1
COUNTS = ("rounds", "clients", "evaluate_every")


def checked_values(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of an experiment as they are. InputError for one that could not be merged."""
    for key, value in fields.items():
        if key in OPEN and not _is_mapping(value):
            raise InputError(f"{key} must map names to values, not {brief(value)}")
        if key in COUNTS:
            check_whole(key, value, 1)
        if key in ("algorithm", "model", "dataset") and not isinstance(value, str):
            raise InputError(f"{key} must be a name, not {brief(value)}")
    return dict(fields)


def _checked(allowed: Collection[str]) -> AfterValidator:
    """A validator of fields of which some are allowed."""

    def check(fields: dict[str, Any]) -> dict[str, Any]:
        for key in fields:
            if key not in allowed:
                raise unknown("field", key, allowed)
        return checked_values(fields)

    return AfterValidator(check)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _profile(name: str) -> str:
    if name not in PROFILES:
        raise unknown("profile", name, PROFILES)
    return name


Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
#: the fields that a row states, those that other places may state, and upper limits of some
RowFields = Annotated[dict[str, Any], _checked(FIELDS)]
Fields = Annotated[dict[str, Any], _checked(FIELDS - {"algorithm"})]
Limits = Annotated[dict[str, Any], _checked(COUNTS)]
ProfileName = Annotated[str, AfterValidator(_profile)]
Whole = Annotated[int, Field(ge=0)]


class Part(BaseModel):
    """A part of a specification, with fields of an experiment among its keys where it has `fields`."""

    model_config = ConfigDict(strict=True)

    @model_validator(mode="before")
    @classmethod
    def _sort_keys(cls, data: Any) -> Any:
        if not _is_mapping(data):
            raise InputError(f"must map names to values, not {brief(data)}")
        own, states = set(cls.model_fields) - {"fields"}, "fields" in cls.model_fields
        known = own | FIELDS if states else own
        for key in data:
            if key not in known:
                raise unknown("key", key, known)
        fields = {key: value for key, value in data.items() if key not in own}
        return {k: data[k] for k in data if k in own} | ({"fields": fields} if states else {})


Form = TypeVar("Form", bound=BaseModel)


def read(form: type[Form], data: Any, where: str) -> Form:
    """A part of a file in its form. Raises InputError for the first mistake, with its place."""
    try:
        return form.model_validate(data)
    except ValidationError as error:
        raise InputError(mistake(error, data, where)) from None


def mistake(error: ValidationError, data: Any, where: str) -> str:
    """The first mistake that pydantic found, in one line: the place, what is wrong, what is there."""
    first = error.errors(include_url=False)[0]
    place, cause = [where] if where else [], first.get("ctx", {}).get("error")
    for key in first["loc"]:
        if isinstance(data, Mapping):
            data = data.get(key)
        elif isinstance(data, Sequence) and isinstance(key, int):
            data, key = data[key], key + 1
            if isinstance(data, Mapping):
                key = data.get("name") or data.get("dataset") or key
        place += [str(key)] if key not in ("fields", "[key]") else []
    if isinstance(cause, InputError):
        return f"{', '.join(place)}: {cause}"
    if first["type"] == "missing":
        return f"{', '.join(place[:-1])} has no {place[-1]!r}"
    said = first["msg"].replace("Input should", "must")
    return f"{', '.join(place)} {said}, not {brief(first['input'])}"


class _Loader(yaml.SafeLoader if not yaml.__with_libyaml__ else yaml.CSafeLoader):  # type: ignore[misc]
    """YAML without the silence about a key that stands twice."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
    twice = [name for name, count in Counter(names).items() if count > 1 and name != "<<"]
    if twice:
        raise yaml.MarkedYAMLError(
            problem=f"the key {twice[0]!r} stands twice", problem_mark=node.start_mark
        )
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
# 5e-2 is a number to everybody but YAML 1.1, which wants a point and a sign: 5.0e-2
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def short(path: Path) -> str:
    """The last two parts of a path: how a message names a specification."""
    return "/".join(path.parts[-2:])


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file's mapping. InputError, naming the file, where it is missing or no mapping."""
    try:
        data = yaml.load(path.read_bytes(), Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(f"{short(path)}{line} is not valid YAML: {error.problem}") from None
    except Exception as error:  # no such file, not UTF-8, a 13th month
        raise InputError(f"{short(path)} cannot be read: {one_line(error, 150)}") from None
    if not _is_mapping(data):
        raise InputError(f"{short(path)} must hold a mapping of names to values")
    return data
