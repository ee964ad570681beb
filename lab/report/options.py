"""The algorithms and their settings in words, for the command line."""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
import textwrap
from typing import Any

import attrs

from core import algorithms
from core.data.drawn import ALWAYS_HERE
from core.errors import one_line
from core.federation import CLASSIFICATION
from lab.explain import as_set

_FIELD = re.compile(r"    (\w+): .* = ")


def overview() -> str:
    """Every algorithm with the first sentence of its description, a line each, and what it is for where
    that is not classification alone; what is wrong with a file that is being written hides no other.
    """
    width, lines = max(map(len, algorithms.names())), []
    for name in algorithms.names():
        try:
            kinds = algorithms.find(name).task_kinds
            said = _title(name) + f" ({', '.join(kinds)})" * (kinds != CLASSIFICATION)
        except Exception as error:
            said = f"cannot be used yet: {one_line(error, 200)}"
        lines.append(f"{name:{width}}  {said}")
    return "\n".join(lines)


def settings(name: str) -> str:
    """The settings of an algorithm, with their printed values, the released ones where they differ,
    and what they mean. Raises InputError for an unknown algorithm.
    """
    method = algorithms.find(name)
    cls: Any = method.Settings
    printed, other = attrs.asdict(cls(), recurse=False), algorithms.switches(name)
    said, width = meanings(cls), min(shutil.get_terminal_size((100, 24)).columns, 100)
    sets = " or ".join(ALWAYS_HERE[kind] for kind in method.task_kinds)
    served = f"for {' and '.join(method.task_kinds)}, such as the data set {sets}"
    about = "--set NAME=VALUE, printed value (released value):"
    lines = [f"{name}: {_title(name)}", served, "", about, ""]
    for key, value in printed.items():
        beside = f" ({as_set(other[key][1])})" if key in other else ""
        lines.append(f"  {key}={as_set(value)}{beside}")
        lines += [f"      {line}" for line in textwrap.wrap(said.get(key, ""), width - 6)]
    return "\n".join(lines)


def meanings(cls: type) -> dict[str, str]:
    """Comments `#:` above the fields of an attrs class and its bases, by field."""
    comments: dict[str, str] = {}
    for base in reversed(list(filter(attrs.has, cls.__mro__))):
        said: list[str] = []
        for line in inspect.getsource(base).splitlines():
            if line.startswith("    #: "):
                said.append(line.strip().removeprefix("#: "))
            elif match := _FIELD.match(line):
                comments[match[1]] = " ".join(said) or comments.get(match[1], "")
                said = []
            else:
                said = []
    return comments


def _title(name: str) -> str:
    """The first sentence of an algorithm's description."""
    module = importlib.import_module(algorithms.find(name).__module__)
    first = " ".join((module.__doc__ or "").split("\n\n")[0].split())
    return first.partition(". ")[0].removesuffix(".")
