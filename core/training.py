"""The loop of stochastic gradient descent on labelled images: clients train with it on their data,
a server on what it received.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional as F

from core.progress import counted
from core.replay import Steps
from core.rng import Rng

#: from a model, a batch of images (N, C, H, W) and their labels (N,) to the loss that is minimised
Objective = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


def cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of logits (N, C) and labels (N,), in float32."""
    return F.cross_entropy(outputs.float(), labels)


def cosine(first: float, last: float, done: float, of: float = 1.0) -> float:
    """A rate that falls from `first` to `last` along half a cosine, when so much `of` all is done."""
    return last + (first - last) * (1 + math.cos(math.pi * done / of)) / 2


class Descent(Protocol):
    """Hyper-parameters of the loop."""

    @property
    def lr(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def batch_size(self) -> int: ...


def sgd(parameters: Iterable[nn.Parameter], settings: Descent) -> torch.optim.SGD:
    """SGD with the momentum and weight decay of the settings.

    Not PyTorch's fused step: on a CPU it pairs numbers by their places in memory, so that a gradient
    that is laid out otherwise than its parameter goes to the wrong weights.
    """
    return torch.optim.SGD(
        parameters, lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
    )


def adam(
    parameters: Iterable[torch.Tensor], lr: float, beta: float = 0.9, weight_decay: float = 0.0
) -> torch.optim.Adam:
    """Adam with this beta_1, and 0.999 as beta_2; weight decay is added to the gradient, not decoupled."""
    return torch.optim.Adam(parameters, lr=lr, betas=(beta, 0.999), weight_decay=weight_decay)


def can_be_replayed(optimiser: torch.optim.Optimizer) -> bool:
    """True where a step needs no CPU: plain Adam counts steps there, hooks set rates."""
    if optimiser._optimizer_step_pre_hooks or optimiser._optimizer_step_post_hooks:
        return False
    capturable = all(group.get("capturable", False) for group in optimiser.param_groups)
    return capturable or isinstance(optimiser, torch.optim.SGD)


def scale_rates(optimisers: Iterable[torch.optim.Optimizer], factor: float) -> None:
    """Multiply the learning rates of optimisers, in place."""
    for group in (group for optimiser in optimisers for group in optimiser.param_groups):
        group["lr"] *= factor


def take_step(loss: torch.Tensor, *optimisers: torch.optim.Optimizer) -> None:
    """A step of each optimiser down a loss, which is a scalar."""
    for optimiser in optimisers:
        optimiser.zero_grad(set_to_none=True)
    loss.backward()
    for optimiser in optimisers:
        optimiser.step()


def batches(
    samples: int, batch_size: int, steps: int, rng: Rng, device: torch.device
) -> Iterator[torch.Tensor]:
    """Index tensors of `steps` batches: passes in random orders, the last batch what is left."""
    epoch = 0
    while steps > 0:
        order = torch.randperm(samples, generator=rng.at("epoch", epoch).generator())
        # a copy that blocks would wait for all steps queued on a GPU
        for batch in order.to(device, non_blocking=True).split(batch_size)[:steps]:
            yield batch
            steps -= 1
        epoch += 1


def in_order(
    order: torch.Tensor, batch_size: int, steps: int, first: int = 0
) -> Iterator[torch.Tensor]:
    """Index tensors of `steps` batches: pass after pass in one order (N,), from batch number `first` on of
    a first pass from 0; the last batch of a pass holds what is left over.
    """
    whole = order.split(batch_size)
    for number in range(first, first + steps):
        yield whole[number % len(whole)]


def train(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    settings: Descent,
    steps: int,
    objective: Objective,
    rng: Rng,
    optimisers: Sequence[torch.optim.Optimizer] | None = None,
    halfway: Callable[[], None] | None = None,
    steady: bool = True,
    drawn: Iterable[torch.Tensor] | None = None,
) -> None:
    """Take `steps` steps down `objective`, in place. Nothing in the loop waits for a GPU but the
    recording of a step, which then replays it for the others (`core.replay`).

    Args:
        images: (N, C, H, W) on the model's device, in the form that `objective` takes; labels: (N,)
            int64; N >= 1.
        objective: from (model, images of a batch, labels of a batch) to a scalar.
        optimisers: who takes the steps; without them one SGD over the model's parameters, as
            `settings` says.
        halfway: called once, when half of the steps (rounded down) are done; not called when there
            is one step only.
        steady: whether calls of `objective` differ in their batch alone, and in what is drawn or
            counted on the GPU: where Python decides something anew at each step, none can be
            replayed.
        drawn: `steps` index tensors, one of each batch; without them `batches` draws some.
    """
    optimisers = [sgd(model.parameters(), settings)] if optimisers is None else optimisers
    model.train()

    def step(batch: torch.Tensor) -> None:
        take_step(objective(model, images[batch], labels[batch]), *optimisers)

    able = steady and all(map(can_be_replayed, optimisers))
    size = min(settings.batch_size, len(labels))
    taking = Steps(step, steps, size, labels.device, able)
    if drawn is None:
        drawn = batches(len(labels), settings.batch_size, steps, rng.at("batches"), labels.device)
    for place, batch in enumerate(counted(drawn, "training", steps)):
        if halfway is not None and place == max(steps // 2, 1):
            halfway()
            taking.forget()
        taking.take(batch)
