"""What FedGAN and DFRD share: the weights of generators and discriminators as named tensors.

Only parameters are kept and sent. A generator normalises every batch by the batch's own statistics,
also when it draws images for use: its weights are averages over clients or over rounds, and no
running statistics belong to them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn


def packed(kind: str, network: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of a network's parameters as `<kind>/<name>`."""
    return {f"{kind}/{name}": value.detach().clone() for name, value in network.named_parameters()}


@torch.no_grad()
def fill(network: nn.Module, kind: str, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy `<kind>/<name>` into a network's parameters, in place. Raises KeyError when one is
    missing.
    """
    for name, value in network.named_parameters():
        value.copy_(tensors[f"{kind}/{name}"])
