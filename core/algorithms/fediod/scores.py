"""Scores of FedIOD's generated images and of the teachers: tests, not parts of the method.

Like every test they do not count as traffic.
"""

from __future__ import annotations

import torch

from core import distillation
from core.algorithms.fediod.conversation import ClientsSide
from core.algorithms.fediod.server import Server
from core.data import Split
from core.metrics.image_quality import (
    adapted_inception_score,
    inception_file,
    inception_probabilities,
    inception_score,
)

#: real images that teachers are asked about at once
PART = 1000


def check_inception() -> None:
    """Raise InputError where the weights of Inception are on disk and cannot be read."""
    if inception_file().is_file():
        inception_probabilities()


def inception_scores(side: ClientsSide, server: Server, images: torch.Tensor) -> dict[str, float]:
    """Inception scores of images (M, C, S, S) in [0, 1] by teachers, and by Inception if on disk."""
    q = side.logits(images).softmax(-1)
    scores = {"adapted_inception_score": adapted_inception_score(q)}
    if not inception_file().is_file():
        return scores
    judge = inception_probabilities(server.task.runtime.device)
    with torch.no_grad():
        outputs = torch.cat([judge(part) for part in images.split(100)])
    return scores | {"inception_score": inception_score(outputs)}


def ensemble_accuracy(side: ClientsSide, server: Server, split: Split) -> float:
    """Share of a split's images on which the ensemble of the teachers (Eq. 9) is right, weighted by
    the class ratio alone (Eq. 8 without D_k): how much the teachers know together.
    """
    weights = distillation.class_input_importance(
        server.counts, class_ratio=server.settings.class_ratio
    )
    device, right = server.task.runtime.device, 0
    parts = zip(split.images.split(PART), split.labels.split(PART), strict=True)
    for number, (images, labels) in enumerate(parts, 1):
        z = side.logits(images.to(device).float() / 255, number)
        predicted = distillation.ensemble_logits(z, weights).argmax(1)
        right += int((predicted == labels.to(device)).sum())
    return right / len(split.labels)
