"""Networks by name, and networks of one's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import nn

from core.errors import InputError, brief, one_line, unknown
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
#: a class or function that makes a network
Factory = Callable[..., nn.Module]
_OWN: dict[str, Factory] = {}

#: numbers of the largest network that is built: 4 GB in float32
LARGEST = 10**9


def register(name: str, factory: Factory) -> None:
    """Name a network of one's own, in this process. InputError for a name that is taken, or no factory."""
    fine = isinstance(name, str) and name and name not in _MODELS | _DENSE
    if not fine or not callable(factory):
        raise InputError(
            "a network of your own needs a name of its own and a class or function, not "
            f"{brief((name, factory))}"
        )
    _OWN[name] = factory


def names() -> list[str]:
    """The classifiers that `build` knows, in alphabetical order."""
    return sorted(_MODELS)


def every_name() -> list[str]:
    """Names of all networks of `build`, dense and registered ones among them, sorted."""
    return sorted(_MODELS | _DENSE | _OWN)


def is_dense(model: str | Factory) -> bool | None:
    """Return whether a network answers for every pixel; None for one's own, InputError if unknown."""
    if not isinstance(model, str) or model in _OWN:
        return None
    if model not in every_name():
        raise unknown("model", model, every_name())
    return model in _DENSE


def check_options(name: str, options: Iterable[str]) -> None:
    """Raise InputError for an unknown network or option; one's own is checked when built."""
    if is_dense(name) is None:
        return
    known = [
        key
        for key, value in inspect.signature((_MODELS | _DENSE)[name]).parameters.items()
        if value.kind is value.KEYWORD_ONLY
    ]
    for option in options:
        if option not in known:
            raise unknown(f"option of {name}", option, known)


def build(
    model: str | Factory, channels: int, size: int, classes: int, rng: Rng, /, **options: Any
) -> Classifier:
    """Return a network for images (N, channels, size, size) and `classes` classes, on the CPU, in
    training mode.

    A U-Net is no classifier: it has a map of outputs (N, classes, size, size) and no `embed`. All its
    parameters are drawn from `rng`, so equal arguments give equal weights; the global
    generator is neither read nor moved. `options` are the keyword arguments of the network's class,
    for example `width=64`.

    `model` is a name, or a class or function that makes any `torch.nn.Module`. It is called with the
    `options` and with those of `channels`, `size` and `classes` that it names; the weights are those
    that it gives itself from PyTorch's generator, which stands at the start of `rng` meanwhile.

    Raises InputError for a name, option or value that does not exist, for images too small for
    the network, and for a network of one's own whose outputs have another shape than (N, classes) or
    (N, classes, size, size).
    """
    dense = is_dense(model)
    at_least("channels", channels, 1)
    at_least("size", size, 1)
    at_least("classes", classes, 2 if dense is False else 1)
    facts = {"channels": channels, "size": size, "classes": classes}
    if dense is None:
        network = _made(model, facts, rng, options)
    else:
        check_options(cast(str, model), options)
        with torch.device("meta"):  # shapes only: PyTorch's own initialisation draws nothing
            network = (_MODELS | _DENSE)[cast(str, model)](channels, size, classes, **options)
    if (numbers := sum(value.numel() for value in network.state_dict().values())) > LARGEST:
        raise InputError(f"a {model} of {numbers:,} numbers is too large; the most is {LARGEST:,}")
    if dense is not None:
        network.to_empty(device="cpu")
        initialise(network, rng)
    return cast(Classifier, network)


def _made(
    model: str | Factory, facts: dict[str, int], rng: Rng, options: dict[str, Any]
) -> nn.Module:
    """Return a network of one's own that has answered two black images."""
    factory = _OWN[model] if isinstance(model, str) else model
    name = getattr(factory, "__name__", brief(factory))
    if isinstance(factory, nn.Module) or not callable(factory):
        raise InputError(
            f"model must be a name, or a class or function that makes a network, not {brief(model)}; "
            "a run makes several"
        )
    channels, size, classes = facts.values()
    try:
        asked = inspect.signature(factory).parameters
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.default_generator.manual_seed(rng.key)
            network = factory(**{key: facts[key] for key in facts if key in asked} | options)
            outputs = network.eval()(torch.zeros(2, channels, size, size))
    except Exception as error:  # code of others can raise anything
        raise InputError(
            f"{name} makes no network for images ({channels}, {size}, {size}): {one_line(error)}"
        ) from None
    shape = tuple(getattr(outputs, "shape", ()))
    if shape not in ((2, classes), (2, classes, size, size)):
        raise InputError(f"{name} answers 2 images with {shape}, not (2, {classes})")
    return network.train()
