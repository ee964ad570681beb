"""Data sets of one's own arrays and torch data sets, and the layout of npz files, which is the same."""

import unicodedata

import numpy as np
import pytest
import torch

from core.data import Dataset, Split, load, partition
from tests.data import layouts
from tests.sentences import refused

PIXELS, NUMBERS = layouts.draw(0, 12, 6, 6, 3, classes=3)
NAMES = np.array(["cat", "dog", "eel"])


def pair(pixels=PIXELS, labels=NUMBERS):
    return pixels, labels


def test_statistics_are_those_of_the_training_pixels():
    found = Dataset.from_arrays(pair(), pair(255 - PIXELS))
    scaled = PIXELS.reshape(-1, 3) / 255
    assert found.mean == pytest.approx(scaled.mean(0).tolist())
    assert found.std == pytest.approx(scaled.std(0).tolist())
    normal = found.normalise(found.train.images)
    torch.testing.assert_close(normal.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    flat = Dataset.from_arrays(pair(PIXELS * 0), pair())
    assert torch.isfinite(flat.normalise(flat.train.images)).all()


COLOURS_FIRST = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)
IMAGES = [PIXELS.astype(int), PIXELS / 255, PIXELS.astype(np.uint16) * 257]
IMAGES += [(PIXELS / 255).astype(np.float32), COLOURS_FIRST, COLOURS_FIRST / 255]
LABELS = [NUMBERS, NUMBERS[:, None], NAMES[NUMBERS], NAMES[NUMBERS, None]]


@pytest.mark.parametrize("images", IMAGES)
@pytest.mark.parametrize("labels", LABELS)
def test_the_same_images_in_other_types_are_the_same(images, labels):
    wanted = Dataset.from_arrays(pair(), pair()).fingerprint
    found = Dataset.from_arrays((images, labels), (images, labels))
    assert found.fingerprint == wanted
    assert found.classes == (tuple(NAMES) if labels.dtype.kind == "U" else ("0", "1", "2"))


def pairs(as_image):
    """Images and labels one by one, as a torch `Dataset` gives them."""
    return [(as_image(image), int(label)) for image, label in zip(*pair(), strict=True)]


def test_a_torch_dataset_is_one_too():
    image = pytest.importorskip("PIL.Image")
    wanted = Dataset.from_arrays(pair(), pair()).fingerprint
    tensors = torch.utils.data.TensorDataset(COLOURS_FIRST / 255, torch.from_numpy(NUMBERS))
    for given_ in (tensors, pairs(image.fromarray), pairs(lambda a: a)):
        assert Dataset.from_arrays(given_, given_).fingerprint == wanted


def test_other_shapes_are_resized_to_squares_of_their_longer_side():
    found = Dataset.from_arrays(pair(PIXELS[:, :4]), pair(PIXELS[:, :4]), val=pair(PIXELS[:, :4]))
    assert {part.images.shape for part in (found.train, found.val, found.test)} == {(12, 3, 6, 6)}
    flat = Dataset.from_arrays(*[pair(np.full((12, 3, 9), 7))] * 2)
    assert flat.train.images.unique().tolist() == [7]


def test_clients_may_have_names_in_several_parts():
    clients = {"train": np.array(["b", "a", "c"])[NUMBERS], "test": ["c"] * 12}
    found = Dataset.from_arrays(pair(), pair(), clients=clients)
    assert found.sites == ("a", "b", "c") and found.test.centre.tolist() == [2] * 12
    assert [len(part) for part in partition.natural(found.train.centre)] == [4, 4, 4]
    numbered = Dataset.from_arrays(pair(), pair(), clients=NUMBERS)
    assert numbered.train.centre.tolist() == NUMBERS.tolist()


composed, split_up = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))


def test_one_name_in_two_spellings_is_one_class():
    found = Dataset.from_arrays(
        (PIXELS[:2], [composed, "e"]), (PIXELS[:2], [split_up, "e"]), classes=["e", split_up]
    )
    assert found.train.labels.tolist() == found.test.labels.tolist() == [1, 0]
    classes = [composed, split_up, "e"]
    refused("two different names", Dataset.from_arrays, pair(), pair(), classes=classes)
    for names in ([composed, split_up], ["e", "e"]):  # of images to train on
        named = PIXELS[:2], names
        words = "train_labels must be at least two different names"
        refused(words, Dataset.from_arrays, named, named)


