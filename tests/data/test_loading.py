"""`load`, `get` and `available`: names, what is missing, downloads."""

from __future__ import annotations

import hashlib
import os
import sys

import attrs
import numpy as np
import pytest
import torch

from core.data import Dataset, Split, available, catalogue, get, is_made_here, load, present_names
from core.errors import InputError
from lab.__main__ import main
from tests.data import layouts


def refused(message, name, root, **options):
    with pytest.raises(InputError, match=message) as caught:
        load(name, root, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("cifar", None, "did you mean 'cifar10'"),
        ("pneumonia_mnist", None, "did you mean 'pneumoniamnist'"),
        ("own_64", None, "nor is there a file .*; `fedcon data` lists all"),
        ("chestmnist_64", None, "several labels per image"),
        ("../secret", None, "begins with a letter or digit"),
        (7, None, "begins with a letter or digit"),
        ("pathmnist_32", None, "pathmnist comes at 28, 64, 128 or 224 pixels, not 32"),
        ("cifar10", 64, "cifar10 comes at 32 pixels, not 64"),
        ("pathmnist_64", 28, "asks for 64 pixels but size for 28"),
        ("pathmnist", "28", "size must be a whole number"),
    ],
)
def test_wrong_requests(name, size, message, tmp_path):
    refused(message, name, tmp_path, size=size)


@pytest.mark.parametrize(
    ("name", "missing", "advice"),
    [
        ("cifar10", "cifar-10-batches-py/data_batch_1", "get it with: fedcon data get cifar10"),
        ("svhn", "train_32x32.mat", "fedcon data get svhn"),
        ("octmnist_224", "octmnist_224.npz", "fedcon data get octmnist_224"),
        ("ham10000_32", "ham10000_64.npz", "scale the images of doi:10.7910/DVN/DBW86T"),
        ("isic2020", "isic2020.npz", "challenge2020.isic-archive.com"),
        ("monuseg", "monuseg/manifest.json", "monuseg.grand-challenge.org"),
        (
            "nuclei_cross_site",
            "nuclei_cross_site.npz",
            "fedcon data convert nuclei_cross_site FOLDER",
        ),
    ],
)
def test_missing_sets_say_where_and_how(name, missing, advice, tmp_path):
    text = refused("is not in", name, tmp_path)
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
    assert (
        torch.allclose(found.flatten(), torch.tensor([-1.0, 0.5, 2.0]))
        and found.dtype == torch.float32
    )
    assert torch.equal(images.flatten(), torch.tensor([0, 51, 255], dtype=torch.uint8))
    for wrong in (images.float(), images[:, :1]):
        with pytest.raises(
            InputError, match=r"normalise takes uint8 images of shape \(N, 3, H, W\)"
        ):
            data.normalise(wrong)


def test_fingerprint_is_sha256_of_arrays_shapes_and_dtypes(tmp_path):
    layouts.npz(tmp_path / "a.npz", val_images=None, val_labels=None)
    data, digest = load("a", tmp_path), hashlib.sha256()
    for part in (data.train, data.val, data.test):
        for kind, tensor in (("uint8", part.images), ("int64", part.labels)):
            digest.update(f"torch.{kind}{tuple(tensor.shape)};".encode() + tensor.numpy().tobytes())
        digest.update(b"none;")
    assert data.fingerprint == digest.hexdigest()


