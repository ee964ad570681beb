"""`load`, `get` and `available`: names, what is missing, downloads."""

from __future__ import annotations

import hashlib
import os
import re
import sys

import numpy as np
import pytest
import torch

from core.data import Dataset, Split, available, catalogue, get, is_made_here, load, present_names
from lab.__main__ import main
from tests.data import layouts
from tests.sentences import refused


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifar", "did you mean 'cifar10'"),
        ("own_64", "nor is there a file .*; `fedcon data` lists all"),
        ("chestmnist_64", "several labels per image"),
        ("../secret", "begins with a letter or digit"),
        (7, "begins with a letter or digit"),
        ("pathmnist_32", "pathmnist comes at 28, 64, 128 or 224 pixels, not 32"),
        ("cifar10_64", "cifar10 comes at 32 pixels, not 64"),
    ],
)
def test_wrong_requests(name, message, tmp_path):
    refused(message, load, name, tmp_path)


@pytest.mark.parametrize(
    ("name", "missing", "advice"),
    [
        ("cifar10", "cifar-10-batches-py/data_batch_1", "get it with: fedcon data get cifar10"),
        ("octmnist_224", "octmnist_224.npz", "fedcon data get octmnist_224"),
        ("ham10000_32", "ham10000_64.npz", "scale the images of doi:10.7910/DVN/DBW86T"),
        ("monuseg", "monuseg/manifest.json", "monuseg.grand-challenge.org"),
        ("isic2020", "isic2020.npz", "fedcon data convert isic2020 FOLDER"),
    ],
)
def test_missing_sets_say_where_and_how(name, missing, advice, tmp_path):
    text = refused("is not in", load, name, tmp_path)
    assert str(tmp_path) in text and f"(no {missing})" in text and advice in text


def test_every_set_of_the_catalogue_has_a_source_a_licence_and_a_way():
    assert {"isic2020", "brats2018", "mri_cross_domain_t2", "crc_cells"} <= set(catalogue.SOURCES)
    for name, source in catalogue.SOURCES.items():
        assert source.read in catalogue.READERS and source.origin and source.licence
        assert source.how_to_get(source.sizes[0]) and bool(source.folder) == (
            name in catalogue.CONVERSIONS
        )


def test_normalise_is_the_closed_form():
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1)
    part = Split(images, torch.tensor([0]))
    data = Dataset("x", part, part, part, ("a",), (0.5, 0.1, 0.2), (0.5, 0.2, 0.4), "")
    found = data.normalise(images)
    torch.testing.assert_close(found.flatten(), torch.tensor([-1.0, 0.5, 2.0]))
    for wrong in (images.float(), images[:, :1]):
        refused("normalise takes uint8 images of shape", data.normalise, wrong)


def test_fingerprint_is_sha256_of_arrays_shapes_and_dtypes(tmp_path):
    """With centres and places in the official file, where there are some."""
    numbers = np.arange(12)
    layouts.npz(tmp_path / "a.npz", train_centre=numbers % 2, train_index=numbers)
    data, digest = load("a", tmp_path), hashlib.sha256()
    for part in (data.train, data.val, data.test):
        arrays = [("uint8", part.images), ("int64", part.labels)]
        arrays += [("int64", one) for one in (part.centre, part.index) if one is not None]
        for kind, tensor in arrays:
            digest.update(f"torch.{kind}{tuple(tensor.shape)};".encode() + tensor.numpy().tobytes())
        digest.update(b"none;" if part.centre is None else b"")
    assert data.fingerprint == digest.hexdigest()


def test_root_comes_from_the_environment(tmp_path, monkeypatch):
    layouts.npz(tmp_path / "mine.npz")
    monkeypatch.setenv("FEDCON_DATA", str(tmp_path))
    assert load("mine").name == "mine" and {"mine", "digits", "digits_8"} <= present_names()
    monkeypatch.delenv("FEDCON_DATA")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "mine.npz").rename(tmp_path / "data" / "own.npz")
    assert load("own").name == "own"


