"""Latent distribution constraints: condensed images are normalised by the statistics of real ones
(FedVCK, Eq. 4).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import nn
from torch.nn import functional as F

from core.errors import InputError
from core.models import Classifier, replace_layers
from core.models.tensors import at_least_float32


@attrs.frozen(eq=False)
class LatentStatistics:
    """Means and variances of the maps that enter each batch normalisation, per group and channel.

    One tensor (G, channels) per layer, in the order in which the network lists its layers; float32.
    Empty for a network without batch normalisation. A group is whatever shares statistics: a
    client, or one class of one client.
    """

    means: tuple[torch.Tensor, ...]
    #: biased: divided by the number of samples and positions
    variances: tuple[torch.Tensor, ...]

    @classmethod
    def running(cls, model: nn.Module, groups: int = 1) -> LatentStatistics:
        """The running statistics of a network's layers, the same for every group: what evaluation
        mode uses.

        Raises InputError when a layer keeps none.
        """
        layers = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
        if any(layer.running_mean is None for layer in layers):
            raise InputError("a batch normalisation of this model keeps no running statistics")
        return cls(
            tuple(_repeated(layer.running_mean, groups) for layer in layers),
            tuple(_repeated(layer.running_var, groups) for layer in layers),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[LatentStatistics]) -> LatentStatistics:
        """The groups of all parts, one after the other."""
        return cls(
            tuple(torch.cat(each) for each in zip(*(part.means for part in parts), strict=True)),
            tuple(
                torch.cat(each) for each in zip(*(part.variances for part in parts), strict=True)
            ),
        )

    def __getitem__(self, groups: slice | torch.Tensor) -> LatentStatistics:
        """The rows of some groups: a run of them, or any, (n,) int64, in that order; one may come
        more than once.
        """
        return LatentStatistics(
            tuple(mean[groups] for mean in self.means),
            tuple(variance[groups] for variance in self.variances),
        )

    def blend(self, new: LatentStatistics, share: float) -> LatentStatistics:
        """(1 - share) of these and `share` of the new ones: one step of a running average.

        FedVCK's released code uses the running statistics of batch normalisation, which take 0.1 of
        each batch (and divide its variance by n - 1 in place of n).
        """
        return LatentStatistics(
            tuple(torch.lerp(a, b, share) for a, b in zip(self.means, new.means, strict=True)),
            tuple(
                torch.lerp(a, b, share) for a, b in zip(self.variances, new.variances, strict=True)
            ),
        )


class LatentEncoder(nn.Module):
    """A frozen copy of a network whose batch normalisation takes its statistics per group.

    A plain batch normalisation would mix all images of a batch. Here several groups (clients, for
    example) share one batch, and each is normalised by the statistics of its own images, or by
    fixed ones, exactly as if it were embedded alone. Other layers stay as they are. The weights
    take no gradient; images may.

    Args:
        model: any network of `core.models`; it is copied, so that later changes to it have no
            effect here.
    """

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model: Classifier = copy.deepcopy(model).eval().requires_grad_(False)
        self._pass = _Pass()
        position = itertools.count()

        def groupwise(layer: nn.Module) -> nn.Module | None:
            if not isinstance(layer, nn.BatchNorm2d):
                return None
            return GroupwiseNorm(layer, next(position), self._pass)

        replace_layers(self.model, groupwise)
        #: number of batch normalisations
        self.normalisations = next(position)
        #: moves the weights to a draw of a given number, where features are compared at several
        self.resample: Callable[[int], None] | None = None

    def forward(
        self,
        images: torch.Tensor,
        group: torch.Tensor,
        statistics: LatentStatistics | None = None,
        groups: int = 1,
    ) -> tuple[torch.Tensor, LatentStatistics]:
        """Features (N, D) of normalised images (N, C, H, W), and the statistics that were used.

        Args:
            group: (N,) int64, the row of the statistics that belongs to each image; in any order.
            statistics: fixed statistics (the right side of Eq. 4); None: those of this batch, which
                then depend on the images (gradients flow through them).
            groups: G, the number of groups; only read when the statistics are those of the batch.

        A group without images has variance 0 and a mean that says nothing. Statistics are float32 even
        under autocast.
        """
        self._pass.start(group, groups, statistics)
        features = self.model.embed(images)
        return features, statistics if statistics is not None else self._pass.found()

    def logits(self, features: torch.Tensor) -> torch.Tensor:
        """Logits (N, classes) of features (N, D)."""
        return self.model.classifier(features)


@attrs.frozen
class Normalisation:
    """Whose statistics batch normalisation takes: real images those of their batch, and condensed
    images the same (Eq. 4).
    """

    #: fixed statistics of real images; None: those of their batch
    real: LatentStatistics | None = None

    def condensed(
        self, batch: LatentStatistics, before: LatentStatistics | None
    ) -> LatentStatistics | None:
        """Statistics for condensed images, from those of the real batch and from what this returned
        a step before; None: those of the condensed images themselves.
        """
        return batch


class Separate(Normalisation):
    """Real and condensed images are normalised by their own statistics each."""

    def condensed(
        self, batch: LatentStatistics, before: LatentStatistics | None
    ) -> LatentStatistics | None:
        """None."""
        return None


@attrs.frozen
class RunningAverage(Normalisation):
    """Condensed images are normalised by a running average that takes a tenth of every real batch."""

    start: LatentStatistics = attrs.field(kw_only=True)

    def condensed(
        self, batch: LatentStatistics, before: LatentStatistics | None
    ) -> LatentStatistics:
        """The average with this batch."""
        return (before or self.start).blend(batch, 0.1)


class GroupwiseNorm(nn.Module):
    """Batch normalisation with statistics per group, as one scale and one shift per image and
    channel.
    """

    def __init__(self, layer: nn.BatchNorm2d, position: int, current: _Pass) -> None:
        super().__init__()
        # named as in the layer, so that a network's weights can be copied or moved by name
        self.weight = nn.Parameter(layer.weight.detach(), requires_grad=False)
        self.bias = nn.Parameter(layer.bias.detach(), requires_grad=False)
        self.eps, self.position, self.current = layer.eps, position, current

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Maps (N, C, H, W), normalised by the statistics of the pass."""
        current = self.current
        if current.given is None:
            mean, variance = group_moments(maps, current.group, current.groups)
            current.of_batch[self.position] = mean, variance
        else:
            mean = current.given.means[self.position]
            variance = current.given.variances[self.position]
        scale = (variance + self.eps).rsqrt() * self.weight
        shift = self.bias - mean * scale
        scale, shift = (each[current.group][:, :, None, None] for each in (scale, shift))
        # in the precision of the statistics; only the result is rounded
        return torch.addcmul(shift, maps, scale).to(maps.dtype)


