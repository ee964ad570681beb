"""Model-guided selection: closed forms of Eq. 5-8, and frequencies of what is drawn."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from core.condensation import draw, importance, selection_probabilities, smoothed_error
from core.condensation.selection import draw_different


@given(st.lists(st.floats(0, 50), min_size=1, max_size=10), st.floats(-2, 2))
def test_importance_is_equation_5(losses, b):
    expected = [1 / (1 + math.exp(-loss + b)) for loss in losses]
    np.testing.assert_allclose(
        importance(torch.tensor(losses, dtype=torch.float64), b).numpy(), expected, rtol=1e-12
    )


def test_vanishing_probabilities_have_a_finite_error():
    """Both softmaxes underflow to 0 in float32: the error is 500 - log 1."""
    logits, labels = torch.tensor([[500.0, 0.0]]), torch.tensor([1])
    assert smoothed_error(logits, logits, labels, 0.5).item() == pytest.approx(500)
    assert smoothed_error(logits, -logits, labels, 0.25).item() == pytest.approx(-math.log(0.75))
    assert importance(smoothed_error(logits, logits, labels, 0.5), 0.3).item() == 1


def test_frequencies_follow_the_probabilities():
    sizes = [1, 7, 3, 30]
    group = torch.repeat_interleave(torch.arange(4), torch.tensor(sizes))
    weights = torch.tensor(np.random.default_rng(0).uniform(0.05, 1, sum(sizes)))
    uniform = torch.rand(4, 20_000, generator=torch.Generator().manual_seed(0))
    rows = draw(selection_probabilities(weights, group, 4), group, 4, uniform)
    for of, own in zip(rows, weights.split(sizes), strict=True):
        counts = np.bincount(of.numpy() - of.min().item(), minlength=len(own))
        expected = 20_000 * own.numpy() / own.sum().item()
        assert len(own) == 1 or stats.chisquare(counts, expected).pvalue > 1e-3


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.data())
def test_drawn_rows_belong_to_their_group_and_never_have_probability_zero(sizes, data):
    group = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    values = st.sampled_from([0.0, 1e-30, 0.5, 1.0])
    drawn = data.draw(st.lists(values, min_size=len(group), max_size=len(group)))
    weights = torch.tensor(drawn)
    weights[torch.tensor(sizes).cumsum(0) - torch.tensor(sizes)] = 0.3  # the first of each
    edges = torch.tensor([0.0, 0.5, 1 - 2**-24]).expand(len(sizes), 3)
    rows = draw(weights, group, len(sizes), edges)
    assert (group[rows] == torch.arange(len(sizes))[:, None]).all()
    assert (weights[rows] > 0).all()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 12), st.integers(0, 99))
def test_different_rows_are_the_group_pass_after_pass(sizes, count, seed):
    group = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    keys = torch.rand(len(group), generator=torch.Generator().manual_seed(seed))
    rows = draw_different(group, len(sizes), keys, count).tolist()
    first = 0
    for size, row in zip(sizes, rows, strict=True):
        lowest = sorted(range(first, first + size), key=lambda i: float(keys[i]))
        assert row == [lowest[k % size] for k in range(count)]
        first += size


def test_the_sum_over_many_groups_keeps_small_probabilities():
    """Points a hundredth of a row above each edge: in float32 a sum near 10,000 knows no thousandth."""
    group = torch.arange(10_000).repeat_interleave(20)
    probabilities = selection_probabilities(torch.ones(len(group)), group, 10_000)
    points = ((torch.arange(20) + 0.01) / 20).expand(10_000, -1)
    rows = draw(probabilities, group, 10_000, points)
    assert torch.equal(rows.flatten(), torch.arange(len(group)))