@pytest.mark.parametrize(
    "change", ["test_images", "val_labels", "train_centre", "train_index", "order"]
)
def test_fingerprint_tells_changes(tmp_path, change):
    numbers = np.arange(12)
    plain = layouts.npz(tmp_path / "a.npz", train_centre=numbers % 2, train_index=numbers)
    other = {key: value.copy() for key, value in plain.items()}
    if change == "order":
        other["train_images"] = other["train_images"][::-1]
    else:
        other[change].flat[0] ^= 1
    np.savez(tmp_path / "b.npz", **other)
    assert load("a", tmp_path).fingerprint != load("b", tmp_path).fingerprint


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
    np.savez(tmp_path / "other.npz", weights=np.zeros(3))
    (tmp_path / "broken.npz").write_bytes(b"PK")
    (tmp_path / "odd name.npz").write_bytes(b"PK")
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "zero.npz").symlink_to("/dev/zero")
    rows = available(tmp_path)
    assert {row.name for row in rows if row.present} == {
        *("digits", "nuclei_drawn", "mri_drawn", "mine", "pathmnist")
    }
    own = {row.name: row for row in rows if not row.sizes}
    assert {name for name in own if not own[name].present} == {
        *("other.npz", "broken.npz", "odd name.npz", "pipe.npz", "zero.npz", "digits.npz")
    }
    assert "known here; rename your file" in own["digits.npz"].how_to_get
    with pytest.raises(InputError, match=r"digits is a data set that is known here; rename"):
        load("digits", tmp_path)
    known = {row.name: row for row in rows if row.sizes}
    assert known["pathmnist"].present_sizes == (64,)
    assert known["cifar10"].how_to_get == "fedcon data get cifar10"
    assert available(tmp_path / "nowhere")  # a folder that is not there holds nothing
    monkeypatch.setenv("FEDCON_DATA", str(tmp_path))
    assert main(["data"]) == 0
    out = capsys.readouterr().out
    assert "missing at 28" in out and "broken.npz            not a data set" in out
    assert "mine                  here, your own file" in out


def test_get_keeps_what_is_there_and_load_downloads_when_asked(tmp_path, monkeypatch):
    datasets = pytest.importorskip("torchvision.datasets")
    monkeypatch.setattr(datasets, "CIFAR10", lambda *_, **__: pytest.fail("downloads again"))
    layouts.cifar10(tmp_path)
    assert get("cifar10", tmp_path) == get("digits", tmp_path) == tmp_path
    root, calls = tmp_path / "new" / "folder", []

    def downloads(folder, train, download):
        calls.append((folder, train, download))
        layouts.mnist(root)

    monkeypatch.setattr(datasets, "MNIST", downloads)
    assert len(load("mnist", root, download=True).train) == 20
    assert calls == [(str(root), True, True)]


def test_downloads_that_fail(tmp_path, monkeypatch):
    datasets = pytest.importorskip("torchvision.datasets")

    def no_network(*_, **__):
        raise OSError("no route\nto host")

    monkeypatch.setattr(datasets, "CIFAR10", no_network)
    message = r"could not be downloaded to .* \(OSError: no route to host\)"
    assert str(tmp_path) in refused(message, "cifar10", tmp_path, download=True)
    monkeypatch.setattr(datasets, "CIFAR10", lambda *_, **__: None)
    with pytest.raises(InputError, match="its files are not where expected"):
        get("cifar10", tmp_path)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(InputError, match="needs the package torchvision"):
        get("cifar10", tmp_path)
    with pytest.raises(InputError, match="did you mean 'cifar10'"):
        get("cifar11", tmp_path)
    with pytest.raises(InputError, match="cannot be downloaded by a program"):
        get("ham10000_64", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="could not be downloaded"):
        get("cifar10", tmp_path / "file")


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
    refused("cannot be read as an npz file", "breastmnist", tmp_path)
    with pytest.warns(UserWarning, match="not the official file"):
        assert getting(whole) == tmp_path and len(load("breastmnist", tmp_path).train)
        assert getting(broken) == tmp_path  # what can be read is kept
    path.write_bytes(b"half")
    with pytest.raises(InputError, match=f"{path.name} .*; delete it, then get breastmnist again"):
        getting(lambda self, root, size: None)  # as a library that looks at names only


def test_sets_that_are_put_together_here_may_change_under_their_names():
    made = ("hospital", "ham10000", "imagenette", "isic2020", "monuseg", "crc_cells")
    assert all(map(is_made_here, made))
    assert not any(map(is_made_here, ("digits", "nuclei_drawn", "mnist", "pathmnist", "cifar100")))


def test_with_validation_holds_a_tenth_out():
    from core.data import with_validation
    from core.rng import Rng

    data = load("digits")
    assert with_validation(data, Rng(0)) is data
    none = attrs.evolve(data, val=data.val.rows(torch.arange(0)))
    found = with_validation(none, Rng(0))
    assert len(found.val) == -(-len(data.train) // 10) == len(found.held_out.unique())
    assert torch.equal(found.val.images, data.train.images[found.held_out])
    assert found.train is none.train
    with pytest.raises(InputError, match="patches of the same pictures are none"):
        with_validation(load("nuclei_drawn"), Rng(0))
