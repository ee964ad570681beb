"""Parts of FedDF, FedMD and FedKD: public images without labels, and networks that learn from
answers to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import attrs
import torch
from torch import nn

from core import training
from core.data.auxiliary import PHOTOGRAPHS, auxiliary
from core.errors import InputError
from core.federation import LocalTraining, Task, train
from core.models import Stacked, at_once
from core.rng import Rng

#: from outputs of a network (N, C), in float32, and the answers it should come close to, to a
#: scalar
Divergence = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
#: public images by name, of tasks that are in use: each round, and each client of FedMD, asks for them
_OF_TASK: WeakKeyDictionary[Task, dict[str, torch.Tensor]] = WeakKeyDictionary()


@attrs.frozen(kw_only=True, slots=False)  # so that a class with slots can be a second base
class PublicData:
    """The public images that a method uses; their name is in the record."""

    #: a name of `core.data.auxiliary`. FedDF and FedKD take CIFAR-100 for CIFAR-10, and ImageNet for
    #: CIFAR-100; FedMD takes CIFAR-10 for some classes of CIFAR-100
    auxiliary: str = attrs.field(default=PHOTOGRAPHS)

    @auxiliary.validator
    def _named(self, attribute: attrs.Attribute, value: str) -> None:
        if not isinstance(value, str) or not value:
            raise InputError(f"{attribute.name} must be the name of a data set, not {value!r}")


def public_images(task: Task, settings: PublicData, anew: bool = False) -> torch.Tensor:
    """Public images in the task's form, uint8 (N, C, S, S), read once, and `anew` where a run begins: their
    file may be another one since the last. Raises as `auxiliary`.
    """
    known = _OF_TASK.setdefault(task, {})
    if anew or settings.auxiliary not in known:
        known[settings.auxiliary] = auxiliary(settings.auxiliary, task.dataset)
    return known[settings.auxiliary]


def drawn(task: Task, settings: PublicData, count: int | None, rng: Rng) -> torch.Tensor:
    """`count` random public images in random order (or all) on the task's device."""
    images = public_images(task, settings)
    order = torch.randperm(len(images), generator=rng.generator())
    return images[order[:count]].to(task.runtime.device)


def answers(task: Task, teachers: Sequence[nn.Module], images: torch.Tensor) -> torch.Tensor:
    """Logits (K, N, C) float32 of K teachers, frozen, evaluation mode, for images (N, C, H, W)."""
    stacked = Stacked([teacher.eval().requires_grad_(False) for teacher in teachers])
    with torch.no_grad(), task.runtime.autocast():
        return torch.cat(
            [stacked(task.inputs(batch)).float() for batch in images.split(at_once(images))], 1
        )


def adam(
    model: nn.Module, lr: float, steps: int | None = None, clip_norm: float | None = None
) -> torch.optim.Adam:
    """Adam, falling to 0 along a cosine in `steps`, if given; `clip_norm` bounds all gradients' norm."""
    parameters = list(model.parameters())
    optimiser = training.adam(parameters, lr)
    if clip_norm is not None:

        def clip(*_: object) -> None:
            nn.utils.clip_grad_norm_(parameters, clip_norm)

        optimiser.register_step_pre_hook(clip)
    if steps is not None:
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        optimiser.register_step_post_hook(lambda *_: cosine.step())
    return optimiser


def mimic(
    task: Task,
    student: nn.Module,
    images: torch.Tensor,
    targets: torch.Tensor,
    divergence: Divergence,
    optimiser: torch.optim.Optimizer,
    batch_size: int,
    steps: int,
    rng: Rng,
) -> None:
    """Take `steps` steps that bring the student's outputs for images closer to targets (N, ...)."""

    def objective(model: nn.Module, batch: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        with task.runtime.autocast():
            outputs = model(task.inputs(batch))
        return divergence(outputs.float(), wanted)

    # with an optimiser given, the loop reads nothing but the batch size
    train(
        student,
        images,
        targets,
        LocalTraining(batch_size=batch_size),
        objective,
        rng,
        steps=steps,
        optimisers=[optimiser],
    )
