"""Generators of images and of features, and discriminators, for the images of a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from core import server
from core.federation import Task, pack
from core.federation.tensors import pack_optimiser, unpack_optimiser
from core.models import FeatureGenerator, ImageGenerator, PatchDiscriminator, fresh
from core.rng import Rng
from core.server.generator import FeatureLoss


def image_generator(task: Task, rng: Rng, *, running: bool = False, **form: Any) -> ImageGenerator:
    """A fresh generator of such images, on the task's device. Without `running` it normalises by each
    batch's own statistics, also in use: averaged weights have no running statistics.
    """
    shape, device = (task.dataset.channels, task.dataset.size), task.runtime.device
    return fresh(ImageGenerator, *shape, running=running, rng=rng, device=device, **form)


def discriminator(task: Task, rng: Rng, *, classes: int = 0, **form: Any) -> PatchDiscriminator:
    """A fresh discriminator of images with a plane for each class, on the task's device."""
    planes = task.dataset.channels + classes
    return fresh(PatchDiscriminator, planes, rng=rng, device=task.runtime.device, **form)


def feature_generator(task: Task, size: int, rng: Rng, **form: int) -> FeatureGenerator:
    """A fresh generator of features of length `size`, on the task's device."""
    classes = task.dataset.num_classes
    return fresh(FeatureGenerator, classes, size, rng=rng, device=task.runtime.device, **form)


def trained(
    generator: FeatureGenerator,
    tensors: Mapping[str, torch.Tensor],
    loss: FeatureLoss,
    distribution: torch.Tensor,
    settings: server.GeneratorTraining,
    rng: Rng,
    noise: str = "normal",
) -> dict[str, torch.Tensor]:
    """Train a generator in place (see `core.server.train_generator`), from where its Adam stopped
    in the state's `tensors`; both as they are in the new state, under `generator/` and `adam/`.
    """
    adam = settings.optimiser(generator)
    unpack_optimiser(adam, generator, tensors, "adam/")
    server.train_generator(generator, adam, loss, distribution, settings, rng, noise=noise)
    return pack(generator, "generator/") | pack_optimiser(adam, generator, "adam/")
