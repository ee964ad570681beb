"""Measures against scikit-learn's own and against cases worked out by hand."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from core.metrics import classification, mean_and_std

WEIGHTED = {"f1_weighted", "precision_weighted", "recall_weighted", "f1_of_weighted"}
MACRO = {"f1_macro", "precision_macro", "recall_macro", "auc_macro"}
NAMES = {"accuracy", "balanced_accuracy", "cross_entropy"} | MACRO | WEIGHTED
BINARY = {"precision_binary", "recall_binary", "f1_binary"}


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_agrees_with_scikit_learn(classes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (300,), generator=generator)
    labels[:classes] = torch.arange(classes)  # every class occurs
    logits = torch.randn(300, classes, generator=generator)
    logits[torch.arange(300), labels] += 1
    truth, probabilities = labels.numpy(), logits.double().softmax(1).numpy()
    predicted = probabilities.argmax(1)
    scores = {
        "precision": reference.precision_score,
        "recall": reference.recall_score,
        "f1": reference.f1_score,
    }
    wanted = {
        f"{name}_{average}": score(truth, predicted, average=average)
        for name, score in scores.items()
        for average in ("macro", "weighted", *["binary"] * (classes == 2))
    }
    precision, recall = wanted["precision_weighted"], wanted["recall_weighted"]
    chances = probabilities[:, 1] if classes == 2 else probabilities
    assert classification(logits, labels) == pytest.approx(
        wanted
        | {
            "f1_of_weighted": 2 / (1 / precision + 1 / recall),
            "accuracy": reference.accuracy_score(truth, predicted),
            "balanced_accuracy": reference.balanced_accuracy_score(truth, predicted),
            "auc_macro": reference.roc_auc_score(truth, chances, multi_class="ovr"),
            "cross_entropy": reference.log_loss(truth, probabilities),
        }
    )


def test_a_class_that_does_not_occur_is_left_out() -> None:
    """Class 2 never occurs, though it is predicted once; nothing warns and nothing is nan."""
    logits = torch.tensor([[3.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 1.0, 2.0], [2.0, 0.0, 1.0]])
    found = quietly(logits, torch.tensor([0, 1, 1, 0]))
    assert found["accuracy"] == 3 / 4
    assert found["recall_macro"] == found["balanced_accuracy"] == (1 + 1 / 2) / 2
    assert found["precision_macro"] == found["auc_macro"] == 1
    assert found["f1_macro"] == pytest.approx((1 + 2 / 3) / 2)
    # class 1 occurs, but is never predicted
    found = quietly(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))
    assert found["precision_macro"] == pytest.approx(1 / 4) and found["auc_macro"] == 1 / 2


def quietly(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return classification(logits, labels)


def test_one_class_alone_has_no_auc() -> None:
    """Without positives nothing is said about them."""
    found, other = (quietly(torch.eye(2), torch.full((2,), label)) for label in (1, 0))
    assert set(found) == NAMES - {"auc_macro"} | BINARY and set(other) == NAMES - {"auc_macro"}
    assert found["recall_macro"] == 1 / 2


def test_probabilities_near_one_stay_apart() -> None:
    # in float32 the first two would round to 1 and the order, hence the AUC, would be lost; in
    # float64 the others would
    for high in (21.0, 60.0, 1000.0):
        logits = torch.tensor([[0.0, high - 1], [0.0, high]])
        assert classification(logits, torch.tensor([0, 1]))["auc_macro"] == 1
        assert classification(logits, torch.tensor([1, 0]))["auc_macro"] == 0
    three = torch.tensor([[0.0, 99.0, 0.0], [0.0, 100.0, 0.0], [80.0, 0.0, 0.0], [0.0, 0.0, 90.0]])
    assert classification(three, torch.tensor([0, 1, 0, 2]))["auc_macro"] == pytest.approx(
        (3 / 4 + 1 + 1) / 3
    )


@settings(max_examples=15)
@given(st.integers(2, 6), st.integers(1, 40), st.integers(0, 10**6))
def test_any_labels_give_finite_fractions(classes: int, samples: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (samples,), generator=generator)
    logits = torch.randn(samples, classes, generator=generator, dtype=torch.float32) * 5
    found = quietly(logits, labels)
    assert ("auc_macro" in found) == (len(labels.unique()) > 1)
    assert BINARY.isdisjoint(found) or (classes == 2 and bool((labels == 1).any()))
    assert NAMES - {"auc_macro"} <= set(found) <= NAMES | BINARY
    assert all(0 <= value <= 1 for name, value in found.items() if name != "cross_entropy")
    assert math.isfinite(found["cross_entropy"])
    order = torch.randperm(samples, generator=generator)
    assert classification(logits[order], labels[order]) == pytest.approx(found)


def test_mean_and_std() -> None:
    measures = [{"accuracy": 0.2, "auc_macro": 0.5}, {"accuracy": 0.6}, {"accuracy": 0.7}]
    values = np.array([0.2, 0.6, 0.7])
    wanted = {"accuracy": values.mean(), "accuracy_std": values.std()}
    assert mean_and_std(measures) == pytest.approx(wanted)
