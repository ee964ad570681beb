"""Auxiliary images: against Pillow's resizing, by their source, and never the task's own."""

import attrs
import numpy as np
import pytest
import torch

from core.data import Split, load
from core.data.arrays import resized
from core.data.auxiliary import FRAMED_DIGITS, PHOTOGRAPHS, WINDOWS, auxiliary
from core.errors import InputError
from tests.data import layouts

Image = pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def digits():
    return load("digits")


def test_photographs_are_at_hand_in_the_form_of_the_task(digits, tmp_path):
    first = auxiliary(PHOTOGRAPHS, digits, tmp_path)
    assert first.shape == (WINDOWS, 1, 8, 8) and first.dtype == torch.uint8
    assert torch.equal(first, auxiliary(PHOTOGRAPHS, digits, tmp_path / "elsewhere"))
    assert len(torch.unique(first.flatten(1), dim=0)) > 0.9 * WINDOWS


def test_a_window_is_a_part_of_a_resized_photograph(digits, tmp_path):
    """At twelve windows a side the photograph is 96 pixels high; Pillow's own resizing of it holds
    our windows.
    """
    from sklearn.datasets import load_sample_images

    grey = [
        np.asarray(image, float) @ [0.299, 0.587, 0.114] for image in load_sample_images().images
    ]
    small = [
        np.asarray(
            Image.fromarray(image.astype(np.float32)).resize((144, 96), Image.Resampling.BILINEAR)
        )
        for image in grey
    ]
    windows = auxiliary(PHOTOGRAPHS, digits, tmp_path)[:, 0].numpy()
    views = np.concatenate(
        [
            np.lib.stride_tricks.sliding_window_view(image, (8, 8))[::2, ::2].reshape(-1, 8, 8)
            for image in small
        ]
    )
    low, high = (edge(views, axis=(1, 2), keepdims=True) for edge in (np.min, np.max))
    views, range_ = (
        255 * (views - low) / np.maximum(high - low, 1),
        np.maximum(high - low, 1)[:, 0, 0],
    )
    # most windows are cut at this scale, and each must be found again, but for the rounding that
    # stretching enlarges
    near = [
        (np.abs(views - window).max((1, 2)) * range_ / 255).min() <= 2.01
        for window in windows[:200]
    ]
    assert np.mean(near) > 0.3
    assert (windows.min((1, 2)) == 0).all() and np.mean(windows.max((1, 2)) == 255) > 0.99


@pytest.mark.parametrize("size", [9, 32, 50])
def test_resizing_is_that_of_pillow(size):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    ours = resized(torch.from_numpy(pixels).permute(0, 3, 1, 2), 3, size)
    for image, mine in zip(pixels, ours, strict=True):
        theirs = np.asarray(
            Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR), dtype=int
        )
        assert np.abs(theirs - mine.permute(1, 2, 0).numpy().astype(int)).max() <= 1


def test_framed_digits_have_the_margins_and_the_two_greys_of_mnist(digits, tmp_path):
    task = attrs.evolve(
        digits,
        name="mnist",
        **{
            word: Split(
                torch.zeros(1, 1, 28, 28, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
            )
            for word in ("train", "val", "test")
        },
    )
    images = auxiliary(FRAMED_DIGITS, task, tmp_path)
    assert images.shape == (len(digits.train), 1, 28, 28)
    inner = images[:, :, 4:24, 4:24]
    assert int(images.long().sum()) == int(inner.long().sum()) > 0
    # twice the contrast: what was darker than a quarter is black, what was brighter than three
    # quarters white
    plain = resized(digits.train.images, 1, 20)
    assert bool((inner[plain <= 63] == 0).all()) and bool((inner[plain >= 192] == 255).all())
    assert inner[plain == 128].unique().tolist() in ([128], [129])
    with pytest.raises(InputError):
        auxiliary(FRAMED_DIGITS, digits, tmp_path)


def test_colour_becomes_grey_by_luma_and_grey_becomes_colour_by_repetition():
    colours = torch.tensor(
        [[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]], dtype=torch.uint8
    )
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
    ],
)
def test_sets_from_the_same_source_are_refused(digits, tmp_path, name, task):
    with pytest.raises(InputError, match="another data set"):
        auxiliary(name, attrs.evolve(digits, name=task), tmp_path)


def test_only_training_images_come_and_labels_do_not_matter(digits, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    wrote = layouts.npz(tmp_path / "a" / "other.npz", size=8)
    layouts.npz(tmp_path / "b" / "other.npz", size=8, train_labels=np.zeros((12, 1), np.uint8))
    images = auxiliary("other", digits, tmp_path / "a")
    assert np.array_equal(images[:, 0].numpy(), wrote["train_images"])
    assert torch.equal(images, auxiliary("other", digits, tmp_path / "b"))


@pytest.mark.parametrize("name", ["digits", "nowhere", "../secret"])
def test_the_task_itself_and_what_is_not_there_are_refused(digits, tmp_path, name):
    with pytest.raises(InputError):
        auxiliary(name, digits, tmp_path)


@pytest.mark.parametrize(
    ("task", "other"),
    [
        ("pneumoniamnist", "pneumoniamnist_64"),
        ("cifar100", "cifar100_coarse"),
        ("ham10000_64", "ham10000_64"),
    ],
)
def test_the_task_at_another_size_or_with_other_labels_is_refused(digits, tmp_path, task, other):
    with pytest.raises(InputError, match="another data set than the task"):
        auxiliary(other, attrs.evolve(digits, name=task), tmp_path)
