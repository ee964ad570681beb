"""How hyper-parameters were chosen: the same number of tries for every method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from lab import Record, TableSpec, records
from lab.profiles import apply
from lab.report import style
from lab.report.figures import blank
from lab.report.learning_curves import method_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: the table that holds the tries of the laptop profile, and this profile
TABLE, PROFILE = ("reference", "tuning"), "laptop"


def tuning_frame(
    measured: Mapping[str, Record] | None = None,
    table: tuple[str, str] = TABLE,
    profile: str = PROFILE,
) -> pd.DataFrame:
    """Every try: `algorithm`, `settings` (a dictionary), one column of accuracies in percent for
    each data set, their geometric `mean`, and `chosen`.

    The try with the highest mean is chosen, the first one where two are equal; none is chosen for
    an algorithm until all its tries are measured on all data sets. The mean is geometric, so that
    ratios count and not points: else the data set on which tries differ by more points would decide
    almost alone.

    Args:
        measured: complete records by experiment id; by default the book's.
        table: paper and name of the table that holds the tries, and `profile`, what they are run
            at.
    """
    known = records() if measured is None else measured
    spec = TableSpec.find(*table)
    tries: dict[str, dict[str, Any]] = {}
    for cell in spec.cells(profile):
        (experiment,) = cell.experiments
        row = next(row for row in spec.rows if row.name == cell.row)
        entry = tries.setdefault(
            cell.row, {"algorithm": experiment.algorithm, "settings": row.fields["settings"]}
        )
        record = known.get(experiment.id)
        entry[experiment.dataset] = 100 * record.metrics["accuracy"] if record else None
    frame = pd.DataFrame(list(tries.values()))
    sets = [str(name) for name in frame if name not in ("algorithm", "settings")]
    frame[sets] = frame[sets].astype(float)
    frame["mean"] = frame[sets].prod(axis=1, skipna=False) ** (1 / len(sets))
    finished = frame.groupby("algorithm")["mean"].transform(lambda means: means.notna().all())
    best = frame.loc[finished].groupby("algorithm")["mean"].idxmax()
    return frame.assign(chosen=frame.index.isin(best))


def tuning_table(
    measured: Mapping[str, Record] | None = None,
    table: tuple[str, str] = TABLE,
    profile: str = PROFILE,
) -> pd.DataFrame:
    """`tuning_frame` as a page shows it: a line per try, settings as text, the chosen ones
    marked.
    """
    frame = tuning_frame(measured, table, profile)
    frame["settings"] = frame["settings"].map(_in_words)
    frame["method"] = frame.pop("algorithm").map(method_name)
    frame["chosen"] = frame["chosen"].map({True: "✓", False: ""})
    return frame.set_index(["method", "settings"]).round(2)


def _in_words(settings: Mapping[str, float | str]) -> str:
    return ", ".join(
        f"{name} {value}" if isinstance(value, str) else f"{name} {value:g}"
        for name, value in settings.items()
    )


def tuning_choice(measured: Mapping[str, Record] | None = None) -> pd.DataFrame:
    """A line per method: its tries, how many of them are measured on all data sets, which one was
    chosen, what the profile has for the same hyper-parameters, and whether the two agree ("" where
    nothing is chosen yet).
    """
    frame, rows = tuning_frame(measured), {}
    for algorithm in dict.fromkeys(map(str, frame["algorithm"])):
        tries: list[dict[str, Any]] = frame[frame["algorithm"] == algorithm].to_dict("records")  # type: ignore[assignment]
        dataset = next(
            name for name in tries[0] if name not in ("algorithm", "settings", "mean", "chosen")
        )
        settings = (
            apply(PROFILE, {"algorithm": algorithm, "dataset": dataset}).new_algorithm().settings
        )
        held = {name: getattr(settings, name) for name in tries[0]["settings"]}
        best = next((row["settings"] for row in tries if row["chosen"]), None)
        rows[method_name(algorithm)] = {
            "tries": len(tries),
            "measured": sum(not pd.isna(row["mean"]) for row in tries),
            "chosen": _in_words(best) if best else "pending",
            "in the profile": _in_words(held),
            "agree": "" if best is None else "yes" if best == held else "no",
        }
    return pd.DataFrame(rows).T.rename_axis("method")


def at_an_edge(measured: Mapping[str, Record] | None = None) -> dict[str, list[str]]:
    """The methods whose chosen value of a hyper-parameter is the smallest or the largest of its
    values, and which hyper-parameters these are; one that has a single value or names is none.
    """
    frame = tuning_frame(measured)
    found = {}
    for algorithm, tries in frame.groupby("algorithm", sort=False):
        grid = pd.DataFrame(list(tries["settings"])).select_dtypes("number")
        grid = grid.loc[:, grid.nunique() > 1]
        for chosen in tries.loc[tries["chosen"], "settings"]:
            names = [key for key in grid if chosen[key] in (grid[key].min(), grid[key].max())]
            if names:
                found[method_name(str(algorithm))] = [str(name) for name in names]
    return found


def tuning_plot(measured: Mapping[str, Record] | None = None) -> Figure | None:
    """The means of all measured tries, a line per method, the chosen one filled; None where nothing
    is measured.
    """
    frame = tuning_frame(measured).dropna(subset=["mean"])
    if frame.empty:
        return None
    from matplotlib import rc_context

    names = list(dict.fromkeys(map(str, frame["algorithm"])))
    with rc_context(style.rc()):
        figure = blank(7.2, 1.0 + 0.32 * len(names))
        axes = figure.subplots()
        for chosen, marker, fill in ((False, "o", "none"), (True, "D", style.PALETTE[1])):
            part = frame[frame["chosen"] == chosen]
            axes.scatter(
                part["mean"],
                part["algorithm"].map(names.index),
                marker=marker,
                facecolor=fill,
                s=45,
                edgecolor=style.PALETTE[int(chosen)],
                label="chosen" if chosen else "tried",
            )
        axes.set_yticks(range(len(names)), [method_name(name) for name in names])
        axes.set(
            xlabel="accuracy on validation data, geometric mean over data sets (%)",
            ylim=(len(names) - 0.5, -0.5),
        )
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    means = {name: frame.loc[frame["algorithm"] == name, "mean"] for name in names}
    ends = "; ".join(
        f"{method_name(name)} from {of.min():.1f} to {of.max():.1f}" for name, of in means.items()
    )
    figure.set_label(
        f"Validation accuracy of the tries in percent, the best one of a finished method marked: {ends}."
    )
    return figure
