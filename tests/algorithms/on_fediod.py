"""The objective of FedIOD in one graph, from the formulas of the paper, and its gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from core.algorithms.fediod.clients import ClientsHere
from core.algorithms.fediod.server import Server
from core.algorithms.fediod.settings import Settings
from core.models import planes

Sides = tuple[Server, ClientsHere]


def entropy(q: torch.Tensor) -> torch.Tensor:
    """Of probabilities (..., C)."""
    return -(q * q.log()).sum(-1)


def shares(sizes: Sequence[int]) -> torch.Tensor:
    """pi_k, (K, 1, 1)."""
    return (torch.tensor(sizes) / sum(sizes)).view(-1, 1, 1)


def agreement(z: torch.Tensor, sizes: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean entropy of the teachers' answers (K, N, C) and their Jensen-Shannon divergence."""
    pi, q = shares(sizes), z.softmax(-1)
    each = (pi[..., 0] * entropy(q)).sum(0).mean()
    return each, entropy((pi * q).sum(0)).mean() - each


def judged(judges: Iterable[nn.Module], inputs: Iterable[torch.Tensor]) -> torch.Tensor:
    """1 - sigmoid(D_k(x)), the mean over patches, (K, N)."""
    pairs = zip(judges, inputs, strict=True)
    return torch.stack([1 - judge(x).sigmoid().mean((1, 2, 3)) for judge, x in pairs])


def shaping(z: torch.Tensor, sizes: Sequence[int], kind: str, settings: Settings) -> torch.Tensor:
    """L_conf + L_unique of answers (K, N, C), and the terms of the released code."""
    pi, q = shares(sizes), z.softmax(-1)
    if kind == "reconstruction":
        return -settings.uniqueness * (pi * (z - (pi * z).sum(0)).square()).sum(0).mean()
    confidence, jsd = agreement(z, sizes)
    total = settings.confidence * confidence
    if settings.uniqueness_form == "printed":
        total = total - settings.uniqueness * jsd
    else:  # the mean of KL(q- || q_k)
        mean, each = q.mean(0).clamp(0.01, 0.99), q.clamp(0.01, 0.99)
        total = total + settings.uniqueness * (mean * (mean / each).log()).sum(-1).mean()
    batch = q.mean(1)  # sum_k pi_k sum_c q^c log2 q^c of the batch's mean answer
    return total + settings.balance * (pi[:, 0, 0] * (batch * batch.log2()).sum(1)).sum()


def perceptual(side: ClientsHere, inputs: torch.Tensor, maps: Any) -> torch.Tensor:
    """Squared distances of each teacher's maps: of what its label maps made, of its images."""
    total = inputs.new_zeros(())
    for k, client in enumerate(side.clients):
        places = (maps.rows[k] >= 0).nonzero().flatten()
        teacher = side.teachers.networks[k]
        made = teacher.encode(inputs[places])
        real = teacher.encode(side.task.inputs(client.images[maps.rows[k][places]]))
        total = total + sum(
            (a - b.detach()).square().mean() for a, b in zip(made, real, strict=True)
        )
    return total


def objective(
    server: Server, side: ClientsHere, settings: Settings
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """L_G of Alg. 1, L_mimic and L_gan for the images of step 0."""
    task, images, maps = server.task, server.images(0), server.label_maps(0)
    inputs, real = task.dataset.standardise(images), side._real(0)
    sizes = [len(client) for client in side.clients]
    pi = shares(sizes)[:, 0, 0]
    shown = inputs if maps is None else torch.cat([inputs, planes(maps.labels, 3)], 1)
    if task.kind == "reconstruction":
        shown = torch.cat([inputs, planes(maps.labels, real.shape[2] - inputs.shape[1])], 1)
    z = torch.stack([task.rows(teacher(inputs)) for teacher in side.teachers.networks])
    d_fake = judged(side.judges, [shown] * len(sizes))
    d_real = judged(side.judges, real)
    if settings.gan_weights == "uniform":
        pi = torch.full_like(pi, 1 / len(pi))
    if settings.gan_loss == "linear":
        gan = climbed = (pi * d_real.mean(1)).sum() + (1 - d_fake.mean(1)).sum()
    else:  # as released: sums over patches, with the weights in the generator's part alone
        fake = torch.stack([judge(shown) for judge in side.judges])
        true = torch.stack([judge(x) for judge, x in zip(side.judges, real, strict=True)])
        each = functional.softplus(fake) + functional.softplus(-true)
        gan = each.sum((2, 3, 4)).mean(1).sum()
        climbed = -(pi * functional.softplus(-fake).sum((2, 3, 4)).mean(1)).sum()
    weight = server.counts[:, None].float()
    if settings.class_ratio == "share":
        weight = weight / weight.sum(2, keepdim=True)
    if settings.importance == "class_and_input":
        if settings.input_ratio == "real":
            d_fake, d_real = 1 - d_fake, 1 - d_real
        ratio = d_fake / d_real.mean(1, keepdim=True).detach()
        weight = weight * ratio.repeat_interleave(z.shape[1] // ratio.shape[1], 1)[..., None]
    present = weight.sum((0, 1)) > 0
    weight = torch.where(present, weight / weight.sum(0).clamp_min(1e-30), 1 / len(sizes))
    ensemble, student = (weight * z).sum(0), task.rows(server.student(inputs))
    if settings.tau is None:
        mimic = (student - ensemble).square().sum(1).mean()
    else:
        p, log_q = (ensemble / settings.tau).softmax(1), (student / settings.tau).log_softmax(1)
        mimic = settings.tau**2 * functional.kl_div(log_q, p, reduction="batchmean")
    total = shaping(z, sizes, task.kind, settings) - settings.mimic * mimic - settings.gan * climbed
    if maps is not None:
        total = total + settings.perceptual * perceptual(side, inputs, maps)
    return total, mimic, gan


def check_gradients(
    before: Sides, after: Sides, settings: Settings, answering: Sides | None = None
) -> None:
    """Compare gradients that arrived at G, S and D_k (or at `answering`) with the objective's."""

    def judges(side: ClientsHere) -> list[nn.Parameter]:
        return [parameter for judge in side.judges for parameter in judge.parameters()]

    wanted, mimic, _ = objective(*(answering or before), settings)
    (server, _), (new, _) = before, after
    parts = [
        (wanted, server.generator.parameters(), new.generator.parameters()),
        (mimic, server.student.parameters(), new.student.parameters()),
        (objective(*before, settings)[2], judges(before[1]), judges(after[1])),
    ]
    for loss, old, moved in parts:
        slopes = torch.autograd.grad(loss, [*old], retain_graph=True)
        scale = max(float(slope.abs().max()) for slope in slopes)
        for parameter, slope in zip(moved, slopes, strict=True):
            torch.testing.assert_close(parameter.grad, slope, rtol=1e-3, atol=1e-4 * scale)
