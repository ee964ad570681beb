"""A GPU gives the CPU's numbers; where there is none, `tests.elsewhere` stands in for it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.nn import functional as F

from core import models, replay
from core.condensation import LatentEncoder
from core.condensation.augment import TRANSFORMS, Augmentation, augment
from core.federation.local_training import LocalTraining
from core.models import Stacked
from core.rng import Rng
from core.training import train
from tests.elsewhere import elsewhere

Results = list[torch.Tensor]
#: puts a tensor or a network on a device
Put = Callable[[Any], Any]


@contextmanager
def a_gpu() -> Iterator[None]:
    """The GPU of this machine, with convolutions in full precision, or what stands in for one."""
    if torch.cuda.is_available():
        # not mock.patch, which wants to delete what it puts back, and PyTorch's settings cannot be
        before = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = False
        try:
            yield
        finally:
            torch.backends.cudnn.allow_tf32 = before
    else:
        with elsewhere():
            yield


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=Rng(seed).generator())


def network(name: str, seed: int = 0) -> models.Classifier:
    name, _, norm = name.partition(" by ")
    narrow = {"convnet": {"width": 8}, "resnet8": {"width": 8, "grid": 1}}.get(name, {})
    return models.build(name, 3, 16, 4, Rng(seed), **narrow | ({"norm": norm} if norm else {}))


def training(name: str, put: Put) -> Results:
    """Logits, all gradients and all statistics that moved."""
    model, images = put(network(name)), put(drawn(6, 3, 16, 16)).requires_grad_()
    logits = model(images)
    F.cross_entropy(logits, put(torch.arange(6) % 4)).backward()
    gradients = [weight.grad for weight in model.parameters()]
    return [logits, images.grad, *gradients, *model.buffers()]


def replayed(put: Put, draws: torch.Generator | None = None) -> Results:
    """Weights and statistics after steps of training, which a GPU replays (see `core.replay`)."""
    model, images = put(network("convnet")), put(drawn(14, 3, 16, 16))
    settings = LocalTraining(lr=0.01, batch_size=4)

    def objective(model: Any, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if draws is not None:
            images = images + torch.randn(images.shape, generator=draws, device=images.device)
        return F.cross_entropy(model(images), labels)

    with patch.object(replay, "WORTH", 0):
        train(model, images, put(torch.arange(14) % 4), settings, 9, objective, Rng(0))
    return [*model.parameters(), *model.buffers()]


def stacked(name: str, put: Put) -> Results:
    """Three networks on the same images, as one program."""
    together = Stacked([put(network(name, seed)).eval() for seed in range(3)])
    outputs = together(put(drawn(5, 3, 16, 16)))
    weights = [weight for one in together.networks for weight in one.parameters()]
    return [outputs, *torch.autograd.grad(outputs.square().sum(), weights)]


def latent(given: bool, put: Put) -> Results:
    """Images of two groups, each normalised by its own statistics, or by those of other images."""
    encoder, images = put(LatentEncoder(network("convnet"))), put(drawn(7, 3, 16, 16))
    group = put(torch.tensor([0, 1, 1, 0, 1, 0, 1]))
    others = encoder(put(drawn(7, 3, 16, 16, seed=1)), group, groups=2)[1] if given else None
    features, found = encoder(images.requires_grad_(), group, others, groups=2)
    slope = torch.autograd.grad(features.square().sum(), images)
    return [features, *found.layers, *slope]


def augmented(transform: str, put: Put) -> Results:
    uniform = torch.rand(8, 4, generator=Rng(2).generator())
    images = put(drawn(8, 3, 16, 16)).requires_grad_()
    draws = Augmentation.of(put(uniform), transform, 16)
    found = augment(images, draws, put(torch.arange(8)))
    return [found, *torch.autograd.grad(found.square().sum(), images)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_replays_steps_with_fresh_draws(monkeypatch):
    taken = []

    def record(*given):
        taken.append(recording := made(*given))
        return recording

    made = replay.record
    monkeypatch.setattr(replay, "record", record)
    usual, again = Rng(1).generator("cuda"), Rng(1).generator("cuda")
    with a_gpu():
        found = replayed(lambda given: given.to("cuda"), again)
        assert len(taken) == 1
        monkeypatch.setattr(replay, "WARM", 99)
        wanted = replayed(lambda given: given.to("cuda"), usual)
    assert len(taken) == 1 and torch.equal(usual.get_state(), again.get_state())
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


SMALL = ("convnet", "lenet", "resnet8")
CASES: dict[str, Callable[[Put], Results]] = {
    **{
        f"training {name}": lambda put, name=name: training(name, put)
        for name in (*models.names(), "convnet by instance", "convnet by none")
    },
    **{f"stacked {name}": lambda put, name=name: stacked(name, put) for name in SMALL},
    **{f"augmentation {t}": lambda put, t=t: augmented(t, put) for t in TRANSFORMS},
    **{
        f"latent, {word}": lambda put, given=given: latent(given, put)
        for word, given in (("own", False), ("given", True))
    },
    "replayed": replayed,
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_gpu_gives_the_numbers_of_the_cpu(case):
    here = case(lambda what: what)
    with a_gpu():
        there = case(lambda what: what.to("cuda"))
        assert all(each.is_cuda for each in there)
        found = [each.detach().cpu() for each in there]
    # sums that cancel, such as the slope of a bias in front of a normalisation, are only rounding
    largest = max(float(each.detach().abs().max()) for each in here)
    for one, other in zip(here, found, strict=True):
        torch.testing.assert_close(other, one.detach(), rtol=1e-3, atol=1e-5 * largest)
