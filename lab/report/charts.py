"""Charts of numbers: lines, learning curves, clouds of points, dots with intervals, and who holds what.

Each function returns a `matplotlib.figure.Figure` whose label describes it in words, computed from what
is drawn; `lab.report.figures.show` makes that its alternative text.
"""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from core import algorithms
from core.errors import InputError, unknown
from lab import Record
from lab.importing import records_below
from lab.report import style, summary
from lab.schema import SHARES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: a record, several, or a folder that `run --out` filled
Runs = Record | Iterable[Record] | str | Path
MB = 2**20
#: with more series than so many each has a panel of its own
CROWDED = 8
AXES = {"round": "communication round", "megabytes": "MB sent, both directions, all clients"}
#: algorithms whose class cannot be named as they are written
WRITTEN = {"gddfl": "GDD-FL", "flmrcm": "FL-MRCM", "random_selection": "random selection"}


@contextlib.contextmanager
def canvas(width: float, height: float, title: str = "") -> Iterator[Any]:
    """Axes of a new figure of so many inches, drawn in the book's style; pyplot is left alone."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(style.RC):
        axes = Figure(figsize=(width, height)).subplots()
        axes.set_title(textwrap.fill(title, 60))
        yield axes


def describe(axes: Any, title: str, words: str) -> Figure:
    """The figure of some axes, labelled with its title and what it shows in words."""
    axes.figure.set_label(f"{title.removesuffix('.')}. {words}" if title else words)
    return axes.figure


def note(axes: Any, text: str) -> None:
    """A line in small type below the axes: what marks stand for that no legend names."""
    axes.figure.supxlabel(textwrap.fill(text, 95), x=0.01, ha="left", fontsize=9, color=style.INK)


def _scale(axes: Any, log: str, at: Sequence[int] = (1, 2, 5)) -> None:
    """Logarithmic axes with plain numbers at these multiples of each power of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    for name in log:
        axes.set(**{f"{name}scale": "log"})
        axis = getattr(axes, f"{name}axis")
        # beyond two powers of ten there is room for the powers only
        subs = at if np.ptp(np.log10(axis.get_view_interval())) < 2 else (1,)
        axis.set(major_locator=LogLocator(subs=subs), minor_formatter=NullFormatter())
        axis.set_major_formatter("{x:g}")


def lines(
    frame: pd.DataFrame,
    x: str,
    y: str,
    by: str = "label",
    xlabel: str = "",
    ylabel: str = "",
    log: str = "",
    title: str = "",
) -> Figure:
    """A line of `y` over `x` for each value of `by`: the mean of equal `x` in a band of one standard
    deviation; of more than `CROWDED` a panel for each, with the others in grey.

    Args:
        frame: long form; `x`, `y` and `by` are columns of it.
        log: axes with a logarithmic scale: "", "x", "y" or "xy".
    """
    import seaborn as sns
    from matplotlib import pyplot, rc_context
    from matplotlib.ticker import MaxNLocator

    means = frame.groupby([by, x], sort=False)[y].mean().dropna()
    ends = {name: means[name].sort_index() for name in dict.fromkeys(frame[by]) if name in means}
    bands = frame.groupby([by, x])[y].count().gt(1).any()
    said = [f"{name} goes from {of.iat[0]:.3g} to {of.iat[-1]:.3g}" for name, of in ends.items()]
    words = f"{ylabel or y} against {xlabel or x}: {'; '.join(said)}."
    # the legend has the order of the ends of the lines
    order = sorted(ends, key=lambda name: -ends[name].iat[-1])
    if len(ends) > CROWDED:
        rows, form = means.reset_index(), {"kind": "line", "col_wrap": 4, "height": 1.9}
        with rc_context({**style.RC, "figure.constrained_layout.use": False}):
            grid = sns.relplot(rows, x=x, y=y, col=by, col_order=order, zorder=3, **form)
            for name, axes in grid.axes_dict.items():
                grey = {"estimator": None, "color": style.RULE, "linewidth": 1, "zorder": 1}
                sns.lineplot(rows, x=x, y=y, units=by, ax=axes, **grey)
                axes.set_title(textwrap.fill(name, 24), fontsize=10)
                _scale(axes, log, (1,))
            above = f"{title}: {ylabel or y} against {xlabel or x}".removeprefix(": ")
            grid.set_axis_labels("", "").figure.suptitle(above, x=0.02, y=1.03, ha="left")
        pyplot.close(grid.figure)
        return describe(axes, title, words)
    look: dict[str, Any] = {"hue_order": order, "style_order": order, "mec": "none"}
    look |= {"palette": style.palette(ends), "markers": frame[x].nunique() <= 20}
    with canvas(7.2, 3.8, title) as axes:
        rows, spread = frame.reset_index(drop=True), "sd" if bands else None
        sns.lineplot(rows, x=x, y=y, hue=by, style=by, ax=axes, errorbar=spread, **look)
        axes.set(xlabel=xlabel or x, ylabel=ylabel or y)
        _scale(axes, log)
        if "x" not in log and pd.api.types.is_integer_dtype(frame[x]):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if bands:
            note(axes, "Band: ± one standard deviation.")
        sns.move_legend(axes, "center left", bbox_to_anchor=(1.01, 0.5), title=None)
        axes.get_legend().set_visible(len(ends) > 1)
    return describe(axes, title, words)


