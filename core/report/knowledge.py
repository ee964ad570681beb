"""Looking at condensed knowledge: how much it changes from round to round, heat maps of prototypes,
lines, clouds.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from core import data
from core.condensation import mmd
from core.condensation.engine import Condensation, condensed_counts
from core.data import partition
from core.data.roots import data_root
from core.errors import InputError
from core.report import style
from core.report.figures import _figure

#: above so many classes a heat map has no room for numbers
_WRITTEN = 12


def adjacent_mmd(
    features: torch.Tensor,
    labels: torch.Tensor,
    rounds: torch.Tensor,
    kernel: str = "linear",
) -> pd.DataFrame:
    """Squared MMD between the condensed knowledge of a round and of the round before, class by
    class.

    This is what FedVCK's Figures 1b and 3 show. The paper names neither the encoder nor the kernel.
    All features must come from one encoder: then a distance says that the images differ, and not
    that the model has moved.

    Args:
        features: (N, D) of condensed images of all clients; labels: (N,) classes; rounds: (N,)
            whole numbers.
        kernel: as in `core.condensation.mmd`.

    Returns: a row for every round and class that has images in this round and in the one before it:
    `round`, `class`, `mmd`. Raises InputError when lengths differ or no class has images in two
    adjacent rounds.
    """
    if not len(features) == len(labels) == len(rounds):
        raise InputError(
            f"{len(features)} features need as many labels and rounds, "
            f"not {len(labels)} and {len(rounds)}"
        )
    sets = {
        (number, cls): features[(rounds == number) & (labels == cls)]
        for number, cls in sorted({*zip(rounds.tolist(), labels.tolist(), strict=True)})
    }
    rows = [
        {"round": number, "class": cls, "mmd": float(mmd(images, sets[number - 1, cls], kernel))}
        for (number, cls), images in sets.items()
        if (number - 1, cls) in sets
    ]
    if not rows:
        raise InputError("no class has condensed images in two adjacent rounds")
    return pd.DataFrame(rows)


def split_sizes(dataset: str, file: str) -> pd.DataFrame:
    """How many training images of a class each client has in a split file: `client`, `class`,
    `images`, `listed`.

    `listed` says whether the class stands in the client's list of classes; the authors' code leaves
    the others out. One row for every class that a client holds. The data must be at hand: raises
    InputError as `core.data.load` does.
    """
    train = data.load(dataset).train
    path = data_root() / file
    whole, kept = (partition.from_file(path, len(train), labels) for labels in (None, train.labels))
    rows = []
    for client, (part, listed) in enumerate(zip(whole, kept, strict=True)):
        counts, left = (
            np.bincount(train.labels.numpy()[rows_]) if len(rows_) else np.zeros(0, int)
            for rows_ in (part, listed)
        )
        rows += [
            {
                "client": client,
                "class": int(cls),
                "images": int(counts[cls]),
                "listed": bool(cls < len(left) and left[cls]),
            }
            for cls in counts.nonzero()[0]
        ]
    return pd.DataFrame(rows)


def condensed_total(
    sizes: pd.DataFrame, share: float, min_images: int = 5, listed_only: bool = True
) -> int:
    """Condensed images of all clients in a round: the share of every client's class, rounded up, at
    least so many.

    Args:
        sizes: `images` and `listed` of every client's class, as `split_sizes` returns them.
        share: p as a fraction.
    """
    kept = sizes[sizes["listed"]] if listed_only else sizes
    counts = condensed_counts(
        torch.tensor(kept["images"].to_numpy()), Condensation(share=share, min_images=min_images)
    )
    return int(counts.sum())


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
    _check_columns(frame, x, y, by)
    from matplotlib import rc_context
    from matplotlib.ticker import MaxNLocator

    names = list(dict.fromkeys(frame[by]))
    colours, markers, dashes = style.series(len(names))
    ends = []
    with rc_context(style.rc()):
        figure = _figure(7.2, 3.6)
        axes = figure.subplots()
        for name, colour, marker, dash in zip(names, colours, markers, dashes, strict=True):
            of = frame[frame[by] == name].groupby(x)[y].agg(["mean", "std"])
            mark = marker if len(of) <= 20 else ""
            axes.plot(
                of.index,
                of["mean"],
                color=colour,
                marker=mark,
                linestyle=(0, dash) if dash else "-",
                label=str(name),
            )
            if of["std"].notna().any():
                spread = of["std"].fillna(0)
                axes.fill_between(
                    of.index,
                    of["mean"] - spread,
                    of["mean"] + spread,
                    color=colour,
                    alpha=0.2,
                    linewidth=0,
                )
            ends.append(f"{name} goes from {of['mean'].iat[0]:.3g} to {of['mean'].iat[-1]:.3g}")
        axes.set(
            xlabel=xlabel or x,
            ylabel=ylabel or y,
            title=title,
            **{f"{axis}scale": "log" for axis in log},
        )
        if "x" not in log and pd.api.types.is_integer_dtype(frame[x]):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(names) > 1:
            axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), handlelength=3)
    topic = f"{title}. " if title else ""
    figure.set_label(f"{topic}{ylabel or y} against {xlabel or x}: {'; '.join(ends)}.")
    return figure


def scatter(
    frame: pd.DataFrame,
    x: str,
    y: str,
    by: str = "label",
    xlabel: str = "",
    ylabel: str = "",
    title: str = "",
) -> Any:
    """A cloud of points for each value of `by`, each in a colour and with a mark of its own.

    Args:
        frame: long form, a row for each point; `x`, `y` and `by` are columns of it.

    Returns a `matplotlib.figure.Figure` whose label says where each cloud lies and how wide it is.
    Raises InputError for an empty frame or a column that is missing.
    """
    _check_columns(frame, x, y, by)
    from matplotlib import rc_context

    names = list(dict.fromkeys(frame[by]))
    colours, markers, _ = style.series(len(names))
    places = []
    with rc_context(style.rc()):
        figure = _figure(7.2, 3.8)
        axes = figure.subplots()
        for name, colour, marker in zip(names, colours, markers, strict=True):
            of = frame[frame[by] == name]
            axes.scatter(
                of[x],
                of[y],
                color=colour,
                marker=marker,
                s=26,
                alpha=0.75,
                linewidth=0,
                label=str(name),
            )
            (across, width), (up, height) = (
                (of[column].mean(), of[column].std(ddof=0)) for column in (x, y)
            )
            places.append(
                f"{name} lies at {across:.3g} ± {width:.2g} across and {up:.3g} ± {height:.2g} up"
            )
        axes.set(xlabel=xlabel or x, ylabel=ylabel or y, title=title)
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), handletextpad=0.3)
    topic = f"{title}. " if title else ""
    figure.set_label(
        f"{topic}Points of {ylabel or y} against {xlabel or x}, mean ± standard deviation of each cloud: "
        f"{'; '.join(places)}."
    )
    return figure


def _check_columns(frame: pd.DataFrame, *columns: str) -> None:
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
    if table.shape != (len(classes), len(classes)):
        raise InputError(
            f"a heat map of {len(classes)} classes needs as many rows and columns, not {table.shape}"
        )
    from matplotlib import rc_context
    from matplotlib.patches import Rectangle

    with rc_context(style.rc() | {"axes.grid": False}):
        side = 1.6 + 0.45 * len(classes)
        figure = _figure(side + 0.6, side)
        axes = figure.subplots()
        picture = axes.imshow(table, cmap="cividis")
        figure.colorbar(picture, ax=axes, shrink=0.8)
        middle = (table.min() + table.max()) / 2
        for row, column in np.ndindex(*table.shape) if len(classes) <= _WRITTEN else ():
            axes.text(
                column,
                row,
                f"{table[row, column]:.1f}",
                ha="center",
                va="center",
                fontsize=8,
                color="black" if table[row, column] > middle else "white",
            )
        for row, chosen in enumerate([] if marked is None else np.asarray(marked)):
            for column in chosen[chosen >= 0]:
                axes.add_patch(
                    Rectangle(
                        (column - 0.46, row - 0.46),
                        0.92,
                        0.92,
                        fill=False,
                        linewidth=2,
                        edgecolor=style.PALETTE[1],
                    )
                )
        axes.set_xticks(
            range(len(classes)), classes, rotation=0 if max(map(len, classes)) < 4 else 90
        )
        axes.set_yticks(range(len(classes)), classes)
        axes.set(title=title, xlabel=across, ylabel=down)
    frames = "" if marked is None else " Frames mark chosen columns of every row."
    figure.set_label(
        f"{title + '. ' if title else ''}Table of {len(classes)} by {len(classes)} classes as colours; "
        f"values from {table.min():.2f} to {table.max():.2f}. The largest value stands on the diagonal "
        f"in {int((table.argmax(1) == np.arange(len(table))).sum())} of {len(table)} rows.{frames}"
    )
    return figure


def body(function: Callable[..., Any]) -> Any:
    """The source of a function without its docstring, as a highlighted listing in the output of a
    notebook cell.
    """
    from IPython.display import Markdown

    text = textwrap.dedent(inspect.getsource(function)).rstrip()
    node = ast.parse(text).body[0]
    rows = text.splitlines()
    if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
        quoted = node.body[0]
        rows[quoted.lineno - 1 : quoted.end_lineno] = []
    return Markdown("```python\n" + "\n".join(rows) + "\n```")
