"""Distances of distributions of features, against float64 loops and scikit-learn's kernels."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics.pairwise import euclidean_distances, rbf_kernel

from core.condensation import mmd


def loops(x, y, kernel, v=None):
    """K_XX + K_YY - 2 K_XY, pair by pair; v are the weights of y."""
    u = np.full(len(x), 1 / len(x))
    v = np.full(len(y), 1 / len(y)) if v is None else v / v.sum()

    def mean(a, p, b, q):
        return sum(p[i] * q[j] * kernel(a[i], b[j]) for i in range(len(a)) for j in range(len(b)))

    return mean(x, u, x, u) + mean(y, v, y, v) - 2 * mean(x, u, y, v)


def gaussian(h):
    return lambda a, b: sum(np.exp(-np.sum((a - b) ** 2) / (h * m)) for m in (0.25, 0.5, 1, 2, 4))


def mean_distance(samples):
    return np.mean([np.sum((a - b) ** 2) for a, b in itertools.combinations(samples, 2)])


def sample(seed, n=5, m=3, d=4):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.normal(1.0, 2.0, size=(m, d)), rng.uniform(0.1, 2, m)


@pytest.mark.parametrize("kernel", ["linear", "gaussian"])
@pytest.mark.parametrize("weighted", [False, True])
@given(seed=st.integers(0, 10_000))
def test_it_equals_the_double_loop(kernel, weighted, seed):
    x, y, v = sample(seed)
    k = np.dot if kernel == "linear" else gaussian(mean_distance(np.concatenate([x, y])))
    expected = loops(x, y, k, v if weighted else None)
    weights = torch.tensor(v) if weighted else None
    value = mmd(torch.tensor(x), torch.tensor(y), kernel, weights)
    assert value.item() == pytest.approx(expected, rel=1e-9)
    value = mmd(torch.tensor(x).float(), torch.tensor(y).float(), kernel, weights)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_gaussian_equals_scikit_learn():
    x, y, _ = sample(2, 20, 10, 30)
    both = np.concatenate([x, y])
    h = euclidean_distances(both, squared=True).sum() / (30 * 29)
    k = sum(rbf_kernel(both, gamma=1 / (h * m)) for m in (0.25, 0.5, 1, 2, 4))
    expected = k[:20, :20].mean() + k[20:, 20:].mean() - 2 * k[:20, 20:].mean()
    found = mmd(torch.tensor(x), torch.tensor(y), "gaussian")
    assert found.item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("kernel", ["linear", "gaussian"])
def test_groups_in_one_tensor_equal_groups_one_by_one(kernel):
    """Ragged groups: padding has weight 0 and may hold anything."""
    rng = np.random.default_rng(3)
    x, y, v = torch.zeros(3, 5, 6), torch.full((3, 4, 6), -7.0), torch.zeros(3, 4)
    expected = []
    for g, m in enumerate((2, 4, 1)):
        a, b = rng.normal(size=(5, 6)), rng.normal(size=(m, 6))
        x[g], y[g, :m], v[g, :m] = torch.tensor(a), torch.tensor(b), 1
        k = np.dot if kernel == "linear" else gaussian(mean_distance(np.concatenate([a, b])))
        expected.append(loops(a, b, k))
    np.testing.assert_allclose(mmd(x, y, kernel, v).numpy(), expected, rtol=1e-3)


def slopes(x, y, kernel, v, step=1e-5):
    """The gradient of `loops` with respect to y, by finite differences."""
    found = np.zeros_like(y)
    for place in np.ndindex(*y.shape):
        move = np.zeros_like(y)
        move[place] = step
        more, less = (loops(x, y + sign * move, kernel, v) for sign in (1, -1))
        found[place] = (more - less) / (2 * step)
    return found


@pytest.mark.parametrize("kernel", ["linear", "gaussian"])
def test_gradients_equal_finite_differences_and_none_flows_through_the_bandwidth(kernel):
    x, y, v = sample(5)
    k = np.dot if kernel == "linear" else gaussian(mean_distance(np.concatenate([x, y])))
    at = torch.tensor(y, requires_grad=True)
    (found,) = torch.autograd.grad(mmd(torch.tensor(x), at, kernel, torch.tensor(v)), at)
    np.testing.assert_allclose(found, slopes(x, y, k, v), rtol=1e-6, atol=1e-9)


def test_half_precision_is_compared_in_float32():
    x, y = torch.randn(1, 60, 8).bfloat16(), torch.randn(1, 40, 8).bfloat16()
    expected = loops(x[0].double().numpy(), y[0].double().numpy(), np.dot)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = mmd(x, y)
    assert found.dtype == torch.float32 and found.item() == pytest.approx(expected, rel=1e-3)
