"""Measures against scikit-learn's own and against cases worked out by hand."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from core.errors import InputError
from core.metrics import classification, mean_and_std

NAMES = {
    "accuracy",
    "balanced_accuracy",
    "f1_macro",
    "precision_macro",
    "recall_macro",
    "auc_macro",
    "cross_entropy",
    "f1_weighted",
    "precision_weighted",
    "recall_weighted",
    "f1_of_weighted",
}
BINARY = {"precision_binary", "recall_binary", "f1_binary"}


def random_case(samples: int, classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (samples,), generator=generator)
    labels[:classes] = torch.arange(classes)  # every class occurs
    logits = torch.randn(samples, classes, generator=generator)
    logits[torch.arange(samples), labels] += 1
    return logits, labels


@pytest.mark.parametrize("classes", [3, 7])
def test_agrees_with_scikit_learn(classes: int) -> None:
    logits, labels = random_case(300, classes)
    truth, probabilities = labels.numpy(), logits.double().softmax(1).numpy()
    predicted = probabilities.argmax(1)
    weighted = {
        f"{name}_weighted": score(truth, predicted, average="weighted")
        for name, score in (
            ("precision", reference.precision_score),
            ("recall", reference.recall_score),
            ("f1", reference.f1_score),
        )
    }
    precision, recall = weighted["precision_weighted"], weighted["recall_weighted"]
    assert classification(logits, labels) == pytest.approx(
        weighted
        | {
            "f1_of_weighted": 2 / (1 / precision + 1 / recall),
            "accuracy": reference.accuracy_score(truth, predicted),
            "balanced_accuracy": reference.balanced_accuracy_score(truth, predicted),
            "f1_macro": reference.f1_score(truth, predicted, average="macro"),
            "precision_macro": reference.precision_score(truth, predicted, average="macro"),
            "recall_macro": reference.recall_score(truth, predicted, average="macro"),
            "auc_macro": reference.roc_auc_score(
                truth, probabilities, multi_class="ovr", average="macro"
            ),
            "cross_entropy": reference.log_loss(truth, probabilities),
        }
    )


def test_by_hand() -> None:
    # truth 0 0 1 1, predicted 0 1 1 1: class 0 has precision 1 and recall 1/2, class 1 has
    # precision 2/3 and recall 1
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 3.0], [0.0, 0.5]])
    found = classification(logits, torch.tensor([0, 0, 1, 1]))
    loss = sum(math.log1p(math.exp(-margin)) for margin in (2, -1, 3, 0.5)) / 4
    assert found == pytest.approx(
        {
            "accuracy": 3 / 4,
            "balanced_accuracy": 3 / 4,
            "recall_macro": 3 / 4,
            "precision_macro": (1 + 2 / 3) / 2,
            "f1_macro": (2 / 3 + 4 / 5) / 2,
            "auc_macro": 3 / 4,  # of the four pairs only (sample 1, sample 3) is in the wrong order
            "cross_entropy": loss,
            # both classes have two samples: weighted is macro
            "precision_weighted": (1 + 2 / 3) / 2,
            "recall_weighted": 3 / 4,
            "f1_weighted": (2 / 3 + 4 / 5) / 2,
            "f1_of_weighted": 2 * (5 / 6) * (3 / 4) / (5 / 6 + 3 / 4),
            "precision_binary": 2 / 3,
            "recall_binary": 1,
            "f1_binary": 4 / 5,
        }
    )


def test_a_class_that_does_not_occur_is_left_out() -> None:
    # class 2 never occurs, though it is predicted once; nothing warns and nothing is nan
    logits = torch.tensor([[3.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 1.0, 2.0], [2.0, 0.0, 1.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = classification(logits, torch.tensor([0, 1, 1, 0]))
    assert found["accuracy"] == 3 / 4
    assert found["recall_macro"] == found["balanced_accuracy"] == (1 + 1 / 2) / 2
    assert found["precision_macro"] == 1
    assert found["f1_macro"] == pytest.approx((1 + 2 / 3) / 2)
    assert found["auc_macro"] == 1


def test_one_class_alone_has_no_auc() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = classification(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([1, 1]))
    assert set(found) == NAMES - {"auc_macro"} | BINARY
    assert found["recall_macro"] == 1 / 2
    # without positives nothing is said about them
    other = classification(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    assert set(other) == NAMES - {"auc_macro"}


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


@settings(max_examples=30)
@given(st.integers(2, 6), st.integers(1, 40), st.integers(0, 10**6))
def test_any_labels_give_finite_fractions(classes: int, samples: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (samples,), generator=generator)
    logits = torch.randn(samples, classes, generator=generator, dtype=torch.float32) * 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = classification(logits, labels)
    assert ("auc_macro" in found) == (len(labels.unique()) > 1)
    assert BINARY.isdisjoint(found) or (classes == 2 and bool((labels == 1).any()))
    assert NAMES - {"auc_macro"} <= set(found) <= NAMES | BINARY
    assert all(0 <= value <= 1 for name, value in found.items() if name != "cross_entropy")
    assert math.isfinite(found["cross_entropy"])
    order = torch.randperm(samples, generator=generator)
    assert classification(logits[order], labels[order]) == pytest.approx(found)


@pytest.mark.parametrize(
    ("logits", "labels", "words"),
    [
        (torch.zeros(3), torch.zeros(3, dtype=torch.int64), "needs logits"),
        (torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64), "needs logits"),
        (torch.zeros(3, 2), torch.zeros(2, dtype=torch.int64), "needs logits"),
        (torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), "no samples"),
        (torch.zeros(2, 2), torch.tensor([0, 2]), "0 .. 1"),
        (torch.zeros(2, 2), torch.tensor([0, -1]), "0 .. 1"),
        (torch.tensor([[0.0, math.nan]]), torch.tensor([0]), "not finite"),
        (torch.tensor([[0.0, math.inf]]), torch.tensor([0]), "not finite"),
    ],
)
def test_bad_input(logits: torch.Tensor, labels: torch.Tensor, words: str) -> None:
    with pytest.raises(InputError, match=words):
        classification(logits, labels)


def test_mean_and_std() -> None:
    found = mean_and_std(
        [{"accuracy": 0.2, "auc_macro": 0.5}, {"accuracy": 0.6}, {"accuracy": 0.7}]
    )
    values = np.array([0.2, 0.6, 0.7])
    assert found == pytest.approx({"accuracy": values.mean(), "accuracy_std": values.std()})
    assert mean_and_std([{"accuracy": 0.3}]) == {"accuracy": 0.3, "accuracy_std": 0.0}
    with pytest.raises(InputError, match="no models"):
        mean_and_std([])


def test_scikit_learn_is_only_imported_when_used() -> None:
    code = "import sys, core.metrics, core.models; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_class_that_is_never_predicted_has_precision_zero() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = classification(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))
    assert found["precision_macro"] == pytest.approx(1 / 4)
    assert found["auc_macro"] == 1 / 2
