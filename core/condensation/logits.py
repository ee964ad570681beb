"""Encoders whose logits are matched, beside the features or in their place."""

from __future__ import annotations

import torch

from core.condensation.latent import LatentEncoder, LatentStatistics
from core.models import Classifier


class FeaturesAndLogits(LatentEncoder):
    """Features (N, D) followed by logits (N, C), (N, D + C): FedDM matches both."""

    def forward(
        self,
        images: torch.Tensor,
        group: torch.Tensor,
        statistics: LatentStatistics | None = None,
        groups: int = 1,
    ) -> tuple[torch.Tensor, LatentStatistics]:
        """As `LatentEncoder`."""
        features, used = super().forward(images, group, statistics, groups)
        return torch.cat([features.float(), self.logits(features).float()], 1), used


class TwoNetworks(LatentEncoder):
    """The logits of two random networks side by side, (N, 2 C), with which the code of GDD-FL matches:
    with two classes a class is matched in four numbers.

    Tian, Wang, Jin, Wang (MICCAI 2023); code: Yearsflow/GDD-FL, `ResNetGDD`. Its second network has
    U_p after every convolution. There an instance normalisation follows, which subtracts each map's
    mean and divides by its deviation, so that it undoes U_p (up to the sign, in the rare case that the
    drawn deviation is negative): U_p(x) = sigma^ (x - mu) / sigma + mu^ and x have the same normal
    form. So the second network is here what it is there, another random network.
    """

    def __init__(self, model: Classifier, second: Classifier) -> None:
        super().__init__(model)
        self.second = LatentEncoder(second)

    def forward(
        self,
        images: torch.Tensor,
        group: torch.Tensor,
        statistics: LatentStatistics | None = None,
        groups: int = 1,
    ) -> tuple[torch.Tensor, LatentStatistics]:
        """As `LatentEncoder`."""
        features, _ = super().forward(images, group, statistics, groups)
        others, used = self.second(images, group, statistics, groups)
        return torch.cat(
            [self.logits(features).float(), self.second.logits(others).float()], 1
        ), used