def test_available_says_what_is_there_and_what_is_no_data_set(tmp_path, monkeypatch, capsys):
    layouts.npz(tmp_path / "mine.npz")
    layouts.npz(tmp_path / "pathmnist_64.npz", 64, 3, labels=9)
    layouts.npz(tmp_path / "digits.npz")
    layouts.npz(tmp_path / "floats.npz", train_images=np.full((12, 28, 28), 9.5))
    layouts.npz(tmp_path / "gaps.npz", train_labels=np.arange(12) % 2 * 2)
    np.savez(tmp_path / "other.npz", weights=np.zeros(3))
    (tmp_path / "broken.npz").write_bytes(b"PK")
    (tmp_path / "odd name.npz").write_bytes(b"PK")
    whole = (tmp_path / "mine.npz").read_bytes()
    version = whole.index(b"PK\x01\x02") + 6  # that a program needs to read it
    (tmp_path / "later.npz").write_bytes(whole[:version] + b"\xff" + whole[version + 1 :])
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "zero.npz").symlink_to("/dev/zero")
    rows = available(tmp_path)
    present = {"digits", "nuclei_drawn", "mri_drawn", "mine", "gaps", "floats", "pathmnist"}
    assert {row.name for row in rows if row.present} == present
    own = {row.name: row for row in rows if not row.sizes}
    none = {f"{name}.npz" for name in ("later", "other", "broken", "odd name", "pipe", "zero")}
    assert {name for name in own if not own[name].present} == none | {"digits.npz"}
    assert "known here; rename your file" in own["digits.npz"].how_to_get
    refused("digits is a data set that is known here; rename", load, "digits", tmp_path)
    known = {row.name: row for row in rows if row.sizes}
    assert known["pathmnist"].present_sizes == (64,)
    assert known["cifar10"].how_to_get == "fedcon data get cifar10"
    monkeypatch.setenv("FEDCON_DATA", str(tmp_path))
    assert main(["data"]) == 0
    out = capsys.readouterr().out
    assert "missing at 28" in out and "broken.npz            not a data set" in out
    assert "mine                  here, your own file" in out
    assert re.search("floats .*here, but .* from 0 to 1", out)
    assert re.search("gaps .*your own file, but no training image is of class 1", out)


def test_get_keeps_what_is_there_and_downloads_the_rest(tmp_path, monkeypatch):
    datasets = pytest.importorskip("torchvision.datasets")
    monkeypatch.setattr(datasets, "CIFAR10", lambda *_, **__: pytest.fail("downloads again"))
    layouts.cifar10(tmp_path)
    assert get("cifar10", tmp_path) == get("digits", tmp_path) == tmp_path
    root, calls = tmp_path / "new" / "folder", []

    def downloads(folder, train, download):
        calls.append((folder, train, download))
        layouts.mnist(root)

    monkeypatch.setattr(datasets, "MNIST", downloads)
    assert get("mnist", root) == root and len(load("mnist", root).train) == 20
    assert calls == [(str(root), True, True)]


def test_downloads_that_fail(tmp_path, monkeypatch):
    datasets = pytest.importorskip("torchvision.datasets")

    def no_network(*_, **__):
        raise OSError("no route\nto host")

    monkeypatch.setattr(datasets, "CIFAR10", no_network)
    refused(rf"downloaded to {tmp_path} \(OSError: no route to host\)", get, "cifar10", tmp_path)
    monkeypatch.setattr(datasets, "CIFAR10", lambda *_, **__: None)
    refused("its files are not where expected", get, "cifar10", tmp_path)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    refused("needs the package torchvision", get, "cifar10", tmp_path)
    refused("did you mean 'cifar10'", get, "cifar11", tmp_path)
    refused("cannot be downloaded by a program", get, "ham10000_64", tmp_path)
    (tmp_path / "file").write_text("")
    refused("could not be downloaded", get, "cifar10", tmp_path / "file")


def test_a_download_that_breaks_leaves_nothing_and_a_damaged_file_is_fetched_anew(
    tmp_path, monkeypatch
):
    """Libraries write under the final name: half a file would be taken for the set."""
    path = tmp_path / "breastmnist.npz"

    def broken(self, root, size):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    def whole(self, root, size):
        layouts.npz(path, 28, 1, labels=2)

    def getting(fetch):
        monkeypatch.setattr(catalogue.Source, "fetch", fetch)
        return get("breastmnist", tmp_path)

    with pytest.raises(KeyboardInterrupt):
        getting(broken)
    assert not path.exists()
    path.write_bytes(b"half")  # of an older program, or cut on its way
    refused("cannot be read as an npz file", load, "breastmnist", tmp_path)
    with pytest.warns(UserWarning, match="not the official file"):
        assert getting(whole) == tmp_path and len(load("breastmnist", tmp_path).train)
        assert getting(broken) == tmp_path  # what can be read is kept
    path.write_bytes(b"half")
    # as a library that looks at names only
    words = f"{path.name} .*; delete it, then get breastmnist again"
    refused(words, getting, lambda self, root, size: None)


def test_sets_that_are_put_together_here_may_change_under_their_names():
    made = ("hospital", "ham10000", "imagenette", "isic2020", "monuseg", "crc_cells")
    assert all(map(is_made_here, made))
    assert not any(map(is_made_here, ("digits", "nuclei_drawn", "mnist", "pathmnist", "cifar100")))
