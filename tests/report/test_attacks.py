"""Charts and tables of attacks, from verdicts and records."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from core.errors import InputError
from core.experiments import Experiment, Record
from core.privacy.membership import Evidence, Verdicts, defence_by_chance
from core.report.attacks import attack_frame, roc_chart


def test_the_curve_stands_on_logarithmic_axes_beside_chance():
    pytest.importorskip("matplotlib")
    member = np.array([True, False] * 4)
    scores = np.array([8, 7, 6, 5, 4, 3, 2, 1.0])
    figure = roc_chart({"a": Verdicts(Evidence(scores, scores, member, member), scores, scores)})
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    curve, chance = (line.get_xydata().tolist() for line in axes.get_lines())
    assert curve == [[0.25, 0.5], [0.5, 0.75], [0.75, 1], [1, 1]]
    assert chance == [[0.25, 0.25], [1, 1]]
    with pytest.raises(InputError, match="no attack"):
        roc_chart({})


def test_a_record_with_an_attack_is_a_row():
    run = Experiment(algorithm="fedavg", dataset="digits", rounds=1, attack={"shadows": 4})
    metrics = {"accuracy": 0.5, "mia_auc_max": 0.6, "mia_auc_mean": 0.55, "mia_server_auc": 0.5}
    metrics |= {"mia_tpr_0.01": 0.02, "mia_tpr_0.001": 0.0, "mia_members/0": 50.0}
    rows = [{"round": 1, "metrics": metrics, "up": 2**20, "down": 0, "seconds": {}}]
    up = {"up": {"parameters": 2**20}, "down": {}}
    one = Record(run, {}, "0" * 64, {}, "0" * 12, "complete", rows, metrics, up)
    plain = attrs.evolve(one, experiment=attrs.evolve(run, attack={}))
    frame = attack_frame([one, plain])
    assert len(frame) == 1
    row = frame.iloc[0]
    assert (row["accuracy"], row["MB up a round"], row["TPR at 1%"]) == (50, 1, 2)
    assert row["by chance"] == defence_by_chance([50])["mia_auc_mean"]
