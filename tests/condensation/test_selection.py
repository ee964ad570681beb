"""Model-guided selection: closed forms of Eq. 5-8, and frequencies of what is drawn."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from core.condensation import draw, importance, selection_probabilities, smoothed_error
from core.condensation.selection import draw_different
from core.errors import InputError

finite = st.floats(-30, 30)


@given(st.lists(st.floats(0, 50), min_size=1, max_size=10), st.floats(-2, 2))
@settings(max_examples=30)
def test_importance_is_equation_5(losses, b):
    expected = [1 / (1 + math.exp(-loss + b)) for loss in losses]
    np.testing.assert_allclose(
        importance(torch.tensor(losses, dtype=torch.float64), b).numpy(), expected, rtol=1e-12
    )


@given(st.integers(0, 1000), st.sampled_from([0.0, 0.3, 0.5, 1.0]))
@settings(max_examples=30)
def test_blends_equal_numpy(seed, alpha):
    rng = np.random.default_rng(seed)
    current, previous, labels = (
        rng.normal(0, 3, (6, 4)),
        rng.normal(0, 3, (6, 4)),
        rng.integers(0, 4, 6),
    )
    arguments = torch.tensor(current), torch.tensor(previous), torch.tensor(labels), alpha
    mixed = alpha * special.softmax(current, 1) + (1 - alpha) * special.softmax(previous, 1)
    np.testing.assert_allclose(
        smoothed_error(*arguments).numpy(), -np.log(mixed[range(6), labels]), rtol=1e-9
    )
    logits = special.log_softmax(alpha * current + (1 - alpha) * previous, 1)
    np.testing.assert_allclose(
        smoothed_error(*arguments, blend="logits").numpy(), -logits[range(6), labels], rtol=1e-9
    )


def test_with_the_whole_weight_on_the_current_model_the_error_is_equation_6():
    current, labels = torch.tensor([[2.0, 0.0], [0.0, math.log(3)]]), torch.tensor([0, 0])
    expected = torch.tensor([math.log1p(math.exp(-2)), math.log(4)])
    torch.testing.assert_close(smoothed_error(current, torch.randn(2, 2), labels, 1.0), expected)


def test_vanishing_probabilities_have_a_finite_error():
    """Both softmaxes underflow to 0 in float32: the error is 500 - log 1."""
    logits, labels = torch.tensor([[500.0, 0.0]]), torch.tensor([1])
    assert smoothed_error(logits, logits, labels, 0.5).item() == pytest.approx(500)
    assert smoothed_error(logits, -logits, labels, 0.25).item() == pytest.approx(-math.log(0.75))
    assert importance(smoothed_error(logits, logits, labels, 0.5), 0.3).item() == 1


@pytest.mark.parametrize("rule", ["share", "softmax"])
@given(group=st.lists(st.integers(0, 3), min_size=1, max_size=20), seed=st.integers(0, 100))
@settings(max_examples=25)
def test_probabilities_equal_numpy_in_every_group(rule, group, seed):
    weights = np.random.default_rng(seed).uniform(0.01, 1, len(group))
    found = selection_probabilities(torch.tensor(weights), torch.tensor(group), 4, rule).numpy()
    for g in set(group):
        rows = np.array(group) == g
        expected = (
            weights[rows] / weights[rows].sum()
            if rule == "share"
            else special.softmax(weights[rows])
        )
        np.testing.assert_allclose(found[rows], expected, rtol=1e-10)


def test_the_released_rule_is_nearly_uniform():
    weights = torch.tensor([1e-6, 1 - 1e-6])
    for rule, ratio in (("share", 1e6), ("softmax", math.e)):
        p = selection_probabilities(weights, torch.zeros(2, dtype=torch.int64), 1, rule)
        assert (p.max() / p.min()).item() == pytest.approx(ratio, rel=1e-4)


def test_bad_names_and_weights_are_refused():
    with pytest.raises(InputError, match="known: share, softmax"):
        selection_probabilities(torch.ones(2), torch.zeros(2).long(), 1, "shares")
    for wrong in ((1.5, "logits"), (math.nan, "logits"), (0.5, "logit")):
        with pytest.raises(InputError):
            smoothed_error(torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(1).long(), *wrong)


def uniform(groups, count, seed=0):
    return torch.rand(groups, count, generator=torch.Generator().manual_seed(seed))


def test_frequencies_follow_the_probabilities():
    sizes, rng = [1, 7, 3, 30], np.random.default_rng(0)
    group = torch.repeat_interleave(torch.arange(4), torch.tensor(sizes))
    weights = torch.tensor(rng.uniform(0.05, 1, sum(sizes)))
    probabilities = selection_probabilities(weights, group, 4)
    rows = draw(probabilities, group, 4, uniform(4, 20_000))
    start = 0
    for g, size in enumerate(sizes):
        counts = np.bincount(rows[g].numpy() - start, minlength=size)
        assert len(counts) == size
        if size > 1:
            expected = (
                20_000
                * weights[start : start + size].numpy()
                / weights[start : start + size].sum().item()
            )
            assert stats.chisquare(counts, expected).pvalue > 1e-3
        start += size


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.data())
@settings(max_examples=40)
def test_drawn_rows_belong_to_their_group_and_never_have_probability_zero(sizes, data):
    group = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    weights = torch.tensor(
        data.draw(
            st.lists(
                st.sampled_from([0.0, 1e-30, 0.5, 1.0]), min_size=len(group), max_size=len(group)
            )
        )
    )
    firsts = torch.tensor(sizes).cumsum(0) - torch.tensor(sizes)
    weights[firsts] = 0.3
    edges = torch.tensor([0.0, 0.5, 1 - 2**-24]).expand(len(sizes), 3)
    rows = draw(weights, group, len(sizes), edges)
    assert (group[rows] == torch.arange(len(sizes))[:, None]).all()
    assert (weights[rows] > 0).all()


def test_a_row_is_the_inverse_of_the_distribution_function():
    """Steps of 0.2, 0.5, 0.3 in the second group."""
    probabilities = torch.tensor([1.0, 0.2, 0.5, 0.3])
    group = torch.tensor([0, 1, 1, 1])
    points = torch.tensor([[0.0, 0.5, 0.9, 0.9], [0.1, 0.21, 0.69, 0.71]])
    assert draw(probabilities, group, 2, points).tolist() == [[0, 0, 0, 0], [1, 2, 2, 3]]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 12), st.integers(0, 99))
@settings(max_examples=30)
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
