"""Latent distribution constraints: condensed images are normalised by the statistics of real ones
(FedVCK, Eq. 4).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import attrs
import torch
from torch import nn
from torch.nn import functional as F

from core.errors import InputError
from core.models import Classifier, replace_layers
from core.models.tensors import at_least_float32


@attrs.frozen(eq=False)
class LatentStatistics:
    """Means and variances of the maps that enter each batch norm, per channel and group (a client)."""

    #: one tensor (2, G, channels) per layer, in the network's order, float32: means, then biased
    #: variances (divided by the number of samples and positions)
    layers: tuple[torch.Tensor, ...]

    @classmethod
    def running(cls, model: nn.Module, groups: int = 1) -> LatentStatistics:
        """Running statistics of a network's layers, the same for every group: those of evaluation
        mode. Raises InputError when a layer keeps none.
        """
        norms = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
        if any(norm.running_mean is None for norm in norms):
            raise InputError("a batch normalisation of this model keeps no running statistics")
        pairs = [torch.stack([norm.running_mean, norm.running_var]) for norm in norms]  # type: ignore[list-item]
        return cls(tuple(at_least_float32(pair)[:, None].repeat(1, groups, 1) for pair in pairs))

    @classmethod
    def concatenate(cls, parts: Sequence[LatentStatistics]) -> LatentStatistics:
        """The groups of all parts, one after the other."""
        layers = zip(*(part.layers for part in parts), strict=True)
        return cls(tuple(torch.cat(layer, 1) for layer in layers))

    def __getitem__(self, groups: slice | torch.Tensor) -> LatentStatistics:
        """The rows of some groups: a slice of them, or any, (n,) int64, in that order."""
        return LatentStatistics(tuple(layer[:, groups] for layer in self.layers))

    def blend(self, new: LatentStatistics, share: float) -> LatentStatistics:
        """(1 - share) of these and `share` of the new ones: one step of a running average."""
        pairs = zip(self.layers, new.layers, strict=True)
        return LatentStatistics(tuple(torch.lerp(old, layer, share) for old, layer in pairs))


@attrs.frozen
class Normalisation:
    """Whose statistics normalise: a real batch's own, and the same for condensed images (Eq. 4)."""

    #: fixed statistics of real images; None: those of their batch
    real: LatentStatistics | None = None

    def condensed(
        self, batch: LatentStatistics, before: LatentStatistics | None
    ) -> LatentStatistics | None:
        """Statistics for condensed images, from those of the real batch and from the result of the
        step before; None: those of the condensed images themselves.
        """
        return batch


class Separate(Normalisation):
    """Real and condensed images are normalised by their own statistics each."""

    def condensed(
        self, batch: LatentStatistics, before: LatentStatistics | None
    ) -> LatentStatistics | None:
        """Return None."""
        return None


@attrs.frozen
class RunningAverage(Normalisation):
    """Condensed images take a running average, as in FedVCK's code (there with n - 1)."""

    start: LatentStatistics = attrs.field(kw_only=True)

    def condensed(
        self, batch: LatentStatistics, before: LatentStatistics | None
    ) -> LatentStatistics:
        """The average with a tenth of this batch."""
        return (before or self.start).blend(batch, 0.1)


class LatentEncoder(nn.Module):
    """A frozen copy of a network whose batch normalisation takes its statistics per group.

    A plain batch normalisation would mix all images of a batch. Here several groups (clients, for
    example) share one batch, and each is normalised by the statistics of its own images, or by
    fixed ones, exactly as if it were embedded alone. Other layers stay as they are. The weights
    take no gradient; images may.

    Args:
        model: any network with `embed`; it is copied, so that later changes to it have no effect.
    """

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model: Classifier = copy.deepcopy(model).eval().requires_grad_(False)
        self.norms = list[GroupwiseNorm]()

        def groupwise(layer: nn.Module) -> nn.Module | None:
            if not isinstance(layer, nn.BatchNorm2d):
                return None
            self.norms.append(GroupwiseNorm(layer))
            return self.norms[-1]

        replace_layers(self.model, groupwise)
        #: changes the weights to a draw of a given number, where features are compared at several
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

        A group without images has variance 0 and an arbitrary mean. Statistics are float32 even under
        autocast.
        """
        given = [None] * len(self.norms) if statistics is None else statistics.layers
        for norm, layer in zip(self.norms, given, strict=True):
            norm.group, norm.groups, norm.statistics = group, groups, layer
        features = self.model.embed(images)
        used = LatentStatistics(tuple(norm.used() for norm in self.norms))
        return features, used if statistics is None else statistics


class GroupwiseNorm(nn.Module):
    """Batch normalisation per group, as one scale and shift per image and channel. Set before a pass:
    `group` (N,), number of `groups`, and `statistics` (2, G, C), None for those of the batch.
    """

    def __init__(self, layer: nn.BatchNorm2d) -> None:
        super().__init__()
        # named as in the layer, so that a network's weights can be copied or set by name
        self.weight = nn.Parameter(layer.weight.detach(), requires_grad=False)
        self.bias = nn.Parameter(layer.bias.detach(), requires_grad=False)
        self.eps, self.groups = layer.eps, 1
        self.group: torch.Tensor = torch.empty(0)
        self.statistics: torch.Tensor | None = None

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Maps (N, C, H, W), normalised by the statistics of their groups."""
        if self.statistics is None:
            self.statistics = group_moments(maps, self.group, self.groups)
        mean, variance = self.statistics
        scale = (variance + self.eps).rsqrt() * self.weight
        shift = self.bias - mean * scale
        scale, shift = (each[self.group][:, :, None, None] for each in (scale, shift))
        # in the precision of the statistics; only the result is rounded
        return torch.addcmul(shift, maps, scale).to(maps.dtype)

    def used(self) -> torch.Tensor:
        """The statistics of the last pass; the layer drops them, for they hold its graph."""
        assert self.statistics is not None
        statistics, self.statistics = self.statistics, None
        return statistics


def group_moments(maps: torch.Tensor, group: torch.Tensor, groups: int) -> torch.Tensor:
    """Mean and biased variance, (2, G, C), at least in float32, of maps (N, C, H, W) over the images
    and positions of each group, `group` (N,) int64.
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
    return torch.stack([mean + pivot, variance]).to(wide.dtype)
