"""Divergences of distillation.

Equation numbers are those of FedIOD: Gong, Li, Bao, Yao, Huang, Wu, Zhang, Zheng, Doermann.
Federated Learning via Input-Output Collaborative Distillation. AAAI 2024. Probabilities of K
teachers are one tensor (K, N, C); their weights pi_k (K,) are not negative and sum to 1.

Everything is computed in float32 or better, also under autocast; a gradient passes through all
arguments.
"""

from __future__ import annotations

import math

import torch

from core.models.tensors import at_least_float32

#: the least and the largest probability that the released code takes a logarithm of
LEAST, MOST = 0.01, 0.99


def kl_divergence(
    student_logits: torch.Tensor, teacher_logits: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """KL(q || q^), the mean over samples, with q = p_tau(teacher) and q^ = p_tau(student) (Eq. 1
    and 6).

    There is no factor tau^2; a caller that mixes it with other losses multiplies it in. Eq. 6
    has H(q, q^) - H(q^), which can be negative and so is no divergence. Here it is H(q, q^) -
    H(q).

    Logits are (N, C). The difference of two almost equal distributions is lost in float32 when the
    temperature is high, so the computation is done in float64 and the result handed back in float32
    (float64 for float64).
    """
    teacher = (teacher_logits.double() / temperature).log_softmax(-1)
    student = (student_logits.double() / temperature).log_softmax(-1)
    divergence = (teacher.exp() * (teacher - student)).sum(-1).mean()
    return divergence.to(torch.promote_types(student_logits.dtype, torch.float32))


def mimic_loss(
    student_logits: torch.Tensor, ensemble: torch.Tensor, tau: float = math.inf
) -> torch.Tensor:
    """L_mimic, the mean over samples, of logits (N, C) of student and ensemble: |z^ - z|^2 (Eq. 10) at
    tau = infinity, else tau^2 KL (Eq. 6), which tends to |z^ - z|^2 / (2 C) of centred logits (Hinton et
    al. 2015). The ensemble mixes logits (Eq. 9) at a finite tau too, as in the released code.
    """
    if math.isinf(tau):
        return (
            (at_least_float32(student_logits) - at_least_float32(ensemble)).square().sum(-1).mean()
        )
    return tau**2 * kl_divergence(student_logits, ensemble, tau)


def entropy(probabilities: torch.Tensor) -> torch.Tensor:
    """H(q) = -sum_c q^c log q^c in nats, (...,) of probabilities (..., C), where 0 log 0 = 0."""
    q = at_least_float32(probabilities)
    return -(q * q.clamp_min(torch.finfo(q.dtype).tiny).log()).sum(-1)


def confidence_loss(probabilities: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """L_conf = E_x sum_k pi_k H(q_k) of probabilities (K, N, C) and weights (K,) (Eq. 3)."""
    return (weights[:, None] * entropy(probabilities)).sum(0).mean()


def jensen_shannon(probabilities: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """JSD(q_1, ..., q_K) = H(sum_k pi_k q_k) - sum_k pi_k H(q_k) in nats, (N,), of (K, N, C) and (K,)
    (Eq. 4). L_unique of Eq. 5 is minus its mean: inputs on which the teachers disagree.
    """
    q = at_least_float32(probabilities)
    # q- = sum_k pi_k q_k
    mean = torch.einsum("k,knc->nc", weights.to(q.dtype), q)
    return entropy(mean) - (weights[:, None] * entropy(q)).sum(0)


def disagreement(values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """sum_k pi_k |z_k - z-|^2, z- = sum_k pi_k z_k, the mean over rows, of values (K, N, C), weights (K,).

    FedIOD does not give Eq. 4 where the answer is an image; for z_k as means of normal distributions
    with one large variance it comes to this, but for a factor.
    """
    z = at_least_float32(values)
    mean = torch.einsum("k,knc->nc", weights.to(z.dtype), z)
    return torch.einsum("k,knc->n", weights.to(z.dtype), (z - mean).square()).mean()


def reversed_divergence(probabilities: torch.Tensor) -> torch.Tensor:
    """The released substitute for the JSD: 1/K sum_k KL(q- || q_k), (N,), arguments exchanged, weights
    uniform, probabilities cut to 0.01 .. 0.99. Its generator minimises it: teachers agree.
    """
    q = at_least_float32(probabilities)
    mean, each = q.mean(0).clamp(LEAST, MOST), q.clamp(LEAST, MOST)
    return (mean * (mean.log() - each.log())).sum(-1).mean(0)


def balance_loss(probabilities: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """sum_k pi_k sum_c q^c log2 q^c, q the mean of q_k over the batch; only in the released code. It is
    minus the entropy, in bits, of the classes in a batch, against making one class only.
    """
    return -(weights * entropy(probabilities.mean(1))).sum() / math.log(2)
