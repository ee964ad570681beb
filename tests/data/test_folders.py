"""Folders of images of one's own."""

import numpy as np
import pytest
import torch

from core import data
from core.data.folders import USUAL
from core.errors import InputError
from core.files import Busy, alone
from lab.__main__ import main

image = pytest.importorskip("PIL.Image")


def painted(folder, pixels, names=("cat", "dog"), parts=("train", "test"), ending="png", each=2):
    """So many files of each class and part with the same pixels, brighter by 10 for each class."""
    for part in parts:
        for label, name in enumerate(names):
            where = folder / part / name
            where.mkdir(parents=True, exist_ok=True)
            for number in range(each):
                image.fromarray((pixels + 10 * label).astype(pixels.dtype)).save(
                    where / f"{number}.{ending}"
                )
    return folder


def loaded(folder, tmp_path, size=None):
    path = data.convert("my_set", folder, tmp_path, size=size)
    assert path == tmp_path / "my_set.npz"
    return data.load("my_set", tmp_path)


def test_two_processes_do_not_write_one_file(tmp_path):
    folder = painted(tmp_path / "fine", np.zeros((8, 8), np.uint8))
    with alone(tmp_path / ".my_set.npz.lock", "it"), pytest.raises(Busy, match=r"my_set\.npz"):
        data.convert("my_set", folder, tmp_path)
    assert data.convert("my_set", folder, tmp_path).name == "my_set.npz"
    assert not list(tmp_path.glob("*.lock")) + list(tmp_path.glob("*.part"))


def test_grey_squares_keep_their_size_and_values(tmp_path):
    pixels = np.arange(81, dtype=np.uint8).reshape(9, 9)
    found = loaded(painted(tmp_path / "in", pixels), tmp_path)
    assert found.classes == ("cat", "dog")
    assert found.train.images.shape == (4, 1, 9, 9) and found.test.images.shape == (4, 1, 9, 9)
    assert found.train.labels.tolist() == found.test.labels.tolist() == [0, 0, 1, 1]
    assert torch.equal(found.train.images[0, 0], torch.from_numpy(pixels))
    assert torch.equal(found.train.images[3, 0], torch.from_numpy(pixels + 10))


def test_sixteen_bits_become_eight(tmp_path):
    pixels = np.array([[0, 257], [257 * 128 + 100, 65535 - 10]], dtype=np.uint16)
    found = loaded(painted(tmp_path / "in", pixels), tmp_path)
    assert found.train.images[0, 0].tolist() == [[0, 1], [128, 254]]


def test_other_shapes_become_squares_and_one_colour_image_makes_all_so(tmp_path):
    folder = painted(tmp_path / "in", np.full((30, 45), 40, dtype=np.uint8))
    painted(folder, np.full((30, 45, 3), 40, dtype=np.uint8), ("dog",), ("val",), "JPEG", 1)
    found = loaded(folder, tmp_path)
    assert found.train.images.shape == (4, 3, USUAL, USUAL) and len(found.val) == 1
    assert loaded(folder, tmp_path, size=12).train.images.shape == (4, 3, 12, 12)
    assert found.train.images[0].unique().tolist() == [40]


def test_what_is_missing_is_said(tmp_path):
    grey = np.zeros((8, 8), dtype=np.uint8)

    def refused(match, folder, **more):
        with pytest.raises(InputError, match=match):
            data.convert("my_set", folder, tmp_path, **more)

    refused("there is no folder", tmp_path / "no")
    (tmp_path / "empty").mkdir()
    refused("has no folder train.*brats2018", tmp_path / "empty")
    refused("train and test", painted(tmp_path / "one", grey, parts=("train",)))
    other = painted(painted(tmp_path / "other", grey), grey, ("cow",), ("test",))
    refused("test has classes that train lacks: cow", other)
    refused("fewer than two folders", painted(tmp_path / "alone", grey, ("cat",)))
    bare = painted(tmp_path / "bare", grey)
    (bare / "train" / "emu").mkdir()
    refused("no PNG or JPEG file of: emu", bare)
    broken = painted(tmp_path / "broken", grey)
    (broken / "train" / "cat" / "0.png").write_bytes(b"no image")
    refused(r"cat/0\.png cannot be read as an image", broken)
    refused("whole number of pixels", painted(tmp_path / "fine", grey), size=0)
    refused("at most 1,024", painted(tmp_path / "fine", grey), size=5000)
    with pytest.raises(InputError, match="set that is converted"):
        data.convert("mnist", tmp_path / "fine", tmp_path)


def test_hidden_folders_are_no_classes(tmp_path):
    painted(tmp_path / "pets", np.full((9, 9), 9, np.uint8))
    (tmp_path / "pets" / "train" / ".ipynb_checkpoints").mkdir()
    assert loaded(tmp_path / "pets", tmp_path).classes == ("cat", "dog")


def test_the_command_makes_a_set_that_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDCON_DATA", str(tmp_path))
    rng = np.random.default_rng(0)
    folder = painted(tmp_path / "in", rng.integers(0, 200, (10, 12), dtype=np.uint8), each=12)
    for said in ("my_set.npz\n", "my_set.npz (in the place of the one before)\n"):
        assert main(["data", "convert", "my_set", str(folder), "--size", "8"]) == 0
        assert capsys.readouterr().out.endswith(said)
    run = ["run", "--algorithm", "fedavg", "--dataset", "my_set", "--profile", "quick"]
    more = ["--rounds", "1", "--clients", "2", "--partition", "iid", "--out", str(tmp_path / "out")]
    assert main([*run, *more]) == 0
    assert "my_set" in capsys.readouterr().out
    assert main(["data", "list", "--size", "8"]) == 2


def test_twelve_bits_of_sixteen_keep_their_contrast(tmp_path):
    """As scanners write them: the brightest pixel of all files says how many bits are in use."""
    pixels = np.array([[0, 1024], [2048, 4085]], dtype=np.uint16)
    found = loaded(painted(tmp_path / "in", pixels), tmp_path)
    assert found.train.images[0, 0].tolist() == [[0, 63], [127, 254]]
    assert found.train.images[3, 0].tolist() == [[0, 64], [128, 255]]


@pytest.mark.parametrize("extra", ["scan.TIF", "more"])
def test_what_is_not_read_is_named(extra, tmp_path):
    folder = painted(tmp_path / "in", np.zeros((8, 8), np.uint8))
    place = folder / "train" / "cat" / extra
    place.write_bytes(b"II*") if "." in extra else place.mkdir()
    (folder / "train" / "cat" / "notes.txt").write_text("no image")
    with pytest.raises(InputError, match=rf"{extra} is not read"):
        data.convert("my_set", folder, tmp_path)
