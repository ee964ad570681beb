"""Which averaging over classes can explain a reported precision and recall.

A paper that reports precision, recall and AUC of two classes may leave open how they are averaged.
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
#: how close to the reported precision a table must come, as a fraction: half a unit of the second
#: decimal of a percentage
TOLERANCE = 5e-5
#: tables that are compared at once, and how often the neighbourhood of the best is refined
STEPS, ZOOMS = 2001, 4


@attrs.frozen
class Fit:
    """The table of hits and misses with the reported recall whose precision is nearest to the
    reported one.

    Counts are real numbers, since a report is a mean over runs. All measures are fractions.
    """

    averaging: str
    #: positives that are predicted as such
    hits: float
    #: negatives that are predicted as positive
    false_alarms: float
    precision: float
    #: F1 with the same averaging: the mean of the classes' F1
    f1: float
    #: the lowest and highest AUC of any score whose threshold gives this table
    auc: tuple[float, float]

    def explains(self, precision: float, auc: float) -> bool:
        """Return whether a reported precision and AUC can come from this table."""
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
    first, last = _ends(averaging, recall, positives, negatives)
    for _ in range(ZOOMS):
        hits, alarms = np.linspace(first, last, STEPS).T
        precisions, f1 = _scores(averaging, hits, alarms, positives, negatives)
        best = int(np.abs(precisions - precision).argmin())
        around = max(best - 1, 0), min(best + 1, STEPS - 1)
        first, last = (np.array([hits[end], alarms[end]]) for end in around)
    a, b = hits[best] / positives, alarms[best] / negatives
    return Fit(
        averaging,
        float(hits[best]),
        float(alarms[best]),
        float(precisions[best]),
        float(f1[best]),
        (float(a * (1 - b)), float(1 - (1 - a) * b)),
    )


def possible_averagings(
    precision: float, recall: float, auc: float, positives: int, negatives: int
) -> list[str]:
    """The averagings under which the three reported fractions can belong together."""
    fits = (fit(averaging, precision, recall, positives, negatives) for averaging in AVERAGINGS)
    return [table.averaging for table in fits if table.explains(precision, auc)]


def harmonic_mean(precision: float, recall: float) -> float:
    """2 P R / (P + R)."""
    return 2 * precision * recall / (precision + recall)


def _ends(
    averaging: str, recall: float, positives: int, negatives: int
) -> tuple[np.ndarray, np.ndarray]:
    """Both ends, (hits, false alarms), of the line of all tables with this recall."""
    if averaging == "binary":
        return np.array([recall * positives, 0.0]), np.array([recall * positives, negatives])
    # false alarms at 0 hits, and with each hit more
    if averaging == "negative":
        start, rise = (1 - recall) * negatives, 0.0
    elif averaging == "macro":  # (hits / positives + 1 - alarms / negatives) / 2 = recall
        start, rise = negatives * (1 - 2 * recall), negatives / positives
    else:  # the recall is the accuracy: misses and alarms together are 1 - recall of all
        start, rise = (1 - recall) * (positives + negatives) - positives, 1.0
    low = max(0.0, -start / rise) if rise else 0.0
    high = min(positives, (negatives - start) / rise) if rise else positives
    hits = np.array([low, max(low, high)])
    alarms = (start + rise * hits).clip(0, negatives)
    return np.array([hits[0], alarms[0]]), np.array([hits[1], alarms[1]])


def _scores(
    averaging: str, hits: np.ndarray, alarms: np.ndarray, positives: int, negatives: int
) -> tuple[np.ndarray, np.ndarray]:
    """Precision and F1 of tables."""
    misses, rejections = positives - hits, negatives - alarms
    if averaging == "micro":
        accuracy = (hits + rejections) / (positives + negatives)
        return accuracy, accuracy
    whole = positives / (positives + negatives)
    share = {"binary": 1.0, "negative": 0.0, "macro": 0.5, "weighted": whole}[averaging]
    # a class that is never predicted has precision 0
    precision = share * _ratio(hits, hits + alarms)
    precision += (1 - share) * _ratio(rejections, rejections + misses)
    f1 = share * _ratio(2 * hits, 2 * hits + alarms + misses)
    f1 += (1 - share) * _ratio(2 * rejections, 2 * rejections + alarms + misses)
    return precision, f1


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0)
