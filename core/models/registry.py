"""Networks by name."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import nn

from core.errors import InputError, unknown
from core.models.classifier import Classifier, at_least
from core.models.convnet import ConvNet
from core.models.dense import UNet
from core.models.initialisation import initialise
from core.models.lenet import LeNet
from core.models.resnet8 import ResNet8
from core.models.resnet18 import ResNet18
from core.rng import Rng

_MODELS: dict[str, type[nn.Module]] = {
    "convnet": ConvNet,
    "lenet": LeNet,
    "resnet8": ResNet8,
    "resnet18": ResNet18,
}
#: these answer for every pixel: their classes may be the one channel of an image
_DENSE: dict[str, type[nn.Module]] = {"unet": UNet}

#: numbers of the largest network that is built: 4 GB in float32
LARGEST = 10**9


def names() -> list[str]:
    """The classifiers that `build` knows, in alphabetical order."""
    return sorted(_MODELS)


def every_name() -> list[str]:
    """All networks that `build` knows, those too that answer for every pixel, in alphabetical
    order.
    """
    return sorted(_MODELS | _DENSE)


def is_dense(name: str) -> bool:
    """Whether a network answers for every pixel. Raises InputError for an unknown name."""
    if name not in every_name():
        raise unknown("model", name, every_name())
    return name in _DENSE


def check_options(name: str, options: Iterable[str]) -> None:
    """Raise InputError for a network, or an option of it, that does not exist."""
    is_dense(name)
    known = [
        key
        for key, value in inspect.signature((_MODELS | _DENSE)[name]).parameters.items()
        if value.kind is value.KEYWORD_ONLY
    ]
    for option in options:
        if option not in known:
            raise unknown(f"option of {name}", option, known)


def build(
    name: str, channels: int, size: int, classes: int, rng: Rng, /, **options: Any
) -> Classifier:
    """A network for images (N, channels, size, size) and `classes` classes, on the CPU, in training
    mode.

    A U-Net is no classifier: it has a map of outputs (N, classes, size, size) and no `embed`. All its
    parameters are drawn from `rng`, so equal arguments give equal weights; the global
    generator is neither read nor moved. `options` are the keyword arguments of the network's class,
    for example `width=64`.

    Raises InputError for a name, option or value that does not exist, and for images too small for
    the network.
    """
    check_options(name, options)
    dense, kind = is_dense(name), (_MODELS | _DENSE)[name]
    at_least("channels", channels, 1)
    at_least("size", size, 1)
    at_least("classes", classes, 1 if dense else 2)
    with torch.device(
        "meta"
    ):  # shapes only, so that PyTorch's own initialisation does not move the global generator
        model = kind(channels, size, classes, **options)
    if (size_ := sum(value.numel() for value in model.state_dict().values())) > LARGEST:
        raise InputError(f"a {name} of {size_:,} numbers is too large; the most is {LARGEST:,}")
    model.to_empty(device="cpu")
    initialise(model, rng)
    return cast(Classifier, model)