BAD = {
    "must hold pixels from 0 to 1 in floating point": pair(PIXELS.astype(float)),
    "must hold pixels 0 or above": pair(PIXELS.astype(int) - 1),
    "from 0 to 1 .*nan": pair(np.full((12, 6, 6), np.nan)),
    "must hold numbers, not <U1": pair(np.full((12, 6, 6), "a")),
    "must have shape": pair(PIXELS[..., :2]),
    r"must have shape .* not \(12, 0": pair(PIXELS[:, :0]),
    "must have shape .* not \\(12, 36": pair(PIXELS[..., 0].reshape(12, 36)),
    "split is empty": pair(PIXELS[:0], NUMBERS[:0]),
    "holds 11 values for 12 images": pair(labels=NUMBERS[:11]),
    "one value per image": pair(labels=np.zeros((12, 14), int)),
    "the negative number -1": pair(labels=NUMBERS - 1),
    "whole numbers, one per image, not float64": pair(labels=NUMBERS * 1.0),
    "which is no class": pair(labels=NUMBERS + 2**31),
    "no image has the label 0": pair(labels=NUMBERS + 1),
    "are of one class": pair(labels=NUMBERS * 0),
    "labels go up to 24 although": pair(labels=NUMBERS * 12),
    "a pair|images and labels": PIXELS,
    "images and labels, or a torch Dataset": 7,
    "of one shape": pairs(lambda a: a[: int(a[0, 0, 0]) % 5 + 1]),
    "has no array 'train_images'": None,
}


@pytest.mark.parametrize("words", BAD)
def test_what_does_not_fit_is_one_line(words):
    bad = BAD[words]
    given = bad, bad if isinstance(bad, tuple) else pair()
    assert len(refused(words, Dataset.from_arrays, *given)) < 400


def test_names_that_do_not_fit_are_one_line():
    named = pair(labels=NAMES[NUMBERS])
    for words, more in {
        "holds 'eel', which is none of": {"classes": ["cat", "dog"]},
        "classes must be a list of names": {"classes": [1, 2, 3]},
        "two different names": {"classes": ["cat", "cat", "eel"]},
        "must be printable": {"classes": ["cat", "dog", "\ud800"]},
        "printable, not 'a.n'": {"clients": ["a\n", "b"] * 6},
        "train_centre holds 2 values": {"clients": ["a", "b"]},
    }.items():
        refused(words, Dataset.from_arrays, named, named, **more)
    refused("must hold names, as other parts do", Dataset.from_arrays, named, pair())
    with pytest.warns(UserWarning, match="up to 11, but only 4 of these numbers have an image"):
        Dataset.from_arrays(pair(labels=np.array([0, 1, 11] * 4)), pair())


def test_an_npz_file_is_the_same(tmp_path):
    index, centre = np.arange(12)[::-1] + 5, np.array(["b", "a"] * 6)
    wrote = layouts.npz(tmp_path / "own.npz", 8, 3, train_index=index, train_centre=centre)
    found = load("own", tmp_path)
    assert (found.name, found.channels, found.size, found.classes) == ("own", 3, 8, ("0", "1", "2"))
    assert found.mean == found.std == (0.5,) * 3
    assert found.train.index.tolist() == index.tolist() and found.sites == ("a", "b")
    for split, part in (("train", found.train), ("val", found.val), ("test", found.test)):
        assert np.array_equal(part.images.permute(0, 2, 3, 1), wrote[f"{split}_images"])
        assert np.array_equal(part.labels, wrote[f"{split}_labels"].ravel())
    layouts.npz(tmp_path / "own_64.npz", 64, val_images=None, val_labels=None, classes=NAMES)
    found = load("own_64", tmp_path)
    assert found.val.images.shape == (0, 1, 64, 64) and found.classes == tuple(NAMES)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": torch.zeros(2, 1, 4, 4)}, "images must be squares, uint8"),
        ({"images": torch.zeros(2, 1, 4, 3, dtype=torch.uint8)}, "images must be squares"),
        ({"labels": torch.zeros(1).long()}, "labels must be torch.int64, one per image"),
        ({"labels": torch.zeros(2).int()}, "labels must be torch.int64"),
        ({"centre": torch.zeros(1).long()}, "centre must be torch.int64"),
        ({"masks": torch.zeros(3, 4, 4).byte()}, "masks must be torch.uint8, one per pixel of 2"),
        ({"masks": torch.zeros(2, 4, 4)}, "masks must be torch.uint8"),
    ],
)
def test_splits_that_do_not_fit_together(changes, words):
    given = {"images": torch.zeros(2, 1, 4, 4).byte(), "labels": torch.zeros(2).long()}
    refused(words, Split, **given | changes)