def scatter(
    frame: pd.DataFrame, x: str, y: str, xlabel: str = "", ylabel: str = "", title: str = ""
) -> Figure:
    """A cloud of points, in colour and mark, for each `label`; arguments as of `lines`."""
    import seaborn as sns

    look: dict[str, Any] = {"hue": "label", "style": "label", "s": 30, "alpha": 0.8, "linewidth": 0}
    with canvas(7.2, 3.8, title) as axes:
        palette = style.palette(frame["label"].unique())
        sns.scatterplot(frame, x=x, y=y, ax=axes, palette=palette, **look)
        axes.set(xlabel=xlabel or x, ylabel=ylabel or y)
        sns.move_legend(axes, "center left", bbox_to_anchor=(1.01, 0.5), title=None)
    said = []
    for name, of in frame.groupby("label", sort=False):
        numbers = of[[x, y]].select_dtypes("number").agg(["mean", "std"])
        where = [f"{axis} {mean:.3g} ± {std:.2g}" for axis, (mean, std) in numbers.items()]
        said.append(f"{name}, {len(of)} points, {' and '.join(where)}")
    words = f"Points of {ylabel or y} against {xlabel or x}: {'; '.join(said)}."
    return describe(axes, title, words)


def dots(frame: pd.DataFrame, xlabel: str, title: str = "") -> Figure:
    """Values as dots on lines from `low` to `high`, one below the other, and what a paper reports as hollow
    diamonds.

    Args:
        frame: `name`, `value` and, where there are any, `low` and `high`, `paper`, `seeds`; any may be nan.
    """
    import seaborn as sns

    names = [textwrap.fill(str(name), 40) for name in frame["name"]]
    frame = frame.reindex(columns=["value", "low", "high", "paper", "seeds"]).reset_index(drop=True)
    frame = frame.astype(float).replace([-np.inf, np.inf], np.nan)
    # a dot at the median of `low`, `value` and `high`, on a line over their range
    look: dict[str, Any] = {"estimator": "median", "errorbar": ("pi", 100), "ls": "none"}
    look |= {"orient": "h", "order": frame.index, "err_kws": {"linewidth": 1.5}}
    look |= {"markersize": 5, "markeredgewidth": 1.2}
    ours = frame[["low", "value", "high"]].stack()
    tall = 1.0 + sum(0.36 + 0.14 * name.count("\n") for name in names)
    with canvas(7.2, tall, title) as axes:
        sns.pointplot(x=ours, y=ours.index.get_level_values(0), ax=axes, label="ours", **look)
        if frame["paper"].notna().any():
            look |= {"mfc": "none", "color": style.PALETTE[1], "markers": "D"}
            sns.pointplot(x=frame["paper"], y=frame.index, ax=axes, label="paper", **look)
            axes.figure.legend(loc="outside lower right", ncols=2)
        axes.get_legend().remove()
        axes.set(xlabel=xlabel, ylabel="", yticks=range(len(names)), yticklabels=names)
        if frame["seeds"].max() > 0:
            n = frame["seeds"].replace(0, np.nan)
            ends = " to ".join(f"{end:g}" for end in sorted({n.min(), n.max()}))
            note(axes, f"n = {ends} seeds")
        if frame["low"].min() < 0 < frame["high"].max():
            axes.axvline(0, color=style.INK, linewidth=1.2)
    words = "{value:.3g}, {low:.3g} to {high:.3g}, paper {paper:.3g}"
    said = []
    for name, row in zip(names, frame.to_dict("records"), strict=True):
        parts = [part for part in words.format_map(row).split(", ") if "nan" not in part]
        said.append(f"{' '.join(name.split())} {', '.join(parts)}")
    return describe(axes, title, f"{xlabel}: {'; '.join(said)}.")


