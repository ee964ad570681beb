"""Learning curves, from records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from core.errors import InputError, unknown
from lab.report import style
from lab.report.charts import line
from lab.report.figures import blank
from lab.report.verdict import MB
from lab.schema import SHARES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lab import Record

#: with more lines than so many their bands would hide each other
CROWDED = 8
AXES = {"round": "communication round", "megabytes": "MB sent, both directions, all clients"}


def _resolve(runs: Record | str | Iterable[Record | str]) -> list[Record]:
    """Records as they are, and the record behind each id."""
    items: list[Any] = [runs] if isinstance(runs, str) or hasattr(runs, "rounds") else list(runs)  # type: ignore[arg-type]
    known: Mapping[str, Record] = {}
    if any(isinstance(item, str) for item in items):
        from lab.record import RESULTS, records

        known = records(RESULTS)
    for item in items:
        if isinstance(item, str) and item not in known:
            raise unknown("record", item, known)
    if not items:
        raise InputError("there is nothing to draw: no run was given")
    return [known[item] if isinstance(item, str) else item for item in items]


def curve_frame(
    runs: Record | str | Iterable[Record | str],
    metric: str = "accuracy",
    by: str | Callable[[Record], str] = "algorithm",
) -> pd.DataFrame:
    """Every tested round of some runs, one row each: `label`, `seed`, `round`, `megabytes`,
    `value`.

    Args:
        runs: records, or ids of records below `book/results`, those of your own runs among them.
        metric: name of a metric of the rounds; fractions come back in percent.
        by: field of the experiment that names the series, or a function from record to name.

    `megabytes` is what was sent up and down until the end of that round, by all clients, in units
    of 2^20 bytes. Raises InputError for an unknown id, field or metric.
    """
    rows = []
    for record in _resolve(runs):
        label = by(record) if callable(by) else _series_name(record, by)
        sent, scale = 0.0, 100.0 if metric.startswith(SHARES) else 1.0
        for entry in record.rounds:
            sent += entry["up"] + entry["down"]
            if not entry["metrics"]:
                continue
            if metric not in entry["metrics"]:
                raise unknown("metric", metric, entry["metrics"])
            rows.append(
                {
                    "label": label,
                    "seed": record.experiment.seed,
                    "round": entry["round"],
                    "megabytes": sent / MB,
                    "value": scale * entry["metrics"][metric],
                }
            )
    return pd.DataFrame(rows, columns=["label", "seed", "round", "megabytes", "value"])


#: algorithms whose class cannot be named as they are written
WRITTEN = {"gddfl": "GDD-FL", "flmrcm": "FL-MRCM", "random_selection": "random selection"}


def method_name(algorithm: str) -> str:
    """An algorithm's name as it is written in prose: "FedAvgM" for `fedavgm`; unknown names stay as
    they are.
    """
    from core import algorithms

    if algorithm in WRITTEN or algorithm not in algorithms.names():
        return WRITTEN.get(algorithm, algorithm)
    return algorithms.find(algorithm).__name__


def _series_name(record: Record, field: str) -> str:
    fields = record.experiment.to_dict()
    if field not in fields:
        raise unknown("experiment field", field, fields)
    return method_name(fields[field]) if field == "algorithm" else str(fields[field])


def curves(
    runs: Record | str | Iterable[Record | str],
    metric: str = "accuracy",
    x: str = "round",
    by: str | Callable[[Record], str] = "algorithm",
    title: str = "",
) -> Figure:
    """Learning curves: the mean over seeds as a line, one standard deviation around it as a band where
    lines are few enough to tell bands apart.

    Args:
        runs, metric, by: as in `curve_frame`.
        x: "round", or "megabytes" sent so far. A series that sends nothing is then a level line at
            its last value, and one that sends only in its first round is a point.

    Raises InputError for an unknown id, field, metric or axis.
    """
    if x not in AXES:
        raise unknown("axis", x, AXES)
    frame = curve_frame(runs, metric, by)
    if frame.empty:
        raise InputError("there is nothing to draw: no round of these runs was tested")
    # seeds may differ a little in what they send; a band needs one position per round
    frame["megabytes"] = frame.groupby(["label", "round"])["megabytes"].transform("mean")
    if x == "megabytes":
        # where later rounds send nothing, only the last of them stands at that position
        frame = frame.drop_duplicates(["label", "seed", x], keep="last")
    from matplotlib import rc_context
    from matplotlib.ticker import MaxNLocator

    names = list(dict.fromkeys(frame["label"]))
    reach = frame.groupby("label")["megabytes"].max()
    silent = [name for name in names if x == "megabytes" and reach[name] == 0]
    looks = style.series(names)
    with rc_context(style.rc()):
        figure = blank(7.2, 4.0)
        axes = figure.subplots()
        _draw(axes, frame, x, names, silent, looks)
        axes.set(xlabel=AXES[x], ylabel=_ylabel(metric))
        style.titled(axes, title)
        if frame.groupby("label")["seed"].nunique().gt(1).any():
            band = "Band: ± one standard deviation over seeds."
            style.note(figure, band if len(names) <= CROWDED else "Lines: means over seeds.")
        if x == "round":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        ends = [f"{name} (sends nothing)" if name in silent else str(name) for name in names]
        values = [_last(frame, name).mean() for name in names]
        style.label_ends(axes, list(zip(ends, looks[0], looks[1], values, strict=True)))
    figure.set_label(_describe(frame, names, metric, x, title))
    return figure


def _draw(
    axes: Any, frame: pd.DataFrame, x: str, names: list[str], silent: list[str], looks: Any
) -> None:
    """The curves with their bands, and a level for a series that sends nothing."""
    for name, colour, marker, dash in zip(names, *looks, strict=True):
        if name in silent:
            axes.axhline(_last(frame, name).mean(), color=colour, linewidth=1.2, linestyle=":")
        else:
            of = frame[frame["label"] == name].groupby(x)["value"].agg(["mean", "std"])
            if len(names) > CROWDED:
                of["std"] = math.nan
            line(axes, of, colour, marker, dash)


def _ylabel(metric: str) -> str:
    name = style.measure(metric)
    return f"{name} (%)" if metric.startswith(SHARES) else name


def _last(frame: pd.DataFrame, name: str) -> pd.Series:
    """Values of the last tested round, one per seed."""
    rows = frame[frame["label"] == name]
    return rows[rows["round"] == rows["round"].max()]["value"]


def _describe(frame: pd.DataFrame, names: Sequence[str], metric: str, x: str, title: str) -> str:
    """The figure in words: what is drawn, and where each series ends."""
    ends = "; ".join(f"{name} ends at {_last(frame, name).mean():.1f}" for name in names)
    unit = " in percent" if metric.startswith(SHARES) else ""
    means = ", mean over seeds" if frame.groupby("label")["seed"].nunique().max() > 1 else ""
    return f"{style.topic(title)}{metric.replace('_', ' ')}{unit} against {AXES[x]}{means}: {ends}."
