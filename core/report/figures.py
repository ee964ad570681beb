"""Figures of the book: learning curves, partitions and condensed images.

Each function returns a `matplotlib.figure.Figure` whose label is a description in words, computed
from what is drawn; `show` puts it into a notebook as its alternative text. Nothing here touches
pyplot's global state.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from core.errors import InputError, unknown
from core.report import style
from core.report.verdict import MB

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from core.experiments import Record

AXES = {"round": "communication round", "megabytes": "MB sent, both directions, all clients"}
#: metrics that are not fractions and are drawn as they are
_AS_IS = ("loss", "cross_entropy")


def _figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches. To be called and filled within
    `rc_context(style.rc())`.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(
            "figures need the package matplotlib: pip install matplotlib seaborn"
        ) from None
    return Figure(figsize=(width, height))


def _seaborn() -> Any:
    try:
        import seaborn
    except ImportError:
        raise InputError(
            "learning curves need the package seaborn: pip install matplotlib seaborn"
        ) from None
    return seaborn


def _resolve(runs: Record | str | Iterable[Record | str]) -> list[Record]:
    """Records as they are, and the record behind each id."""
    items: list[Any] = [runs] if isinstance(runs, str) or hasattr(runs, "rounds") else list(runs)  # type: ignore[arg-type]
    known: dict[str, Record] = {}
    if any(isinstance(item, str) for item in items):
        from core.experiments import records

        known = records()
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
        runs: records, or ids of records of the book.
        metric: name of a metric of the rounds; fractions come back in percent.
        by: field of the experiment that names the series, or a function from record to name.

    `megabytes` is what was sent up and down until the end of that round, by all clients, in units
    of 2^20 bytes. Raises InputError for an unknown id, field or metric.
    """
    rows = []
    for record in _resolve(runs):
        label = by(record) if callable(by) else _series_name(record, by)
        sent, scale = 0.0, 1.0 if metric in _AS_IS else 100.0
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


