"""Eq. 2 of FedIOD by hand, the released loss against PyTorch's, and the signs of both games."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from core.distillation import gan_losses, generated

DRAW = torch.Generator().manual_seed(0)
FAKE, REAL = (torch.randn(3, 5, 1, 2, 2, generator=DRAW) for _ in range(2))
PI = torch.tensor([0.5, 0.3, 0.2])


def test_the_printed_loss_by_hand():
    """D = 1 / (1 + e^l) of logits l that are positive for real."""
    d_fake, d_real = (1 / (1 + np.exp(logits.double().numpy())) for logits in (FAKE, REAL))
    expected = PI.numpy() * d_real.mean((1, 2, 3, 4)) + 1 - d_fake.mean((1, 2, 3, 4))
    judges, generator = gan_losses(FAKE, REAL, PI)
    np.testing.assert_allclose(judges, expected, rtol=1e-5)
    np.testing.assert_allclose(generator, d_fake.mean((1, 2, 3, 4)) - 1, rtol=1e-5)
    np.testing.assert_allclose(generated(FAKE), d_fake.mean((2, 3, 4)), rtol=1e-5)


def test_the_released_loss_against_pytorch():
    judges, generator = gan_losses(FAKE, REAL, PI, "non_saturating", "generator")
    bce = functional.binary_cross_entropy_with_logits
    for k in range(3):
        ones, zeros = torch.ones_like(FAKE[k]), torch.zeros_like(FAKE[k])
        by_hand = (bce(REAL[k], ones, reduction="sum") + bce(FAKE[k], zeros, reduction="sum")) / 5
        torch.testing.assert_close(judges[k], by_hand)
        torch.testing.assert_close(generator[k], PI[k] * bce(FAKE[k], ones, reduction="sum") / 5)


def test_the_weight_stands_in_one_place_only():
    for loss in ("linear", "non_saturating"):
        real, generator = (
            gan_losses(FAKE, REAL, PI, loss, place) for place in ("real", "generator")
        )
        plain = gan_losses(FAKE, REAL, torch.ones(3), loss, "real")
        assert not torch.allclose(real[0], plain[0]) and torch.equal(real[1], plain[1])
        assert torch.equal(generator[0], plain[0]) and torch.allclose(generator[1], PI * plain[1])


@pytest.mark.parametrize("loss", ["linear", "non_saturating"])
def test_the_signs_make_a_game(loss):
    """A discriminator goes up on real and down on generated images; the generator goes up."""
    fake, real = FAKE.clone().requires_grad_(), REAL.clone().requires_grad_()
    judges, _ = gan_losses(fake, real, PI, loss)
    on_fake, on_real = torch.autograd.grad(judges.sum(), (fake, real))
    assert (on_fake > 0).all() and (on_real < 0).all()  # descent moves against these
    (to_fool,) = torch.autograd.grad(gan_losses(fake, real, PI, loss)[1].sum(), fake)
    assert (to_fool < 0).all()
