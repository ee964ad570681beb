"""FedProx: FedAvg with a proximal term.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks. MLSys
2020, Algorithm 2. Clients are drawn with equal odds and averaged by their numbers of images, as in the
paper's experiments (Section 5.1); the algorithm draws by these numbers and takes a plain mean.
"""

from __future__ import annotations

import attrs
import torch
from torch import nn

from core.baselines import fedavg
from core.checks import number
from core.federation import Client, Message
from core.federation.local_training import LocalLoss
from core.federation.tensors import in_a_row, take
from core.rng import Rng


@attrs.frozen(kw_only=True)
class Settings(fedavg.Settings):
    """Local training, and the weight of the proximal term."""

    #: mu, tuned for each data set in the paper; 0.01 as in the example of NIID-Bench's README. With 0
    #: the method is FedAvg
    mu: float = attrs.field(default=0.01, validator=number(0))


class FedProx(fedavg.FedAvg):
    """Clients minimise h_k(w; w_t) = F_k(w) + mu/2 ||w - w_t||^2 (Eq. 2); all else is FedAvg."""

    Settings = Settings

    def loss(self, client: Client, received: Message, rng: Rng) -> LocalLoss:
        """The loss of the data and the squared distance to the model that was received."""
        plain, mu = super().loss(client, received, rng), self.settings.mu
        w_t = in_a_row(take("parameters/", received.tensors))

        def loss(model: nn.Module, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            # ||w - w_t||^2, over parameters only
            distance = (in_a_row(dict(model.named_parameters())) - w_t).square().sum()
            return plain(model, outputs, labels) + mu / 2 * distance

        return loss
