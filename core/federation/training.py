"""Local training by stochastic gradient descent: the one loop that all model-centric algorithms share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Self

import attrs
import torch
from torch import nn

from core.checks import number, whole
from core.federation.task import Task
from core.rng import Rng

#: from a batch of images (N, C, H, W), uint8, and labels (N,) to the loss that is minimised
Objective = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


@attrs.frozen(kw_only=True)
class LocalTraining:
    """Hyper-parameters of local training; the defaults are those of NIID-Bench and FedVCK's ten local epochs."""

    lr: float = attrs.field(default=0.01, validator=number(0, above=True))
    batch_size: int = attrs.field(default=64, validator=whole(1))
    #: passes over the client's data in a round
    local_epochs: int = attrs.field(default=10, validator=whole(1))
    #: batches in a round; when given it takes the place of `local_epochs`
    local_steps: int | None = attrs.field(default=None, validator=whole(1, optional=True))
    momentum: float = attrs.field(default=0.9, validator=number(0, 1))
    weight_decay: float = attrs.field(default=1e-5, validator=number(0))

    @classmethod
    def released(cls) -> Self:
        """The values of the authors' code; here they are the defaults."""
        return cls()

    def steps(self, samples: int) -> int:
        """Batches that a client with so many samples takes in a round."""
        return self.local_steps or self.local_epochs * -(-samples // self.batch_size)


def batches(samples: int, batch_size: int, steps: int, rng: Rng, device: torch.device) -> Iterator[torch.Tensor]:
    """Index tensors of `steps` batches: pass after pass over the data, each pass in a new random order.

    The last batch of a pass holds what is left over.
    """
    epoch = 0
    while steps > 0:
        order = torch.randperm(samples, generator=rng.at("epoch", epoch).generator()).to(device)
        for batch in order.split(batch_size)[:steps]:
            yield batch
            steps -= 1
        epoch += 1


def train(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, settings: LocalTraining,
    steps: int, objective: Objective, rng: Rng,
) -> None:
    """Take `steps` steps of SGD on `objective`, in place.

    Args:
        images: (N, C, H, W) uint8 on the model's device; labels: (N,) int64.
        objective: from (model, images of a batch, labels of a batch) to a scalar.
    """
    optimiser = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=settings.momentum,
                                weight_decay=settings.weight_decay)
    model.train()
    for batch in batches(len(labels), settings.batch_size, steps, rng.at("batches"), labels.device):
        loss = objective(model, images[batch], labels[batch])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()


def supervised(task: Task) -> Objective:
    """The plain objective: the task's loss of the model's outputs, computed in the runtime's precision."""

    def objective(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with task.runtime.autocast():
            outputs = model(task.inputs(images))
        return task.loss(outputs, labels)

    return objective
