"""Divergences against NumPy in float64, SciPy and closed forms."""

import math

import numpy as np
import pytest
import scipy.special
import torch

from core import distillation as kd

DRAW = np.random.default_rng(0)
K, N, C = 4, 5, 6
LOGITS = DRAW.normal(size=(K, N, C)) * 3
Q = scipy.special.softmax(LOGITS, axis=-1)
PI = np.array([0.5, 0.3, 0.15, 0.05])


def tensor(array):
    return torch.tensor(array, dtype=torch.float32)


def test_a_high_temperature_is_the_centred_squared_error():
    """Hinton et al. 2015, Sec. 2.1: tau^2 KL -> |z^ - z|^2 / (2 C) of centred logits."""
    student, ensemble = (torch.tensor(LOGITS[i], requires_grad=i == 0) for i in (0, 1))
    gap = LOGITS[0] - LOGITS[1]
    gap -= gap.mean(-1, keepdims=True)
    error = []
    for tau in (10.0, 100.0, 1000.0):
        value = kd.mimic_loss(student, ensemble, tau)
        (gradient,) = torch.autograd.grad(value, student)
        of_value = abs(value.item() - (gap**2).sum(-1).mean() / (2 * C))
        error.append((of_value, np.abs(gradient.numpy() - gap / (C * N)).max()))
    assert error[0] > error[1] > error[2] and max(error[2]) < 0.01


def test_the_released_temperature_loses_nothing_in_float32():
    """At 10001 the two distributions differ in the fifth digit."""
    gradients = []
    for dtype in (torch.float32, torch.float64):
        student = torch.tensor(LOGITS[0], dtype=dtype, requires_grad=True)
        kd.mimic_loss(student, torch.tensor(LOGITS[1], dtype=dtype), 10001.0).backward()
        gradients.append(student.grad.double())
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


def test_gradients_by_finite_differences():
    q, logits, other = (torch.tensor(of, requires_grad=True) for of in (Q, LOGITS[0], LOGITS[1]))
    pi = torch.tensor(PI)
    for loss in (kd.confidence_loss, kd.jensen_shannon, kd.balance_loss):
        assert torch.autograd.gradcheck(lambda q, loss=loss: loss(q, pi).mean(), (q,))
    assert torch.autograd.gradcheck(lambda a, b: kd.mimic_loss(a, b, 2.0), (logits, other))
    assert torch.autograd.gradcheck(lambda a, b: kd.mimic_loss(a, b), (logits, other))


def test_a_probability_of_zero_has_a_finite_gradient():
    """Logits far apart give probabilities of exactly 0 in float32."""
    logits = torch.tensor([[[0.0, 500.0]], [[500.0, 0.0]]], requires_grad=True)
    q, pi = logits.softmax(-1), torch.tensor([0.5, 0.5])
    assert q.min().item() == 0
    (kd.confidence_loss(q, pi) - kd.jensen_shannon(q, pi).mean()).backward()
    assert torch.isfinite(logits.grad).all()


def test_balance_is_least_when_a_teacher_sees_all_classes_alike():
    even, one = torch.eye(4)[None], torch.eye(4)[:1].expand(1, 4, 4)
    assert float(kd.balance_loss(even, torch.ones(1))) == pytest.approx(-2.0)  # log2 of 4 classes
    assert float(kd.balance_loss(one, torch.ones(1))) == pytest.approx(0.0, abs=1e-5)


def test_losses_are_computed_in_float32_under_autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = tensor(LOGITS).bfloat16()
        assert kd.jensen_shannon(half.softmax(-1), tensor(PI)).dtype == torch.float32
        assert kd.mimic_loss(half[0], half[1]).dtype == torch.float32
        assert kd.mimic_loss(half[0], half[1], 1.0).dtype == torch.float32


def test_the_released_divergence_cuts_off_the_mean_after_it_is_taken():
    """Each teacher's answer is cut off, and so is their mean, which no cut reaches here."""
    q = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.5, 0.5]], [[0.0, 1.0], [1.0, 0.0]]])

    def kl(p, r):
        return sum(a * math.log(a / b) for a, b in zip(p, r, strict=True))

    # means (1/3, 2/3) and (5/6, 1/6)
    first = np.mean([kl((1 / 3, 2 / 3), r) for r in ((0.99, 0.01), (0.01, 0.99), (0.01, 0.99))])
    second = np.mean([kl((5 / 6, 1 / 6), r) for r in ((0.99, 0.01), (0.5, 0.5), (0.99, 0.01))])
    assert kd.reversed_divergence(q).tolist() == pytest.approx([first, second], rel=1e-5)
