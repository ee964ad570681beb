"""What the benches measured, as a page shows it."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pandas as pd

from core.experiments.bench import BENCH


def speed(folder: Path = BENCH) -> pd.DataFrame:
    """One row per contestant of every bench record: `bench`, `contestant`, `rate` and its `unit`,
    the ratio of rates to a plain loop (`times plain`; median, lowest and highest of the pairs),
    the `share of the ceiling` of a matrix product, where both sides were tested their mean accuracy
    over seeds (`accuracy (plain)`), `threads` and `precision`.
    """
    rows = []
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        for name, one in found["contestants"].items():
            ratio, share = one.get("ratio"), one.get("ceiling_share")
            rows.append(
                {
                    "bench": path.stem,
                    "contestant": name,
                    "rate": f"{one['rate']:,.1f}",
                    "unit": found["unit"],
                    "times plain": "{median:.2f} ({lowest:.2f} to {highest:.2f})".format(**ratio)
                    if ratio
                    else "",
                    "share of the ceiling": f"{share:.0%}" if share is not None else "",
                    "accuracy (plain)": "{:.1f}% ({:.1f}%)".format(
                        *(statistics.fmean(one["accuracy"][side]) for side in ("ours", "theirs"))
                    )
                    if "accuracy" in one
                    else "",
                    "threads": found["environment"]["threads"],
                    "precision": found["environment"]["precision"],
                }
            )
    return pd.DataFrame(rows)
