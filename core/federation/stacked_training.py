"""Stacked training: clients with small networks train as one program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs
import torch
from torch import nn

from core.federation.local_training import LocalLoss, LocalTraining
from core.federation.task import Task
from core.models.blocks import at_once
from core.models.stacked import Stacked, widened
from core.progress import counted
from core.replay import Steps
from core.training import sgd, take_step

#: weights of the largest networks that train stacked. On a CPU an operation of smaller ones takes longer
#: to start than to compute; the ResNet-8 and the ConvNet of the laptop's profile, with more weights, gain
#: a tenth or lose
SMALL = 50_000


@attrs.frozen(eq=False)
class Learner:
    """A client in a round: network, images (N, C, H, W), labels (N,), loss, batches of indices."""

    model: nn.Module
    images: torch.Tensor
    labels: torch.Tensor
    loss: LocalLoss
    batches: Iterable[torch.Tensor]


def clients_at_once(model: nn.Module, images: torch.Tensor, settings: LocalTraining) -> int:
    """Number of such clients that train as one program; 1 where that is no gain, or cannot be."""
    weights = sum(weight.numel() for weight in model.parameters())
    if weights > SMALL or settings.local_augmentation != "none" or widened(model, 1) is None:
        return 1
    # the maps of a small network are small: twice as many of its images as of others
    return max(1, 2 * at_once(images) // settings.batch_size)


def train_stacked(task: Task, learners: Sequence[Learner], settings: LocalTraining) -> None:
    """`learn` of several clients with as many steps, side by side (`core.models.stacked`): the same batches
    and numbers within rounding, each with its own weights, statistics and momentum. Clients whose batches
    are equally large go together.
    """
    networks = Stacked([learner.model.train() for learner in learners])
    optimiser = sgd((w for learner in learners for w in learner.model.parameters()), settings)
    sizes: list[int] = []

    def step(batch: torch.Tensor) -> None:
        rows = batch.split(sizes)
        # none has a part in another's loss, so that the sum has each one's gradient
        losses = [
            learners[k].loss(learners[k].model, outputs, learners[k].labels[rows[k]])
            for together in _equally_large(rows)
            for k, outputs in zip(
                together, _outputs(task, networks, learners, rows, together), strict=True
            )
        ]
        take_step(torch.stack(losses).sum(), optimiser)

    whole = sum(min(settings.batch_size, len(learner.labels)) for learner in learners)
    first = learners[0].labels
    steps = settings.steps(len(first))
    taking = Steps(step, steps, whole, first.device)
    together = zip(*(learner.batches for learner in learners), strict=True)
    for rows in counted(together, "training", steps):
        sizes[:] = map(len, rows)
        taking.take(torch.cat(rows))


def _equally_large(rows: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    """The places of batches, those of one size together."""
    sizes: dict[int, tuple[int, ...]] = {}
    for place, batch in enumerate(rows):
        sizes[len(batch)] = (*sizes.get(len(batch), ()), place)
    return list(sizes.values())


def _outputs(
    task: Task,
    networks: Stacked,
    learners: Sequence[Learner],
    rows: Sequence[torch.Tensor],
    together: tuple[int, ...],
) -> Sequence[torch.Tensor]:
    """The outputs (N, ...) of some of the networks for their batches, which are equally large."""
    images = task.inputs(torch.cat([learners[k].images[rows[k]] for k in together]))
    with task.runtime.autocast():
        if len(together) == 1:
            return [learners[together[0]].model(images)]
        inputs = images.unflatten(0, (len(together), -1))
        return networks.run_together(together, inputs, shared=False).unbind()
