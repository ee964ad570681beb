"""Distances between distributions of features, against double loops in float64 and scikit-learn's
kernels.
"""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics.pairwise import euclidean_distances, rbf_kernel

from core.condensation import class_means, mmd
from core.errors import InputError


def loops(x, y, kernel, u, v):
    """K_XX + K_YY - 2 K_XY, pair by pair."""
    u, v = u / u.sum(), v / v.sum()

    def mean(a, p, b, q):
        return sum(p[i] * q[j] * kernel(a[i], b[j]) for i in range(len(a)) for j in range(len(b)))

    return mean(x, u, x, u) + mean(y, v, y, v) - 2 * mean(x, u, y, v)


def gaussian(h):
    return lambda a, b: sum(np.exp(-np.sum((a - b) ** 2) / (h * m)) for m in (0.25, 0.5, 1, 2, 4))


def mean_distance(samples):
    return np.mean([np.sum((a - b) ** 2) for a, b in itertools.combinations(samples, 2)])


def sample(seed, n=5, m=3, d=4):
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(n, d)),
        rng.normal(1.0, 2.0, size=(m, d)),
        rng.uniform(0.1, 2, n),
        rng.uniform(0.1, 2, m),
    )


@pytest.mark.parametrize("kernel", ["linear", "inner"])
@pytest.mark.parametrize("weighted", [False, True])
@settings(max_examples=20)
@given(seed=st.integers(0, 10_000))
def test_linear_equals_the_double_loop(kernel, weighted, seed):
    x, y, u, v = sample(seed)
    expected = loops(x, y, np.dot, u if weighted else np.ones(5), v if weighted else np.ones(3))
    weights = {"x_weights": torch.tensor(u), "y_weights": torch.tensor(v)} if weighted else {}
    assert mmd(torch.tensor(x), torch.tensor(y), kernel, **weights).item() == pytest.approx(
        expected, rel=1e-10
    )
    found = mmd(torch.tensor(x).float(), torch.tensor(y).float(), kernel, **weights)
    assert found.dtype == torch.float32 and found.item() == pytest.approx(
        expected, rel=1e-4, abs=1e-6
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bandwidth", [None, 3.0])
def test_gaussian_equals_the_double_loop(weighted, bandwidth):
    x, y, u, v = sample(1)
    u, v = (u, v) if weighted else (np.ones(5), np.ones(3))
    h = bandwidth or mean_distance(np.concatenate([x, y]))
    found = mmd(
        torch.tensor(x), torch.tensor(y), "gaussian", torch.tensor(u), torch.tensor(v), bandwidth
    )
    assert found.item() == pytest.approx(loops(x, y, gaussian(h), u, v), rel=1e-9)


def test_gaussian_equals_scikit_learn():
    x, y, _, _ = sample(2, 20, 10, 30)
    both = np.concatenate([x, y])
    h = euclidean_distances(both, squared=True).sum() / (30 * 29)
    k = sum(rbf_kernel(both, gamma=1 / (h * m)) for m in (0.25, 0.5, 1, 2, 4))
    expected = k[:20, :20].mean() + k[20:, 20:].mean() - 2 * k[:20, 20:].mean()
    assert mmd(torch.tensor(x), torch.tensor(y), "gaussian").item() == pytest.approx(
        expected, rel=1e-9
    )


@pytest.mark.parametrize("kernel", ["linear", "gaussian"])
def test_groups_in_one_tensor_equal_groups_one_by_one(kernel):
    """Ragged groups: padding has weight 0 and may hold anything."""
    rng = np.random.default_rng(3)
    sizes = [(5, 2), (1, 4), (3, 1)]
    x, y = torch.full((3, 5, 6), 100.0), torch.full((3, 4, 6), -7.0)
    u, v = torch.zeros(3, 5), torch.zeros(3, 4)
    expected = []
    for g, (n, m) in enumerate(sizes):
        a, b = rng.normal(size=(n, 6)), rng.normal(size=(m, 6))
        x[g, :n], y[g, :m], u[g, :n], v[g, :m] = torch.tensor(a), torch.tensor(b), 1, 1
        k = np.dot if kernel == "linear" else gaussian(mean_distance(np.concatenate([a, b])))
        expected.append(loops(a, b, k, np.ones(n), np.ones(m)))
    np.testing.assert_allclose(mmd(x, y, kernel, u, v).numpy(), expected, rtol=1e-3)


@pytest.mark.parametrize("kernel", ["linear", "gaussian"])
def test_one_distribution_has_distance_zero_and_the_size_of_weights_does_not_matter(kernel):
    x, y, u, v = (torch.tensor(value) for value in sample(4))
    assert mmd(x, x, kernel).item() == pytest.approx(0, abs=1e-12)
    assert mmd(x, y, kernel, u, v).item() == pytest.approx(
        mmd(x, y, kernel, 10 * u, v / 7).item(), rel=1e-9
    )
    assert mmd(x[:1].expand(4, -1), x[:1].expand(3, -1), kernel).item() == pytest.approx(
        0, abs=1e-12
    )


@pytest.mark.parametrize("kernel", ["linear", "gaussian"])
def test_gradients_equal_finite_differences(kernel):
    x, y, u, v = (torch.tensor(value) for value in sample(5))
    y.requires_grad_()
    torch.autograd.gradcheck(
        lambda y: mmd(x, y, kernel, u, v, bandwidth=5.0 if kernel == "gaussian" else None), (y,)
    )


def test_no_gradient_through_the_bandwidth():
    x, y, _, _ = (torch.tensor(value) for value in sample(6))
    y.requires_grad_()
    h = mean_distance(np.concatenate([x.numpy(), y.detach().numpy()]))
    (free,) = torch.autograd.grad(mmd(x, y, "gaussian"), y)
    (fixed,) = torch.autograd.grad(mmd(x, y, "gaussian", bandwidth=h), y)
    torch.testing.assert_close(free, fixed)


def test_half_precision_is_compared_in_float32():
    x, y = torch.randn(1, 300, 8).bfloat16(), torch.randn(1, 200, 8).bfloat16()
    expected = loops(
        x[0].double().numpy(), y[0].double().numpy(), np.dot, np.ones(300), np.ones(200)
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = mmd(x, y)
    assert found.dtype == torch.float32 and found.item() == pytest.approx(expected, rel=1e-3)


def test_an_unknown_kernel_is_named():
    with pytest.raises(InputError, match="did you mean 'gaussian'"):
        mmd(torch.zeros(1, 2), torch.zeros(1, 2), "gausian")


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.booleans(), st.integers(0, 100))
@settings(max_examples=30)
def test_class_means_equal_numpy(group, weighted, seed):
    rng = np.random.default_rng(seed)
    features, weights = rng.normal(size=(len(group), 3)), rng.uniform(0.1, 1, len(group))
    found = class_means(
        torch.tensor(features).float(),
        torch.tensor(group),
        5,
        torch.tensor(weights) if weighted else None,
    )
    group = np.array(group)
    for g in range(5):
        if (group == g).any():
            rows = group == g
            expected = np.average(
                features[rows], axis=0, weights=weights[rows] if weighted else None
            )
        else:
            expected = np.zeros(3)
        np.testing.assert_allclose(found[g].numpy(), expected, rtol=1e-4, atol=1e-6)