def heat_map(frame: pd.DataFrame, title: str = "") -> Figure:
    """Ours minus the paper's number: methods down, columns across. Hatched cells say less: they have fewer
    than three seeds, a smaller budget than the paper's, or another data set.

    Args:
        frame: as of `table_frame`, of one metric and unit; rows without both numbers are left out.
    """
    shown = frame[frame["difference"].notna()]
    import seaborn as sns
    from matplotlib.patches import Rectangle

    rows, columns = (list(shown[name].unique()) for name in ("row", "column"))
    wide = shown.pivot(index="row", columns="column", values="difference")
    wide = wide.reindex(rows)[columns]
    less = (shown["seeds"] < 3) | (shown["profile"] != "paper") | (shown["substitute"] != "")
    most = float(wide.abs().max().max())
    with canvas(max(7.2, 3 + 0.7 * len(columns)), 2 + 0.4 * len(rows), title) as axes:
        look: dict[str, Any] = {"cmap": "vlag_r", "vmin": -most, "vmax": most, "linewidths": 1}
        look |= {"annot": True, "fmt": "+.1f", "cbar_kws": {"label": "ours minus paper"}}
        sns.heatmap(wide, ax=axes, yticklabels=[textwrap.fill(name, 44) for name in rows], **look)
        for row, column in shown.loc[less, ["row", "column"]].itertuples(index=False):
            at = columns.index(column), rows.index(row)
            axes.add_patch(Rectangle(at, 1, 1, fill=False, hatch="////", alpha=0.35, linewidth=0))
        axes.set(xlabel="", ylabel="")
        axes.grid(visible=False)
        if less.any():
            note(axes, "Hatched: fewer than three seeds, a smaller budget, or another data set.")
    said = [
        f"{name}: " + ", ".join(f"{column} {value:+.1f}" for column, value in of.dropna().items())
        for name, of in wide.iterrows()
    ]
    return describe(axes, title, f"Ours minus the paper's number, by method: {'; '.join(said)}.")


def partition_plot(
    labels: Any, parts: Sequence[Any], classes: Sequence[str] | None = None, title: str = ""
) -> Figure:
    """Draw each client's classes: clients down, classes across, the area of a dot is the number of samples.

    Args:
        labels: (N,) class of every training sample.
        parts: indices into `labels`, one array per client.
        classes: names of the classes; by default their numbers.
    """
    import seaborn as sns

    targets = np.asarray(labels).astype(np.int64)
    numbers = range(int(targets.max(initial=0)) + 1)
    names = list(map(str, numbers if classes is None else classes))
    held_by = [targets[np.asarray(part, dtype=np.int64)] for part in parts]
    counts = np.stack([np.bincount(of, minlength=len(names)) for of in held_by])
    (client, cls), sizes, held = np.nonzero(counts), counts.sum(1), (counts > 0).sum(1)
    with canvas(min(2.2 + 0.55 * len(names), 12), min(1.5 + 0.27 * len(parts), 14), title) as axes:
        # 300 square points for the largest cell: neighbouring dots then just touch
        areas = 300 * counts[client, cls] / max(counts.max(), 1)
        look = {"size": areas, "sizes": (areas.min(initial=300), 300), "legend": False}
        sns.scatterplot(x=cls, y=client, ax=axes, color=style.PALETTE[0], linewidth=0, **look)
        axes.set_xticks(range(len(names)), names, rotation=0 if max(map(len, names)) < 4 else 90)
        axes.set_yticks(range(len(parts)), [f"client {k} ({n:,})" for k, n in enumerate(sizes)])
        axes.set(xlabel="class", xlim=(-0.6, len(names) - 0.4), ylim=(len(parts) - 0.4, -0.6))
        note(axes, "Area of a dot: number of samples. In brackets: all samples of the client.")
    return describe(
        axes,
        title,
        f"Samples of each class on each of {len(parts)} clients. A client has {sizes.min():,} to "
        f"{sizes.max():,} samples; of the {len(names)} classes it has at least {held.min()} and at most "
        f"{held.max()}.",
    )


