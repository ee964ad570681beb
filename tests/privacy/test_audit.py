"""The audit: its bound against scipy, and what it says of sound and of broken mechanisms."""

from __future__ import annotations

import math
from importlib.util import find_spec

import pytest
import torch
from scipy import integrate, stats

from core.privacy.audit import audited_epsilon, gaussian_epsilon, least_distance
from core.privacy.differential import clip_and_noise, noise_multiplier, spent_epsilon
from core.rng import Rng

pytestmark = pytest.mark.skipif(not find_spec("opacus"), reason="needs opacus")
DELTA, NORM, ROWS, RELEASES = 1e-5, 2.0, 4, 3


def canaries(norm: float = 50.0):
    """Answers of two clients that differ as much as they can: opposite, and far beyond the bound."""
    row = torch.randn(ROWS, 6, generator=Rng(1).generator(), dtype=torch.float64)
    row = norm * row / row.norm(dim=1, keepdim=True)
    return row, -row


def audit(release, trials=1000):
    return audited_epsilon(release, canaries(), RELEASES, trials, DELTA, Rng(7))


def test_the_bound_is_that_of_exact_binomial_intervals():
    upper = [
        stats.binomtest(k, n).proportion_ci(0.95, method="exact").high
        for k, n in ((3, 500), (40, 400))
    ]
    expected = stats.norm.ppf(1 - upper[0]) - stats.norm.ppf(upper[1])
    assert least_distance(3, 500, 40, 400) == pytest.approx(expected, rel=1e-9)


def test_guessing_proves_nothing_and_certainty_proves_what_the_trials_can():
    assert least_distance(50, 100, 50, 100) == 0
    assert least_distance(100, 100, 100, 100) == 0
    # no error in n trials: the upper end is 1 - 0.025^(1 / n)
    end = 1 - 0.025 ** (1 / 200)
    assert least_distance(0, 200, 0, 200) == pytest.approx(-2 * stats.norm.ppf(end))


def test_the_games_that_give_the_threshold_are_not_counted():
    """Two of twenty; without noise none of the other eighteen is mistaken."""
    found = audited_epsilon(lambda answer, draws: answer, canaries(), 1, 20, DELTA, Rng(7))
    assert found == gaussian_epsilon(least_distance(0, 18, 0, 18), DELTA)


@pytest.mark.parametrize(("mu", "delta"), [(0.3, 1e-5), (1.0, 1e-2), (2.5, 1e-5)])
def test_epsilon_of_two_normals_by_integration(mu, delta):
    """delta is the integral of (p - e^epsilon q)_+ over N(mu, 1) and N(0, 1)."""
    epsilon = gaussian_epsilon(mu, delta)
    # p > e^epsilon q above this point
    least = epsilon / mu + mu / 2
    value, _ = integrate.quad(
        lambda x: stats.norm.pdf(x, mu) - math.exp(epsilon) * stats.norm.pdf(x),
        least,
        least + 20,
        epsabs=1e-12,
    )
    assert value == pytest.approx(delta, rel=1e-4)
    assert gaussian_epsilon(0.0, delta) == 0


@pytest.mark.parametrize("epsilon", [3.5, 10.0])
def test_the_mechanism_of_fediod_keeps_what_is_claimed_and_the_audit_comes_near(epsilon):
    multiplier = noise_multiplier(epsilon, DELTA, 1.0, RELEASES)
    found = audit(lambda rows, draws: clip_and_noise(rows, NORM, multiplier, draws))
    claimed = spent_epsilon(multiplier, 1.0, RELEASES, DELTA)
    assert 0.5 * claimed < found < claimed


def noised(rows, multiplier, draws):
    return clip_and_noise(rows, NORM, multiplier, draws)


BROKEN = {
    "half of the noise": lambda rows, z, draws: noised(rows, z / 2, draws),
    "the sensitivity of one row, not of all": lambda rows, z, draws: torch.cat(
        [noised(row[None], z, draws) for row in rows]
    ),
    "no clipping": lambda rows, z, draws: rows + noised(0 * rows, z, draws),
    "the same noise in every release": lambda rows, z, _: noised(rows, z, Rng(0).generator()),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_noise_is_caught(fault):
    multiplier = noise_multiplier(3.5, DELTA, 1.0, RELEASES)
    found = audit(lambda rows, draws: BROKEN[fault](rows, multiplier, draws), trials=400)
    assert found > spent_epsilon(multiplier, 1.0, RELEASES, DELTA)


def test_a_release_that_says_nothing_proves_nothing():
    """All games end on the threshold."""
    assert audit(lambda answer, draws: torch.zeros_like(answer), trials=100) == 0
