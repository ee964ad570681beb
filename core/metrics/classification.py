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
    the ROC curve of one class against the rest; for two classes that of class 1), and precision,
    recall and F1 with the averaging in their names:

        ..._macro      means over classes, each with the same weight
        ..._weighted   means over classes, weighted by their numbers of samples
        f1_of_weighted harmonic mean of precision_weighted and recall_weighted
        ..._binary     those of class 1 alone; only for two classes

    `recall_weighted` is always the accuracy. The weighted F1 is the mean of the classes' F1 and no
    harmonic mean of anything; GDD-FL reports `f1_of_weighted` (see its results page).

    Means over classes are over those that occur in `labels`. A class that does not occur has no
    recall and no curve, and is left out of all of them; so `recall_macro` is always the balanced
    accuracy. The precision of a class that is never predicted counts as 0. When only one class
    occurs there is no AUC: then `auc_macro` is not in the result. Nor are the binary measures when
    class 1 does not occur.

    Args:
        logits: (N, C) floating point, C >= 2, any device.
        labels: (N,) int64 in 0 .. C-1.

    Raises InputError for wrong shapes, no samples and labels out of range, and Diverged for logits
    that are not finite.
    """
    from sklearn.metrics import roc_auc_score

    logits, labels = _checked(logits, labels)
    truth, predictions = labels.numpy(), logits.argmax(1).numpy()
    present = np.unique(truth)
    two = logits.shape[1] == 2
    macro, weighted = (_scores(truth, predictions, present, name) for name in ("macro", "weighted"))
    precision, recall = weighted["precision_weighted"], weighted["recall_weighted"]
    measures = {
        "accuracy": float(np.mean(predictions == truth)),
        "cross_entropy": float(functional.cross_entropy(logits, labels)),
        "balanced_accuracy": macro["recall_macro"],
        **macro,
        **weighted,
        "f1_of_weighted": 2 * precision * recall / (precision + recall) if precision else 0.0,
    }
    if two and present[-1] == 1:
        measures |= _scores(truth, predictions, [1], "binary")
    if len(present) > 1:
        curves = np.array([1]) if two else present
        scores = _log_odds(logits)[:, curves].numpy()
        measures["auc_macro"] = float(roc_auc_score(truth[:, None] == curves, scores))
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
    logits = logits.detach().to("cpu", torch.float64)
    labels = labels.detach().to("cpu", torch.int64)
    if int(labels.min()) < 0 or int(labels.max()) >= logits.shape[1]:
        raise InputError(
            f"labels must lie in 0 .. {logits.shape[1] - 1}, but go from {labels.min()} to {labels.max()}"
        )
    if not bool(torch.isfinite(logits).all()):
        raise Diverged(
            "the model's outputs are not finite: the training has diverged, try a smaller learning rate"
        )
    return logits, labels


def _scores(
    truth: np.ndarray, predictions: np.ndarray, classes: Sequence[int] | np.ndarray, name: str
) -> dict[str, float]:
    """Precision, recall and F1 of some classes, by the averaging of this name."""
    from sklearn.metrics import precision_recall_fscore_support

    values = precision_recall_fscore_support(
        truth,
        predictions,
        labels=classes,
        average="macro" if name == "binary" else name,
        zero_division=0,
    )
    return {
        f"{measure}_{name}": float(value)
        for measure, value in zip(("precision", "recall", "f1"), values[:3], strict=True)
    }


def _log_odds(logits: torch.Tensor) -> torch.Tensor:
    """log p_c / (1 - p_c) of logits (N, C): ordered as p_c, also where these round to 0 or 1."""

    def of_those_before(columns: torch.Tensor) -> torch.Tensor:
        return functional.pad(columns.logcumsumexp(1)[:, :-1], (1, 0), value=-math.inf)

    # log sum_{j != c} exp z_j
    after = of_those_before(logits.flip(1)).flip(1)
    return logits - torch.logaddexp(of_those_before(logits), after)


def mean_and_std(measures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean and standard deviation of each measure over models, as `name` and `name_std`; divided by their
    number, for they are all there are. Measures that one lacks are left out. InputError without a model.
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
