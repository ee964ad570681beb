"""Charts of numbers: lines, learning curves, clouds of points, bars, dots with intervals, and who holds what.

Each function returns a `matplotlib.figure.Figure` whose label describes it in words, computed from what
is drawn; `lab.report.figures.show` makes that its alternative text. Each raises InputError where there is
nothing to draw or a column is missing.
"""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from core import algorithms
from core.errors import InputError, brief, unknown
from lab import Record
from lab.importing import records_below
from lab.report import style, summary
from lab.schema import SHARES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: records, one, several or by their ids, or a folder that `run --out` filled
Runs = Record | Iterable[Record] | Mapping[str, Record] | str | Path
MB = 2**20
#: with more series than so many their bands would hide each other
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


def check_columns(frame: pd.DataFrame, *columns: str) -> None:
    """Raise InputError for an empty frame or a column that is missing."""
    for column in columns:
        if column not in frame:
            raise InputError(f"the frame has no column {column!r}: {', '.join(map(str, frame))}")
    if frame.empty:
        raise InputError("there is nothing to draw: the frame is empty")


def _scale(axes: Any, log: str) -> None:
    """Logarithmic axes with plain numbers at 1, 2 and 5 of each power where these are few."""
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    for name in log:
        getattr(axes, f"set_{name}scale")("log")
        low, high = getattr(axes, f"get_{name}lim")()
        if high / low < 1000:
            axis = getattr(axes, f"{name}axis")
            axis.set(major_locator=LogLocator(subs=(1, 2, 5)), minor_formatter=NullFormatter())
            axis.set_major_formatter(ScalarFormatter())
            axes.ticklabel_format(style="plain", axis=name)


