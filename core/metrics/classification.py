"""Measures of classification, as fractions."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch.nn import functional

from core.errors import InputError


def classification(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """Measures of the predictions `logits.argmax(1)`, in [0, 1] except for the cross-entropy (nats).

    `accuracy`, `cross_entropy` (mean over samples), `balanced_accuracy`, `precision_macro`, `recall_macro`, `f1_macro`
    and `auc_macro` (area under the ROC curve of one class against the rest, from probabilities; for two classes that
    of class 1).

    Macro measures are means over the classes that occur in `labels`, each with the same weight. A class that does not
    occur has no recall and no curve, and is left out of all of them; so `recall_macro` is always the balanced accuracy.
    The precision of a class that is never predicted counts as 0. When only one class occurs there is no AUC: then
    `auc_macro` is not in the result, because any number would be made up.

    Args:
        logits: (N, C) floating point, C >= 2, any device.
        labels: (N,) int64 in 0 .. C-1.

    Raises InputError for wrong shapes, no samples, labels out of range, and logits that are not finite.
    """
    logits, labels = _checked(logits, labels)
    predictions = logits.argmax(1)
    truth = labels.numpy()
    present = np.unique(truth)
    measures = {"accuracy": float((predictions == labels).double().mean()),
                "cross_entropy": float(functional.cross_entropy(logits, labels))}
    measures |= _macro(truth, predictions.numpy(), present)
    if len(present) > 1:
        measures["auc_macro"] = _auc(truth, logits.softmax(1).numpy(), present)
    return measures


def _checked(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both on the CPU; logits in float64, where probabilities near 1 stay apart."""
    if logits.ndim != 2 or logits.shape[1] < 2 or labels.shape != logits.shape[:1]:
        raise InputError("classification needs logits (N, C) of at least two classes and labels (N,), "
                         f"not {tuple(logits.shape)} and {tuple(labels.shape)}")
    if len(labels) == 0:
        raise InputError("there are no samples to measure the predictions on")
    logits, labels = logits.detach().to("cpu", torch.float64), labels.detach().to("cpu", torch.int64)
    if int(labels.min()) < 0 or int(labels.max()) >= logits.shape[1]:
        raise InputError(f"labels must lie in 0 .. {logits.shape[1] - 1}, but go from {labels.min()} to {labels.max()}")
    if not bool(torch.isfinite(logits).all()):
        raise InputError("the model's outputs are not finite: the training has diverged, try a smaller learning rate")
    return logits, labels


def _macro(truth: np.ndarray, predictions: np.ndarray, present: np.ndarray) -> dict[str, float]:
    from sklearn.metrics import precision_recall_fscore_support

    precision, recall, f1, _ = precision_recall_fscore_support(
        truth, predictions, labels=present, average="macro", zero_division=0)
    return {"balanced_accuracy": float(recall), "precision_macro": float(precision), "recall_macro": float(recall),
            "f1_macro": float(f1)}


def _auc(truth: np.ndarray, probabilities: np.ndarray, present: np.ndarray) -> float:
    from sklearn.metrics import roc_auc_score

    if probabilities.shape[1] == 2:
        return float(roc_auc_score(truth, probabilities[:, 1]))
    return statistics.fmean(float(roc_auc_score(truth == c, probabilities[:, c])) for c in present)


def mean_and_std(measures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean and standard deviation of each measure over several models, as `name` and `name_std`.

    The models (one per client) are all there are and not a sample, so the deviation divides by their number: one model
    has deviation 0. Measures that are not there for every model are left out.

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
