"""Values and differences as dots: with their deviations beside print, and with their intervals."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from core.errors import InputError
from lab.report import style
from lab.report.charts import check_columns
from lab.report.figures import blank
from lab.report.intervals import interval


def dots(frame: pd.DataFrame, xlabel: str, digits: int = 1) -> Any:
    """Values as dots with their standard deviations, the first above, below the names of their groups;
    what is printed is a hollow diamond in the same line.

    Args:
        frame: `group`, `name`, `mean`, `std` (nan for one run) and `printed`; mean or printed may be
            nan.
        digits: decimals of the numbers in the description.

    Returns a `matplotlib.figure.Figure` whose label gives the numbers. Raises InputError when there
    is nothing to draw.
    """
    check_columns(frame, "group", "name", "mean", "std", "printed")
    from matplotlib import rc_context

    groups = list(frame.groupby("group", sort=False))
    rows = pd.concat([of for _, of in groups])
    lines: list[str] = []
    heads: list[int] = []
    for group, of in groups:
        heads.append(len(lines))
        lines += [str(group), *(textwrap.fill(name, 40) for name in of["name"])]
    at = [place for place in range(len(lines)) if place not in heads]
    with rc_context(style.rc()):
        figure = blank(7.2, 0.9 + 0.3 * len(lines))
        axes = figure.subplots()
        axes.errorbar(
            rows["mean"],
            at,
            xerr=rows["std"].fillna(0),
            fmt="o",
            color=style.PALETTE[0],
            ecolor=style.INK,
            elinewidth=1.4,
            label="measured, mean ± std",
        )
        axes.plot(rows["printed"], at, "D", mfc="none", color=style.PALETTE[1], label="printed")
        axes.set_yticks(range(len(lines)), lines)
        for head in heads:
            axes.get_yticklabels()[head].set_fontweight("bold")
        axes.set(xlabel=xlabel, ylim=(len(lines) - 0.4, -0.6))
        figure.legend(loc="outside lower right", ncols=2)
    said = (_in_words(row, digits) for row in rows.itertuples())
    figure.set_label(f"{xlabel}: {'; '.join(said)}.")
    return figure


def _in_words(row: Any, digits: int) -> str:
    """What a line of `dots` shows."""
    spread = "" if np.isnan(row.std) else f" ± {row.std:.{digits}f}"
    shown = [] if np.isnan(row.mean) else [f"{row.mean:.{digits}f}{spread}"]
    shown += [] if np.isnan(row.printed) else [f"printed {row.printed:.{digits}f}"]
    return f"{row.group}, {row.name}: {', '.join(shown)}"


def forest(gaps: Mapping[str, Sequence[float]], xlabel: str, title: str = "") -> Any:
    """Paired differences, a row for each name, the first above: a dot for each seed, below them their
    mean with its 90% interval, and a line at zero. One seed has no interval, nor have equal differences.

    Returns a `matplotlib.figure.Figure` whose label gives the numbers. Raises InputError when there
    is nothing to draw.
    """
    if not gaps:
        raise InputError("there is nothing to draw: no difference was given")
    from matplotlib import rc_context

    (seed, whole), said = style.series(["of a seed", "mean"])[0], []
    with rc_context(style.rc()):
        figure = blank(7.2, 1.2 + 0.5 * len(gaps))
        axes = figure.subplots()
        axes.axvline(0, color=style.INK, linewidth=1.2)
        for row, (name, of) in enumerate(gaps.items()):
            mean, low, high = interval(of)
            axes.scatter(of, [row - 0.15] * len(of), 22, seed, alpha=0.8, linewidth=0)
            words = f"{name} {mean:+.1f}"
            if math.isfinite(low):
                axes.plot([low, high], [row + 0.15] * 2, color=whole, solid_capstyle="butt")
                words += f", from {low:+.1f} to {high:+.1f}"
            axes.plot(mean, row + 0.15, "D", color=whole)
            said.append(f"{words} ({len(of)} seed{'s' * (len(of) > 1)})")
        axes.set_yticks(range(len(gaps)), list(gaps))
        axes.set(xlabel=xlabel, ylim=(len(gaps) - 0.5, -0.5))
        axes.grid(visible=False, axis="y")
        style.titled(axes, title)
        style.note(figure, "Dots: seeds. Diamond and line: their mean and its 90% interval.")
    figure.set_label(f"{style.topic(title)}{xlabel}, mean and 90% interval: {'; '.join(said)}.")
    return figure
