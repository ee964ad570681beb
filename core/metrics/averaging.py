"""Which averaging over classes can lie behind a printed precision and recall.

A paper that prints precision, recall and AUC of two classes may leave open how they are averaged.
But the numbers belong to one table of hits and misses, so not every averaging can give them. This
is how the averaging of GDD-FL's Table 1 (MICCAI 2023) is found: 97.23% precision beside 91.11%
recall and an AUC of 80.97 on 1.8% positives can only be means weighted by class size.
"""

from __future__ import annotations

import attrs
import numpy as np

from core.errors import InputError

#: "binary": of the positive class; "negative": of the other; "macro": mean of both; "weighted":
#: mean by class size; "micro": of all samples, where precision and recall are both the accuracy
AVERAGINGS = ("binary", "negative", "macro", "weighted", "micro")
#: how close to the printed precision one must come, as a fraction: half a unit of the second
#: decimal of a percentage
TOLERANCE = 5e-5
#: tables that are tried at once, and how often the best of them is looked at more closely
STEPS, ZOOMS = 2001, 4


@attrs.frozen
class Fit:
    """The table of hits and misses with the printed recall whose precision is nearest to the
    printed one.

    Counts are real numbers, since what is printed is a mean over runs. All measures are fractions.
    """

    averaging: str
    #: positives that were found
    hits: float
    #: negatives that were taken for positives
    false_alarms: float
    precision: float
    #: F1 with the same averaging: the mean of the classes' F1
    f1: float
    #: the lowest and highest AUC of any score whose threshold gives this table
    auc: tuple[float, float]

    def explains(self, precision: float, auc: float) -> bool:
        """Whether a printed precision and AUC can come from this table."""
        low, high = self.auc
        return (
            abs(self.precision - precision) <= TOLERANCE
            and low - TOLERANCE <= auc <= high + TOLERANCE
        )


def fit(averaging: str, precision: float, recall: float, positives: int, negatives: int) -> Fit:
    """The nearest table for one averaging; every recall has some.

    A score of true positive rate a and false positive rate b at its threshold has an AUC of at
    least a (1 - b), when all other pairs are in the wrong order, and of at most 1 - (1 - a) b, when
    all are in the right one.

    Args:
        averaging: one of `AVERAGINGS`; precision, recall: fractions; positives, negatives: samples
            of each class.

    Raises InputError for numbers that are no fractions or counts.
    """
    if (
        averaging not in AVERAGINGS
        or min(positives, negatives) < 1
        or not 0 < recall <= 1
        or not 0 < precision <= 1
    ):
        raise InputError(
            f"no averaging {averaging!r} of a precision of {precision} and a recall of {recall} "
            f"on {positives} positives and {negatives} negatives"
        )
    low, high = _possible(averaging, recall, positives, negatives)
    for _ in range(ZOOMS):
        share = np.linspace(low, high, STEPS)
        hits, alarms = _with_recall(averaging, recall, positives, negatives, share)
        hits, alarms = hits.clip(0, positives), alarms.clip(0, negatives)
        found, f1 = _scores(averaging, hits, alarms, positives, negatives)
        best = int(np.abs(found - precision).argmin())
        low, high = share[max(best - 1, 0)], share[min(best + 1, STEPS - 1)]
    a, b = hits[best] / positives, alarms[best] / negatives
    return Fit(
        averaging,
        float(hits[best]),
        float(alarms[best]),
        float(found[best]),
        float(f1[best]),
        (float(a * (1 - b)), float(1 - (1 - a) * b)),
    )


def possible_averagings(
    precision: float, recall: float, auc: float, positives: int, negatives: int
) -> list[str]:
    """The averagings under which the three printed fractions can belong together."""
    fits = (fit(averaging, precision, recall, positives, negatives) for averaging in AVERAGINGS)
    return [one.averaging for one in fits if one.explains(precision, auc)]


def harmonic_mean(precision: float, recall: float) -> float:
    """2 P R / (P + R)."""
    return 2 * precision * recall / (precision + recall)


def _possible(averaging: str, recall: float, positives: int, negatives: int) -> tuple[float, float]:
    """Between which shares both counts of `_with_recall`, which are linear in it, can be."""
    low, high = 0.0, 1.0
    tables = _with_recall(averaging, recall, positives, negatives, np.linspace(0, 1, STEPS))
    for counts, most in zip(tables, (positives, negatives), strict=True):
        if rise := counts[-1] - counts[0]:
            ends = sorted((end - counts[0]) / rise for end in (0, most))
            low, high = max(low, ends[0]), min(high, ends[1])
    return low, max(low, high)


def _with_recall(
    averaging: str, recall: float, positives: int, negatives: int, share: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Tables with a given recall: hits and false alarms, one of which is free and takes a share of
    all it can be.
    """
    if averaging == "binary":
        return np.full(STEPS, recall * positives), share * negatives
    hits = share * positives
    if averaging == "negative":
        return hits, np.full(STEPS, (1 - recall) * negatives)
    if averaging == "macro":  # (hits / positives + 1 - alarms / negatives) / 2 = recall
        return hits, negatives * (1 + hits / positives - 2 * recall)
    # weighted recall is the accuracy: the misses and alarms together are 1 - recall of all
    return hits, (1 - recall) * (positives + negatives) - (positives - hits)


def _scores(
    averaging: str, hits: np.ndarray, alarms: np.ndarray, positives: int, negatives: int
) -> tuple[np.ndarray, np.ndarray]:
    """Precision and F1 of tables."""
    misses, rejections = positives - hits, negatives - alarms
    shares = {
        "binary": (1.0, 0.0),
        "negative": (0.0, 1.0),
        "macro": (0.5, 0.5),
        "weighted": (positives / (positives + negatives), negatives / (positives + negatives)),
    }
    if averaging == "micro":
        accuracy = (hits + rejections) / (positives + negatives)
        return accuracy, accuracy
    share = shares[averaging]
    # a class that is never predicted has precision 0
    precision = [_ratio(hits, hits + alarms), _ratio(rejections, rejections + misses)]
    f1 = [
        _ratio(2 * hits, 2 * hits + alarms + misses),
        _ratio(2 * rejections, 2 * rejections + alarms + misses),
    ]
    return (share[0] * precision[0] + share[1] * precision[1], share[0] * f1[0] + share[1] * f1[1])


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0)
