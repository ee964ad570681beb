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


def test_each_network_gets_its_own_inputs_and_its_own_gradient():
    judges = [fresh(PatchDiscriminator, 1, width=4, rng=Rng(seed)) for seed in range(3)]
    loss = Stacked(judges, batched=True).each(IMAGES).square().mean((1, 2, 3, 4)).sum()
    loss.backward()
    for judge, images in zip(judges, IMAGES, strict=True):
        for parameter in judge.parameters():
            (alone,) = torch.autograd.grad(judge(images).square().mean(), parameter)
            torch.testing.assert_close(parameter.grad, alone, rtol=1e-3, atol=1e-6)


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


def test_no_network():
    with pytest.raises(InputError, match="no network"):
        Stacked([])
