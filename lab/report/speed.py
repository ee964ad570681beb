"""What the benches measured, as a page shows it."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import numpy as np
import pandas as pd

from lab.record import REPOSITORY
from lab.report.charts import method_name
from lab.report.intervals import interval
from lab.report.verdict import MARGINS, mean_and_std

#: records of speed and of agreement, one for each script of `benchmarks/` and kind of machine
BENCH = REPOSITORY / "book" / "bench"
#: how the names of records begin that compare accuracies, not speed: see `precisions` and `held`
PRECISION, RECORDS = "precision-", "records-"
#: and how those do that time whole runs beside a plain loop
RUNS = "run-"


def precisions(folder: Path = BENCH) -> pd.DataFrame:
    """Whether accuracy hangs on the precision: a row per method (and kind of
    machine, where there are several) with its
    mean accuracy in percent over `seeds` in `float32` and `bfloat16`, the standard deviation in the
    first, the mean `difference`, bfloat16 minus float32, seed by seed, and the ends of its 90%
    interval, `low` and `high`. Empty where there is no such record.
    """
    rows, paths = {}, sorted(folder.glob(f"{PRECISION}*.json"))
    for path in paths:
        found = json.loads(path.read_text(encoding="utf-8"))
        for algorithm, one in found["contestants"].items():
            name = method_name(algorithm)
            plain, fast = one["accuracy"]["theirs"], one["accuracy"]["ours"]
            means = statistics.fmean(plain), statistics.fmean(fast)
            gap = interval(np.subtract(fast, plain))
            where = f" ({path.stem.removeprefix(PRECISION)})" if len(paths) > 1 else ""
            rows[name + where] = (len(plain), *means, mean_and_std(plain)[1], *gap)
    columns = ["seeds", "float32", "bfloat16", "std", "difference", "low", "high"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)


def precision_in_words(folder: Path = BENCH) -> str:
    """What `precisions` says, by the margin of verdicts, in a sentence or two."""
    frame, margin = precisions(folder), MARGINS["percent"]
    if frame.empty:
        return "Not measured yet."
    same = frame["low"].ge(-margin) & frame["high"].le(margin)
    beyond = frame["difference"].abs().gt(margin)
    apart = frame["low"].gt(0) | frame["high"].lt(0)
    shifted, small = (apart & far for far in (beyond, ~beyond))
    named, lesser = (", ".join(frame.index[which]) for which in (shifted, small))
    return (
        f"Of {len(frame)} methods the interval of {same.sum()} lies within {margin:g} points of 0. "
        + f"Shifted by more than {margin:g} points, with 0 outside: {named or 'none'}. "
        + (
            f"Shifted by less, with 0 outside: {lesser}; of so many intervals "
            f"{len(frame) / 10:.0f} would leave 0 out by chance. "
            if lesser
            else ""
        )
        + f"With {(rest := int((~same & ~apart).sum()))} other{'s' * (rest != 1)} the seeds lie too far "
        "apart to say more."
    )


def held(folder: Path = BENCH) -> pd.DataFrame:
    """Whether records of older versions hold, by `benchmarks/records.py`: a row per kind of run (and kind of
    machine, where there are several), the largest `difference` first, with the mean over `seeds` of its
    `record` and of the same runs `again` in percent, the deviation `std` over the seeds on record, and
    whether both sent the `same bytes`. Empty where there is no such record.
    """
    rows, paths = {}, sorted(folder.glob(f"{RECORDS}*.json"))
    for path in paths:
        for name, one in json.loads(path.read_text(encoding="utf-8"))["contestants"].items():
            old, new = (statistics.fmean(one["accuracy"][side]) for side in ("theirs", "ours"))
            seeds = len(one["accuracy"]["ours"])
            method, _, rest = name.partition(",")
            where = f" ({path.stem.removeprefix(RECORDS)})" if len(paths) > 1 else ""
            name = f"{method_name(method)},{rest}{where}"
            rows[name] = (seeds, old, new, new - old, one["std"], one["same_bytes"])
    columns = ["seeds", "record", "again", "difference", "std", "same bytes"]
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=columns).astype({"std": float})
    return frame.sort_values("difference", key=abs, ascending=False, kind="stable")


def held_in_words(folder: Path = BENCH) -> str:
    """What `held` says, by the margin of verdicts and by what seeds do, in some sentences."""
    frame, margin = held(folder), MARGINS["percent"]
    if frame.empty:
        return "Not measured yet."
    far = frame["difference"].abs()
    gap, low, high = interval(list(frame["difference"]))
    beyond = frame[far.gt(margin)]
    named = [
        f"{name} ({one.difference:+.1f} over {one.seeds} seed{'s' * (one.seeds > 1)}"
        + ("" if np.isnan(one["std"]) else f"; deviation {one['std']:.1f}")
        + ")"
        for name, one in beyond.iterrows()
    ]
    bytes_in_words = (
        "All sent the bytes on record."
        if frame["same bytes"].all()
        else f"Other bytes than on record: {', '.join(frame.index[~frame['same bytes']])}."
    )
    return (
        f"Of {len(frame)} kinds of runs {far.le(0.05).sum()} have what is on record to a decimal, and "
        f"{far.le(margin).sum()} to within {margin:g} points; the mean difference is {gap:+.2f} points "
        f"(90% interval {low:.2f} to {high:.2f}). Farther apart, in points: {', '.join(named) or 'none'}. "
        f"{bytes_in_words}"
    )


def speed(folder: Path = BENCH) -> pd.DataFrame:
    """One row per contestant of every bench record of speed: `bench`, `contestant`, `rate` and its `unit`,
    how many `times` as fast it is as what it stands `beside` (median, lowest and highest of the pairs),
    the `share of the ceiling` of a matrix product, where both sides were tested their mean accuracy
    over seeds (`accuracy (beside)`), `threads` and `precision`, and what such a product reached in each
    precision (`ceilings`, GFLOP/s).
    """
    rows = []
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        if path.stem.startswith((PRECISION, RECORDS)):
            continue
        for name, one in found["contestants"].items():
            ratio, share = one.get("ratio"), one.get("ceiling_share")
            rows.append(
                {
                    "bench": path.stem,
                    "contestant": name,
                    "rate": f"{one['rate']:,.1f}",
                    "unit": found["unit"],
                    "beside": one.get("beside", "plain") if ratio else "",
                    "times": "{median:.2f} ({lowest:.2f} to {highest:.2f})".format(**ratio)
                    if ratio
                    else "",
                    "share of the ceiling": f"{share:.0%}" if share is not None else "",
                    "accuracy (beside)": "{:.1f}% ({:.1f}%)".format(
                        *(statistics.fmean(one["accuracy"][side]) for side in ("ours", "theirs"))
                    )
                    if "accuracy" in one
                    else "",
                    "threads": found["environment"]["threads"],
                    "precision": found["environment"]["precision"],
                    "ceilings": ", ".join(
                        f"{name} {rate / 1e9:,.0f}"
                        for name, rate in found.get("ceilings", {}).items()
                    ),
                }
            )
    return pd.DataFrame(rows)


def whole_runs(folder: Path = BENCH) -> dict[str, tuple[float, float]]:
    """How many times as fast whole runs are as a plain loop, for `lab.report.charts.bars`: by method,
    vectors of the processor and precision, the largest first of each method, the median of the pairs
    and half of what lies between the lowest and the highest.
    """
    found = dict[str, tuple[float, float]]()
    for path in sorted(folder.glob(f"{RUNS}*.json")):
        read = json.loads(path.read_text(encoding="utf-8"))
        vectors, _, precision = path.stem.removeprefix(RUNS).partition("-")
        for name, one in read["contestants"].items():
            if (ratio := one.get("ratio")) and one.get("beside", "plain") == "plain":
                method, _, data = name.partition(", ")
                label = f"{method_name(method)}, {vectors.upper()}, {precision}"
                label += f" ({data})" if data else ""
                found[label] = ratio["median"], (ratio["highest"] - ratio["lowest"]) / 2
    methods = list(dict.fromkeys(name.partition(",")[0] for name in found))

    def place(name: str) -> tuple[int, float]:
        return methods.index(name.partition(",")[0]), -found[name][0]

    return {name: found[name] for name in sorted(found, key=place)}
