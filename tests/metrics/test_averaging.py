"""Which averaging fits: against scikit-learn on whole numbers, closed forms, and the printed rows
of GDD-FL.
"""

from __future__ import annotations

import csv

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from core.errors import InputError
from core.metrics.averaging import AVERAGINGS, fit, harmonic_mean, possible_averagings
from lab.forms import TABLES

#: GDD-FL's test set: 584 of 33,126 images are malignant, so about 58 of 3,314
POSITIVES, NEGATIVES = 58, 3256


def samples(
    hits: int, alarms: int, positives: int, negatives: int
) -> tuple[np.ndarray, np.ndarray]:
    """Labels and predictions with these counts."""
    truth = np.repeat([1, 0], [positives, negatives])
    predicted = np.concatenate(
        [
            np.repeat([1, 0], [hits, positives - hits]),
            np.repeat([1, 0], [alarms, negatives - alarms]),
        ]
    )
    return truth, predicted


def by_scikit_learn(
    averaging: str, truth: np.ndarray, predicted: np.ndarray
) -> tuple[float, float, float]:
    options = {"binary": {"average": "binary"}, "negative": {"average": "binary", "pos_label": 0}}
    return reference.precision_recall_fscore_support(
        truth, predicted, **options.get(averaging, {"average": averaging}), zero_division=0
    )[:3]


@settings(max_examples=30)
@given(st.sampled_from(AVERAGINGS), st.integers(1, 20), st.integers(1, 60), st.data())
def test_a_table_is_found_again_from_its_precision_and_recall(
    averaging, positives, negatives, data
):
    hits, alarms = data.draw(st.integers(1, positives)), data.draw(st.integers(0, negatives - 1))
    truth, predicted = samples(hits, alarms, positives, negatives)
    precision, recall, f1 = by_scikit_learn(averaging, truth, predicted)
    found = fit(averaging, precision, recall, positives, negatives)
    assert found.precision == pytest.approx(precision, abs=1e-4)
    if averaging != "micro" and (found.hits, found.false_alarms) == pytest.approx(
        (hits, alarms), abs=1e-2
    ):
        # another table may have the same two numbers; F1 is compared where it is this one
        assert found.f1 == pytest.approx(f1, abs=1e-3)


@pytest.mark.parametrize("averaging", AVERAGINGS)
def test_a_narrow_way_between_many_samples_is_found(averaging):
    """All but one of 10,000 positives, and one of two negatives: few shares are possible."""
    positives, negatives = 10_000, 2
    truth, predicted = samples(9_999, 1, positives, negatives)
    precision, recall, _ = by_scikit_learn(averaging, truth, predicted)
    found = fit(averaging, precision, recall, positives, negatives)
    assert 0 <= found.hits <= positives and 0 <= found.false_alarms <= negatives
    assert found.precision == pytest.approx(precision, abs=1e-4)


@settings(max_examples=30)
@given(st.integers(0, 10), st.integers(0, 10), st.integers(0, 10**6))
def test_the_auc_of_any_score_lies_within_the_bounds(hits, alarms, seed):
    """Scores that are random on each side of the threshold."""
    truth, predicted = samples(hits, alarms, 10, 30)
    scores = predicted + np.random.default_rng(seed).random(40)
    if not hits:
        return
    found = fit("binary", max(hits / (hits + alarms), 1e-9), hits / 10, 10, 30)
    low, high = found.auc
    assert low - 1e-6 <= reference.roc_auc_score(truth, scores) <= high + 1e-6


def test_the_bounds_are_reached():
    """All other pairs in the wrong order, and all in the right one: 6 of 10 found, 3 of 30 false
    alarms.
    """
    truth, predicted = samples(6, 3, 10, 30)
    low, high = fit("binary", 6 / 9, 0.6, 10, 30).auc
    assert reference.roc_auc_score(
        truth, predicted + np.where(truth == 1, 0.0, 0.5)
    ) == pytest.approx(low, abs=1e-3)
    assert reference.roc_auc_score(
        truth, predicted + np.where(truth == 1, 0.5, 0.0)
    ) == pytest.approx(high, abs=1e-3)
    assert (low, high) == pytest.approx((0.6 * 0.9, 1 - 0.4 * 0.1), abs=1e-3)


def printed() -> dict[tuple[str, str, str], dict[str, float]]:
    rows: dict[tuple[str, str, str], dict[str, float]] = {}
    with (TABLES / "gddfl" / "published.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["metric"] != "upload_mb":
                key = (row["method"], row["split"], row["setting"])
                rows.setdefault(key, {})[row["metric"]] = float(row["value"]) / 100
    return rows


def possible(row: dict[str, float]) -> list[str]:
    return possible_averagings(row["precision"], row["recall"], row["auc"], POSITIVES, NEGATIVES)


def test_only_weighted_means_give_the_upper_bound_of_gddfl():
    row = printed()["upperbound", "centralized", ""]
    assert possible(row) == ["weighted"]
    fits = {
        name: fit(name, row["precision"], row["recall"], POSITIVES, NEGATIVES)
        for name in AVERAGINGS
    }
    # by hand: the melanomas alone, or both classes alike, need a better AUC than the printed 80.97
    assert (
        fits["binary"].auc[0] > 0.91
        and fits["macro"].auc[0] > 2 * row["recall"] - 1 - 1e-3 > row["auc"]
    )
    # the benign alone: with all 58 melanomas missed their precision is still TN / (TN + 58)
    rejected = row["recall"] * NEGATIVES
    assert fits["negative"].precision == pytest.approx(rejected / (rejected + 58), abs=1e-4)
    assert fits["negative"].precision > row["precision"] + 0.008
    assert fits["micro"].precision == pytest.approx(row["recall"])
    # 22 of 58 melanomas found, 259 false alarms
    assert (fits["weighted"].hits, fits["weighted"].false_alarms) == pytest.approx(
        (22.2, 258.9), abs=0.5
    )


def test_weighted_means_give_18_of_the_21_rows_and_no_averaging_gives_all():
    rows = printed()
    assert len(rows) == 21
    other = {key for key, row in rows.items() if "weighted" not in possible(row)}
    assert other == {
        ("rs10", "centralized", "ipc=10"),
        ("rs100", "centralized", "ipc=100"),
        ("fedavg", "dir(alpha=1),m=10", ""),
    }
    for name in AVERAGINGS:
        assert not all(name in possible(row) for row in rows.values())
    for key in other:  # at their accuracy a weighted precision cannot be as low as printed
        nearest = fit("weighted", rows[key]["precision"], rows[key]["recall"], POSITIVES, NEGATIVES)
        assert nearest.precision > 0.95 > rows[key]["precision"] + 0.07


def test_the_printed_f1_is_the_harmonic_mean_and_not_the_weighted_f1():
    rows = printed()
    exact = 0
    for row in rows.values():
        if "weighted" in possible(row):
            found = fit("weighted", row["precision"], row["recall"], POSITIVES, NEGATIVES)
            assert abs(found.f1 - row["f1"]) > 0.001
        exact += abs(harmonic_mean(row["precision"], row["recall"]) - row["f1"]) < 1e-4
    assert exact >= 14


@pytest.mark.parametrize(
    "values",
    [
        ("mean", 0.9, 0.9, 5, 5),
        ("macro", 0.0, 0.9, 5, 5),
        ("macro", 0.9, 1.1, 5, 5),
        ("macro", 0.9, 0.9, 0, 5),
        ("macro", 0.9, 0.9, 5, 0),
    ],
)
def test_what_is_no_fraction_or_count_is_refused(values):
    with pytest.raises(InputError, match="no averaging"):
        fit(*values)
