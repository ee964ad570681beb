"""What attacks found: charts of verdicts, and methods beside each other."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from core.errors import InputError
from core.privacy import membership
from core.privacy.membership import Evidence, Verdicts
from lab import Record
from lab.report.charts import lines, scatter
from lab.report.verdict import MB

#: what an upload is, by what the ledger counts in it
KINDS = {"models": {"parameters"}, "images": {"images", "anchors", "averages"}}


def clouds_chart(evidence: Evidence, images: int = 6) -> Any:
    """How sure models are of some targets: shadow models with and without the image, and the attacked
    one. The targets go from that where the two means are furthest apart to that where they are
    nearest.
    """
    sides = (
        np.ma.array(evidence.shadows, mask=mask) for mask in (~evidence.inside, evidence.inside)
    )
    with_, without = (side.mean(0).filled(0.0) for side in sides)
    order = np.abs(with_ - without).argsort()[::-1]
    points = []
    for place, t in enumerate(order[np.linspace(0, len(order) - 1, images).astype(int)]):
        shadows = zip(evidence.shadows[:, t], evidence.inside[:, t], strict=True)
        points += [(place, sure, "with it" if inside else "without it") for sure, inside in shadows]
        member = "attacked: member" if evidence.member[t] else "attacked: no member"
        points.append((place, evidence.target[t], member))
    return scatter(
        pd.DataFrame(points, columns=["image", "log odds", "label"]),
        "image",
        "log odds",
        xlabel=f"{images} targets, from the clearest to the least clear",
        title="How sure models are of an image",
    )


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


def attack_frame(runs: pd.DataFrame) -> pd.DataFrame:
    """What a method gives away and what it gives for it: a row for each `data` and `method`, means
    over its runs.

    Args:
        runs: of `lab.report.frames.table_runs`; those without an attack are left out.

    Columns: `seeds`; `sends` ("models", "images" or both); accuracy and rates of true positives in
    percent; MB of 2^20 bytes that all clients sent in a round; areas under the ROC curve. The mean one,
    where lower ones count as 0.5, stands beside that of an attack that knows nothing. `online` and
    `offline` are plain means over clients, 0.5 for such an attack, of LiRA's two scores; the offline one
    uses only the shadow models that were made without an image.
    """
    attacked = runs[runs["record"].map(lambda one: bool(one.experiment.attack)).astype(bool)]
    found = pd.DataFrame([_attacked(record) for record in attacked["record"]])
    by = ["data", "method"]
    if found.empty:
        return pd.DataFrame(index=pd.MultiIndex.from_arrays([[], []], names=by))
    found["method"] = attacked["row"].to_list()
    groups = found.groupby(by, sort=False)
    return (
        groups[["sends"]].first().join(groups.mean(numeric_only=True)).assign(seeds=groups.size())
    )


def _attacked(record: Record) -> dict[str, Any]:
    """What a record says of its attack."""
    m, up = record.metrics, record.bytes["up"]
    members = [int(m[name]) for name in m if name.startswith("mia_members/")]
    return {
        "data": record.experiment.dataset,
        "sends": " and ".join(kind for kind, names in KINDS.items() if names & up.keys()),
        "accuracy": 100 * m["accuracy"],
        "MB up a round": record.sent("up") / MB / len(record.rounds),
        "AUC max": m["mia_auc_max"],
        "AUC mean": m["mia_auc_mean"],
        "by chance": membership.defence_by_chance(members)["mia_auc_mean"],
        "online": statistics.fmean(m[name] for name in m if name.startswith("mia_auc/")),
        "offline": m.get("mia_offline_auc_mean", float("nan")),
        "TPR at 1%": 100 * m["mia_tpr_0.01"],
        "TPR at 0.1%": 100 * m["mia_tpr_0.001"],
        "AUC, server's model": m["mia_server_auc"],
    }


def attack_in_words(frame: pd.DataFrame, wanted: int) -> str:
    """What an `attack_frame` of one data set says, in sentences; `wanted` methods are in its table.

    Nothing is said of kinds of upload of which none is measured.
    """
    if not len(frame):
        return f"None of the {wanted} methods is measured yet."
    seeds = _between(frame["seeds"], "{:.0f}")
    said = [f"{len(frame)} of {wanted} methods are measured (seeds: {seeds})."]
    chance = frame["by chance"].mean()
    for kind, of in frame.groupby("sends"):
        auc = of["AUC mean"]
        said.append(
            f"Where {kind} went up, the mean area is {_between(auc, '{:.3f}')} and "
            f"{_between(of['TPR at 1%'], '{:.2f}%')} of the members are found while 1% of the others are "
            f"accused, {_between(of['TPR at 0.1%'], '{:.2f}%')} at 0.1%."
        )
    said.append(
        "Of fewer than a thousand others 0.1% is nobody: what is found then hangs on one image, the one "
        "among the others that looks most like a member."
    )
    said.append(f"An attack that knows nothing has a mean area of {chance:.3f}.")
    more = int((frame["offline"] > frame["online"]).sum())
    if more:
        said.append(
            "By LiRA's offline score, which needs no shadow model with an image, the plain mean is "
            f"{_between(frame['offline'], '{:.3f}')}, by the online one "
            f"{_between(frame['online'], '{:.3f}')}, by chance 0.5 for both: the offline one is larger "
            f"for {more} of {len(frame)}."
        )
    return " ".join(said)


def _between(values: pd.Series, form: str) -> str:
    low, high = form.format(values.min()), form.format(values.max())
    return low if low == high else f"between {low} and {high}"
