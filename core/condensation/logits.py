"""Matching of the logits of two random networks side by side: what the code of GDD-FL embeds with.

Tian, Wang, Jin, Wang (MICCAI 2023); code: Yearsflow/GDD-FL, `ResNetGDD`. Its second network has U_p
after every convolution. There an instance normalisation follows, which subtracts each map's mean
and divides by its deviation, so that it undoes U_p (up to the sign, in the rare case that the drawn
deviation is negative): U_p(x) = sigma^ (x - mu) / sigma + mu^ and x have the same normal form. So
the second network is here what it is there, another random network.
"""

from __future__ import annotations

import attrs
import torch

from core.condensation.latent import LatentEncoder, LatentStatistics
from core.condensation.problem import Problem


@attrs.frozen(eq=False, kw_only=True)
class TwoNetworks(Problem):
    """A problem whose features are logits, those of its encoder and those of a second network."""

    second: LatentEncoder

    def embed(
        self,
        inputs: torch.Tensor,
        owner: torch.Tensor,
        statistics: LatentStatistics | None,
        clients: int | None = None,
    ) -> tuple[torch.Tensor, LatentStatistics]:
        """(N, 2 C) float32: with two classes a class is matched in four numbers."""
        both = []
        with self.autocast():
            for encoder in (self.encoder, self.second):
                features, used = encoder(inputs, owner, statistics, clients or self.clients)
                both.append(encoder.logits(features).float())
        return torch.cat(both, 1), used
