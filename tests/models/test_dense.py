"""Networks for whole images."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core import models
from core.errors import InputError
from core.models import DensePatchDiscriminator, LabelToImage, fresh
from core.rng import Rng


def unet(**options):
    return models.build("unet", 3, 32, 2, Rng(0), **({"width": 4} | options))


def test_a_unet_answers_for_every_pixel():
    network, images = unet().eval(), torch.randn(2, 3, 32, 32)
    assert network(images).shape == (2, 2, 32, 32)
    shapes = [tuple(one.shape[1:]) for one in network.encode(images)]
    assert shapes == [(4, 16, 16), (8, 8, 8), (16, 4, 4), (32, 4, 4)]


def test_what_it_encodes_is_what_its_own_modules_make():
    """Each map is, bit for bit, the output of a module of the network on its way to the answer."""
    network, images, seen = unet().eval(), torch.randn(1, 3, 32, 32), []
    for module in network.modules():
        module.register_forward_hook(lambda *given: seen.append(given[-1]))
    network(images)
    outputs, maps = list(seen), network.encode(images)
    for one in maps:
        assert any(one.shape == other.shape and torch.equal(one, other) for other in outputs)
    assert all(map(torch.equal, network.answer(images), (network(images), maps[-1])))


def test_a_direct_way_adds_a_mix_of_the_channels():
    """Affine in the image, pixel by pixel: what the network adds when its own answer is taken off."""
    network, images = unet(direct=True).eval(), torch.randn(2, 3, 32, 32)
    added = network(images) - network.net(images)
    weight, bias = network.direct.weight[:, :, 0, 0], network.direct.bias
    wanted = torch.einsum("oc,nchw->nohw", weight, images) + bias[:, None, None]
    torch.testing.assert_close(added, wanted, rtol=1e-4, atol=1e-5)


def test_the_smallest_images_of_a_unet_train_it():
    network = models.build("unet", 1, 16, 2, Rng(0), width=2).train()
    network(torch.randn(1, 1, 16, 16)).sum().backward()


def test_a_generator_makes_images_of_its_labels_alone():
    make = fresh(LabelToImage, 3, 2, width=4, blocks=2, rng=Rng(0))
    labels = torch.randint(3, (2, 16, 16), generator=torch.Generator().manual_seed(0))
    images = make(labels)
    assert images.shape == (2, 2, 16, 16) and 0 <= images.min() < images.max() <= 1
    torch.testing.assert_close(images[:1], make(labels[:1]))  # nothing of its neighbour
    assert not torch.equal(images[0], make(labels.flip(0))[0])


def test_a_judge_gives_one_logit_per_patch():
    judge = fresh(DensePatchDiscriminator, 5, 32, width=4, rng=Rng(0)).train()
    images = torch.randn(3, 5, 32, 32)
    found = judge(images)
    assert found.shape[:2] == (3, 1) and found.shape[2] == found.shape[3] > 1
    torch.testing.assert_close(found[:1], judge(images[:1]))


@settings(max_examples=15)
@given(st.integers(6, 70), st.integers(1, 5))
def test_a_judge_is_built_where_it_can_be_trained(size, layers):
    """From six pixels on the largest number of layers that is named, and no larger one."""
    try:
        judge = fresh(DensePatchDiscriminator, 1, size, width=1, layers=layers, rng=Rng(0))
    except InputError as error:
        most = int(str(error).split(" at most ")[1].split()[0])
        assert 1 <= most < layers
        judge = fresh(DensePatchDiscriminator, 1, size, width=1, layers=most, rng=Rng(0))
        with pytest.raises(InputError, match=f"at most {most} times"):
            fresh(DensePatchDiscriminator, 1, size, width=1, layers=most + 1, rng=Rng(0))
    judge.train()(torch.randn(2, 1, size, size)).sum().backward()
