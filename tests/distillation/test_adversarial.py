"""The signs of both games of FedIOD; the losses are in `tests.algorithms.on_fediod`."""

import pytest
import torch

from core.distillation import gan_losses

DRAW = torch.Generator().manual_seed(0)
FAKE, REAL = (torch.randn(3, 5, 1, 2, 2, generator=DRAW) for _ in range(2))
PI = torch.tensor([0.5, 0.3, 0.2])


@pytest.mark.parametrize("loss", ["linear", "non_saturating"])
def test_the_signs_make_a_game(loss):
    """A discriminator goes up on real and down on generated images; the generator goes up."""
    fake, real = FAKE.clone().requires_grad_(), REAL.clone().requires_grad_()
    judges, _ = gan_losses(fake, real, PI, loss)
    on_fake, on_real = torch.autograd.grad(judges.sum(), (fake, real))
    assert (on_fake > 0).all() and (on_real < 0).all()  # descent moves against these
    (to_fool,) = torch.autograd.grad(gan_losses(fake, real, PI, loss)[1].sum(), fake)
    assert (to_fool < 0).all()
