"""A network as a function of its weights, for bi-level condensation."""

from __future__ import annotations

import copy

import attrs
import torch
from torch import nn
from torch.func import functional_call

from core.models import Classifier, replace_layers

Weights = dict[str, torch.Tensor]


class KnowledgeNetwork(nn.Module):
    """A copy of a network as a function of its weights, whose batch normalisation can look at some
    images only.

    It keeps no running statistics, so it can be differentiated twice, and by vmap.
    """

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = copy.deepcopy(model)
        self._lead = _Lead()
        replace_layers(
            self.model,
            lambda layer: (
                _LeadingNorm(layer, self._lead) if isinstance(layer, nn.BatchNorm2d) else None
            ),
        )

    def weights(self) -> Weights:
        """The weights of the network, by the names of its parameters, detached."""
        return {name: value.detach() for name, value in self.model.named_parameters()}

    def logits(
        self, weights: Weights, images: torch.Tensor, lead: int | None = None
    ) -> torch.Tensor:
        """Logits (N, C) of images (N, ...); the first `lead` of them give the statistics of
        normalisation (all).
        """
        self._lead.rows = lead
        return functional_call(self.model, weights, (images,))

    def logits_beside(
        self, weights: Weights, images: torch.Tensor, knowledge: torch.Tensor
    ) -> torch.Tensor:
        """Logits of images that are normalised by the statistics of the knowledge (M, ...)."""
        lead = len(knowledge)
        return self.logits(weights, torch.cat([knowledge, images]), lead)[lead:]


@attrs.define
class _Lead:
    """How many images of the batch that runs through a network are looked at."""

    rows: int | None = None


class _LeadingNorm(nn.Module):
    """Batch normalisation by the statistics of the first images of a batch."""

    def __init__(self, layer: nn.BatchNorm2d, lead: _Lead) -> None:
        super().__init__()
        # named as in the layer: weights are given by name
        self.weight, self.bias, self.eps, self._lead = layer.weight, layer.bias, layer.eps, lead

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """The normalised maps (N, C, H, W)."""
        variance, mean = torch.var_mean(maps[: self._lead.rows], (0, 2, 3), unbiased=False)
        scale = (variance + self.eps).rsqrt() * self.weight
        return torch.addcmul((self.bias - mean * scale)[:, None, None], maps, scale[:, None, None])
