"""Condensation by gradient matching: DC, and DSA with siamese augmentation.

Zhao, Mopuri, Bilen. Dataset Condensation with Gradient Matching. ICLR 2021, Eq. 9 and 10, Algorithm
1. Zhao, Bilen. Dataset Condensation with Differentiable Siamese Augmentation. ICML 2021.

An image is good when a network learns from it what it would learn from the real images: the
gradients of the weights agree, layer by layer and output by output. What the papers leave open
follows the authors' code: only tensors with more than one axis are compared (no biases, no scales
of normalisation layers), and 1e-6 keeps the cosine finite.

All groups (one class of one client) are one batched program. Weights are common to all clients when
an iteration begins and differ from client to client once each has trained on its own images, so
gradients are taken by `torch.func.vmap` over weights, images and labels together. How many images
one such call takes depends on the device: a CPU computes convolutions of many small networks more
slowly than one after the other. Gradients stay in float32: bfloat16 would cost the cosines their
last digits, and on a CPU it is not faster for second derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from core.checks import number, on_or_off, whole
from core.condensation.augment import Augmentation, augment
from core.condensation.engine import Draws, RealData, strategy
from core.models import initialise
from core.progress import counted
from core.rng import Rng

Tensors = Mapping[str, torch.Tensor]

#: images of one vmapped gradient, by kind of device
AT_ONCE = {"cpu": 8, "cuda": 256}
#: keeps the cosine of a gradient that is zero finite
EPS = 1e-6
#: eta_theta of Algorithm 1
NETWORK_LR = 0.01
#: images per class: how often images and network take turns, and the network's steps in between
#: (the authors' code)
LOOPS = {1: (1, 1), 10: (10, 50), 20: (20, 25), 30: (30, 20), 40: (40, 15), 50: (50, 10)}


@attrs.frozen(kw_only=True)
class GradientMatching:
    """Hyper-parameters of gradient matching."""

    #: K: random networks
    iterations: int = attrs.field(default=1000, validator=whole(1))
    #: T: matches per network
    matches: int = attrs.field(default=1, validator=whole(1))
    #: steps that the network takes on the condensed images between two matches
    network_steps: int = attrs.field(default=1, validator=whole(1))
    image_lr: float = attrs.field(default=0.1, validator=number(0, above=True))
    image_momentum: float = attrs.field(default=0.5, validator=number(0, 1))
    #: real images per class and client in one batch
    real_batch: int = attrs.field(default=256, validator=whole(1))
    replacement: bool = attrs.field(default=True, validator=on_or_off)
    augmentation: str = attrs.field(default="none", validator=strategy)


@attrs.frozen(eq=False)
class GradientProblem:
    """The fixed side: data, and a network without batch statistics, redrawn from `networks`."""

    network: nn.Module
    real: RealData
    settings: GradientMatching
    draws: Draws
    prepare: Callable[[torch.Tensor], torch.Tensor]
    #: where the random networks come from, the same for all clients
    networks: Rng

    def weights(self, step: int) -> dict[str, torch.Tensor]:
        """theta_0 of an iteration, one copy per client: (K, ...) by name."""
        initialise(self.network, self.networks.at("network", step))
        return {
            name: value.detach().expand(len(self.draws.rngs), *value.shape).clone()
            for name, value in self.network.named_parameters()
        }

    def augmentation(self, *purpose: str | int) -> Augmentation | None:
        """One draw per group, or None."""
        return self.draws.augmentation(
            self.settings.augmentation, self.real.images.shape[-1], *purpose
        )

    def chunks(self, images: int) -> Iterator[slice]:
        """Runs of groups whose gradients are taken at once, where each has so many images."""
        size = max(1, AT_ONCE[self.real.images.device.type] // images)
        return (
            slice(first, min(first + size, self.real.groups))
            for first in range(0, self.real.groups, size)
        )

    def gradients(
        self,
        weights: Tensors,
        images: torch.Tensor,
        augmentation: Augmentation | None,
        groups: slice,
    ) -> dict[str, torch.Tensor]:
        """Gradients (g, ...) of images (g, n, C, H, W), by each client's weights (K, ...)."""
        index = torch.arange(groups.start, groups.stop, device=images.device).repeat_interleave(
            images.shape[1]
        )
        inputs = augment(images.flatten(0, 1), augmentation, index).view_as(images)
        owner = self.real.owner[groups]
        return class_gradients(
            self.network,
            {name: value[owner] for name, value in weights.items()},
            inputs,
            self.real.label[groups],
        )


