"""The weights of Eq. 8 with known densities; in the objective of FedIOD see `tests.algorithms.on_fediod`."""

import numpy as np
import pytest
import scipy.stats
import torch

from core import distillation as kd

COUNTS = np.array([[30, 0, 10, 0], [10, 5, 0, 0], [0, 1, 0, 0]])


def test_a_discriminator_that_is_sure_gives_neither_nan_nor_infinity():
    generated = torch.tensor([[0.0, 1.0], [1e-40, 1.0], [1.0, 0.0]], requires_grad=True)
    found = kd.class_input_importance(
        torch.tensor(COUNTS), generated, torch.tensor([0.0, 1.0, 0.5])
    )
    assert torch.isfinite(found).all()
    found.square().sum().backward()
    assert torch.isfinite(generated.grad).all()


def densities(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """p(x | y) of two classes, (2, N), and the shares of the classes at two clients, (2, 2)."""
    return (
        np.stack([scipy.stats.norm(mean, 1).pdf(points) for mean in (-1.0, 1.0)]),
        np.array([[0.9, 0.1], [0.3, 0.7]]),
    )


@pytest.mark.parametrize(("says", "sign"), [("generated", 1), ("real", -1)])
def test_equation_8_follows_the_true_ratio_where_the_discriminator_says_generated(says, sign):
    """Two Gaussian classes, two clients of equal size, best discriminators between P_k and P: Eq. 8 follows
    P_k(y|x) / P(y|x), as Eq. 7 wants, with D_k = P(x) / (P(x) + P_k(x)), the probability of "generated";
    with that of "real" the correlation is negative.
    """
    points = np.linspace(-3, 3, 61)
    within, shares = densities(points)
    local = shares @ within  # P_k(x)
    whole = local.mean(0)  # P(x)
    posterior = shares[:, :, None] * within / local[:, None]  # P_k(y|x)
    truth = posterior / (shares.mean(0)[:, None] * within / whole)  # P_k(y|x) / P(y|x), (K, C, N)
    truth = (truth / truth.sum(0)).transpose(0, 2, 1)
    chance = whole / (whole + local)
    chance = chance if says == "generated" else 1 - chance
    # E_{x' ~ P_k} D_k(x')
    on_real = (chance * local).sum(1) / local.sum(1)
    found = kd.class_input_importance(
        torch.tensor(shares * 1000), torch.tensor(chance), torch.tensor(on_real)
    )
    for y in range(2):
        correlation = np.corrcoef(truth[0, :, y], found[0, :, y].numpy())[0, 1]
        assert sign * correlation > 0.9
