"""Measures of classification, as fractions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch.nn import functional

from core.errors import Diverged, InputError


def classification(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """Measures of the predictions `logits.argmax(1)`, in [0, 1] except for the cross-entropy
    (nats).

    `accuracy`, `cross_entropy` (mean over samples), `balanced_accuracy`, `auc_macro` (area under
    the ROC curve of one class against the rest, from probabilities; for two classes that of class
    1), and precision, recall and F1 with the averaging in their names:

        ..._macro      means over classes, each with the same weight
        ..._weighted   means over classes, weighted by their numbers of samples
        f1_of_weighted harmonic mean of precision_weighted and recall_weighted
        ..._binary     those of class 1 alone; only for two classes

    `recall_weighted` is always the accuracy. The weighted F1 is the mean of the classes' F1 and no
    harmonic mean of anything; GDD-FL prints `f1_of_weighted` (see `core.metrics.averaging`).

    Means over classes are over those that occur in `labels`. A class that does not occur has no
    recall and no curve, and is left out of all of them; so `recall_macro` is always the balanced
    accuracy. The precision of a class that is never predicted counts as 0. When only one class
    occurs there is no AUC: then `auc_macro` is not in the result, because any number would be made
    up. Nor are the binary measures when class 1 does not occur.

    Args:
        logits: (N, C) floating point, C >= 2, any device.
        labels: (N,) int64 in 0 .. C-1.

    Raises InputError for wrong shapes, no samples, labels out of range, and logits that are not
    finite.
    """
    logits, labels = _checked(logits, labels)
    predictions = logits.argmax(1)
    truth = labels.numpy()
    present = np.unique(truth)
    measures = {
        "accuracy": float((predictions == labels).double().mean()),
        "cross_entropy": float(functional.cross_entropy(logits, labels)),
    }
    measures |= _averages(truth, predictions.numpy(), present)
    if logits.shape[1] == 2 and present[-1] == 1:
        measures |= _scores(truth, predictions.numpy(), [1], "macro", "binary")
    if len(present) > 1:
        measures["auc_macro"] = _auc(truth, logits.numpy(), present)
    return measures


def _checked(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both on the CPU; logits in float64, where probabilities near 1 stay apart."""
    if logits.ndim != 2 or logits.shape[1] < 2 or labels.shape != logits.shape[:1]:
        raise InputError(
            "classification needs logits (N, C) of at least two classes and labels (N,), "
            f"not {tuple(logits.shape)} and {tuple(labels.shape)}"
        )
    if len(labels) == 0:
        raise InputError("there are no samples to measure the predictions on")
    logits, labels = (
        logits.detach().to("cpu", torch.float64),
        labels.detach().to("cpu", torch.int64),
    )
    if int(labels.min()) < 0 or int(labels.max()) >= logits.shape[1]:
        raise InputError(
            f"labels must lie in 0 .. {logits.shape[1] - 1}, but go from {labels.min()} to {labels.max()}"
        )
    if not bool(torch.isfinite(logits).all()):
        raise Diverged(
            "the model's outputs are not finite: the training has diverged, try a smaller learning rate"
        )
    return logits, labels


def _averages(truth: np.ndarray, predictions: np.ndarray, present: np.ndarray) -> dict[str, float]:
    macro, weighted = (
        _scores(truth, predictions, present, average, average) for average in ("macro", "weighted")
    )
    precision, recall = weighted["precision_weighted"], weighted["recall_weighted"]
    both = precision + recall
    return {
        "balanced_accuracy": macro["recall_macro"],
        **macro,
        **weighted,
        "f1_of_weighted": 2 * precision * recall / both if both else 0.0,
    }


def _scores(
    truth: np.ndarray,
    predictions: np.ndarray,
    classes: Sequence[int] | np.ndarray,
    average: str,
    name: str,
) -> dict[str, float]:
    """Precision, recall and F1 averaged over some classes, under the averaging's name."""
    from sklearn.metrics import precision_recall_fscore_support

    values = precision_recall_fscore_support(
        truth, predictions, labels=classes, average=average, zero_division=0
    )
    return {
        f"{measure}_{name}": float(value)
        for measure, value in zip(("precision", "recall", "f1"), values[:3], strict=True)
    }


def _auc(truth: np.ndarray, logits: np.ndarray, present: np.ndarray) -> float:
    """The area of each class is the statistic of Mann and Whitney: the share of pairs of one of its
    samples and one of another class whose order is right, where half of the ties count.
    """
    from scipy.stats import rankdata

    classes = np.array([1]) if logits.shape[1] == 2 else present
    own = truth[:, None] == classes
    ranks = rankdata(_log_odds(logits)[:, classes], axis=0)
    ours, others = own.sum(0), (~own).sum(0)
    above = np.where(own, ranks, 0).sum(0) - ours * (ours + 1) / 2
    return statistics.fmean(above / (ours * others))


def _log_odds(logits: np.ndarray) -> np.ndarray:
    """log p_c / (1 - p_c) of logits (N, C): in the order of the probabilities p_c, but different
    where these round to 1 or 0.
    """
    none = np.full((len(logits), 1), -math.inf)

    def before(columns: np.ndarray) -> np.ndarray:
        return np.hstack([none, np.logaddexp.accumulate(columns, 1)[:, :-1]])

    # log sum_{j != c} exp z_j, of those before and those behind
    rest = np.logaddexp(before(logits), before(logits[:, ::-1])[:, ::-1])
    return logits - rest


def mean_and_std(measures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean and standard deviation of each measure over several models, as `name` and `name_std`.

    The models (one per client) are all there are and not a sample, so the deviation divides by
    their number: one model has deviation 0. Measures that are not there for every model are left
    out.

    Raises InputError when there is no model.
    """
    if not measures:
        raise InputError("there are no models to average over")
    result = {}
    for name in measures[0]:
        if all(name in each for each in measures):
            values = [each[name] for each in measures]
            result[name] = statistics.fmean(values)
            result[f"{name}_std"] = statistics.pstdev(values)
    return result
