"""Condensed images as bytes."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.data import Dataset, Split
from core.families.condensing import to_wire

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
SPLIT = Split(torch.zeros(1, 3, 4, 4, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64))
DATA = Dataset("any", SPLIT, SPLIT, SPLIT, ("a", "b"), MEAN, STD, "")


@given(st.integers(0, 1000))
@settings(max_examples=20)
def test_images_in_range_come_back_within_half_a_grey_level(seed):
    levels = np.random.default_rng(seed).uniform(0, 255, (2, 3, 4, 4))
    mean, std = (np.array(values).reshape(1, 3, 1, 1) for values in (MEAN, STD))
    images = torch.tensor((levels / 255 - mean) / std, dtype=torch.float32)
    wire = to_wire(images, MEAN, STD)
    assert wire.dtype == torch.uint8 and wire.element_size() == 1
    assert np.abs(wire.numpy() - levels).max() <= 0.5 + 1e-3
    back = DATA.normalise(wire)
    assert back.dtype == torch.float32
    assert np.abs((back.double().numpy() * std + mean) * 255 - levels).max() <= 0.5 + 1e-3


def test_values_beyond_the_range_are_clamped():
    images = torch.tensor([-9.0, 9.0, -1.0, 1.0]).view(1, 1, 2, 2)
    assert to_wire(images, (0.5,), (0.5,)).flatten().tolist() == [0, 255, 0, 255]


def test_every_grey_level_survives():
    levels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(1, 3, 16, 16)
    assert torch.equal(to_wire(DATA.normalise(levels), MEAN, STD), levels)
