"""The accountant against its library and the exact law of the Gaussian mechanism; the noise."""

import math
import sys

import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import kstest, norm

from core.privacy.differential import (
    clip_and_noise,
    noise_multiplier,
    noisy_votes,
    spent_epsilon,
    with_noise,
)
from core.rng import Rng
from tests.sentences import refused

DELTA = 1e-5


def generator(*path) -> torch.Generator:
    return Rng(0).at("dp", *path).generator()


def exact_epsilon(multiplier: float, steps: int) -> float:
    """Epsilon of one mechanism of sensitivity sqrt(steps) / z (Balle and Wang 2018, Thm 8)."""
    mu = math.sqrt(steps) / multiplier

    def excess(e: float) -> float:
        return norm.cdf(mu / 2 - e / mu) - math.exp(e) * norm.cdf(-mu / 2 - e / mu) - DELTA

    return brentq(excess, 0, 200)


@pytest.mark.parametrize(
    ("multiplier", "steps"), [(41.2, 1000), (10.0, 500), (2.0, 3), (100.0, 50)]
)
def test_without_sampling_the_bound_lies_just_above_the_exact_epsilon(multiplier, steps):
    pytest.importorskip("opacus")
    exact, bound = exact_epsilon(multiplier, steps), spent_epsilon(multiplier, 1.0, steps, DELTA)
    assert exact <= bound <= 1.15 * exact


@pytest.mark.parametrize(
    ("multiplier", "rate", "steps"), [(1.1, 0.01, 400), (0.8, 0.05, 100), (3.0, 1.0, 20)]
)
def test_epsilon_is_what_the_library_counts_step_by_step(multiplier, rate, steps):
    accountant = pytest.importorskip("opacus.accountants").RDPAccountant()
    for _ in range(steps):
        accountant.step(noise_multiplier=multiplier, sample_rate=rate)
    found = spent_epsilon(multiplier, rate, steps, DELTA)
    assert found == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-9)


@pytest.mark.parametrize(
    ("epsilon", "rate", "steps"), [(3.5, 0.02, 50), (10.0, 1.0, 1000), (0.5, 0.05, 10)]
)
def test_the_multiplier_meets_its_budget_and_hardly_more(epsilon, rate, steps):
    pytest.importorskip("opacus")
    spent = spent_epsilon(noise_multiplier(epsilon, DELTA, rate, steps), rate, steps, DELTA)
    assert 0.998 * epsilon <= spent <= epsilon


def test_clipping_without_noise_is_exact():
    rows = torch.randn(6, 2, 3, 3, generator=generator("rows"), dtype=torch.float64)
    rows[0] *= 100
    rows[1] *= 1e-3
    rows[2] = 0
    clipped = clip_and_noise(rows, 1.5, 0.0, generator("none"))
    for row, out in zip(rows, clipped, strict=True):
        length = float(row.square().sum().sqrt())
        expected = row if length <= 1.5 else row * (1.5 / length)
        torch.testing.assert_close(out, expected, rtol=1e-12, atol=0)
    assert torch.equal(clipped[1:3], rows[1:3])


@pytest.mark.parametrize("rows", [1, 64])
def test_the_noise_of_a_release_has_its_sensitivity_times_the_multiplier(rows):
    """Moments and law: N(0, (z 2 C sqrt(N))^2), whatever the shape."""
    answers = torch.zeros(rows, 40_000 // rows, dtype=torch.float64)
    out = clip_and_noise(answers, 0.5, 3.0, generator("law", rows)).flatten()
    sigma = 3.0 * 2 * 0.5 * math.sqrt(rows)
    assert abs(float(out.mean())) < 4 * sigma / math.sqrt(len(out))
    assert float(out.std()) == pytest.approx(sigma, rel=0.02)
    assert kstest(out.numpy() / sigma, "norm").pvalue > 1e-3


def test_noise_is_drawn_in_float64_and_added_before_rounding():
    """A release keeps the dtype of its values."""
    drawn = torch.randn(1000, 4, generator=generator("wide"), dtype=torch.float64)
    for dtype in (torch.float32, torch.float64):
        values = torch.full((1000, 4), 0.1, dtype=dtype)
        release = with_noise(values, 3.0, 2.0, generator("wide"))
        assert release.dtype == dtype
        assert torch.equal(release, (values.double() + 6.0 * drawn).to(dtype))


def test_no_neighbour_moves_a_release_further_than_its_sensitivity():
    """2 C sqrt(N) of clipped rows that all turn round; sqrt(2 N) of one-hot votes."""
    rows = 10 * torch.randn(8, 5, generator=generator("turn"), dtype=torch.float64)
    one, other = (clip_and_noise(way * rows, 2.0, 0.0, generator()) for way in (1, -1))
    assert float((one - other).norm()) == pytest.approx(2 * 2.0 * math.sqrt(8), rel=1e-12)
    votes = torch.eye(10, dtype=torch.float64)[torch.arange(8)]
    assert torch.equal(noisy_votes(votes, 0.0, generator()), votes)
    noise = noisy_votes(torch.zeros(8, 5000, dtype=torch.float64), 1.0, generator("votes"))
    assert float(noise.std()) == pytest.approx(math.sqrt(2 * 8), rel=0.02)


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    refused("pip install opacus", spent_epsilon, 1.0, 0.1, 10, DELTA)
