"""The weights of Eq. 7 and 8 against NumPy and known densities; the ensemble of Eq. 9."""

import numpy as np
import pytest
import scipy.stats
import torch

from core import distillation as kd

COUNTS = np.array([[30, 0, 10, 0], [10, 5, 0, 0], [0, 1, 0, 0]])


@pytest.mark.parametrize("ratio", ["count", "share"])
def test_equation_8_against_numpy(ratio):
    """And the * rows, of the class ratio alone: the same for every input. Nobody has class 3."""
    draw, counts = np.random.default_rng(0), torch.tensor(COUNTS)
    generated, real = draw.uniform(0.01, 1, (3, 5)), draw.uniform(0.01, 1, 3)
    first = COUNTS if ratio == "count" else COUNTS / COUNTS.sum(1, keepdims=True)
    given = torch.tensor(generated), torch.tensor(real)
    for arguments, by_input in ((given, generated / real[:, None]), ((), np.ones((3, 1)))):
        weight = first[:, None, :] * by_input[:, :, None]
        with np.errstate(invalid="ignore"):
            weight = weight / weight.sum(0)
        weight[..., 3] = 1 / 3
        found = kd.class_input_importance(counts, *arguments, class_ratio=ratio)
        assert found.shape == weight.shape
        np.testing.assert_allclose(found, weight, rtol=1e-5, atol=1e-12)


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


def test_the_ensemble_is_a_sum_of_products():
    """Eq. 9: class 0 from the first teacher, class 1 from the second, class 2 half and half."""
    logits = torch.tensor([[[1.0, 2.0, 3.0]], [[10.0, 20.0, 30.0]]])
    weights = torch.tensor([[[1.0, 0.0, 0.5]], [[0.0, 1.0, 0.5]]])
    assert kd.ensemble_logits(logits, weights).tolist() == [[1.0, 20.0, 16.5]]
    assert kd.ensemble_logits(logits.expand(2, 4, 3), weights).tolist() == [[1.0, 20.0, 16.5]] * 4
