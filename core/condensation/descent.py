"""How condensed images are moved, and when a client has done enough.

GDD-FL prints SGD and 300 epochs, FedVCK only a range of rates; SGD is its code's. With the exact
gradient of the linear kernel (`estimator="expectation"`) there is no noise of batches, so that fewer,
larger steps may reach the same loss, as long as they do not diverge:

* "sgd": as GDD-FL prints it.
* "scaled": SGD whose step is multiplied by the images of the group. The loss looks at their mean, so
  the gradient for one of m images is 1 / m of that for the mean; with this factor the mean moves
  equally far in groups of all sizes.
* "adam": Adam (Kingma and Ba 2015) with PyTorch's defaults; `image_momentum` is its beta_1.
"""

from __future__ import annotations

from typing import Any

import torch

from core.training import adam

OPTIMISERS = ("sgd", "scaled", "adam")
#: steps between two looks at the losses: a look waits for a GPU. Both means are taken over as many
LOOK = 10


class Descent:
    """The images of a condensation on their way down; `settings` are those of `Condensation`."""

    def __init__(
        self, images: torch.Tensor, group: torch.Tensor, owner: torch.Tensor, settings: Any
    ) -> None:
        self.images, self.owner, self.factor = images, owner, settings.stop_factor
        self.scale = None
        if settings.image_optimiser == "scaled":
            self.scale = torch.bincount(group)[group].to(images.dtype).view(-1, 1, 1, 1)
        self.optimiser: torch.optim.Optimizer
        if settings.image_optimiser == "adam":
            self.optimiser = adam([images], settings.image_lr, settings.image_momentum)
        else:
            self.optimiser = torch.optim.SGD(
                [images], lr=settings.image_lr, momentum=settings.image_momentum
            )
        #: (M,) bool, images of clients that have stopped
        self.still: torch.Tensor | None = None

    def step(self) -> None:
        """Move the images by the gradient that they hold, but for those of clients that stopped."""
        if self.scale is not None:
            assert self.images.grad is not None
            self.images.grad.mul_(self.scale)
        if self.still is None:
            self.optimiser.step()
            return
        before = self.images.detach().clone()
        self.optimiser.step()
        self.images.copy_(torch.where(self.still[:, None, None, None], before, self.images))

    def over(self, trace: torch.Tensor, owner: torch.Tensor) -> bool:
        """Whether all clients have stopped; `trace` (steps, G) are the losses so far, `owner` (G,)
        the groups' clients.
        """
        if self.factor is None or len(trace) % LOOK or len(trace) < 2 * LOOK:
            return False
        losses = trace.new_zeros(int(owner.max()) + 1, len(trace)).index_add_(0, owner, trace.T)
        enough = losses[:, -LOOK:].mean(1) <= losses[:, :LOOK].mean(1) / self.factor
        self.still = enough[self.owner] if self.still is None else self.still | enough[self.owner]
        return bool(self.still.all())


def milestones(iterations: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, ... up to the number of iterations, which is the last."""
    steps = (digit * 10**power for power in range(len(str(iterations))) for digit in (1, 2, 5))
    return [*(step for step in steps if step < iterations), iterations]


def progress(
    trace: torch.Tensor, owner: torch.Tensor, clients: int, iterations: int
) -> torch.Tensor:
    """Each client's loss at the milestones, (K, n): the mean over the second half of the steps that
    lead to one, as draws of augmentations differ from step to step.

    Args:
        trace: (steps, G), the losses of all groups; steps after the last one repeat it.
        owner: (G,), the groups' clients, of K.
    """
    losses = trace.new_zeros(clients, len(trace)).index_add_(0, owner, trace.T)
    losses = torch.cat([losses, losses[:, -1:].expand(-1, iterations - len(trace))], 1)
    return torch.stack([losses[:, s // 2 : s].mean(1) for s in milestones(iterations)], 1)
