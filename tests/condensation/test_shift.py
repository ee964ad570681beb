"""Shifts of feature statistics: the printed formula in float64, moments, single batches."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core import models
from core.condensation import LatentEncoder, augment
from core.condensation.engine import Condensation, Draws, MatchingObjective, condense
from core.condensation.latent import Separate
from core.condensation.shift import (
    EPS,
    FORMS,
    Shift,
    ShiftedMatching,
    moments,
    shifted,
    uncertain_shift,
)
from core.rng import Rng
from tests.condensation.small import real_data


def batch(samples: int = 6, channels: int = 3, size: int = 5, seed: int = 0) -> torch.Tensor:
    """Maps whose samples differ in mean and spread."""
    draw, form = np.random.default_rng(seed), (samples, channels, 1, 1)
    spread, mean = draw.uniform(0.5, 1.5, form), draw.normal(size=form)
    return torch.tensor(mean + spread * draw.normal(size=(samples, channels, size, size)))


def by_hand(x: np.ndarray, noise: np.ndarray, form: str) -> np.ndarray:
    """Eq. 1, 2 and the line after, one number at a time."""
    out = np.empty_like(x)
    mu, sigma = x.mean((2, 3)), np.sqrt(x.var((2, 3)) + EPS)
    for i, c in np.ndindex(*x.shape[:2]):
        big_mu, big_sigma = (
            np.sqrt(np.mean([(row[c] - table[:, c].mean()) ** 2 for row in table]))
            for table in (mu, sigma)
        )
        mu_hat = mu[i, c] + noise[0, i, c] * big_mu
        sigma_hat = sigma[i, c] + noise[1, i, c] * big_sigma
        if form == "as_printed":
            mu_hat, sigma_hat = sigma_hat, mu_hat
        out[i, c] = sigma_hat * (x[i, c] - mu[i, c]) / sigma[i, c] + mu_hat
    return out


@pytest.mark.parametrize("form", FORMS)
def test_the_shift_is_the_formula_batch_by_batch(form):
    x = torch.stack([batch(seed=1), 5 * batch(seed=2)])
    noise = torch.randn(2, 2, 6, 3, dtype=torch.float64, generator=Rng(1).generator())
    together = shifted(x, noise, form)
    for number in range(2):
        expected = by_hand(x[number].numpy(), noise[:, number].numpy(), form)
        np.testing.assert_allclose(together[number], expected, rtol=1e-9)


def test_p_is_how_often_a_batch_is_shifted_and_noise_is_drawn_for_every_sample_and_channel():
    x, draws = batch(3, 1, 3), Rng(3).generator()
    torch.rand((), generator=draws)  # whether the batch is shifted
    noise = torch.randn(2, 3, 1, generator=draws)
    torch.testing.assert_close(uncertain_shift(x, 1.0, Rng(3)), shifted(x, noise))
    for p, deviation in ((0.0, 0), (0.5, 0.08), (1.0, 0)):
        same = [torch.equal(uncertain_shift(x, p, Rng(number)), x) for number in range(400)]
        assert abs(np.mean(same) - (1 - p)) <= deviation


def test_one_image_has_no_uncertainty():
    """Sigma is 0: DSU's form gives the image back; the printed one swaps its mean and deviation."""
    x = batch(1)
    torch.testing.assert_close(uncertain_shift(x, 1.0, Rng(0)), x)
    mean, deviation = moments(uncertain_shift(x, 1.0, Rng(0), "as_printed"))
    old_mean, old_deviation = moments(x)
    torch.testing.assert_close(mean, old_deviation)
    torch.testing.assert_close(deviation, old_mean.abs(), rtol=1e-3, atol=1e-4)


@given(
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 99),
    st.sampled_from(FORMS),
)
def test_any_batch_stays_finite_and_keeps_its_form(samples, channels, size, seed, form):
    x = batch(samples, channels, size, seed).float()
    x[0] = 0.25  # a flat image
    for maps in (x, x.bfloat16()):
        out = uncertain_shift(maps, 1.0, torch.Generator().manual_seed(seed), form)
        assert out.shape == x.shape and out.dtype == maps.dtype and bool(out.isfinite().all())


# --- both losses of Algorithm 1

SIZES = (5, 3, 6, 4)  # real images of the four groups: two classes of two clients


def objective(shift: Shift | None) -> MatchingObjective:
    model = models.build("convnet", 3, 8, 2, Rng(5), width=4, depth=2, norm="instance")
    real = real_data(SIZES, [0, 0, 1, 1], [0, 1, 0, 1], channels=3)
    parts = (
        LatentEncoder(model),
        real,
        Condensation(iterations=1, real_batch=4, image_lr=1.0),
        Draws([Rng(1), Rng(2)], real.owner),
        lambda images: images.float() / 128 - 1,
        nullcontext,
        Separate(),
    )
    return MatchingObjective(*parts) if shift is None else ShiftedMatching(*parts, shift=shift)


def features(shift: Shift | None) -> torch.Tensor:
    return objective(shift).batch("batch", 0, None).features


def test_the_first_half_of_the_features_is_that_of_the_images_as_they_are():
    plain = features(None)
    same, other = features(Shift("dsu", 1.0, 0)).chunk(2, -1)
    torch.testing.assert_close(same, plain)
    assert not torch.allclose(other, plain)
    torch.testing.assert_close(features(Shift("dsu", 0.0, 0)), torch.cat([plain, plain], -1))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_the_second_half_is_that_of_shifted_batches_group_by_group(form, layer):
    """psi(A_c(U_p(x))) with the same numbers, one group at a time, by hand."""
    matching = objective(Shift(form, 0.5, layer))
    draws, real = matching.draws, matching.real
    augmentation = draws.augmentation("color_flip", 8, "augment", 0)
    moved = matching.batch("batch", 0, augmentation).features.chunk(2, -1)[1]
    rows, channels = matching.rows("batch", 0), 3 if layer == 0 else 4
    chosen = draws.uniform(1, "shifted", 0) < 0.5
    noise = draws.normal(2 * 4 * channels, "shift", 0).view(4, 2, 4, channels)
    assert bool(chosen.any()) and not bool(chosen.all())
    for group in range(4):
        maps = matching.prepare(real.images[rows[group]])
        for number, block in enumerate([None, *matching.encoder.model.blocks]):
            maps = maps if block is None else block(maps)
            if number == layer and chosen[group]:
                maps = shifted(maps, noise[group], form)
            if number == 0:
                maps = augment(maps, augmentation, torch.full((4,), group))
        torch.testing.assert_close(moved[group], maps.flatten(1), rtol=1e-4, atol=1e-5)


def test_the_step_follows_the_sum_of_both_losses():
    """S - eta grad ( ||O^T - O^S||^2 + ||O^U - O^S||^2 ), by autograd on the formula."""
    matching, group = objective(Shift("dsu", 1.0, 0)), torch.arange(4).repeat_interleave(2)
    start = torch.randn(8, 3, 8, 8, generator=Rng(8).generator())
    images, trace = condense(matching, start, group)
    plain, moved = features(Shift("dsu", 1.0, 0)).mean(1).chunk(2, -1)
    s = start.clone().requires_grad_()
    mean = matching.encoder.model.embed(s).view(4, 2, -1).mean(1)
    loss = (mean - plain).square().sum(1) + (mean - moved).square().sum(1)
    (gradient,) = torch.autograd.grad(loss.sum(), s)
    torch.testing.assert_close(trace[0], loss.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(images, start - gradient, rtol=1e-4, atol=1e-5)
