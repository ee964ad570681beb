"""Runs of one's own, such as those of a sweep: a row for each setting, over its seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pandas as pd

from core import algorithms
from core.errors import InputError, listed, unknown
from core.metrics import headline
from lab import Experiment, Record
from lab.profiles import apply
from lab.record import numerics
from lab.report.intervals import interval
from lab.report.verdict import MB, differences

#: columns of every such table; all else is there where it differs between runs
ALWAYS = ("algorithm", "dataset", "split", "profile")
#: what says which images are whose, and which are tested, besides: runs that differ in it are no pairs
DATA = ("clients", "data", "other inputs", "train_fraction", "evaluate_on")
#: columns of what came out
MEASURED = ("seeds", "metric", "mean", "std", "MB", "core seconds")
#: options that `split_in_words` names already
IN_WORDS = {("split", name) for name in ("name", "alpha", "classes_per_client")}


def summary_frame(measured: Sequence[Record], against: str | None = None) -> pd.DataFrame:
    """Complete records, a row for all seeds of a setting: `ALWAYS`, what else differs, `seeds`, the
    `metric` that tells a run in one number, its `mean` and `std` over seeds in percent, and, means of a
    run, `MB` sent in both directions (2^20 bytes) and `core seconds`.

    Fields of an experiment and settings go by their names, options by `model.NAME`, `split.NAME` and
    `attack.NAME`, the arrays that a data set stood for by `data`. A setting or the code differs where two
    runs of one algorithm have other values, anything else where any two have. What follows from variant,
    profile and model in all runs is left out. No mean is over several versions of the code, precisions or
    devices.

    Args:
        against: a setting, "fedavg" or "lr=0.1" or several with commas, with which the others of the
            same data, clients, split and profile are compared, seed by seed: `lead` is their mean
            paired difference in percentage points, `low` and `high` are the ends of its 90% interval,
            `pairs` counts the seeds.

    Raises InputError where `against` names no row, or several of one data set, split and profile.
    """
    # as objects: where an algorithm lacks a setting, pandas would make fractions of whole numbers
    rows = pd.DataFrame([_row(record) for record in measured], dtype=object)
    if rows.empty:
        return pd.DataFrame(columns=[*ALWAYS, *MEASURED])
    numbers = ["value", "MB", "core seconds"]
    rows[numbers] = rows[numbers].astype(float)
    own = {"code"}.union(*(record.settings for record in measured))
    chosen = set[str]().union(*(choices_of(run.experiment, run.settings) for run in measured))
    hidden = {"seed", "metric", *numbers, *ALWAYS} | chosen.difference(*map(_stated, measured))

    def differs(name: str) -> bool:
        groups = rows.groupby("algorithm")[name] if name in own else rows[[name]]
        return bool((groups.nunique(dropna=False) > 1).any())

    shown = [*ALWAYS, *(name for name in map(str, rows) if name not in hidden and differs(name))]
    of = rows.drop_duplicates([*shown, "seed"]).groupby(shown, dropna=False)
    summary = of.agg(
        seeds=("seed", "size"),
        metric=("metric", "first"),
        mean=("value", "mean"),
        std=("value", "std"),
    )
    summary = summary.join(of[["MB", "core seconds"]].mean()).reset_index()
    if against is None:
        return summary
    by_seed = [dict(zip(runs.seed, runs.value, strict=True)) for _, runs in of]
    return summary.join(_leads(summary, by_seed, against))


def name_of(measured: Sequence[Record]) -> Callable[[Record], str]:
    """A function that names a run among others by what differs, such as "lr 0.1"; else by its algorithm."""
    frame = summary_frame(measured)
    differ = [
        name for name in map(str, frame) if name not in MEASURED and frame[name].nunique() > 1
    ]

    def name(record: Record) -> str:
        row = {**_row(record), "algorithm": record.experiment.algorithm}
        said = [
            in_text(row[key]) if key == "algorithm" else f"{key} {in_text(row[key])}"
            for key in differ
        ]
        return ", ".join(said) or row["algorithm"]

    return name


def _leads(summary: pd.DataFrame, by_seed: list[dict[int, float]], against: str) -> pd.DataFrame:
    """Columns of `summary_frame` that compare rows, with their values by seed, to the named ones."""
    names = [str(name) for name in summary if name not in MEASURED]
    text = summary[names].map(in_text)
    fits = pd.Series(True, index=summary.index)
    for part in against.split(","):
        name, value = part.split("=", 1) if "=" in part else ("algorithm", part)
        if name not in names:
            raise unknown("setting in which these runs differ", name, names)
        fits &= text[name] == value
    data = [name for name in names if name in (*ALWAYS[1:], *DATA) or name.startswith("split.")]
    places = text[data].agg(tuple, axis=1)
    if not fits.any() or places[fits].duplicated().any():
        differ = listed(
            [f"{name} ({', '.join(of.unique())})" for name, of in text.items() if of.nunique() > 1]
        )
        raise InputError(
            f"--against {against} fits {fits.sum()} rows and must name one; they differ in {differ}"
        )
    baselines = {place: at for at, place in enumerate(places) if fits[at]}
    rows = []
    for at, place in enumerate(places):
        baseline = baselines.get(place, at)
        gaps = differences(by_seed[at], by_seed[baseline]) if baseline != at else ()
        rows.append((*(interval(gaps) if gaps else (math.nan,) * 3), len(gaps)))
    return pd.DataFrame(rows, columns=["lead", "low", "high", "pairs"])


def in_text(value: Any) -> str:
    """A value as a terminal shows it."""
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def in_columns(frame: pd.DataFrame) -> str:
    """A `summary_frame` as a terminal shows it."""
    forms = {"mean": ".2f", "std": ".2f", "MB": ".2f", "core seconds": ".1f"}
    forms |= dict.fromkeys(("lead", "low", "high"), "+.2f")

    def written(name: str, value: Any) -> str:
        if isinstance(value, float):
            return format(value, forms.get(name, ".12g")) if math.isfinite(value) else "-"
        return str(value)

    shown = {name: [written(str(name), value) for value in of] for name, of in frame.items()}
    return pd.DataFrame(shown).to_string(index=False)


def _row(record: Record) -> dict[str, Any]:
    """Parts of a row of `summary_frame`."""
    metric = headline(record.metrics) or next(iter(record.metrics))
    return {
        "split": split_in_words(record.experiment.partition),
        **choices_of(record.experiment, record.settings),
        "data": record.fingerprint[:12],
        "other inputs": ", ".join(digest[:12] for digest in record.inputs.values()),
        "code": record.code,
        **numerics(record.environment),
        "metric": metric,
        "value": 100 * record.metrics[metric],
        "MB": record.sent() / MB,
        "core seconds": record.core_seconds,
    }


def choices_of(experiment: Experiment, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Fields, options and settings of a run by their names in a `summary_frame`; lists, mappings and None as
    texts, which can be compared and told from what an algorithm does not have.
    """
    fields = experiment.to_dict()
    del fields["settings"]
    options = {
        f"{of}.{name}": value
        for of, field in (("model", "model_options"), ("split", "partition"), ("attack", "attack"))
        for name, value in fields.pop(field).items()
        if (of, name) not in IN_WORDS
    }
    return {
        name: str(value) if isinstance(value, (dict, list, tuple, type(None))) else value
        for name, value in {**fields, **options, **settings}.items()
    }


def _stated(record: Record) -> set[str]:
    """Settings in which a run differs from its defaults, with the names it was found by."""
    run = record.experiment
    given = ("algorithm", "variant", "dataset", "model")
    own = choices_of(run, record.settings)
    try:
        bare = apply(run.profile, {name: getattr(run, name) for name in given})
        used = algorithms.create(run.algorithm, bare.settings, run.variant).settings  # type: ignore[attr-defined]
    except InputError:  # an algorithm that is not here (any more)
        return set(own)
    plain = choices_of(bare, attrs.asdict(used))
    return {name for name, value in own.items() if plain.get(name) != value}.union(given)


def split_in_words(partition: Mapping[str, Any]) -> str:
    """A partition in a word: its Dirichlet alpha, its file, or its name."""
    if "alpha" in partition:
        return f"alpha {partition['alpha']:g}"
    if "classes_per_client" in partition:
        return f"{partition['name']}, {partition['classes_per_client']} classes"
    return Path(partition["file"]).stem if "file" in partition else str(partition["name"])