def group_moments(
    maps: torch.Tensor, group: torch.Tensor, groups: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and biased variance (G, C), at least in float32, of maps (N, C, H, W) over the images and
    positions of each group, `group` (N,) int64.
    """
    wide = at_least_float32(maps)
    # about a value of each channel: of squares far from zero a sum keeps no variance
    pivot = wide.detach()[0, :, 0, 0]
    off = wide - pivot[:, None, None]
    members = F.one_hot(group, groups).T.double()
    counts = members.sum(1, keepdim=True).clamp_min(1) * maps[0, 0].numel()
    # a product, not index_add, whose order of sums on a GPU is left to chance
    mean, square = (
        members @ values.sum((2, 3)).double() / counts for values in (off, off.square())
    )
    variance = (square - mean.square()).clamp_min(0)
    return (mean + pivot).to(wide.dtype), variance.to(wide.dtype)


@attrs.define(eq=False)
class _Pass:
    """What the normalisation layers of an encoder need to know of the batch that runs through
    it.
    """

    group: Any = None
    groups: int = 0
    given: LatentStatistics | None = None
    of_batch: dict[int, tuple[torch.Tensor, torch.Tensor]] = attrs.field(factory=dict)

    def start(self, group: torch.Tensor, groups: int, given: LatentStatistics | None) -> None:
        self.group, self.groups, self.given, self.of_batch = group, groups, given, {}

    def found(self) -> LatentStatistics:
        layers = [self.of_batch[position] for position in sorted(self.of_batch)]
        self.of_batch = {}  # they hold on to the graph of the pass
        return LatentStatistics(
            tuple(mean for mean, _ in layers), tuple(variance for _, variance in layers)
        )


def _repeated(values: torch.Tensor | None, groups: int) -> torch.Tensor:
    assert values is not None
    return at_least_float32(values.detach()).repeat(groups, 1)
