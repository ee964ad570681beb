"""Charts and tables of attacks, from verdicts and records."""

from __future__ import annotations

import attrs
import numpy as np
import pandas as pd
import pytest

from core.errors import InputError
from core.privacy.membership import Evidence, Verdicts, defence_by_chance
from lab import Experiment, Record
from lab.report.attacks import attack_frame, attack_in_words, clouds_chart, roc_chart


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


def test_clouds_go_from_the_clearest_target_to_the_least_clear():
    pytest.importorskip("matplotlib")
    inside = np.array([[True, True, False], [False, True, True], [True, False, False]])
    inside = np.concatenate([inside, ~inside])
    sure = np.where(inside, [1.0, 9.0, 5.0], 0.0)  # the second target is the clearest
    target, member = np.array([1.0, 9.0, 0.0]), np.array([True, True, False])
    figure = clouds_chart(Evidence(target, sure, inside, member), images=3)
    (axes,) = figure.axes
    clouds = {one.get_label(): one.get_offsets().data.tolist() for one in axes.collections}
    assert clouds["with it"] == [[0, 9.0]] * 3 + [[1, 5.0]] * 3 + [[2, 1.0]] * 3
    assert {height for _, height in clouds["without it"]} == {0.0}
    assert clouds["attacked: member"] == [[0, 9.0], [2, 1.0]]
    assert clouds["attacked: no member"] == [[1, 0.0]]


def runs(*given):
    """A row of `table_runs` for each (method, mean area, kind of upload)."""
    run = Experiment(algorithm="fedavg", dataset="digits", rounds=1, attack={"shadows": 4})
    rows = [{"round": 1, "metrics": {}, "up": 2**20, "down": 0, "seconds": {}}]
    found = []
    for seed, (method, area, kind) in enumerate(given):
        m = {"accuracy": 0.5, "mia_auc_max": 0.6, "mia_auc_mean": area, "mia_server_auc": 0.5}
        m |= {"mia_tpr_0.01": 0.02, "mia_tpr_0.001": 0.001, "mia_members/0": 50.0}
        m |= {"mia_auc/0": area - 0.2, "mia_auc/1": area}
        one = attrs.evolve(run, seed=seed)
        up = {"up": {kind: 2**20, "meta": 0}, "down": {}}
        record = Record(one, {}, "0" * 64, {}, "0" * 12, "complete", rows, m, up)
        found.append((method, record))
    return pd.DataFrame(found, columns=["row", "record"])


def test_runs_with_an_attack_are_a_row_for_each_method():
    some = runs(("A", 0.6, "parameters"), ("A", 0.7, "parameters"), ("B", 0.52, "images"))
    plain = attrs.evolve(some["record"][2].experiment, attack={})
    some.loc[3] = ["C", attrs.evolve(some["record"][2], experiment=plain)]
    frame = attack_frame(some)
    assert frame.index.to_list() == [("digits", "A"), ("digits", "B")]
    first = frame.iloc[0]
    assert (first["seeds"], first["sends"], first["accuracy"], first["MB up a round"]) == (
        2, "models", 50, 1,
    )  # fmt: skip
    assert first["AUC mean"] == pytest.approx(0.65) and first["TPR at 1%"] == 2
    assert first["by chance"] == defence_by_chance([50])["mia_auc_mean"]


def test_what_went_up_is_told_by_the_round():
    some = runs(("A", 0.6, "parameters"))
    some["record"][0].rounds *= 4
    assert attack_frame(some)["MB up a round"].tolist() == [0.25]


def test_words_say_what_each_kind_of_upload_gives_away():
    some = runs(("A", 0.6, "parameters"), ("B", 0.7, "parameters"), ("C", 0.52, "images"))
    text = attack_in_words(attack_frame(some), 10)
    assert text.startswith("3 of 10 methods are measured (seeds: 1).")
    assert "Where models went up, the mean area is between 0.600 and 0.700 and 2.00% of" in text
    assert "Where images went up, the mean area is 0.520 and" in text
    chance = defence_by_chance([50])["mia_auc_mean"]
    assert text.endswith(f"knows nothing has a mean area of {chance:.3f}.")
    assert "images" not in attack_in_words(attack_frame(some[:2]), 10)
    # where records have the offline score: what it finds beside the other, no client raised to 0.5
    for record in some["record"]:
        record.metrics["mia_offline_auc_mean"] = 0.55
    frame = attack_frame(some)
    assert frame["online"].tolist() == pytest.approx([0.5, 0.6, 0.42])
    assert frame["offline"].tolist() == [0.55] * 3
    text = attack_in_words(frame, 10)
    assert text.endswith(
        "the plain mean is 0.550, by the online one between 0.420 and 0.600, by chance 0.5 for both: the "
        "offline one is larger for 2 of 3."
    )
    assert attack_in_words(attack_frame(some[:0]), 10).startswith("None of the 10")
