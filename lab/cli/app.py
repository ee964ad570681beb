"""The application, the options that several verbs share, and how their texts are read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from core.errors import InputError, brief

app = typer.Typer(
    help="Federated learning by condensation and distillation: run experiments, see the papers' "
    "tables, build the book.\n\n\b\nFirst steps:\n  fedcon data\n  fedcon algorithms\n"
    "  fedcon run --algorithm fedavg --profile quick --rounds 8 --set lr=0.1 "
    "--set local_steps=10\n  fedcon table fedvck/11",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
command = app.command


def _stored(name: str | None) -> str | None:
    """The name of a budget in tables and records."""
    from lab.profiles import Profile

    return Profile.load(name).name if name else None


BUDGET = Option(
    "--profile",
    callback=_stored,
    help="Budget: quick (seconds), laptop, reduced (stored as converged) or paper; where it may be left "
    "out, the best.",
)
Name = Literal["quick", "laptop", "reduced", "converged", "paper"]
Profile = Annotated[Name, BUDGET]
Shown = Annotated[Name | None, BUDGET]
Seeds = Annotated[list[int] | None, Option("--seed", help="Seed; may be given several times.")]
Device = Annotated[str, Option(help="auto, cpu or cuda.")]
Precision = Annotated[str, Option(help="float32, bfloat16 or auto (float32; check: the book's).")]
Cell = Annotated[str, Argument(help="A table's cell: PAPER/TABLE/ROW/COLUMN[/METRIC].")]
Only = Annotated[
    str | None, Option(help="A paper, a table (fedvck/11), a cell or an algorithm, that alone.")
]
Records = Annotated[
    Path | None, Option("--records", help="An --out folder of run: its records count too.")
]


def pairs(given: list[str] | None, what: str = "settings") -> dict[str, Any]:
    """`NAME=VALUE` texts as a mapping. InputError, naming `what`, for other text or a name set twice."""
    values: dict[str, Any] = {}
    for text in given or []:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise InputError(f"give {what} as NAME=VALUE, not {brief(text)}")
        if key in values:
            raise InputError(f"{brief(key)} is set twice")
        values[key] = value_of(key, value)
    return values


_NUMBER = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d+)?")
#: values as Python writes them
PYTHONS = {"None": None, "True": True, "False": False}


def value_of(key: str, text: str) -> Any:
    """A number, a truth value or a list where the text is one in JSON, or None, True or False as help
    texts write them; else the text itself. Raises InputError for what is too long or too nested.
    """
    if text in PYTHONS:
        return PYTHONS[text]
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        # .05, 1. and +0.5 are numbers to everybody but JSON
        return float(text) if _NUMBER.fullmatch(text) else text
    except (ValueError, RecursionError):  # Python's bounds on digits and on nesting
        raise InputError(f"the value of {brief(key)} is too long: {brief(text)}") from None
