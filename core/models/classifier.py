"""The form of all classifiers."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from core.checks import is_whole
from core.errors import InputError, brief, unknown


class Classifier(nn.Module):
    """An encoder, whose `embed` a subclass adds, followed by one linear layer, `classifier`."""

    classifier: nn.Linear

    @property
    def feature_size(self) -> int:
        """D, the length of a feature vector."""
        return self.classifier.in_features

    def embed(self, images: torch.Tensor) -> torch.Tensor:
        """Features (N, D) of normalised images (N, C, H, W): what enters the last linear layer."""
        raise NotImplementedError(f"{type(self).__name__} has no embed")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (N, classes) of normalised images (N, C, H, W)."""
        return self.classifier(self.embed(images))


#: the most channels, blocks or pixels of a side
MOST = 2**16


def at_least(what: str, value: object, low: int) -> int:
    """Hand on a whole number in [low, MOST], or raise InputError."""
    if not is_whole(value, low, MOST):
        raise InputError(
            f"{what} of a model must be a whole number of at least {low} and at most {MOST}, "
            f"not {brief(value)}"
        )
    return value  # type: ignore[return-value]


def check_name(what: str, value: object, known: Iterable[str]) -> None:
    """Raise InputError, with the nearest name, unless the value is a known name."""
    if not isinstance(value, str) or value not in set(known):
        raise unknown(what, value, known)
