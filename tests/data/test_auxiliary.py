"""Auxiliary images: against Pillow's resizing, by their source, and never the task's own."""

import attrs
import numpy as np
import pytest
import torch
from PIL import Image

from core.data import Split, load
from core.data.auxiliary import FRAMED_DIGITS, PHOTOGRAPHS, WINDOWS, auxiliary
from core.data.pixels import resized
from tests.data import layouts
from tests.sentences import refused


@pytest.fixture(scope="module")
def digits():
    return load("digits")


def test_a_window_is_a_part_of_a_resized_photograph(digits, tmp_path):
    """Twelve windows a side: 96 pixels high; Pillow's resizing of it holds our windows."""
    from sklearn.datasets import load_sample_images

    found = auxiliary(PHOTOGRAPHS, digits, tmp_path)
    assert found.shape == (WINDOWS, 1, 8, 8) and found.dtype == torch.uint8
    assert torch.equal(found, auxiliary(PHOTOGRAPHS, digits, tmp_path / "elsewhere"))
    assert len(torch.unique(found.flatten(1), dim=0)) > 0.9 * WINDOWS
    views = []
    for image in load_sample_images().images:
        grey = (np.asarray(image, float) @ [0.299, 0.587, 0.114]).astype(np.float32)
        small = np.asarray(Image.fromarray(grey).resize((144, 96), Image.Resampling.BILINEAR))
        cut = np.lib.stride_tricks.sliding_window_view(small, (8, 8))[::2, ::2]
        views.append(cut.reshape(-1, 8, 8))
    views, windows = np.concatenate(views), found[:, 0].numpy()
    low = views.min((1, 2), keepdims=True)
    span = np.maximum(views.max((1, 2), keepdims=True) - low, 1)
    views = 255 * (views - low) / span
    # most windows are cut at this scale, and each must be found again, but for the rounding that
    # stretching enlarges
    gap = [(np.abs(views - one).max((1, 2)) * span[:, 0, 0] / 255).min() for one in windows[:200]]
    assert np.mean(np.array(gap) <= 2.01) > 0.3
    assert (windows.min((1, 2)) == 0).all() and np.mean(windows.max((1, 2)) == 255) > 0.99


@pytest.mark.parametrize("size", [9, 32, 50])
def test_resizing_is_that_of_pillow(size):
    pixels = layouts.draw(0, 3, 32, 32, 3)[0]
    ours = resized(torch.from_numpy(pixels).permute(0, 3, 1, 2), 3, size).permute(0, 2, 3, 1)
    for image, own in zip(pixels, ours.numpy().astype(int), strict=True):
        theirs = Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR)
        assert np.abs(np.asarray(theirs, dtype=int) - own).max() <= 1


def test_framed_digits_have_the_margins_and_the_two_greys_of_mnist(digits, tmp_path):
    blank = Split(torch.zeros(1, 1, 28, 28, dtype=torch.uint8), torch.zeros(1).long())
    task = attrs.evolve(digits, name="mnist", train=blank, val=blank, test=blank)
    images = auxiliary(FRAMED_DIGITS, task, tmp_path)
    assert images.shape == (len(digits.train), 1, 28, 28)
    inner = images[:, :, 4:24, 4:24]
    assert int(images.long().sum()) == int(inner.long().sum()) > 0
    # twice the contrast: what was darker than a quarter is black, what was brighter than three
    # quarters white
    plain = resized(digits.train.images, 1, 20)
    assert bool((inner[plain <= 63] == 0).all()) and bool((inner[plain >= 192] == 255).all())
    assert inner[plain == 128].unique().tolist() in ([128], [129])


def test_colour_becomes_grey_by_luma_and_grey_becomes_colour_by_repetition():
    colours = torch.tensor([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]]).byte()
    grey = resized(colours[:, :, None, None].expand(-1, -1, 6, 6), 1, 4)
    assert grey[:, 0, 0, 0].tolist() == [76, 150, 29, 255] and len(grey[0].unique()) == 1
    back = resized(grey, 3, 4)
    assert back.shape == (4, 3, 4, 4) and torch.equal(back[:, 0], back[:, 2])


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("ham10000", "ham10000_melanoma"),
        ("dermamnist", "ham10000_32"),
        ("ham10000_64", "dermamnist"),
        ("organcmnist", "organsmnist"),
        ("cifar100", "cifar100_coarse"),
        ("stl10", "imagenette"),
        ("pneumoniamnist_64", "pneumoniamnist"),
        (FRAMED_DIGITS, "digits"),
        ("bloodmnist_pbc", "bloodmnist"),
    ],
)
def test_sets_from_the_same_source_are_refused(digits, tmp_path, name, task):
    other = attrs.evolve(digits, name=task)
    refused("another data set than the task", auxiliary, name, other, tmp_path)


def test_only_training_images_come_and_labels_do_not_matter(digits, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    wrote = layouts.npz(tmp_path / "a" / "other.npz", size=8)
    layouts.npz(tmp_path / "b" / "other.npz", size=8, train_labels=np.arange(12) % 2)
    images = auxiliary("other", digits, tmp_path / "a")
    assert np.array_equal(images[:, 0].numpy(), wrote["train_images"])
    assert torch.equal(images, auxiliary("other", digits, tmp_path / "b"))
    layouts.npz(tmp_path / "a" / "other.npz", size=8, train_images=255 - wrote["train_images"])
    assert torch.equal(auxiliary("other", digits, tmp_path / "a"), 255 - images)
    for name in ("nowhere", "../secret"):
        refused(None, auxiliary, name, digits, tmp_path)
