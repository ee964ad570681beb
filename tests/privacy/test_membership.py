"""The likelihood ratio attack: against scipy's closed forms, and where the answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from core.privacy import membership
from core.privacy.membership import Evidence, likelihood_ratios
from core.rng import Rng
from tests.sentences import refused


def world(seed: int, shift: float, images: int = 400, shadows: int = 32):
    """Confidences of a model that is surer, by `shift`, of what it was made with."""
    draws = np.random.default_rng(seed)
    hard = draws.normal(0, 3, images)
    inside = np.stack([draws.permutation(images) < images // 2 for _ in range(shadows)])
    member = draws.permutation(images) < images // 2
    noise = draws.normal(size=(shadows + 1, images))
    return hard + shift * member + noise[0], hard + shift * inside + noise[1:], inside, member


def test_confidence_is_the_log_odds_of_the_true_class():
    """Finite where probabilities round."""
    logits = torch.randn(50, 7, generator=Rng(0).generator())
    labels = torch.randint(7, (50,), generator=Rng(1).generator())
    p = logits.double().softmax(1)[torch.arange(50), labels].numpy()
    found = membership.confidence(logits, labels).numpy()
    np.testing.assert_allclose(found, np.log(p / (1 - p)), rtol=1e-9)
    logits = torch.tensor([[400.0, 0.0, -50.0], [0.0, 300.0, 0.0]])
    found = membership.confidence(logits, torch.tensor([0, 2]))
    np.testing.assert_allclose(found.numpy(), [400.0, -300.0])


@given(st.integers(0, 2**31), st.integers(1, 60), st.integers(2, 8))
def test_every_image_is_in_half_of_the_shadow_models_and_half_of_each_class_in_each(
    seed, pairs, shadows
):
    labels = torch.randint(3, (pairs,), generator=Rng(seed).generator()).repeat(2)
    inside = membership.draw(labels, 2 * shadows, Rng(seed))
    assert inside.shape == (2 * shadows, 2 * pairs)
    assert (inside.sum(0) == shadows).all()
    for c in labels.unique():
        of = labels == c
        assert (inside[:, of].sum(1) == of.sum() // 2).all()


@pytest.mark.parametrize("variance", ["each", "pooled"])
def test_the_likelihood_ratio_is_that_of_scipys_normal_densities(variance):
    target, shadows, inside, member = world(0, 1.0, images=20)
    found = likelihood_ratios(Evidence(target, shadows, inside, member), variance)
    laws = []
    for side in (inside, ~inside):
        each = [shadows[side[:, i], i] for i in range(20)]
        mean, deviation = (
            np.array([f(x) for x in each]) for f in (np.mean, lambda x: x.std(ddof=1))
        )
        if variance == "pooled":
            residuals = np.concatenate([x - x.mean() for x in each])
            deviation = np.sqrt((residuals**2).sum() / (len(residuals) - 20))
        laws.append(stats.norm(mean, deviation))
    online = laws[0].logpdf(target) - laws[1].logpdf(target)
    np.testing.assert_allclose(found.online, online, rtol=1e-9)
    np.testing.assert_allclose(found.offline, laws[1].logcdf(target), rtol=1e-9)


def test_a_model_that_knows_its_data_by_heart_gives_all_of_them_away():
    found = likelihood_ratios(Evidence(*world(1, 20.0)))
    assert found.auc == 1
    assert membership.true_positives(found.online, found.member, 0.0) == 1


def test_a_model_that_never_saw_the_data_gives_nothing_away():
    aucs = [likelihood_ratios(Evidence(*world(seed, 0.0))).auc for seed in range(20)]
    error = math.sqrt((2 * 200 + 1) / (12 * 200**2))
    assert abs(np.mean(aucs) - 0.5) < 3 * error / math.sqrt(20)
    assert 0.5 * error < np.std(aucs) < 1.7 * error


def test_the_attack_is_as_good_as_the_best_test_with_known_densities():
    """With many shadow models the AUC is that of two normals a deviation apart: Phi(1 / sqrt 2)."""
    aucs = [likelihood_ratios(Evidence(*world(seed, 1.0, 1000, 128))).auc for seed in range(4)]
    assert np.mean(aucs) == pytest.approx(stats.norm.cdf(1 / math.sqrt(2)), abs=0.02)


def test_what_makes_no_sense_is_refused():
    target, shadows, inside, member = world(0, 0.0, 10, 4)
    refused("diverged", likelihood_ratios, Evidence(target * np.nan, shadows, inside, member))
    none = Evidence(target, shadows, np.zeros_like(inside), member)
    refused("two shadow models", likelihood_ratios, none)


def test_true_positives_by_counting():
    draws = np.random.default_rng(3)
    scores, member = draws.normal(size=300).round(1), draws.random(300) < 0.4
    for rate in (0.0, 0.01, 0.1, 0.5, 1.0):
        fit = [
            (scores[member] >= t).mean()
            for t in [*np.unique(scores), np.inf]
            if (scores[~member] >= t).mean() <= rate
        ]
        assert membership.true_positives(scores, member, rate) == pytest.approx(max(fit))


def test_precision_at_the_true_rate():
    assert membership.precision(0.5, 0.5, 0.1) == pytest.approx(0.1)
    assert membership.precision(0.2, 0.01, 0.5) == pytest.approx(0.2 / 0.21)
    assert membership.precision(0.0, 0.0, 0.1) == 1


def test_the_defence_rate_of_the_paper():
    expected = {"mia_auc_max": 0.6, "mia_auc_mean": 0.535, "mia_defense_rate": 0.5}
    assert membership.defence([0.45, 0.5, 0.54, 0.6]) == pytest.approx(expected)


def test_what_chance_gives_against_draws():
    sizes, draws, found = [20, 50, 200], np.random.default_rng(0), []
    for _ in range(2000):
        ranks = [(n, draws.permutation(2 * n)[:n].sum()) for n in sizes]
        found.append(membership.defence([(r - n * (n - 1) / 2) / n**2 for n, r in ranks]))
    for name, value in membership.defence_by_chance(sizes).items():
        drawn = np.array([one[name] for one in found])
        ties = 0.015 * (name == "mia_defense_rate")
        assert abs(drawn.mean() - value) < 4 * drawn.std() / math.sqrt(2000) + ties, name
