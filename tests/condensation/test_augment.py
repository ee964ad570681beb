"""Siamese augmentation, against plain per-image programs, SciPy and torchvision."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage, stats

from core.condensation import Augmentation, augment, draw_augmentation, siamese_augment
from core.rng import Rng

ALL = "color_crop_cutout_flip_scale_rotate"


def pictures(number, size=8, channels=3, seed=0):
    return torch.randn(number, channels, size, size, generator=torch.Generator().manual_seed(seed))


def drawn(strategy, draws, size=8, seed=0):
    return draw_augmentation(strategy, draws, size, torch.Generator().manual_seed(seed))


def transformed(images, strategy, uniform):
    """Images under draws made from given uniform numbers, one per image."""
    uniform = torch.tensor(uniform, dtype=torch.float32)
    return augment(
        images, Augmentation.of(uniform, strategy, images.shape[-1]), torch.arange(len(images))
    )


@pytest.mark.parametrize("strategy", ["none", ""])
def test_no_augmentation_is_the_image_itself(strategy):
    images = pictures(2)
    assert augment(images, drawn(strategy, 3), torch.tensor([0, 2])) is images
    assert siamese_augment(images, strategy, Rng(0)) is images


@pytest.mark.parametrize("size", [8, 28, 33])
def test_flips_are_those_of_torch(size):
    images = pictures(2, size)
    found = transformed(images, "flip", [[0, 0.49, 0, 0], [0, 0.5, 0, 0]])
    torch.testing.assert_close(found[0], images[0].flip(2), rtol=1e-4, atol=1e-4)
    assert torch.equal(found[1], images[1])
    if size == 8:  # a power of two: no rounding on the way
        assert torch.equal(found[0], images[0].flip(2))


@given(st.lists(st.floats(0, 0.999), min_size=3, max_size=3), st.sampled_from([1, 3]))
def test_colour_is_brightness_then_saturation_then_contrast(uniform, channels):
    x = pictures(1, channels=channels)[0].double().numpy()
    expected = x + (uniform[0] - 0.5)
    grey = expected.mean(0, keepdims=True)
    expected = (expected - grey) * (2 * uniform[1]) + grey
    expected = (expected - expected.mean()) * (uniform[2] + 0.5) + expected.mean()
    found = transformed(torch.tensor(x)[None], "color", [[0, *uniform]])
    np.testing.assert_allclose(found[0].numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("size", "reach"), [(8, 1), (28, 4), (32, 4)])
def test_crops_shift_by_whole_pixels_and_bring_in_zeros(size, reach):
    grid = torch.cartesian_prod(*[(torch.arange(2 * reach + 1) + 0.5) / (2 * reach + 1)] * 2)
    images = pictures(1, size).expand(len(grid), -1, -1, -1)
    found = transformed(images, "crop", [[0, a, b, 0] for a, b in grid.tolist()])
    padded = torch.nn.functional.pad(images[0], [reach] * 4)
    for k in range(len(grid)):
        right, below = k // (2 * reach + 1), k % (2 * reach + 1)
        expected = padded[:, below : below + size, right : right + size]
        torch.testing.assert_close(found[k], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("size", [7, 8])
def test_every_cutout_is_a_square_of_half_the_side_cut_at_the_border(size):
    side = int(size / 2 + 0.5)
    centres = size + 1 - side % 2
    grid = torch.cartesian_prod(*[(torch.arange(centres) + 0.5) / centres] * 2)
    ones = torch.ones(len(grid), 1, size, size)
    found = transformed(ones, "cutout", [[0, a, b, 0] for a, b in grid.tolist()])
    for k in range(len(grid)):
        expected = np.ones((size, size))
        top, left = k // centres - side // 2, k % centres - side // 2
        expected[max(top, 0) : top + side, max(left, 0) : left + side] = 0
        np.testing.assert_array_equal(found[k, 0].numpy(), expected)


@pytest.mark.parametrize("strategy", ["scale", "rotate"])
@given(a=st.floats(0, 0.999), b=st.floats(0, 0.999))
def test_scaling_and_rotation_equal_scipy(strategy, a, b):
    image = pictures(1, 9)
    if strategy == "scale":  # rows and columns of the source
        matrix = np.diag([1 / 1.2 + b * (1.2 - 1 / 1.2), 1 / 1.2 + a * (1.2 - 1 / 1.2)])
    else:
        angle = math.radians((2 * a - 1) * 15)
        matrix = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    centre = np.array([4.0, 4.0])
    given_ = matrix, centre - matrix @ centre
    channels = image[0].double().numpy()
    expected = [
        ndimage.affine_transform(of, *given_, order=1, mode="grid-constant") for of in channels
    ]
    found = transformed(image, strategy, [[0, a, b, 0]])[0].numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_draw_picks_one_transform_and_all_are_as_likely():
    """Half of the flips and one of 9 x 9 shifts do nothing."""
    many = drawn(ALL, 12_000, 32)
    colour = (many.colour != torch.tensor([0.0, 1, 1])).any(1)
    cut = (many.cutout != torch.tensor([0, -1, 0, -1])).any(1)
    linear, shift = many.affine[:, :, :2] - torch.eye(2), many.affine[:, :, 2]
    flip, crop, rotate = linear[:, 0, 0] == -2, (shift != 0).any(1), linear[:, 0, 1] != 0
    scale = (linear != 0).any(2).any(1) & ~flip & ~rotate
    kinds = torch.stack([colour, cut, flip, crop, rotate, scale], 1)
    assert kinds.sum(1).max() == 1
    assert not (many.mapped & (colour | cut)).any()
    assert many.mapped[flip | crop | rotate | scale].all()
    share = torch.tensor([1, 1, 1 / 2, 80 / 81, 1, 1]) / 6
    counts = torch.cat([kinds.sum(0), (~kinds.any(1)).sum()[None]])
    expected = torch.cat([share, 1 - share.sum(0, keepdim=True)]) * 12_000
    assert stats.chisquare(counts.numpy(), expected.numpy(), sum_check=False).pvalue > 1e-3


def test_draws_of_one_kind_share_the_transform_but_not_its_parameters():
    """As released: what a batch does is drawn once, how far is drawn for every image."""
    kinds = set()
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        drawn = draw_augmentation("color_cutout_rotate", 50, 16, generator, one_kind=True)
        coloured = (drawn.colour != torch.tensor([0.0, 1.0, 1.0])).any(1)
        cut = drawn.cutout[:, 1] >= drawn.cutout[:, 0]
        each = torch.stack([coloured, cut, drawn.mapped])
        assert (each.all(1) | ~each.any(1)).all() and each.any(1).sum() == 1
        kind = int(each[:, 0].nonzero())
        corners = drawn.cutout.float() @ torch.arange(1.0, 5.0)
        parameters = (drawn.colour[:, 0], corners, drawn.affine[:, 0, 0])
        assert len(parameters[kind].unique()) > 10
        kinds.add(kind)
    assert kinds == {0, 1, 2}


def test_two_batches_with_one_draw_are_transformed_alike():
    """In any place of any batch; a siamese draw depends on the stream only."""
    a, draws = pictures(6).contiguous(memory_format=torch.channels_last), drawn(ALL, 30)
    index, order = torch.tensor([4, 0, 29, 7, 7, 12]), torch.tensor([3, 5, 0, 2, 1, 4])
    together = augment(a, draws, index)
    assert together.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(augment(a[order], draws, index[order]), together[order])
    torch.testing.assert_close(augment(a, draws.select(index), torch.arange(6)), together)
    half = augment(a.bfloat16(), draws, index)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), together, atol=0.1, rtol=0.05)
    for seed in range(8):
        both = siamese_augment(a, ALL, Rng(seed).at("augment"))
        torch.testing.assert_close(siamese_augment(a[:3], ALL, Rng(seed).at("augment")), both[:3])


@pytest.mark.parametrize("part", ALL.split("_"))
def test_gradients_equal_finite_differences(part):
    images = pictures(3, 5, 2).double().requires_grad_()
    draws = drawn(part, 4, 5, seed=3)
    index = torch.tensor([0, 2, 3])
    torch.autograd.gradcheck(lambda x: augment(x, draws, index), (images,), atol=1e-5)
