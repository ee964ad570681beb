"""What attacks found: curves on logarithmic axes, and methods beside each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from core.errors import InputError
from core.experiments import Record
from core.privacy import membership
from core.privacy.membership import Verdicts
from core.report.charts import lines
from core.report.verdict import MB


def roc_chart(found: Mapping[str, Verdicts], title: str = "") -> Any:
    """The ROC curves of attacks by name, both axes logarithmic, beside that of chance.

    What matters stands on the left: how many members an attacker finds that may hardly ever be
    wrong. Raises InputError when there is nothing to draw.
    """
    if not found:
        raise InputError("there is no attack to draw")
    wrong, right, label = "false positive rate", "true positive rate", "label"
    parts, least = [], 1.0
    for name, one in found.items():
        x, y = membership.roc(one.online, one.member)
        seen = (x > 0) & (y > 0)
        least = min(least, 1 / int((~one.member).sum()))
        parts.append(pd.DataFrame({wrong: x[seen], right: y[seen], label: name}))
    parts.append(pd.DataFrame({wrong: [least, 1.0], right: [least, 1.0], label: "chance"}))
    return lines(pd.concat(parts), wrong, right, log="xy", title=title)


def attack_frame(records: Iterable[Record]) -> pd.DataFrame:
    """A row for each record of an experiment with an attack: what was run, accuracy and rates in
    percent, MB of 2^20 bytes that all clients sent in a round, and what chance gives as mean AUC.
    """
    rows = []
    for record in records:
        run, m = record.experiment, record.metrics
        if not run.attack:
            continue
        members = [int(m[name]) for name in m if name.startswith("mia_members/")]
        rows.append(
            {
                "method": run.algorithm,
                "data": run.dataset,
                "profile": run.profile,
                "seed": run.seed,
                "accuracy": 100 * m["accuracy"],
                "MB up a round": sum(record.bytes["up"].values()) / MB / len(record.rounds),
                "AUC max": m["mia_auc_max"],
                "AUC mean": m["mia_auc_mean"],
                "by chance": membership.defence_by_chance(members)["mia_auc_mean"],
                "TPR at 1%": 100 * m["mia_tpr_0.01"],
                "TPR at 0.1%": 100 * m["mia_tpr_0.001"],
                "AUC, server's model": m["mia_server_auc"],
            }
        )
    return pd.DataFrame(rows)