def _legend(axes: Any, count: int) -> None:
    """The names of series beside the axes; none for a single one."""
    if legend := axes.get_legend():
        handles, labels = axes.get_legend_handles_labels()
        legend.remove()
        if count > 1:
            axes.legend(handles, labels, loc="center left", bbox_to_anchor=(1.01, 0.5))


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
    deviation, where lines are few enough to tell bands apart.

    Args:
        frame: long form; `x`, `y` and `by` are columns of it.
        log: axes with a logarithmic scale: "", "x", "y" or "xy".
    """
    check_columns(frame, x, y, by)
    import seaborn as sns
    from matplotlib.ticker import MaxNLocator

    means = frame.groupby([by, x], sort=False)[y].mean().dropna()
    ends = {name: means[name].sort_index() for name in dict.fromkeys(frame[by]) if name in means}
    look: dict[str, Any] = style.series(ends) | (
        {"markers": False} if frame[x].nunique() > 20 else {}
    )
    bands = len(ends) <= CROWDED and frame.groupby([by, x])[y].count().gt(1).any()
    # the legend has the order of the ends of the lines
    order = sorted(ends, key=lambda name: -ends[name].iat[-1])
    with canvas(7.2, 3.8, title) as axes:
        rows = frame.reset_index(drop=True)
        spread = "sd" if bands else None
        look |= {"hue_order": order, "style_order": order, "mec": "none", "errorbar": spread}
        sns.lineplot(rows, x=x, y=y, hue=by, style=by, ax=axes, **look)
        axes.set(xlabel=xlabel or x, ylabel=ylabel or y)
        _scale(axes, log)
        if "x" not in log and pd.api.types.is_integer_dtype(frame[x]):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if bands:
            note(axes, "Band: ± one standard deviation.")
        _legend(axes, len(ends))
    said = [f"{name} goes from {of.iat[0]:.3g} to {of.iat[-1]:.3g}" for name, of in ends.items()]
    return describe(axes, title, f"{ylabel or y} against {xlabel or x}: {'; '.join(said)}.")


def scatter(
    frame: pd.DataFrame,
    x: str,
    y: str,
    xlabel: str = "",
    ylabel: str = "",
    title: str = "",
) -> Figure:
    """A cloud of points, in colour and mark, for each `label`; arguments as of `lines`."""
    check_columns(frame, x, y, "label")
    import seaborn as sns

    names = list(dict.fromkeys(frame["label"]))
    look = {key: of for key, of in style.series(names).items() if key != "dashes"}
    with canvas(7.2, 3.8, title) as axes:
        sns.scatterplot(
            frame,
            x=x,
            y=y,
            hue="label",
            style="label",
            ax=axes,
            s=30,
            alpha=0.8,
            linewidth=0,
            **look,
        )
        axes.set(xlabel=xlabel or x, ylabel=ylabel or y)
        _legend(axes, 2)
    said = [
        f"{name}, {len(of)} points, "
        + " and ".join(
            f"{axis} {of[axis].mean():.3g} ± {of[axis].std(ddof=0):.2g}"
            for axis in (x, y)
            if pd.api.types.is_numeric_dtype(of[axis])
        )
        for name, of in frame.groupby("label", sort=False)
    ]
    return describe(
        axes, title, f"Points of {ylabel or y} against {xlabel or x}: {'; '.join(said)}."
    )


def bars(values: Mapping[str, tuple[float, float]], xlabel: str, title: str = "") -> Figure:
    """A bar for each name, the first above, with its number; values are means and standard deviations,
    nan for a single run. Names that begin alike, up to a comma, share a colour.
    """
    frame = pd.DataFrame(values, index=["mean", "std"]).T.rename_axis("name").reset_index()
    check_columns(frame, "mean")
    if frame["mean"].isna().any():
        raise InputError(
            f"there is no mean to draw for {frame.loc[frame['mean'].isna(), 'name'].iat[0]}"
        )
    import seaborn as sns

    kinds = [name.partition(",")[0] for name in frame["name"]]
    if len(set(kinds)) == len(kinds):  # one colour says no more than many
        kinds = [""] * len(kinds)
    texts = [
        f"{mean:.1f}" + " (n = 1)" * pd.isna(std)
        for mean, std in zip(frame["mean"], frame["std"], strict=True)
    ]
    with canvas(7.2, 0.9 + 0.42 * len(frame), title) as axes:
        look: dict[str, Any] = {"palette": style.series(kinds)["palette"], "saturation": 1}
        sns.barplot(
            frame, x="mean", y="name", hue=kinds, dodge=False, legend=False, ax=axes, **look
        )
        spread = frame["std"].fillna(0)
        axes.errorbar(frame["mean"], frame["name"], xerr=spread, fmt="none", ecolor=style.INK)
        for place, (mean, std, text) in enumerate(zip(frame["mean"], spread, texts, strict=True)):
            end, side = (mean + std, 1) if mean >= 0 else (mean - std, -1)
            at = {"xytext": (5 * side, 0), "textcoords": "offset points", "va": "center"}
            axes.annotate(text, (end, place), ha="left" if side > 0 else "right", **at)
        axes.set(xlabel=xlabel, ylabel="")
        axes.margins(x=0.14)
        axes.grid(visible=False, axis="y")
    said = "; ".join(f"{name} {text}" for name, text in zip(frame["name"], texts, strict=True))
    return describe(axes, title, f"{xlabel}: {said}.")


def dots(frame: pd.DataFrame, xlabel: str, title: str = "", digits: int = 1) -> Figure:
    """Values as dots on lines from `low` to `high`, one below the other, and what a paper reports as hollow
    diamonds.

    Args:
        frame: `name`, `value`, `low`, `high` and, where the paper reports one, `paper`; any may be nan.
        digits: decimals in the description.
    """
    check_columns(frame, "name", "value", "low", "high")
    frame = frame.assign(name=[textwrap.fill(str(name), 40) for name in frame["name"]])
    with canvas(7.2, 1.0 + 0.36 * len(frame), title) as axes:
        below, above = frame["value"] - frame["low"], frame["high"] - frame["value"]
        ends = [end.where(np.isfinite(end), 0) for end in (below, above)]
        look = {"fmt": "o", "color": style.PALETTE[0], "label": "ours"}
        axes.errorbar(frame["value"], range(len(frame)), xerr=ends, **look)
        if "paper" in frame and frame["paper"].notna().any():
            look = {"mfc": "none", "color": style.PALETTE[1], "label": "paper"}
            axes.plot(frame["paper"], range(len(frame)), "D", **look)
            axes.figure.legend(loc="outside lower right", ncols=2)
        axes.set_yticks(range(len(frame)), frame["name"])
        axes.set(xlabel=xlabel, ylim=(len(frame) - 0.5, -0.5))
        if frame["low"].min() < 0 < frame["high"].max():
            axes.axvline(0, color=style.INK, linewidth=1.2)
    said = []
    for row in frame.to_dict("records"):
        low, high = (f"{row[end]:.{digits}f}" for end in ("low", "high"))
        words = [] if pd.isna(row["value"]) else [f"{row['value']:.{digits}f}"]
        words += [f"{low} to {high}"] if np.isfinite([row["low"], row["high"]]).all() else []
        words += [] if pd.isna(row.get("paper")) else [f"paper {row['paper']:.{digits}f}"]
        said.append(f"{' '.join(row['name'].split())} {', '.join(words)}")
    return describe(axes, title, f"{xlabel}: {'; '.join(said)}.")


def heat_map(frame: pd.DataFrame, title: str = "") -> Figure:
    """Ours minus the paper's number: methods down, columns across. Hatched cells say less: they have fewer
    than three seeds, a smaller budget than the paper's, or another data set.

    Args:
        frame: as of `table_frame`, of one metric and unit; rows without both numbers are left out.
    """
    shown = frame[frame["difference"].notna()]
    check_columns(shown, "row", "column", "difference", "seeds", "profile", "stand_in")
    import seaborn as sns
    from matplotlib.patches import Rectangle

    rows, columns = (list(shown[name].unique()) for name in ("row", "column"))
    wide = shown.pivot(index="row", columns="column", values="difference")
    wide = wide.reindex(rows)[columns]
    less = (shown["seeds"] < 3) | (shown["profile"] != "paper") | (shown["stand_in"] != "")
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
    """Who holds what: clients down, classes across, the area of a dot is the number of samples.

    Args:
        labels: (N,) class of every training sample.
        parts: indices into `labels`, one array per client.
        classes: names of the classes; by default their numbers.
    """
    targets = np.asarray(labels).astype(np.int64)
    names = [
        str(one) for one in (range(int(targets.max(initial=0)) + 1) if classes is None else classes)
    ]
    counts = np.stack(
        [
            np.bincount(targets[np.asarray(part, dtype=np.int64)], minlength=len(names))
            for part in parts
        ]
    )
    (client, cls), sizes, held = np.nonzero(counts), counts.sum(1), (counts > 0).sum(1)
    with canvas(min(2.2 + 0.55 * len(names), 12), min(1.5 + 0.27 * len(parts), 14), title) as axes:
        # 300 square points for the largest cell: neighbouring dots then just touch
        areas = 300 * counts[client, cls] / max(counts.max(), 1)
        axes.scatter(cls, client, s=areas, color=style.PALETTE[0], linewidth=0)
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


def runs_of(runs: Runs) -> list[Record]:
    """Records as a list; of a folder those that have a round. InputError as `records_below`."""
    if isinstance(runs, str | Path):
        return [one for one in records_below(runs) if one.metrics]
    given = runs.values() if isinstance(runs, Mapping) else runs
    given = list(given) if isinstance(given, Iterable) else [given]
    if not all(isinstance(one, Record) for one in given):
        raise InputError(f"give records, or the folder of some, not {brief(runs)}")
    return given


def curve_frame(
    runs: Runs, metric: str = "accuracy", by: str | Callable[[Record], str] | None = None
) -> pd.DataFrame:
    """Every tested round of some runs, a row each: `label`, `seed`, `round`, `megabytes` (of 2^20 bytes,
    sent up and down until the end of that round by all clients) and `value`.

    Args:
        metric: name of a metric of the rounds; fractions come back in percent.
        by: setting, or field or option of the experiment, that names the series, or a function from
            record to name; by default the algorithm, and in a folder all that differs.

    Raises InputError for an unknown field or metric, and for a folder without records.
    """
    rows, scale, given = [], 100.0 if metric.startswith(SHARES) else 1.0, runs_of(runs)
    if by is None:
        by = summary.name_of(given) if isinstance(runs, str | Path) else "algorithm"
    for record in given:
        label, sent = by(record) if callable(by) else _series_name(record, by), 0.0
        for entry in record.rounds:
            sent += entry["up"] + entry["down"]
            if entry["metrics"] and metric not in entry["metrics"]:
                raise unknown("metric", metric, entry["metrics"])
            if entry["metrics"]:
                value = scale * entry["metrics"][metric]
                rows.append((label, record.experiment.seed, entry["round"], sent / MB, value))
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
