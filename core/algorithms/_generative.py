"""What FedGAN and DFRD share: weights of generators and discriminators, and Adam's moments, as named tensors.

Only parameters are kept and sent. A generator normalises every batch by the batch's own statistics, also when it draws
images for use: its weights are averages over clients or over rounds, and no running statistics belong to them.
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
    """Copy `<kind>/<name>` into a network's parameters, in place. Raises KeyError when one is missing."""
    for name, value in network.named_parameters():
        value.copy_(tensors[f"{kind}/{name}"])


def moments(optimiser: torch.optim.Adam, network: nn.Module) -> dict[str, torch.Tensor]:
    """Adam's moments of a network's parameters, as `adam/<moment>/<name>`."""
    return {f"adam/{moment}/{name}": value for name, parameter in network.named_parameters()
            for moment, value in optimiser.state[parameter].items()}


def resume(optimiser: torch.optim.Adam, network: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Go on with the moments that `moments` returned; without any, Adam starts anew."""
    for name, parameter in network.named_parameters():
        if f"adam/step/{name}" in tensors:
            # Adam counts its steps on the CPU
            optimiser.state[parameter] = {"step": tensors[f"adam/step/{name}"].cpu()} | {
                moment: tensors[f"adam/{moment}/{name}"].clone() for moment in ("exp_avg", "exp_avg_sq")}
