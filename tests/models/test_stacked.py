"""Many networks at once: the batched program against one network after the other, in values and
gradients.
"""

import pytest
import torch

from core import models
from core.errors import InputError
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
        network = models.build(
            name, 1, 8, 5, Rng(seed), **({} if name == "lenet" else {"width": 4})
        )
        network(torch.randn(6, 1, 8, 8, generator=Rng(seed).generator()) * 2 + 1)
        made.append(network.eval().requires_grad_(False))
    return made


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        (("resnet8", "resnet8", "resnet8"), [[0, 1, 2]]),
        (("resnet8", "convnet", "resnet8"), [[0, 2], [1]]),
        (("lenet",), [[0]]),
    ],
    ids=str,
)
def test_batched_is_one_by_one(names, groups):
    networks = teachers(*names)
    gradients, outputs = [], []
    for batched in (True, False):
        together = Stacked(networks, batched)
        assert together.groups == groups
        images = IMAGES[0].clone().requires_grad_()
        outputs.append(together(images))
        gradients.append(torch.autograd.grad(outputs[-1].square().sum(), images)[0])
        for network, answer in zip(networks, together(IMAGES[0]), strict=True):
            torch.testing.assert_close(answer, network(IMAGES[0]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", [*SMALL, "discriminator"])
def test_side_by_side_is_one_by_one_in_float64(name):
    """Values, gradients for images of each network's own and for weights, of every architecture that
    says that it can.
    """
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


def test_networks_of_unknown_layers_run_by_vmap_and_large_batches_one_by_one():
    unknown = [torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2)) for _ in range(2)]
    with torch.no_grad():
        ways = [Stacked(unknown, batched)(IMAGES[0]) for batched in (True, False, None)]
    for way in ways[1:]:
        torch.testing.assert_close(way, ways[0])
    lenets = Stacked(teachers("lenet", "lenet", "lenet"))
    assert lenets.at_once([0, 1, 2], torch.empty(64, 1, 32, 32)) == 2
    assert lenets.at_once([0, 1, 2], torch.empty(512, 1, 32, 32)) == 1


@pytest.mark.parametrize("batched", [True, False])
def test_a_step_of_an_optimiser_is_seen_by_the_next_call_and_frozen_weights_are_not_forgotten(
    batched,
):
    judges = [fresh(PatchDiscriminator, 1, width=4, rng=Rng(seed)) for seed in range(2)]
    together = Stacked(judges, batched)
    with torch.no_grad():
        before = together(IMAGES[0])
        judges[1].out.bias += 1
        after = together(IMAGES[0])
    torch.testing.assert_close(after[0], before[0])
    torch.testing.assert_close(after[1], before[1] + 1)


def test_two_instances_with_the_same_layers_but_other_modes_are_kept_apart():
    one, other = teachers("convnet", "convnet")
    assert Stacked([one, other.train()]).groups == [[0], [1]]


@pytest.mark.parametrize("batched", [True, None])
def test_networks_that_pool_in_two_ways_are_kept_apart(batched):
    """Images of 160 pixels leave a last map of 5x5: both ways have weights of the same shapes."""
    networks = [
        models.build("resnet18", 1, 160, 3, Rng(0), pool=pool).eval()
        for pool in ("whole", "released")
    ]
    images = torch.randn(2, 1, 160, 160, generator=Rng(1).generator())
    together = Stacked(networks, batched)
    assert together.groups == [[0], [1]]
    with torch.no_grad():
        answers = together(images)
        for network, answer in zip(networks, answers, strict=True):
            assert torch.equal(answer, network(images))
    assert not torch.allclose(*answers)


@pytest.mark.parametrize("batched", [None, True, False])
def test_networks_that_change_their_mode_are_heard(batched):
    """Trained side by side, then tested: each by its running statistics."""
    networks = teachers("convnet", "convnet")
    together = Stacked([network.train() for network in networks], batched)
    together(IMAGES[0])
    for network in networks:
        network.eval()
    alone = torch.stack([network(IMAGES[0]) for network in networks])
    torch.testing.assert_close(together(IMAGES[0]), alone, rtol=1e-4, atol=1e-4)


def test_no_network():
    with pytest.raises(InputError, match="no network"):
        Stacked([])


def test_each_network_gets_its_own_inputs_and_its_own_gradient():
    judges = [fresh(PatchDiscriminator, 1, width=4, rng=Rng(seed)) for seed in range(3)]
    loss = Stacked(judges, batched=True).each(IMAGES).square().mean((1, 2, 3, 4)).sum()
    loss.backward()
    for judge, images in zip(judges, IMAGES, strict=True):
        for parameter in judge.parameters():
            (alone,) = torch.autograd.grad(judge(images).square().mean(), parameter)
            torch.testing.assert_close(parameter.grad, alone, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("batched", [True, None])
def test_weights_are_kept_only_where_all_networks_are_frozen(batched):
    frozen, learning = teachers("lenet", "lenet")
    together = Stacked([frozen, learning.requires_grad_(True)], batched)
    with torch.no_grad():
        before = together(IMAGES[0])
        next(learning.parameters()).mul_(2)
    torch.testing.assert_close(together(IMAGES[0])[1], learning(IMAGES[0]), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(together(IMAGES[0])[1], before[1])
