"""Folders of images of one's own: what is read, what is told, and that nothing is passed over."""

import numpy as np
import pytest
import torch
from PIL import Image

from core import data
from core.data.folders import USUAL
from core.files import Busy, alone
from tests.data.layouts import png
from tests.sentences import refused

GREY = np.zeros((8, 8), np.uint8)


def painted(folder, pixels, names=("cat", "dog"), parts=("train", "test"), ending="png", each=2):
    """So many files of each class and part with the same pixels, brighter by 10 for each class."""
    for part in parts:
        for label, name in enumerate(names):
            place = folder / part / name
            place.mkdir(parents=True, exist_ok=True)
            for number in range(each):
                shade = (pixels + 10 * label).astype(pixels.dtype)
                Image.fromarray(shade).save(place / f"{number}.{ending}")
    return folder


def loaded(folder, tmp_path, **more):
    path = data.convert("my_set", folder, tmp_path, **more)
    assert path == tmp_path / "my_set.npz"
    return data.load("my_set", tmp_path)


def test_grey_squares_keep_their_size_and_values(tmp_path):
    pixels = np.arange(81, dtype=np.uint8).reshape(9, 9)
    found = loaded(painted(tmp_path / "in", pixels), tmp_path)
    assert found.classes == ("cat", "dog") and found.sites == ()
    assert found.train.images.shape == (4, 1, 9, 9) and found.test.images.shape == (4, 1, 9, 9)
    assert found.train.labels.tolist() == found.test.labels.tolist() == [0, 0, 1, 1]
    assert torch.equal(found.train.images[0, 0], torch.from_numpy(pixels))
    assert torch.equal(found.train.images[3, 0], torch.from_numpy(pixels + 10))


def test_twelve_bits_of_sixteen_keep_their_contrast(tmp_path):
    """As scanners write them: the brightest pixel of all files says how many bits are in use."""
    pixels = np.array([[0, 1024], [2048, 4085]], dtype=np.uint16)
    folder = painted(tmp_path / "in", pixels)
    assert loaded(folder, tmp_path).train.images[3, 0].tolist() == [[1, 64], [128, 255]]
    (folder / "test/dog/1.png").write_bytes(png(np.stack([pixels] * 3, 2), 2, 16))
    refused("colours or transparency of more than 8 bits", data.convert, "my_set", folder, tmp_path)


def test_other_shapes_become_squares_and_one_colour_image_makes_all_so(tmp_path):
    folder, told = painted(tmp_path / "in", np.full((30, 45), 40, dtype=np.uint8)), []
    painted(folder, np.full((30, 45, 3), 40, dtype=np.uint8), ("dog",), ("val",), "JPEG", 1)
    found = loaded(folder, tmp_path, tell=told.append)
    assert found.train.images.shape == (4, 3, USUAL, USUAL) and len(found.val) == 1
    assert told == [
        "train: cat 2, dog 2",
        "val: dog 1",
        "test: cat 2, dog 2",
        f"{USUAL} by {USUAL} pixels, colour; resized: 9 of 9",
    ]
    assert loaded(folder, tmp_path, size=12).train.images.shape == (4, 3, 12, 12)
    assert found.train.images[0].unique().tolist() == [40]


def test_hospitals_are_centres_with_names(tmp_path):
    folder, told = tmp_path / "in", []
    for hospital in ("Zürich", "Bern"):
        painted(folder, GREY, parts=(f"train/{hospital}", f"test/{hospital}"))
    painted(folder, GREY, ("dog",), ("train/Genf",), each=3)
    found = loaded(folder, tmp_path, tell=told.append)
    assert found.sites == ("Bern", "Genf", "Zürich") and found.classes == ("cat", "dog")
    assert found.train.centre.tolist() == [0] * 4 + [1] * 3 + [2] * 4
    assert found.train.labels.tolist() == [0, 0, 1, 1] + [1] * 3 + [0, 0, 1, 1]
    assert found.test.centre.tolist() == [0] * 4 + [2] * 4
    assert "train, by hospital: Bern 4, Genf 3, Zürich 4" in told


def test_what_is_missing_is_said(tmp_path):
    def no(words, folder, **more):
        refused(words, data.convert, "my_set", folder, tmp_path, **more)

    fine = painted(tmp_path / "fine", GREY)
    no("whole number of pixels", fine, size=0)
    no("at most 1,024", fine, size=5000)
    no("there is no folder", tmp_path / "no")
    (tmp_path / "empty").mkdir()
    no("has no folder train.*brats2018", tmp_path / "empty")
    no("train and test", painted(tmp_path / "one", GREY, parts=("train",)))
    no("fewer than two classes", painted(tmp_path / "alone", GREY, ("cat",)))
    (fine / "train" / "cat" / "0.png").write_bytes(b"no image")
    no(r"cat/0\.png cannot be read as an image", fine)
    refused("set that is converted", data.convert, "mnist", fine, tmp_path)
    twins = painted(tmp_path / "twins", GREY, ("\u00e9", "e\u0301"))
    refused("at least two different names", data.convert, "my_set", twins, tmp_path)


@pytest.mark.parametrize("place", ["", "train", "train/cat", "test"])
@pytest.mark.parametrize("name", ["scan.dcm", "scan", "more/", "image.jpg"])
def test_every_visible_file_and_folder_is_accounted_for(tmp_path, place, name):
    folder = painted(tmp_path / "in", GREY)
    path = folder / place / name
    path.mkdir() if name.endswith("/") else path.write_bytes(b"II*")
    if name == "more/" and place in ("train", "test"):
        refused("lacks: more|no image of: more", data.convert, "my_set", folder, tmp_path)
    elif name == "image.jpg" and place == "train/cat":
        refused("cannot be read as an image", data.convert, "my_set", folder, tmp_path)
    else:
        refused("is not read", data.convert, "my_set", folder, tmp_path)


@pytest.mark.parametrize("ending", ["jfif", "jpe", "bmp", "gif", "tif", "webp", "pgm", "JPG"])
def test_what_pillow_reads_is_read_and_hidden_names_and_texts_may_lie_anywhere(tmp_path, ending):
    folder = painted(tmp_path / "in", GREY, ending=ending)
    for place in (folder, folder / "train", folder / "train" / "cat"):
        (place / ".ipynb_checkpoints").mkdir()
        (place / "._0.jpg").write_bytes(b"\0\5\x16\7")
        (place / "notes.TXT").write_text("no image")
    assert len(loaded(folder, tmp_path).train) == 4


def test_two_processes_do_not_write_one_file(tmp_path):
    folder = painted(tmp_path / "fine", GREY)
    with alone(tmp_path / ".my_set.npz.lock", "it"), pytest.raises(Busy, match=r"my_set\.npz"):
        data.convert("my_set", folder, tmp_path)
