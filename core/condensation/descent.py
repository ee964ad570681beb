"""Optimisers of condensed images, and when a client has done enough.

GDD-FL prints SGD and 300 epochs, FedVCK only a range of rates; SGD is its code's. With the exact
gradient of the linear kernel (`estimator="expectation"`) there is no noise of batches, so that fewer,
larger steps may reach the same loss, as long as they do not diverge:

* "sgd": as GDD-FL prints it.
* "scaled": SGD whose step is multiplied by the images of the group. The loss compares their mean, so
  the gradient for one of m images is 1 / m of that for the mean; with this factor the mean moves
  equally far in groups of all sizes.
* "adam": Adam (Kingma and Ba 2015) with PyTorch's defaults; `image_momentum` is its beta_1.
"""

from __future__ import annotations

from typing import Any

import torch

from core.training import adam

OPTIMISERS = ("sgd", "scaled", "adam")
#: steps between two checks of the losses, for which a GPU is waited. Both means are taken over as many
INTERVAL = 10


class ImageOptimiser:
    """The optimiser of condensed images (M, C, H, W), with their groups and owners (M,), by the
    settings of a `Condensation`.
    """

    def __init__(
        self, images: torch.Tensor, group: torch.Tensor, owner: torch.Tensor, settings: Any
    ) -> None:
        self.images, self.owner, self.factor = images, owner, settings.stop_factor
        self.scale = None
        if settings.image_optimiser == "scaled":
            self.scale = torch.bincount(group)[group].to(images.dtype).view(-1, 1, 1, 1)
        self.optimiser: torch.optim.Optimizer
        rate, momentum = settings.image_lr, settings.image_momentum
        if settings.image_optimiser == "adam":
            self.optimiser = adam([images], rate, momentum)
        else:
            self.optimiser = torch.optim.SGD([images], lr=rate, momentum=momentum)
        #: (M,) bool, images of clients that have stopped
        self.stopped: torch.Tensor | None = None

    def step(self) -> None:
        """Move the images by their gradients, but for those of clients that stopped."""
        if self.scale is not None:
            assert self.images.grad is not None
            self.images.grad.mul_(self.scale)
        if self.stopped is None:
            self.optimiser.step()
            return
        before = self.images.detach().clone()
        self.optimiser.step()
        self.images.copy_(torch.where(self.stopped[:, None, None, None], before, self.images))

    def all_stopped(self, trace: torch.Tensor, owner: torch.Tensor) -> bool:
        """Stop clients whose loss has fallen enough; return whether that are all. `trace` (steps, G)
        are the losses so far, `owner` (G,) the groups' clients.
        """
        if self.factor is None or len(trace) % INTERVAL or len(trace) < 2 * INTERVAL:
            return False
        losses = client_losses(trace, owner, int(owner.max()) + 1)
        enough = losses[:, -INTERVAL:].mean(1) <= losses[:, :INTERVAL].mean(1) / self.factor
        stopped = enough[self.owner]
        self.stopped = stopped if self.stopped is None else self.stopped | stopped
        return bool(self.stopped.all())


def client_losses(trace: torch.Tensor, owner: torch.Tensor, clients: int) -> torch.Tensor:
    """Losses of each client, (K, steps), from those of its groups, (steps, G); `owner` (G,)."""
    return trace.new_zeros(clients, len(trace)).index_add_(0, owner, trace.T)


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
    losses = client_losses(trace, owner, clients)
    losses = torch.cat([losses, losses[:, -1:].expand(-1, iterations - len(trace))], 1)
    return torch.stack([losses[:, s // 2 : s].mean(1) for s in milestones(iterations)], 1)