def method_name(algorithm: str) -> str:
    """An algorithm's name as it is written in prose: "FedAvgM" for `fedavgm`; unknown names stay as
    they are.
    """
    from core import algorithms

    return algorithms.find(algorithm).__name__ if algorithm in algorithms.names() else algorithm


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
    """Learning curves: the mean over seeds as a line, one standard deviation around it as a band.

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
    if (
        x == "megabytes"
    ):  # where later rounds send nothing, only the last of them stands at that position
        frame = frame.drop_duplicates(["label", "seed", x], keep="last")
    seaborn = _seaborn()
    from matplotlib import rc_context
    from matplotlib.ticker import MaxNLocator

    names = list(dict.fromkeys(frame["label"]))
    colours, markers, dashes = style.series(len(names))
    silent = [
        name
        for name in names
        if x == "megabytes" and frame.loc[frame["label"] == name, x].max() == 0
    ]
    with rc_context(style.rc()):
        figure = _figure(7.2, 4.0)
        axes = figure.subplots()
        seaborn.lineplot(
            frame[~frame["label"].isin(silent)],
            x=x,
            y="value",
            hue="label",
            style="label",
            ax=axes,
            hue_order=names,
            style_order=names,
            palette=colours,
            markers=markers,
            dashes=dashes,
            errorbar="sd",
            err_kws={"alpha": 0.2, "linewidth": 0},
            markeredgewidth=0,
            legend=False,
        )
        for name in silent:
            axes.axhline(
                _last(frame, name).mean(),
                color=colours[names.index(name)],
                linewidth=1.2,
                linestyle=":",
            )
        _legend(axes, names, silent, colours, markers, dashes)
        axes.set(xlabel=AXES[x], ylabel=_ylabel(metric), title=title)
        if x == "round":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.set_label(_describe(frame, names, metric, x, title))
    return figure


def _legend(
    axes: Any,
    names: list[str],
    silent: list[str],
    colours: list[str],
    markers: list[str],
    dashes: list[Any],
) -> None:
    """A legend beside the curves, the same whether a series has a curve or only a level."""
    from matplotlib.lines import Line2D

    handles = []
    for name, colour, marker, dash in zip(names, colours, markers, dashes, strict=True):
        line = ":" if name in silent else ((0, dash) if dash else "-")
        text = f"{name} (sends nothing)" if name in silent else name
        mark = "" if name in silent else marker
        handles.append(Line2D([], [], color=colour, marker=mark, linestyle=line, label=text))
    axes.legend(
        handles=handles, loc="center left", bbox_to_anchor=(1.01, 0.5), title=None, handlelength=3
    )


def _ylabel(metric: str) -> str:
    name = metric.replace("_", " ")
    return name if metric in _AS_IS else f"{name} (%)"


def _last(frame: pd.DataFrame, name: str) -> pd.Series:
    """Values of the last tested round, one per seed."""
    rows = frame[frame["label"] == name]
    return rows[rows["round"] == rows["round"].max()]["value"]


def _describe(frame: pd.DataFrame, names: Sequence[str], metric: str, x: str, title: str) -> str:
    """The figure in words: what is drawn, and where each series ends."""
    ends = "; ".join(f"{name} ends at {_last(frame, name).mean():.1f}" for name in names)
    unit = "" if metric in _AS_IS else " in percent"
    topic = f"{title}. " if title else ""
    return f"{topic}{metric.replace('_', ' ')}{unit} against {AXES[x]}, mean over seeds: {ends}."


def partition_plot(
    labels: Any, parts: Sequence[Any], classes: Sequence[str] | None = None, title: str = ""
) -> Figure:
    """Who holds what: clients down, classes across, the area of a dot is the number of samples.

    Args:
        labels: (N,) class of every training sample.
        parts: indices into `labels`, one array per client.
        classes: names of the classes; by default their numbers.
    """
    targets = np.asarray(labels).astype(np.int64)
    names = [
        str(name)
        for name in (range(int(targets.max(initial=0)) + 1) if classes is None else classes)
    ]
    counts = np.stack(
        [
            np.bincount(targets[np.asarray(part, dtype=np.int64)], minlength=len(names))
            for part in parts
        ]
    )
    from matplotlib import rc_context

    with rc_context(style.rc()):
        figure = _figure(min(2.2 + 0.55 * len(names), 12), min(1.3 + 0.34 * len(parts), 14))
        axes = figure.subplots()
        client, cls = np.nonzero(counts)
        # equal to 300 square points for the largest cell: neighbouring dots then just touch
        areas = 300 * counts[client, cls] / max(counts.max(), 1)
        axes.scatter(cls, client, s=areas, color=style.PALETTE[0], linewidth=0)
        axes.set_xticks(range(len(names)), names, rotation=0 if max(map(len, names)) < 4 else 90)
        sizes = counts.sum(axis=1)
        axes.set_yticks(
            range(len(parts)), [f"client {k} ({size:,})" for k, size in enumerate(sizes)]
        )
        axes.set(
            xlabel="class",
            title=title,
            xlim=(-0.6, len(names) - 0.4),
            ylim=(len(parts) - 0.4, -0.6),
        )
    held = (counts > 0).sum(axis=1)
    figure.set_label(
        f"{title + '. ' if title else ''}Samples of each class on each of {len(parts)} clients. A client "
        f"has {sizes.min():,} to {sizes.max():,} samples; of the {len(names)} classes it has at least "
        f"{held.min()} and at most {held.max()}."
    )
    return figure


def _pixels(images: Any) -> np.ndarray:
    """(N, H, W, 3) floats in [0, 1]. Floats beyond [0, 1] are stretched from the least to the
    greatest value.
    """
    array = np.asarray(images.detach().cpu() if hasattr(images, "detach") else images)
    if array.ndim != 4 or array.shape[1] not in (1, 3) or not len(array):
        raise InputError(
            f"images must have shape (N, 1 or 3, H, W) with N at least 1, not {array.shape}"
        )
    array = array / 255.0 if array.dtype == np.uint8 else array.astype(np.float64)
    low, high = float(array.min()), float(array.max())
    if low < 0 or high > 1:
        array = (array - low) / max(high - low, 1e-12)
    return np.repeat(array, 3 // array.shape[1], axis=1).transpose(0, 2, 3, 1)


def condensed_images(
    images: Any,
    labels: Any,
    classes: Sequence[str] | None = None,
    columns: int = 10,
    title: str = "",
) -> Figure:
    """A grid of images, one row per class, at most `columns` of a class.

    Args:
        images: (N, 1 or 3, H, W) uint8, or floats in [0, 1]; other floats are stretched to that
            range.
        labels: (N,) classes; a class without images has no row.
        classes: names of the classes; by default their numbers.
    """
    pixels = _pixels(images)
    targets = np.asarray(labels.cpu() if hasattr(labels, "cpu") else labels).astype(np.int64)
    if len(targets) != len(pixels):
        raise InputError(f"{len(pixels)} images need as many labels, not {len(targets)}")
    held = np.unique(targets)
    rows = [pixels[targets == cls][:columns] for cls in held]
    height, width, gap = pixels.shape[1], pixels.shape[2], 2
    canvas = np.zeros(
        (len(rows) * (height + gap) - gap, max(map(len, rows)) * (width + gap) - gap, 4)
    )
    for i, row in enumerate(rows):
        for j, image in enumerate(row):
            y, x = i * (height + gap), j * (width + gap)
            canvas[y : y + height, x : x + width] = np.concatenate(
                [image, np.ones((height, width, 1))], axis=-1
            )
    from matplotlib import rc_context

    with rc_context(style.rc() | {"axes.grid": False}):
        across = canvas.shape[1] / (width + gap) * 0.62
        figure = _figure(1.6 + across, 0.4 + canvas.shape[0] / (height + gap) * 0.62)
        axes = figure.subplots()
        axes.imshow(canvas, interpolation="nearest")
        axes.set_yticks(
            [i * (height + gap) + height / 2 for i in range(len(rows))],
            [str(cls if classes is None else classes[cls]) for cls in held],
        )
        axes.set(xticks=[], title=title)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    figure.set_label(
        f"{title + '. ' if title else ''}{sum(map(len, rows))} images of {height} by {width} pixels, "
        f"one row for each of {len(rows)} classes."
    )
    return figure


def _svg(figure: Figure) -> str:
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with rc_context(style.rc()):
        figure.savefig(
            buffer,
            format="svg",
            bbox_inches="tight",
            pad_inches=0.05,
            metadata={"Date": None, "Creator": None},
        )
    return buffer.getvalue().decode()


def to_html(figure: Figure, alt: str | None = None) -> str:
    """A figure as an HTML fragment: two drawings, of which a page shows the one that fits its
    background.

    Args:
        alt: what a reader who cannot see the figure should know; by default the figure's own
            description.

    Raises InputError when there is no description.
    """
    text = " ".join((alt or str(figure.get_label())).split())
    if not text:
        raise InputError("a figure needs a description in words: show(figure, alt=...)")
    light = _svg(figure)
    dark = light
    for on_white, on_black in style.DARK.items():
        dark = dark.replace(on_white, on_black)
    tags = "".join(
        f'<img class="only-{page}" alt="{escape(text, quote=True)}" '
        f'src="data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}">'
        for page, svg in (("light", light), ("dark", dark))
    )
    return f'<style>{style.FIGURE_CSS}</style><figure class="core-figure">{tags}</figure>'


def show(figure: Figure, alt: str | None = None) -> None:
    """Put a figure and its description into the output of a notebook cell. Arguments and errors as
    in `to_html`.
    """
    from IPython.display import display

    html = to_html(figure, alt)
    display({"text/html": html, "text/plain": alt or str(figure.get_label())}, raw=True)
