"""FedEnsemble: FedAvg whose clients' models are tested together, in the meaning of FedGen's
repository.

A baseline of Zhu, Hong, Zhou. Data-Free Knowledge Distillation for Heterogeneous Federated
Learning. ICML 2021; code: zhuangdizhu/FedGen (`serverpFedEnsemble.py`). Clients train and the
server averages as in FedAvg. What is tested is the ensemble of the clients' models: the sum of
their logits, without weights.

The paper says "all user models". In the code the models of users who were not active in a round are
copies of the model that the round began with, and are summed too. Here the ensemble are the models
that the server received in the round, since no other model is anybody's; where clients test
(`tested_by`), all have this ensemble. It is not the FedEnsemble of Shi et al. (2021), who train
several models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import torch
from torch import nn

from core.baselines import fedavg, fedgen
from core.federation import CLASSIFICATION, Message, State
from core.federation.tensors import put_each, take_each, weights
from core.rng import Rng


@attrs.frozen(kw_only=True)
class Settings(fedavg.Settings):
    """FedEnsemble has the hyper-parameters of local training and no other."""

    @classmethod
    def released(cls) -> Settings:
        """The local training of zhuangdizhu/FedGen."""
        return cls(**fedgen.LOCAL)


class Ensemble(nn.Module):
    """Several models as one: the mean of their logits, which has the maximum of their sum."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (N, C) in float32 of normalised images (N, C, H, W)."""
        return torch.stack([member(images).float() for member in self.members]).mean(0)


class FedEnsemble(fedavg.FedAvg):
    """FedAvg, tested by the ensemble of the models that came in the last round."""

    Settings = Settings
    task_kinds = CLASSIFICATION

    def server_update(self, state: State, uploads: Mapping[int, Message], rng: Rng) -> State:
        """The average of the models, and the models themselves for the test."""
        tensors = super().server_update(state, uploads, rng).tensors
        average = {k: v for k, v in tensors.items() if not k.startswith("members/")}
        members = {id_: weights(upload.tensors) for id_, upload in uploads.items()}
        return attrs.evolve(state, tensors=average | put_each("members/", members))

    def model(self, state: State) -> nn.Module | list[nn.Module]:
        """The ensemble, the same for all clients where these test; the one model before round 1."""
        members = take_each("members/", state.tensors)
        if not members:
            return super().model(state)
        ensemble = Ensemble([self.network(state.task, member) for member in members.values()])
        return self.client_models(state, lambda own: ensemble) if self.clients_test else ensemble