def curve_frame(
    runs: Runs, metric: str = "accuracy", by: str | Callable[[Record], str] | None = None
) -> pd.DataFrame:
    """Every tested round of some runs, a row each: `label`, `seed`, `round`, `megabytes` (of 2^20 bytes,
    sent up and down until the end of that round by all clients) and `value`.

    Args:
        metric: name of a metric of the rounds; fractions come back in percent.
        by: setting, or field or option of the experiment, that names the series, or a function from
            record to name; by default the algorithm, and in a folder all that differs.

    Raises InputError for an unknown field or metric, and where no round was tested.
    """
    rows, scale = [], 100.0 if metric.startswith(SHARES) else 1.0
    if isinstance(runs, str | Path):
        runs = [record for record in records_below(runs) if record.metrics]
        by = by or summary.name_of(runs)
    for record in [runs] if isinstance(runs, Record) else runs:
        label, sent = by(record) if callable(by) else _series_name(record, by or "algorithm"), 0.0
        for entry in record.rounds:
            sent += entry["up"] + entry["down"]
            if entry["metrics"] and metric not in entry["metrics"]:
                raise unknown("metric", metric, entry["metrics"])
            if entry["metrics"]:
                value = scale * entry["metrics"][metric]
                rows.append((label, record.experiment.seed, entry["round"], sent / MB, value))
    if not rows:
        raise InputError("there is nothing to draw: no round was tested")
    return pd.DataFrame(rows, columns=["label", "seed", "round", "megabytes", "value"])


def method_name(algorithm: str) -> str:
    """An algorithm's name in prose: "FedAvgM" for `fedavgm`; unknown names stay as they are."""
    if algorithm in WRITTEN or algorithm not in algorithms.names():
        return WRITTEN.get(algorithm, algorithm)
    return algorithms.find(algorithm).__name__


def _series_name(record: Record, field: str) -> str:
    fields = summary.choices_of(record.experiment, record.settings)
    fields["split"] = summary.split_in_words(record.experiment.partition)
    if field not in fields:
        raise unknown("setting or experiment field", field, fields)
    return method_name(fields[field]) if field == "algorithm" else str(fields[field])


def curves(
    runs: Runs,
    metric: str = "accuracy",
    x: str = "round",
    by: str | Callable[[Record], str] | None = None,
    title: str = "",
    log: str = "",
) -> Figure:
    """Learning curves over "round" or "megabytes", means over seeds; the last value counts where nothing
    more is sent. Arguments as of `curve_frame` and `lines`. InputError for an unknown axis.
    """
    if x not in AXES:
        raise unknown("axis", x, AXES)
    frame = curve_frame(runs, metric, by)
    if x == "megabytes":
        # seeds may differ a little in what they send; a band needs one place for each round
        frame[x] = frame.groupby(["label", "round"])[x].transform("mean")
        frame = frame.drop_duplicates(["label", "seed", x], keep="last")
    ylabel = style.measure(metric) + " (%)" * metric.startswith(SHARES)
    return lines(frame, x, "value", xlabel=AXES[x], ylabel=ylabel, log=log, title=title)
