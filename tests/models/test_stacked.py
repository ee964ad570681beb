"""Many networks at once against one network after the other, in values and gradients."""

import copy

import pytest
import torch

from core import models
from core.models import PatchDiscriminator, fresh
from core.models.stacked import Stacked
from core.rng import Rng

#: architectures that run side by side, and options that make them small
SMALL = {
    "convnet": {"width": 4},
    "convnet instance": {"width": 4, "norm": "instance"},
    "lenet": {},
    "resnet8": {"width": 2, "grid": 1},
}
IMAGES = torch.randn(3, 4, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def teachers(*names):
    """Networks with running statistics that are not those of no data."""
    made = []
    for seed, name in enumerate(names):
        options = {} if name == "lenet" else {"width": 4}
        network = models.build(name, 1, 8, 5, Rng(seed), **options)
        network(torch.randn(6, 1, 8, 8, generator=Rng(seed).generator()) * 2 + 1)
        made.append(network.eval().requires_grad_(False))
    return made


TRIPLE = ("resnet8", "resnet8", "resnet8"), [[0, 1, 2]]
MIXED = ("resnet8", "convnet", "resnet8"), [[0, 2], [1]]


@pytest.fixture(params=["together", "as many as fit", "one by one"])
def way(request, monkeypatch):
    """How many networks of one architecture run at once: on a GPU all, by `vmap` where need be."""
    number = {"together": 99, "one by one": 1}.get(request.param)
    if number:
        monkeypatch.setattr(
            Stacked, "at_once", lambda self, places, inputs: min(number, len(places))
        )


@pytest.mark.parametrize(("names", "groups"), [TRIPLE, MIXED, (("lenet",), [[0]])], ids=str)
def test_batched_is_one_by_one(names, groups, way):
    networks, images = teachers(*names), IMAGES[0].clone().requires_grad_()
    together = Stacked(networks)
    assert together.groups == groups
    outputs = [together(images), torch.stack([network(images) for network in networks])]
    gradients = [torch.autograd.grad(out.square().sum(), images)[0] for out in outputs]
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)
    assert torch.equal(together(images), outputs[0])  # by the weights of the first call


@pytest.mark.parametrize("name", [*SMALL, "discriminator"])
def test_side_by_side_is_one_by_one_in_float64(name):
    """Values and gradients, of every architecture that says that it can."""
    networks: list[torch.nn.Module] = []
    for seed in range(3):
        if name == "discriminator":
            network: torch.nn.Module = fresh(PatchDiscriminator, 2, width=4, rng=Rng(seed))
        else:
            network = models.build(name.split()[0], 2, 8, 5, Rng(seed), **SMALL[name])
            network(torch.randn(6, 2, 8, 8, generator=Rng(seed).generator()) * 2 + 1)
        networks.append(network.double().eval())
    images = torch.randn(3, 4, 2, 8, 8, generator=Rng(9).generator(), dtype=torch.float64)
    images.requires_grad_()
    apart = torch.stack([one(mine) for one, mine in zip(networks, images, strict=True)])
    side_by_side = Stacked(networks)
    assert side_by_side.at_once([0, 1, 2], images) >= 3
    together = side_by_side.each(images)
    wanted = [images, *(weight for one in networks for weight in one.parameters())]
    for ours, theirs in zip(
        (together, *torch.autograd.grad(together.pow(3).sum(), wanted)),
        (apart, *torch.autograd.grad(apart.pow(3).sum(), wanted)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    shared = torch.stack([one(images[0]) for one in networks])
    torch.testing.assert_close(side_by_side(images[0]), shared, rtol=1e-9, atol=1e-9)


def test_networks_of_unknown_layers_run_too(way):
    unknown = [torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2)) for _ in range(2)]
    alone = torch.stack([network(IMAGES[0]) for network in unknown])
    torch.testing.assert_close(Stacked(unknown)(IMAGES[0]), alone)


def test_networks_that_pool_in_two_ways_are_kept_apart():
    """A last map of 5x5 leaves weights of the same shapes. So are those of other modes."""
    pools = ("whole", "released")
    networks = [models.build("resnet18", 1, 160, 3, Rng(0), pool=pool).eval() for pool in pools]
    images, together = torch.randn(1, 1, 160, 160, generator=Rng(1).generator()), Stacked(networks)
    with torch.no_grad():
        answers = together(images)
        for network, answer in zip(networks, answers, strict=True):
            assert torch.equal(answer, network(images))
    assert not torch.allclose(*answers)
    one, other = teachers("convnet", "convnet")
    assert together.groups == Stacked([one, other.train()]).groups == [[0], [1]]


def test_what_changes_in_a_network_is_seen_by_the_next_call(way):
    """Its mode, and weights where one of the networks learns; frozen ones are stacked once."""
    networks = [network.train() for network in teachers("convnet", "convnet")]
    networks[1].requires_grad_(True)
    together = Stacked(networks)
    with torch.no_grad():
        before = together(IMAGES[0])
        networks[1].classifier.weight *= 2
        for mode in (True, False):
            for network in networks:
                network.train(mode)
            alone = torch.stack([copy.deepcopy(network)(IMAGES[0]) for network in networks])
            after = together(IMAGES[0])
            torch.testing.assert_close(after, alone, rtol=1e-4, atol=1e-4)
            assert not torch.allclose(after[1], before[1])
