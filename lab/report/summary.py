"""Runs of one's own, such as those of a sweep: a row for each setting, over its seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pandas as pd

from core import algorithms
from core.errors import InputError, listed, unknown
from core.metrics import headline
from lab import Experiment, Record
from lab.profiles import apply
from lab.record import reckoning
from lab.report.intervals import interval
from lab.report.verdict import MB, differences

#: what tells runs apart in every such table; all else stands there where it differs between runs
ALWAYS = ("algorithm", "dataset", "split", "profile")
#: what says which images are whose, and which are tested, besides: runs that differ in it are no pairs
DATA = ("clients", "data", "other inputs", "train_fraction", "evaluate_on")
#: columns of what came out
MEASURED = ("seeds", "metric", "mean", "std", "MB", "core seconds")
#: options that `split_in_words` tells already
IN_WORDS = {("split", name) for name in ("name", "alpha", "classes_per_client")}


def summary_frame(measured: Sequence[Record], against: str | None = None) -> pd.DataFrame:
    """Complete records, a row for all seeds of a setting: `algorithm`, `dataset`, `split`,
    `profile`, what else differs between them, `seeds`, the `metric` that tells a run in one number,
    its `mean` and `std` over seeds in percent (no number with one seed), and `MB` sent in both
    directions (2^20 bytes) and `core seconds`, means of a run.

    Fields of an experiment and settings go by their names, options of the model, the split and the
    attack by `model.NAME`, `split.NAME` and `attack.NAME`, the arrays that a data set stood for by
    `data`. The `code` that ran and how it reckoned (precision, device, kernels) are told like fields,
    so that no mean is over several of them. A setting differs where two runs of one algorithm have
    different values of it, whether they were stated or are defaults, and so with the code; anything
    else where any two runs do. What follows from variant, profile and model in all runs is left out.

    Args:
        against: a setting, "fedavg" or "lr=0.1" or several with commas, with which the others of the
            same data, clients, split and profile are compared, seed by seed: `lead` is their mean paired
            difference in percentage points, `low` and `high` are the ends of its 90% interval, `pairs`
            counts the seeds that both have.

    Raises InputError where `against` names no row, or several of one data set, split and profile.
    """
    # as objects: where an algorithm lacks a setting, pandas would make fractions of whole numbers
    rows = pd.DataFrame([dict(_told(record)) for record in measured], dtype=object)
    if rows.empty:
        return pd.DataFrame(columns=[*ALWAYS, *MEASURED])
    numbers = ["value", "MB", "core seconds"]
    rows[numbers] = rows[numbers].astype(float)
    apart = {"seed", "metric", "value", "MB", "core seconds", *ALWAYS}
    own = {"code"}.union(*(record.settings for record in measured))
    choices = set[str]().union(*(_choices(one.experiment, one.settings) for one in measured))
    follow = choices.difference(*map(_stated, measured))
    differ = (
        n
        for n in rows
        if n not in apart | follow and _differs(rows, n, "algorithm" if n in own else "")
    )
    shown = [*ALWAYS, *differ]
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


def _leads(summary: pd.DataFrame, by_seed: list[dict[int, float]], against: str) -> pd.DataFrame:
    """What `summary_frame` says of rows, whose values are given by seed, beside the named ones."""
    names = [str(name) for name in summary]
    same = [name for name in names if name in (*ALWAYS[1:], *DATA) or name.startswith("split.")]
    places = [tuple(row) for row in summary[same].map(_text).itertuples(index=False)]
    rivals: dict[tuple[str, ...], int] = {}
    for at in summary.index[_named(summary, against)]:
        if rivals.setdefault(places[at], at) != at:
            both = summary.loc[[rivals[places[at]], at]]
            told = [name for name in names if name not in MEASURED]
            tell = [name for name in told if both[name].map(_text).nunique() > 1]
            would = listed(_values(both, tell))
            raise InputError(f"--against {against} fits several rows; say which: {would}")
    rows = []
    for at, place in enumerate(places):
        rival = rivals.get(place, at)
        gaps = differences(by_seed[at], by_seed[rival]) if rival != at else ()
        rows.append((*(interval(gaps) if gaps else (math.nan,) * 3), len(gaps)))
    return pd.DataFrame(rows, columns=["lead", "low", "high", "pairs"])


def _named(summary: pd.DataFrame, against: str) -> pd.Series:
    """Which rows a text such as "fedavg" or "fedavg,lr=0.1" names; raises InputError for none."""
    fits = pd.Series(True, index=summary.index)
    parts = against.split(",")
    for part in parts:
        name, equals, value = part.partition("=")
        name, value = (name, value) if equals else ("algorithm", name)
        if name not in summary or name in MEASURED:
            differ = (str(one) for one in summary if one not in MEASURED)
            raise unknown("setting in which these runs differ", name, differ)
        fits &= summary[name].map(lambda one: _text(one) == value)  # noqa: B023
    if not fits.any():
        names = [part.partition("=")[0] if "=" in part else "algorithm" for part in parts]
        would = listed(_values(summary, list(dict.fromkeys(names))))
        raise InputError(f"--against {against} fits none of these runs; these fit: {would}")
    return fits


def _values(summary: pd.DataFrame, names: list[str]) -> list[str]:
    """What rows have in some columns, each combination once, as `--against` takes it."""
    rows = summary[names].drop_duplicates().itertuples(index=False)
    return [
        ",".join(f"{name}={_text(value)}" for name, value in zip(names, row, strict=True))
        for row in rows
    ]


def _text(value: Any) -> str:
    """A value as a terminal shows it."""
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def in_columns(frame: pd.DataFrame) -> str:
    """A `summary_frame` as a terminal shows it."""
    forms: dict[Any, str] = {
        **dict.fromkeys(("mean", "std"), "{:.2f}"),
        **dict.fromkeys(("lead", "low", "high"), "{:+.2f}"),
        "MB": "{:.2f}",
        "core seconds": "{:.1f}",
    }

    def written(name: Any, value: Any) -> str:
        if isinstance(value, float):
            return "-" if not math.isfinite(value) else forms.get(name, "{:.12g}").format(value)
        return str(value)

    shown = {name: [written(name, value) for value in of] for name, of in frame.items()}
    return pd.DataFrame(shown).to_string(index=False)


def _told(record: Record) -> Iterator[tuple[str, Any]]:
    """What a row of `summary_frame` is made of; lists, mappings and None as texts, which can be
    compared and told from what an algorithm does not have.
    """
    metric = headline(record.metrics) or next(iter(record.metrics))
    yield "split", split_in_words(record.experiment.partition)
    yield from _choices(record.experiment, record.settings).items()
    yield "data", record.fingerprint[:12]
    yield "other inputs", ", ".join(digest[:12] for digest in record.inputs.values())
    yield "code", record.code
    yield from reckoning(record.environment).items()
    yield "metric", metric
    yield "value", 100 * record.metrics[metric]
    yield "MB", record.sent() / MB
    yield "core seconds", record.core_seconds


def _choices(experiment: Experiment, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Fields, options and settings of a run by their names in a `summary_frame`."""
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
    """In what a run is other than its algorithm, variant, profile and model give it to whoever states no
    more, and those names themselves.
    """
    run = record.experiment
    given = ("algorithm", "variant", "dataset", "model")
    mine = _choices(run, record.settings)
    try:
        bare = apply(run.profile, {name: getattr(run, name) for name in given})
        used = algorithms.create(run.algorithm, bare.settings, run.variant).settings  # type: ignore[attr-defined]
    except InputError:  # an algorithm that is not here (any more)
        return set(mine)
    plain = _choices(bare, attrs.asdict(used))
    return {name for name, value in mine.items() if plain.get(name) != value}.union(given)


def _differs(rows: pd.DataFrame, name: Any, within: str = "") -> bool:
    """Whether two runs differ in this; with `within` two that are alike in that."""
    groups = rows.groupby(within)[name] if within else rows[[name]]
    return bool((groups.nunique(dropna=False) > 1).any())


def split_in_words(partition: Mapping[str, Any]) -> str:
    """A partition in a word: its concentration, its file, or its name."""
    if "alpha" in partition:
        return f"alpha {partition['alpha']:g}"
    if "classes_per_client" in partition:
        return f"{partition['name']}, {partition['classes_per_client']} classes"
    return Path(partition["file"]).stem if "file" in partition else str(partition["name"])
