"""Named tensors in groups: a prefix before their names."""

from __future__ import annotations

from collections.abc import Mapping

import torch


def put(prefix: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors with a prefix before their names."""
    return {prefix + name: value for name, value in tensors.items()}


def take(prefix: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors whose names begin with a prefix, without it."""
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
