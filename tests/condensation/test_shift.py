"""Shifts of feature statistics: against moments in float64, the printed formula, and single
batches.
"""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core import models
from core.condensation import LatentEncoder, augment
from core.condensation.engine import condense
from core.condensation.problem import Condensation, Draws, Problem, RealData
from core.condensation.shift import (
    EPS,
    FORMS,
    Shift,
    ShiftedProblem,
    moments,
    shifted,
    uncertain_shift,
)
from core.errors import InputError
from core.rng import Rng


def batch(samples: int = 6, channels: int = 3, size: int = 5, seed: int = 0) -> torch.Tensor:
    """Maps whose samples differ in mean and spread."""
    generator = torch.Generator().manual_seed(seed)
    spread = 0.5 + torch.rand(samples, channels, 1, 1, generator=generator)
    mean = torch.randn(samples, channels, 1, 1, generator=generator)
    maps = torch.randn(samples, channels, size, size, generator=generator)
    return (mean + spread * maps).double()


def by_hand(x: np.ndarray, noise: np.ndarray, form: str) -> np.ndarray:
    """Eq. 1, 2 and the line after, one number at a time."""
    out = np.empty_like(x)
    samples, channels = x.shape[:2]
    mu = [[x[i, c].mean() for c in range(channels)] for i in range(samples)]
    sigma = [[np.sqrt(x[i, c].var() + EPS) for c in range(channels)] for i in range(samples)]
    for c in range(channels):
        column_mu, column_sigma = ([row[c] for row in table] for table in (mu, sigma))
        big_mu = np.sqrt(sum((m - np.mean(column_mu)) ** 2 for m in column_mu) / samples)
        big_sigma = np.sqrt(sum((s - np.mean(column_sigma)) ** 2 for s in column_sigma) / samples)
        for i in range(samples):
            mu_hat = mu[i][c] + noise[0, i, c] * big_mu
            sigma_hat = sigma[i][c] + noise[1, i, c] * big_sigma
            normal = (x[i, c] - mu[i][c]) / sigma[i][c]
            out[i, c] = (
                mu_hat * normal + sigma_hat if form == "as_printed" else sigma_hat * normal + mu_hat
            )
    return out


@pytest.mark.parametrize("form", ["dsu", "as_printed"])
def test_the_shift_is_the_formula(form):
    x, noise = (
        batch(),
        torch.randn(2, 6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)),
    )
    np.testing.assert_allclose(
        shifted(x, noise, form).numpy(), by_hand(x.numpy(), noise.numpy(), form), rtol=1e-9
    )


@pytest.mark.parametrize("form", ["dsu", "as_printed"])
def test_many_draws_have_the_moments_of_eq_2(form):
    """mu^ ~ N(mu, Sigma_mu^2) and sigma^ ~ N(sigma, Sigma_sigma^2): mean and deviation of what
    comes out.
    """
    x = batch(4, 2, 6)
    draws = 1500
    found = torch.stack(
        [uncertain_shift(x, 1.0, Rng(number), form) for number in range(draws)]
    ).numpy()
    mean, signed = found.mean((-2, -1)), _signed_deviation(found, x.numpy())
    mu, sigma = x.numpy().mean((-2, -1)), x.numpy().std((-2, -1))
    level, spread = (signed, mean) if form == "as_printed" else (mean, signed)
    for value, centre in ((level, mu), (spread, sigma)):
        width = centre.std(0)  # Sigma: over the samples of the batch
        np.testing.assert_allclose(value.mean(0), centre, atol=5 * width.max() / np.sqrt(draws))
        np.testing.assert_allclose(value.std(0), np.broadcast_to(width, centre.shape), rtol=0.08)
        # nearly normal: 68% within one deviation; and samples and channels are drawn apart
        assert abs((np.abs(value - centre) < width).mean() - 0.683) < 0.02
        correlation = np.corrcoef(((value - centre) / width).reshape(draws, -1).T) - np.eye(
            centre.size
        )
        assert np.abs(correlation).max() < 0.12


def _signed_deviation(found: np.ndarray, x: np.ndarray) -> np.ndarray:
    """What (x - mu) / sigma was multiplied by, with its sign."""
    normal = (x - x.mean((-2, -1), keepdims=True)) / np.sqrt(x.var((-2, -1), keepdims=True) + EPS)
    return (found * normal).sum((-2, -1)) / (normal**2).sum((-2, -1))


def test_p_is_how_often_a_batch_is_shifted():
    x = batch(3, 1, 3)
    untouched = [torch.equal(uncertain_shift(x, 0.5, Rng(number)), x) for number in range(600)]
    assert abs(np.mean(untouched) - 0.5) < 0.07
    assert all(torch.equal(uncertain_shift(x, 0.0, Rng(number)), x) for number in range(20))
    assert not any(torch.equal(uncertain_shift(x, 1.0, Rng(number)), x) for number in range(20))


def test_one_image_has_no_uncertainty():
    """Sigma is 0: DSU's form gives the image back; the printed one swaps its mean and deviation."""
    x = batch(1)
    torch.testing.assert_close(uncertain_shift(x, 1.0, Rng(0)), x)
    mean, deviation = moments(uncertain_shift(x, 1.0, Rng(0), "as_printed"))
    old_mean, old_deviation = moments(x)
    torch.testing.assert_close(mean, old_deviation)
    torch.testing.assert_close(deviation, old_mean.abs(), rtol=1e-3, atol=1e-4)


