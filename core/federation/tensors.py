"""The codec of named tensors: how networks and optimisers are named in states, messages and memories.

A name is a path. What belongs together is below a prefix that ends with a slash, as in
`generator/`. There a network has `parameters/<name>`, and `buffers/<name>` for the running
statistics of its batch normalisation; an optimiser has `<quantity>/<parameter>`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import nn

from core import models

Tensors = dict[str, torch.Tensor]
Named = Mapping[str, torch.Tensor]
Network = TypeVar("Network", bound=nn.Module)
#: what is named: tensors, or the fields that describe them
Value = TypeVar("Value")

WEIGHTS = ("parameters/", "buffers/")


def put(prefix: str, tensors: Mapping[str, Value]) -> dict[str, Value]:
    """The tensors with a prefix before their names."""
    return {prefix + name: value for name, value in tensors.items()}


def take(prefix: str, tensors: Mapping[str, Value]) -> dict[str, Value]:
    """The tensors whose names begin with a prefix, without it."""
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


def put_each(prefix: str, owners: Mapping[int, Named]) -> Tensors:
    """The tensors of every owner, by id, as `<prefix><id>/<name>`."""
    return {
        f"{prefix}{owner}/{name}": value
        for owner, tensors in owners.items()
        for name, value in tensors.items()
    }


def take_each(prefix: str, tensors: Named) -> dict[int, Tensors]:
    """Return the tensors of every owner that `put_each` put there, in the order of their ids."""
    below = take(prefix, tensors)
    owners = sorted({int(name.split("/", 1)[0]) for name in below})
    return {owner: take(f"{owner}/", below) for owner in owners}


def in_a_row(tensors: Named) -> torch.Tensor:
    """All tensors as one vector (D,), in the order of names: one kernel for all of them."""
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


def fingerprint(text: str, tensors: Named) -> str:
    """SHA-256 of a text and of named tensors, by their bits."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        bits = tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(name.encode() + bits.numpy().data)
    return digest.hexdigest()


def weights(tensors: Named) -> Tensors:
    """The weights of a model among other tensors: those under `parameters/` and `buffers/`."""
    return {name: value for name, value in tensors.items() if name.startswith(WEIGHTS)}


def pack(network: nn.Module, prefix: str = "") -> Tensors:
    """Copies of a network's parameters and buffers, below a prefix."""
    return {
        f"{prefix}{kind}{name}": value
        for kind, values in zip(WEIGHTS, models.parameters_and_buffers(network), strict=True)
        for name, value in values.items()
    }


def unpack(network: Network, tensors: Named, prefix: str = "") -> Network:
    """Load weights below a prefix into a network; return it. InputError where names or shapes differ."""
    stored = weights(take(prefix, tensors))
    models.load(network, {name.split("/", 1)[1]: value for name, value in stored.items()})
    return network


def pack_optimiser(
    optimiser: torch.optim.Optimizer, network: nn.Module, prefix: str = ""
) -> Tensors:
    """Copies of what an optimiser remembers of a network's parameters, below a prefix."""
    return {
        f"{prefix}{quantity}/{name}": value.clone()
        for name, parameter in network.named_parameters()
        for quantity, value in optimiser.state.get(parameter, {}).items()
        if isinstance(value, torch.Tensor)
    }


def unpack_optimiser(
    optimiser: torch.optim.Optimizer, network: nn.Module, tensors: Named, prefix: str = ""
) -> None:
    """Give an optimiser its state from below a prefix; where nothing is there, it starts anew."""
    stored: dict[str, Tensors] = {}
    for key, value in take(prefix, tensors).items():
        quantity, _, name = key.rpartition("/")
        stored.setdefault(name, {})[quantity] = value
    for name, parameter in network.named_parameters():
        # Adam counts its steps on the CPU
        optimiser.state[parameter] = {
            quantity: value.clone().cpu() if quantity == "step" else value.clone()
            for quantity, value in stored.get(name, {}).items()
        }
