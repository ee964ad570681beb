"""Prototypes and hard negatives (FedVCK, Eq. 11-14)."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from core.server import aggregate_prototypes, feature_prototypes, hard_negatives, logit_prototypes

CLASSES = 5


def data(samples: int, seed: int, width: int = 3) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.normal(size=(samples, width)).astype(np.float32), draw.integers(0, CLASSES, samples)


def means(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Class means in float64, one class after the other; 0 of a class that nobody has."""
    each = [values[labels == c].astype(np.float64) for c in range(CLASSES)]
    return np.stack([of.sum(0) / max(len(of), 1) for of in each])


@given(sizes=st.lists(st.integers(0, 12), min_size=1, max_size=4), seed=st.integers(0, 999))
def test_aggregated_prototypes_are_those_of_the_pooled_data(sizes, seed):
    values, labels = data(sum(sizes), seed, CLASSES)
    parts = zip(torch.tensor(values).split(sizes), torch.tensor(labels).split(sizes), strict=True)
    prototypes, counts = zip(*(logit_prototypes(*part, CLASSES) for part in parts), strict=True)
    together = aggregate_prototypes(torch.stack(prototypes), torch.stack(counts))
    np.testing.assert_allclose(together.numpy(), means(values, labels), rtol=1e-5, atol=1e-6)


def test_low_precision_logits_are_averaged_in_float32():
    logits = torch.ones(1000, 1, dtype=torch.bfloat16)
    logits[0] = 2
    prototypes, _ = logit_prototypes(logits, torch.zeros(1000, dtype=torch.int64), 1)
    assert prototypes.dtype == torch.float32
    assert prototypes.item() == pytest.approx(1.001, abs=1e-6)


@given(
    arrays.arrays(np.float32, (4, 4), elements=st.integers(-2, 2)),
    st.integers(1, 5),
    st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_negatives_are_the_highest_other_classes_that_are_present(values, k, held):
    chosen = hard_negatives(torch.tensor(values), k, torch.tensor(held)).tolist()
    assert len(chosen[0]) == min(k, 3)
    for c, row in enumerate(chosen):
        candidates = [j for j in range(4) if j != c and held[j] and held[c]]
        expected = sorted(candidates, key=lambda j: (-values[c, j], j))[:k]
        assert row == expected + [-1] * (min(k, 3) - len(expected))


@given(arrays.arrays(np.float32, (4, 4), elements=st.integers(-2, 2)), st.integers(1, 4))
def test_the_own_class_replaces_the_last_choice_where_it_was_not_chosen(values, k):
    forced = hard_negatives(torch.tensor(values), k, own="forced").tolist()
    for c in range(4):
        chosen = sorted(range(4), key=lambda j: (-values[c, j], j))[:k]
        by_hand = chosen if c in chosen else [*chosen[:-1], c]
        assert sorted(forced[c]) == sorted(by_hand)


@given(samples=st.integers(0, 30), seed=st.integers(0, 999))
def test_feature_prototypes(samples, seed):
    values, labels = data(samples, seed)
    expected, given_ = means(values, labels), (torch.tensor(values), torch.tensor(labels), CLASSES)
    plain, present = feature_prototypes(*given_)
    np.testing.assert_allclose(plain.numpy(), expected, rtol=1e-6, atol=1e-7)
    assert present.tolist() == [bool((labels == c).any()) for c in range(CLASSES)]
    scaled, _ = feature_prototypes(*given_, normalise=True)
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    unit = expected / np.where(lengths > 0, lengths, 1)
    np.testing.assert_allclose(scaled.numpy(), unit, rtol=1e-5, atol=1e-6)