@settings(max_examples=20)
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
    found = uncertain_shift(x, 1.0, torch.Generator().manual_seed(seed), form)
    assert found.shape == x.shape and found.dtype == x.dtype and bool(torch.isfinite(found).all())
    low = uncertain_shift(x.bfloat16(), 1.0, Rng(seed), form)
    assert low.dtype == torch.bfloat16 and bool(torch.isfinite(low).all())


def test_several_batches_at_once_are_each_shifted_by_their_own_uncertainty():
    x, noise = (
        torch.stack([batch(seed=1), 5 * batch(seed=2)]),
        torch.randn(2, 2, 6, 3, dtype=torch.float64),
    )
    together = shifted(x, noise)
    for number in range(2):
        torch.testing.assert_close(together[number], shifted(x[number], noise[:, number]))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((torch.zeros(3, 4, 4), 0.5, Rng(0)), "has the shape"),
        ((batch(), 1.5, Rng(0)), "must lie in"),
        ((batch(), -0.1, Rng(0)), "must lie in"),
        ((batch(), float("nan"), Rng(0)), "must lie in"),
        ((batch(), 0.5, Rng(0), "printed"), "did you mean 'as_printed'"),
    ],
)
def test_bad_values_are_refused(values, words):
    with pytest.raises(InputError, match=words):
        uncertain_shift(*values)


# --- both losses of Algorithm 1
# --------------------------------------------------------------------------------------

SIZES = (5, 3, 6, 4)  # real images of the four groups: two classes of two clients


def real_data() -> RealData:
    images = torch.randint(
        0, 256, (sum(SIZES), 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(3)
    )
    group = torch.repeat_interleave(torch.arange(4), torch.tensor(SIZES))
    share = 1 / torch.tensor(SIZES, dtype=torch.float32)[group]
    return RealData(images, group, share, torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1]))


def problem(shift: Shift | None, **more) -> Problem:
    budget = Condensation(iterations=1, real_batch=4, image_lr=1.0, **more)
    encoder = LatentEncoder(
        models.build("convnet", 3, 8, 2, Rng(5), width=4, depth=2, norm="instance")
    )
    real = real_data()
    parts = {
        "encoder": encoder,
        "real": real,
        "settings": budget,
        "draws": Draws([Rng(1), Rng(2)], real.owner),
        "prepare": lambda images: images.float() / 128 - 1,
        "autocast": contextlib.nullcontext,
        "free": True,
    }
    return Problem(**parts) if shift is None else ShiftedProblem(**parts, shift=shift)


def features(one: Problem, augmentation=None) -> torch.Tensor:
    return one.batch("batch", 0, augmentation)[0]


def test_the_first_half_of_the_features_is_that_of_the_images_as_they_are():
    plain = features(problem(None))
    both = features(problem(Shift("dsu", 1.0, 0)))
    assert both.shape == (4, 4, 2 * plain.shape[2])
    torch.testing.assert_close(both[..., : plain.shape[2]], plain)
    assert not torch.allclose(both[..., plain.shape[2] :], plain)
    torch.testing.assert_close(
        features(problem(Shift("dsu", 0.0, 0))), torch.cat([plain, plain], -1)
    )


@pytest.mark.parametrize("form", ["dsu", "as_printed"])
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_the_second_half_is_that_of_shifted_batches_group_by_group(form, layer):
    """psi(A_c(U_p(x))) with the same numbers, one group at a time, by hand."""
    one = problem(Shift(form, 0.5, layer))
    augmentation = one.draws.augmentation("color_flip", 8, "augment", 0)
    moved = features(one, augmentation).chunk(2, -1)[1]
    rows = one.rows("batch", 0)
    channels = 3 if layer == 0 else 4
    chosen = one.draws.uniform(1, "shifted", 0) < 0.5
    noise = one.draws.normal(2 * 4 * channels, "shift", 0).view(4, 2, 4, channels)
    blocks = one.encoder.model.blocks
    for group in range(4):

        def change(maps, group=group):
            return shifted(maps, noise[group], form) if chosen[group] else maps

        maps = one.prepare(one.real.images[rows[group]])
        maps = change(maps) if layer == 0 else maps
        maps = augment(maps, augmentation, torch.full((4,), group))
        for number, block in enumerate(blocks, 1):
            maps = block(maps)
            maps = change(maps) if layer == number else maps
        torch.testing.assert_close(moved[group], maps.flatten(1), rtol=1e-4, atol=1e-5)
    assert bool(chosen.any()) and not bool(chosen.all())


def test_the_step_follows_the_sum_of_both_losses():
    """S - eta grad ( ||O^T - O^S||^2 + ||O^U - O^S||^2 ), by autograd on the formula."""
    one = problem(Shift("dsu", 1.0, 0))
    group = torch.arange(4).repeat_interleave(2)
    start = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(8))
    images, trace = condense(one, start, group)
    plain, moved = features(one).mean(1).chunk(2, -1)
    s = start.clone().requires_grad_()
    mean = one.encoder.model.embed(s).view(4, 2, -1).mean(1)
    loss = (mean - plain).square().sum(1) + (mean - moved).square().sum(1)
    (gradient,) = torch.autograd.grad(loss.sum(), s)
    torch.testing.assert_close(trace[0], loss.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(images, start - gradient, rtol=1e-4, atol=1e-5)


def test_the_encoder_is_left_as_it_was():
    one = problem(Shift("dsu", 1.0, 1))
    x = torch.randn(2, 3, 8, 8)
    before = one.encoder.model.embed(x)
    features(one)
    torch.testing.assert_close(one.encoder.model.embed(x), before)
