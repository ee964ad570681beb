"""Generators and discriminators: shapes, ranges, and what each output may depend on."""

import importlib.util
import os
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from core.models import (
    FeatureGenerator,
    ImageGenerator,
    PatchDiscriminator,
    count_parameters,
    fresh,
)
from core.rng import Rng
from tests.sentences import refused

NOISE = torch.randn(6, 100, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 28), (1, 30), (3, 64)])
def test_images_have_the_size_asked_for_and_lie_between_zero_and_one(channels, size):
    """Without running statistics a generator is the same in both modes."""
    make = fresh(ImageGenerator, channels, size, width=8, rng=Rng(0))
    images = make(NOISE)
    assert images.shape == (6, channels, size, size)
    assert 0 <= images.min().item() < images.max().item() <= 1
    without = fresh(ImageGenerator, channels, size, width=8, running=False, rng=Rng(0))
    assert not list(without.buffers())
    assert torch.equal(without(NOISE), images) and torch.equal(without.eval()(NOISE), images)
    assert not torch.equal(make.eval()(NOISE), images)


def test_the_number_of_parameters_by_hand():
    generator = fresh(ImageGenerator, 3, 32, noise=100, width=64, rng=Rng(0))
    seed, maps = 100 * 128 * 64 + 128 * 64, 128 * 128 * 9 + 128 * 64 * 9 + 64 * 3 * 9 + 3
    assert count_parameters(generator) == seed + maps + 2 * (128 + 128 + 64)
    judge = fresh(PatchDiscriminator, 3, width=64, rng=Rng(0))
    assert count_parameters(judge) == 3 * 64 * 16 + 64 + 64 * 128 * 16 + 128 + 2 * 128 + 128 + 1
    wider = fresh(ImageGenerator, 3, 32, noise=100, width=64, first=4, rng=Rng(0))
    more = 101 * 128 * 64 + 128 * 128 * 9 + 2 * 128  # FedIOD's code: 4 widths at first
    assert count_parameters(wider) == count_parameters(generator) + more
    features = fresh(FeatureGenerator, 10, 32, noise=32, hidden=256, rng=Rng(0))
    assert count_parameters(features) == (42 * 256 + 256) + 2 * 256 + (256 * 32 + 32)


def test_a_label_changes_a_conditional_image_and_is_needed():
    generator = fresh(ImageGenerator, 1, 8, classes=3, width=8, rng=Rng(0)).eval()
    assert not torch.allclose(generator(NOISE, LABELS), generator(NOISE, LABELS.roll(1)))
    refused("without labels", generator, NOISE)
    refused("with labels", fresh(ImageGenerator, 1, 8, width=8, rng=Rng(0)), NOISE, LABELS)


def test_a_batch_is_judged_by_its_own_statistics():
    """As nn.BatchNorm2d in training mode has it, in evaluation mode too."""
    judge = fresh(PatchDiscriminator, 3, width=8, norm="batch", rng=Rng(0))
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    maps = functional.leaky_relu(judge.conv1(images), 0.2)
    maps = functional.batch_norm(judge.conv2(maps), None, None, training=True)
    expected = judge.out(functional.leaky_relu(maps, 0.2))
    torch.testing.assert_close(judge(images), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(judge.eval()(images), expected, rtol=1e-4, atol=1e-5)
    assert not list(judge.buffers())
    assert not torch.allclose(judge(images[2:3]), expected[2:3], atol=1e-3)


@pytest.mark.skipif("FEDIOD" not in os.environ, reason="needs a checkout, see the test")
def test_the_released_networks_are_those_of_the_authors():
    """With their weights; set FEDIOD to a checkout of github.com/lsl001006/FedIOD."""
    path = Path(os.environ["FEDIOD"]) / "mosaic_core/engine/models/generator.py"
    spec = importlib.util.spec_from_file_location("theirs", path)
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    generator = fresh(ImageGenerator, 3, 32, width=8, first=4, smooth=True, rng=Rng(0))
    judge = fresh(PatchDiscriminator, 3, width=8, norm="batch", rng=Rng(1))
    with torch.no_grad():
        judge.out.bias.zero_()
    for mine, other, inputs, left_out in (
        (generator, theirs.Generator(nz=100, ngf=8), NOISE, ()),
        (judge, theirs.PatchDiscriminator(ndf=8), generator(NOISE), ("conv2.bias", "out.bias")),
    ):
        own = [value for name, value in mine.named_parameters() if name not in left_out]
        with torch.no_grad():
            for to, value in zip(other.parameters(), own, strict=True):
                to.copy_(value)
        torch.testing.assert_close(mine(inputs), other(inputs), rtol=1e-4, atol=1e-5)


def test_the_judgement_on_one_image_does_not_depend_on_the_others():
    judge = fresh(PatchDiscriminator, 3, width=8, rng=Rng(0))
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    together = judge(images)
    assert together.shape == (4, 1, 8, 8)
    torch.testing.assert_close(judge(images[2:3]), together[2:3])
    assert not list(judge.buffers())
