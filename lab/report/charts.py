"""Charts of numbers: lines, clouds of points, tables as colours, and who holds what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from core.errors import InputError
from lab.report import style
from lab.report.figures import blank

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: above so many classes a heat map has no room for numbers
_WRITTEN = 12


def lines(
    frame: pd.DataFrame,
    x: str,
    y: str,
    by: str = "label",
    xlabel: str = "",
    ylabel: str = "",
    log: str = "",
    title: str = "",
) -> Any:
    """Lines of `y` over `x`, one for each value of `by`: the mean of equal `x`, one standard
    deviation as a band.

    Args:
        frame: long form; `x`, `y` and `by` are columns of it.
        log: axes with a logarithmic scale: "", "x", "y" or "xy".

    Returns a `matplotlib.figure.Figure` whose label describes it. Raises InputError for an empty
    frame or a column that is missing.
    """
    check_columns(frame, x, y, by)
    from matplotlib import rc_context
    from matplotlib.ticker import MaxNLocator

    names = list(dict.fromkeys(frame[by]))
    colours, markers, dashes = style.series(names)
    ends, last = [], []
    with rc_context(style.rc()):
        figure = blank(7.2, 3.6)
        axes = figure.subplots()
        for name, colour, marker, dash in zip(names, colours, markers, dashes, strict=True):
            of = frame[frame[by] == name].groupby(x)[y].agg(["mean", "std"])
            line(axes, of, colour, marker, dash, label=str(name))
            last.append((str(name), colour, marker, of["mean"].iat[-1]))
            ends.append(f"{name} goes from {of['mean'].iat[0]:.3g} to {of['mean'].iat[-1]:.3g}")
        _dress(axes, frame[x].rename(xlabel or x), frame[y].rename(ylabel or y), log, title)
        if axes.collections:
            style.note(figure, "Band: ± one standard deviation.")
        if "x" not in log and pd.api.types.is_integer_dtype(frame[x]):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(names) > 1:
            style.label_ends(axes, last)
    figure.set_label(f"{style.topic(title)}{ylabel or y} against {xlabel or x}: {'; '.join(ends)}.")
    return figure


def _dress(axes: Any, across: pd.Series, up: pd.Series, log: str, title: str) -> None:
    """The names of both axes, their scales, and the title."""
    axes.set(xlabel=across.name, ylabel=up.name)
    for axis in log:
        style.log_axis(axes, axis, across if axis == "x" else up)
    style.titled(axes, title)


def line(axes: Any, of: pd.DataFrame, colour: Any, marker: str, dash: Any, **how: Any) -> None:
    """The means of a line, and a band of one deviation where there are some; `of` has the columns
    `mean` and `std` over the places on the axis. Many places have no marks.
    """
    how |= {"marker": marker if len(of) <= 20 else "", "linestyle": (0, dash) if dash else "-"}
    axes.plot(of.index, of["mean"], color=colour, **how)
    if of["std"].notna().any():
        spread = of["std"].fillna(0)
        low, high = of["mean"] - spread, of["mean"] + spread
        axes.fill_between(of.index, low, high, color=colour, alpha=0.2, linewidth=0)


def scatter(
    frame: pd.DataFrame,
    x: str,
    y: str,
    by: str = "label",
    xlabel: str = "",
    ylabel: str = "",
    log: str = "",
    title: str = "",
) -> Any:
    """A cloud of points for each value of `by`, each in a colour and with a mark of its own.

    Args:
        frame: long form, a row for each point; `x`, `y` and `by` are columns of it.
        log: axes with a logarithmic scale: "", "x", "y" or "xy".

    Returns a `matplotlib.figure.Figure` whose label says where each cloud lies and how wide it is.
    Raises InputError for an empty frame or a column that is missing.
    """
    check_columns(frame, x, y, by)
    from matplotlib import rc_context

    names = list(dict.fromkeys(frame[by]))
    colours, markers, _ = style.series(names)
    places = []
    with rc_context(style.rc()):
        figure = blank(7.2, 3.8)
        axes = figure.subplots()
        for name, colour, marker in zip(names, colours, markers, strict=True):
            of = frame[frame[by] == name]
            dots = axes.scatter(of[x], of[y], 26, colour, marker=marker, alpha=0.75, linewidth=0)
            dots.set_label(str(name))
            across, up = (f"{of[one].mean():.3g} ± {of[one].std(ddof=0):.2g}" for one in (x, y))
            places.append(f"{name} lies at {across} across and {up} up")
        _dress(axes, frame[x].rename(xlabel or x), frame[y].rename(ylabel or y), log, title)
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), handletextpad=0.3)
    figure.set_label(
        f"{style.topic(title)}Points of {ylabel or y} against {xlabel or x}, mean ± standard deviation of "
        f"each cloud: {'; '.join(places)}."
    )
    return figure


def bars(values: Mapping[str, tuple[float, float]], xlabel: str, title: str = "") -> Any:
    """A bar for each name, the first above, with its number beside it; values are means and
    standard deviations, nan for one run, whose bar is pale. Names that begin alike, up to a comma,
    share a colour; those that end on "print" are hatched; where no two begin alike there is one
    colour.

    Returns a `matplotlib.figure.Figure` whose label gives the numbers. Raises InputError when there
    is nothing to draw, and for a mean that is no number.
    """
    if not values:
        raise InputError("there is nothing to draw: no value was given")
    from matplotlib import rc_context

    means, spreads = ([pair[k] for pair in values.values()] for k in (0, 1))
    if missing := [name for name, mean in zip(values, means, strict=True) if np.isnan(mean)]:
        raise InputError(f"there is no mean to draw for {missing[0]}")
    single = [bool(np.isnan(spread)) for spread in spreads]
    with rc_context(style.rc()):
        figure = blank(7.2, 0.9 + 0.42 * len(values))
        axes = figure.subplots()
        rows = axes.barh(
            list(values),
            means,
            xerr=np.nan_to_num(spreads),
            color=_colours(list(values), single),
            hatch=["///" if name.endswith("print") else "" for name in values],
            edgecolor="white",
            ecolor=style.INK,
        )
        texts = [f"{mean:.1f}" for mean in means]
        axes.bar_label(rows, texts, padding=5)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        ends = np.nan_to_num(spreads)
        low, high = min(0, *np.subtract(means, ends)), max(0, *np.add(means, ends))
        axes.set(xlabel=xlabel, title=title, xlim=(1.12 * low, 1.12 * high if high > low else 1))
        if any(single):
            style.note(figure, "Pale: one run.")
    said = "; ".join(
        f"{name} {text}" + " (one run)" * one
        for name, text, one in zip(values, texts, single, strict=True)
    )
    figure.set_label(f"{style.topic(title)}{xlabel}: {said}.")
    return figure


def _colours(names: Sequence[str], pale: Sequence[bool]) -> list[tuple[str, float]]:
    """Those of `bars`, with their opacity."""
    kinds = [name.partition(",")[0] for name in names]
    groups = list(dict.fromkeys(kinds))
    if len(groups) == len(kinds):  # nothing is alike: one colour says no more than many
        groups = kinds = [""] * len(kinds)
    of = dict(zip(groups, style.series(groups)[0], strict=True))
    return [(of[kind], 0.4 if one else 1.0) for kind, one in zip(kinds, pale, strict=True)]


def check_columns(frame: pd.DataFrame, *columns: str) -> None:
    """Raise InputError for an empty frame or a column that is missing."""
    for column in columns:
        if column not in frame:
            raise InputError(
                f"the frame has no column {column!r}: {', '.join(map(str, frame.columns))}"
            )
    if frame.empty:
        raise InputError("there is nothing to draw: the frame is empty")


def heat_map(
    values: Any,
    classes: Sequence[str],
    marked: Any = None,
    title: str = "",
    across: str = "",
    down: str = "",
) -> Any:
    """A square table of numbers as colours, (C, C): row c, column j. Up to 12 classes the numbers
    are written as well.

    Args:
        marked: (C, k) columns to frame in every row, -1 for none: the hard negatives of a class,
            for example.
        across, down: names of the axes.

    Raises InputError when the values are not square or the names are not as many.
    """
    table = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values, dtype=float)
    if np.isnan(table).all():
        raise InputError("there is nothing to draw: the table holds no number")
    if table.shape != (len(classes), len(classes)):
        raise InputError(
            f"a heat map of {len(classes)} classes needs as many rows and columns, not {table.shape}"
        )
    from matplotlib import rc_context

    with rc_context(style.rc() | {"axes.grid": False}):
        side = 1.6 + 0.45 * len(classes)
        figure = blank(side + 0.6, side)
        axes = figure.subplots()
        figure.colorbar(axes.imshow(table, cmap="cividis"), ax=axes, shrink=0.8)
        if len(classes) <= _WRITTEN:
            _write(axes, table)
        _frame(axes, [] if marked is None else np.asarray(marked))
        turned = 0 if max(map(len, classes)) < 4 else 90
        axes.set_xticks(range(len(classes)), classes, rotation=turned)
        axes.set_yticks(range(len(classes)), classes)
        axes.set(title=title, xlabel=across, ylabel=down)
    frames = "" if marked is None else " Frames mark chosen columns of every row."
    whole = np.flatnonzero(~np.isnan(table).any(1))
    largest = table[whole].argmax(1) == whole
    figure.set_label(
        f"{style.topic(title)}Table of {len(classes)} by {len(classes)} classes as colours; "
        f"values from {np.nanmin(table):.2f} to {np.nanmax(table):.2f}. The largest value stands on the "
        f"diagonal in {int(largest.sum())} of {len(whole)} rows.{frames}"
    )
    return figure


def _write(axes: Any, table: np.ndarray) -> None:
    """The numbers of a heat map on their colours."""
    middle = (np.nanmin(table) + np.nanmax(table)) / 2
    for (row, column), value in np.ndenumerate(table):
        dark = "white" if value <= middle else "black"
        text = "–" if np.isnan(value) else f"{value:.1f}"
        axes.text(column, row, text, ha="center", va="center", fontsize=8, color=dark)


def _frame(axes: Any, marked: Any) -> None:
    """Frames around the columns that are marked in each row; -1 is none."""
    from matplotlib.patches import Rectangle

    look: dict[str, Any] = {"fill": False, "linewidth": 2, "edgecolor": style.PALETTE[1]}
    for row, chosen in enumerate(marked):
        for column in chosen[chosen >= 0]:
            axes.add_patch(Rectangle((column - 0.46, row - 0.46), 0.92, 0.92, **look))


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
    named = range(int(targets.max(initial=0)) + 1) if classes is None else classes
    names = [str(name) for name in named]
    counts = np.stack(
        [
            np.bincount(targets[np.asarray(part, dtype=np.int64)], minlength=len(names))
            for part in parts
        ]
    )
    from matplotlib import rc_context

    with rc_context(style.rc()):
        figure = blank(min(2.2 + 0.55 * len(names), 12), min(1.6 + 0.34 * len(parts), 14))
        axes = figure.subplots()
        _place_dots(axes, counts, names, title)
        style.note(
            figure, "Area of a dot: number of samples. In brackets: all samples of the client."
        )
    held, sizes = (counts > 0).sum(axis=1), counts.sum(axis=1)
    figure.set_label(
        f"{style.topic(title)}Samples of each class on each of {len(parts)} clients. A client "
        f"has {sizes.min():,} to {sizes.max():,} samples; of the {len(names)} classes it has at least "
        f"{held.min()} and at most {held.max()}."
    )
    return figure


def _place_dots(axes: Any, counts: np.ndarray, names: Sequence[str], title: str) -> None:
    """The dots of a partition, (clients, classes) samples each, and the axes around them."""
    client, cls = np.nonzero(counts)
    # equal to 300 square points for the largest cell: neighbouring dots then just touch
    areas = 300 * counts[client, cls] / max(counts.max(), 1)
    axes.scatter(cls, client, s=areas, color=style.PALETTE[0], linewidth=0)
    axes.set_xticks(range(len(names)), names, rotation=0 if max(map(len, names)) < 4 else 90)
    sizes = counts.sum(axis=1)
    axes.set_yticks(range(len(counts)), [f"client {k} ({size:,})" for k, size in enumerate(sizes)])
    axes.set(
        xlabel="class",
        title=title,
        xlim=(-0.6, len(names) - 0.4),
        ylim=(len(counts) - 0.4, -0.6),
    )
