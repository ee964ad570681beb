"""The application, the options that several verbs share, and how their texts are read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from core.errors import InputError, brief, unknown


class Verb(TyperCommand):
    """A verb that refuses an option which is given twice, unless it is one that takes several."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for option in {one.name: one for one in order if order.count(one) > 1}.values():
            if not option.multiple:
                raise InputError(f"{option.opts[0]} is given more than once; it takes one value")
        return super().parse_args(ctx, args)


class Verbs(typer.Typer):
    """An application of such verbs."""

    def command(self, name: str | None = None, **how: Any) -> Any:
        return super().command(name, cls=Verb, **how)


app = Verbs(
    help="Federated learning by condensation and distillation: run experiments, see the papers' "
    "tables, build the book.\n\n\b\nFirst steps:\n  fedcon data\n"
    "  fedcon algorithms\n"
    "  fedcon run --algorithm fedavg --profile quick --rounds 8 --set lr=0.1 "
    "--set local_steps=10\n"
    "  fedcon table fedvck/11",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

Profile = Annotated[
    str,
    typer.Option(
        help="How much is computed: quick (seconds), laptop (some minutes), "
        "converged (hours; the paper's network and rounds, less condensation), paper (the paper's "
        "own budget)."
    ),
]


def one_seed(text: str) -> int:
    """A seed as it is given; what looks like several is told how they are."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(
            f"a seed is one whole number, not {brief(text)}; for several give --seed 0 --seed 1"
        ) from None


Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Precision = Annotated[str, typer.Option(help="float32 (also: auto), or bfloat16 for convolutions.")]
Out = Annotated[
    Path | None,
    typer.Option(help="Folder for records and checkpoints; default: the book's results."),
]


def fail_where(failed: object) -> None:
    """End the verb, which has said what there is to say, with status 1 where something failed."""
    if failed:
        raise typer.Exit(1)


def pairs(given: list[str], what: str = "settings") -> dict[str, Any]:
    """`key=value` texts as a mapping; `what` they are goes into the message for another text."""
    pairs = {}
    for text in given:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise InputError(f"give {what} as NAME=VALUE, not {brief(text)}")
        if key in pairs:
            raise InputError(f"{brief(key)} is set twice")
        pairs[key] = value_of(key, value)
    return pairs


_NUMBER = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d+)?")
#: values as Python writes them
PYTHONS = {"None": None, "True": True, "False": False}


def value_of(key: str, text: str) -> Any:
    """A number, a truth value or a list where the text is one in JSON, or None, True or False as help
    texts write them; else the text itself.
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


def known_profile(profile: str) -> str:
    """A profile's name. Raises InputError, with the nearest one, for another name."""
    from lab import PROFILES

    if profile not in PROFILES:
        raise unknown("profile", profile, PROFILES)
    return profile