def class_gradients(
    network: nn.Module, weights: Tensors, inputs: torch.Tensor, labels: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Gradients of the mean cross-entropy of every group by its own weights, one vmapped program.

    Args:
        network: gives the structure; it must treat images one by one (no batch normalisation).
        weights: (G, ...) by name; inputs: (G, n, C, H, W); labels: (G,) int64, the class of all n
            images.

    Returns: (G, ...) by name; differentiable in the inputs.
    """

    def loss(
        weights: dict[str, torch.Tensor], inputs: torch.Tensor, label: torch.Tensor
    ) -> torch.Tensor:
        return F.cross_entropy(
            functional_call(network, weights, (inputs,)), label.expand(len(inputs))
        )

    return vmap(grad(loss))(dict(weights), inputs, labels)


def gradient_distance(real: Tensors, condensed: Tensors) -> torch.Tensor:
    """D of every group, (G,), of gradients (G, outputs, ...) by name: the sum over layers and outputs of
    1 - cosine (DC, Eq. 9 and 10); biases and scales, (G, n), do not count.
    """
    layers = []
    for name, value in real.items():
        if value.ndim > 2:
            # d(A, B) = sum_i ( 1 - A_i . B_i / (||A_i|| ||B_i||) )
            a, b = value.flatten(2), condensed[name].flatten(2)
            lengths = torch.linalg.vector_norm(a, dim=-1) * torch.linalg.vector_norm(b, dim=-1)
            layers.append((1 - (a * b).sum(-1) / (lengths + EPS)).sum(-1))
    # D = sum over layers of d
    return torch.stack(layers).sum(0)


def match_gradients(
    problem: GradientProblem, start: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Minimise the distance of gradients over the condensed images of all groups at once (DC,
    Algorithm 1).

    Args:
        start: (G, m, C, H, W) initial images as network inputs.

    Returns: the images, of the same shape, and the distance of every iteration's last match,
    (iterations, G).
    """
    settings, images = problem.settings, start.clone()
    optimiser = torch.optim.SGD([images], lr=settings.image_lr, momentum=settings.image_momentum)
    trace = torch.zeros(settings.iterations, problem.real.groups, device=start.device)
    for step in counted(range(settings.iterations), "condensation", settings.iterations):
        weights = problem.weights(step)
        for match in range(settings.matches):
            images.grad, trace[step] = _image_gradient(problem, weights, images, step, match)
            # S <- opt(S, sum_c D(grad L(S_c), grad L(T_c)))
            optimiser.step()
            if match < settings.matches - 1:
                weights = _trained(problem, weights, images, step, match)
    return images, trace


def _image_gradient(
    problem: GradientProblem, weights: Tensors, images: torch.Tensor, step: int, match: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient (G, m, C, H, W) of all distances, and the distances (G,)."""
    augmentation = problem.augmentation("augment", step, match)
    goal = _real_gradients(problem, weights, augmentation, step, match)
    gradients: list[torch.Tensor] = []
    distances = []
    for groups in problem.chunks(images.shape[1]):
        part = images[groups].detach().requires_grad_()
        slopes = problem.gradients(weights, part, augmentation, groups)
        distance = gradient_distance({name: value[groups] for name, value in goal.items()}, slopes)
        gradients += torch.autograd.grad(distance.sum(), [part])
        distances.append(distance.detach())
    return torch.cat(gradients), torch.cat(distances)


@torch.no_grad()
def _real_gradients(
    problem: GradientProblem,
    weights: Tensors,
    augmentation: Augmentation | None,
    step: int,
    match: int,
) -> dict[str, torch.Tensor]:
    """grad L(T_c) of a fresh batch of every group, (G, ...) by name."""
    real, settings = problem.real, problem.settings
    count = settings.real_batch
    rows = problem.draws.rows(real, count, settings.replacement, "batch", step, match)
    parts = []
    for groups in problem.chunks(count):
        inputs = problem.prepare(real.images[rows[groups].flatten()])
        parts.append(
            problem.gradients(weights, inputs.unflatten(0, (-1, count)), augmentation, groups)
        )
    return _joined(parts)


@torch.no_grad()
def _trained(
    problem: GradientProblem, weights: Tensors, images: torch.Tensor, step: int, match: int
) -> dict[str, torch.Tensor]:
    """theta after some steps of every client's network on all its condensed images, (K, ...) by name. The
    authors' code takes batches of 256, and augments each image of a batch by its own draw; here each
    class has a draw.
    """
    owner = problem.real.owner
    # not bincount, for which a GPU would be waited
    ones = torch.ones_like(owner, dtype=images.dtype)
    groups_of = images.new_zeros(len(problem.draws.rngs)).index_add_(0, owner, ones)
    weights = dict(weights)
    for turn in range(problem.settings.network_steps):
        augmentation = problem.augmentation("train", step, match, turn)
        slopes = _joined(
            [
                problem.gradients(weights, images[groups], augmentation, groups)
                for groups in problem.chunks(images.shape[1])
            ]
        )
        for name, value in weights.items():
            # all groups have as many images: the mean over a client's groups is the mean over its
            # images
            mean = torch.zeros_like(value).index_add_(0, owner, slopes[name])
            mean /= groups_of.view(-1, *[1] * (value.ndim - 1))
            # theta <- theta - eta grad L(S)
            weights[name] = value - NETWORK_LR * mean
    return weights


def _joined(parts: Sequence[Tensors]) -> dict[str, torch.Tensor]:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
