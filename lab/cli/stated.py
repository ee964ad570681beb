"""The experiments that the options of `run` state."""

from __future__ import annotations

import itertools
import math
import sys
from pathlib import Path
from typing import Any

from core.checks import is_number
from core.errors import InputError, brief
from lab.cli.app import pairs, value_of

#: the options of one experiment
SINGLE = (
    *("algorithm", "dataset", "model", "alpha", "partition", "clients", "active", "rounds"),
    *("set_", "model_set", "variant"),
)


def option(name: str) -> str:
    """How an option of this name is written."""
    return "--" + name.strip("_").replace("_", "-")


def _split_file(text: str) -> str:
    """The path of a split file: in the working folder, else in the data folder. Raises InputError
    where it is in neither; a file of the authors', below `splits`, is missed later, with the advice.
    """
    from core.data.roots import data_root

    here = Path(text)
    if here.is_file():
        return str(here.absolute())
    if not (here.parent == Path("splits") or (data_root() / here).exists()):
        where = f", in the working folder {Path.cwd()} or in the data folder {data_root()}"
        raise InputError(f"there is no split file {text}{where * (not here.is_absolute())}")
    return text


def _partition(partition: str | None, alpha: float | None) -> dict[str, Any] | None:
    """The partition that the options name."""
    if partition is None and alpha is None:
        return None
    name, *rest = (partition or "dirichlet").split(",")
    if name.endswith(".json") and not rest and alpha is None:
        name, rest = "file", [f"file={name}"]
    options = pairs(rest)
    if name == "file" and "file" in options:
        if not isinstance(options["file"], str):
            raise InputError(f"a split file has a name, not {brief(options['file'])}")
        options["file"] = _split_file(options["file"])
    if alpha is not None:
        if name != "dirichlet":
            raise InputError(f"--alpha belongs to the dirichlet partition, not to {partition!r}")
        if "alpha" in options:
            raise InputError("alpha is stated twice: in --alpha and in --partition")
        if not math.isfinite(alpha):
            raise InputError(f"--alpha must be a number above 0, not {alpha}")
        options["alpha"] = alpha
    if name == "dirichlet" and "alpha" not in options:
        raise InputError("the dirichlet partition needs --alpha, such as --alpha 0.1")
    if is_number(options.get("alpha")):  # 1 and 1.0 are one experiment
        options["alpha"] = float(options["alpha"])
    return {"name": name, **options}


def _settings(algorithm: str, given: list[str]) -> list[dict[str, Any]]:
    """What `--set` states, with each combination of values that commas separate. Raises InputError, with
    the option, for what is one of the experiment.
    """
    from core.algorithms import settings_fields
    from lab.explain import as_set

    stated, known = pairs(given), settings_fields(algorithm) or set()
    for name in stated.keys() - known:
        if name in (*SINGLE, "seed", "profile"):
            written = f"{option(name)} {as_set(stated[name])}"
            raise InputError(f"{name} is none of {algorithm}'s settings: give it as {written}")
    values = {
        name: [value_of(name, one.strip()) for one in value.split(",")]
        if isinstance(value, str)
        else [value]
        for name, value in stated.items()
    }
    return [dict(zip(values, one, strict=True)) for one in itertools.product(*values.values())]


def stated_runs(profile: str, single: dict[str, Any], seeds: list[int] | None) -> list[Any]:
    """The experiments that the options state, for each setting and seed. Says where the authors' code has no
    values of its own, and where a method that communicates once does nothing in further rounds.
    """
    from core.algorithms import find, switches
    from core.data import load
    from core.data.partition import natural
    from core.families.one_shot import OneShot
    from lab.profiles import apply

    stated = {name: value for name, value in single.items() if value is not None}
    algorithm = stated.get("algorithm")
    if not algorithm:
        raise InputError("say what to run: --algorithm and --dataset, or --cell, or --pending")
    method = find(algorithm)
    if not stated.get("dataset") and profile != "quick":
        raise InputError(
            "--dataset is missing: a name that `fedcon data` shows; with --profile quick "
            "it may be left out"
        )
    sweep = _settings(algorithm, stated.pop("set_", []))
    found = {
        "model_options": pairs(stated.pop("model_set", [])),
        "partition": _partition(stated.pop("partition", None), stated.pop("alpha", None)),
    }
    stated |= {name: value for name, value in found.items() if value}
    if found["partition"] == {"name": "natural"} and "dataset" in stated:
        # as many clients as there are institutions
        stated.setdefault("clients", len(natural(load(stated["dataset"]).train.centre)))
    if stated.get("variant") == "released" and not switches(algorithm):
        print(
            f"{algorithm} has no released values on record that differ: this runs the printed ones",
            file=sys.stderr,
        )
    runs = [
        apply(profile, stated | ({"settings": settings} if settings else {}) | {"seed": seed})
        for settings in sweep
        for seed in dict.fromkeys(seeds or [0])
    ]
    for run in runs:  # a value that is wrong is said before the first of them begins
        run.new_algorithm()
    if issubclass(method, OneShot) and (rounds := runs[0].rounds) > 1:
        print(
            f"{algorithm} communicates once: it rests after the first of {rounds} rounds; "
            "--rounds 1 is enough",
            file=sys.stderr,
        )
    return runs
