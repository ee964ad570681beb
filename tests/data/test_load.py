"""Data sets that are as they should be."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections import Counter
from pathlib import Path

import attrs
import numpy as np
import pytest
import torch

from core.data import Dataset, Split, arrays, available, get, is_made_here, load, loading
from core.data.arrays import as_images, as_labels, halved, resized
from core.data.medical import CLASSES
from core.errors import InputError
from tests.data import layouts


def test_digits_are_those_of_scikit_learn_split_by_class():
    from sklearn.datasets import load_digits

    data = load("digits")
    source = load_digits()
    assert (data.channels, data.size, data.num_classes) == (1, 8, 10)
    counts = [
        torch.bincount(part.labels, minlength=10) for part in (data.train, data.val, data.test)
    ]
    total = torch.from_numpy(np.bincount(source.target))
    assert torch.equal(sum(counts), total)
    for count, share in zip(counts, (0.7, 0.1, 0.2), strict=True):
        assert (count - share * total).abs().max() <= 1

    # every image of the source comes back exactly once, with its label
    def key(pixels, label):
        return (np.rint(np.asarray(pixels) * (16 / 255)).astype(int).tobytes(), int(label))

    parts = (data.train, data.val, data.test)
    ours = [key(x[0], y) for part in parts for x, y in zip(part.images, part.labels, strict=True)]
    theirs = [
        (x.astype(int).tobytes(), int(y)) for x, y in zip(source.images, source.target, strict=True)
    ]
    assert Counter(ours) == Counter(theirs)
    assert load("digits").fingerprint == data.fingerprint


def test_normalise_is_the_closed_form():
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1)
    part = Split(images, torch.tensor([0]))
    data = Dataset("x", part, part, part, ("a",), (0.5, 0.1, 0.2), (0.5, 0.2, 0.4), "")
    assert torch.allclose(data.normalise(images).flatten(), torch.tensor([-1.0, 0.5, 2.0]))
    assert data.normalise(images).dtype == torch.float32
    assert torch.equal(images.flatten(), torch.tensor([0, 51, 255], dtype=torch.uint8))
    with pytest.raises(InputError, match="normalise takes uint8"):
        data.normalise(images.float())
    with pytest.raises(InputError, match=r"\(N, 3, H, W\)"):
        data.normalise(images[:, :1])


def test_normalise_agrees_with_torchvision(tmp_path):
    transforms = pytest.importorskip("torchvision.transforms.functional")
    layouts.cifar10(tmp_path)
    data = load("cifar10", tmp_path)
    theirs = transforms.normalize(data.test.images / 255, data.mean, data.std)
    assert torch.allclose(data.normalise(data.test.images), theirs, atol=1e-5)


def test_npz_grey_and_colour(tmp_path):
    for name, channels in (("grey", 1), ("colour", 3)):
        wrote = layouts.npz(tmp_path / f"{name}.npz", channels=channels)
        data = load(name, tmp_path)
        assert (data.name, data.channels, data.size, data.classes) == (
            name,
            channels,
            28,
            ("0", "1", "2"),
        )
        assert data.mean == data.std == (0.5,) * channels
        for split, part in (("train", data.train), ("val", data.val), ("test", data.test)):
            pixels = wrote[f"{split}_images"].reshape(len(part), 28, 28, channels)
            assert np.array_equal(part.images.permute(0, 2, 3, 1), pixels)
            assert np.array_equal(part.labels, wrote[f"{split}_labels"].ravel())
            assert part.images.is_contiguous()
            assert part.centre is None


def test_npz_without_validation_with_centres_and_classes(tmp_path):
    centre = np.arange(12, dtype=np.uint8) % 4
    layouts.npz(
        tmp_path / "own_64.npz",
        64,
        3,
        val=False,
        train_centre=centre,
        classes=np.array(["a", "b", "c", "d"]),
    )
    for data in (load("own_64", tmp_path), load("own", tmp_path, size=64)):
        assert len(data.val) == 0
        assert data.val.images.shape == (0, 3, 64, 64)
        assert data.classes == ("a", "b", "c", "d")
        assert torch.equal(data.train.centre, torch.from_numpy(centre.astype(np.int64)))
        assert data.test.centre is None


def test_fingerprint_is_sha256_of_arrays_shapes_and_dtypes(tmp_path):
    layouts.npz(tmp_path / "a.npz", val=False)
    data = load("a", tmp_path)
    digest = hashlib.sha256()
    for part in (data.train, data.val, data.test):
        digest.update(
            f"torch.uint8{tuple(part.images.shape)};".encode() + part.images.numpy().tobytes()
        )
        digest.update(
            f"torch.int64{tuple(part.labels.shape)};".encode()
            + part.labels.numpy().tobytes()
            + b"none;"
        )
    assert data.fingerprint == digest.hexdigest()


@pytest.mark.parametrize("change", ["pixel", "label", "centre", "order"])
def test_fingerprint_tells_changes(tmp_path, change):
    plain = layouts.npz(tmp_path / "a.npz", train_centre=np.zeros(12, dtype=np.int64))
    other = {key: value.copy() for key, value in plain.items()}
    if change == "pixel":
        other["test_images"][-1, -1, -1] ^= 1
    elif change == "label":
        other["val_labels"][0] ^= 1
    elif change == "centre":
        other["train_centre"][3] = 1
    else:
        other["train_images"] = other["train_images"][::-1]
    np.savez(tmp_path / "b.npz", **other)
    assert load("a", tmp_path).fingerprint != load("b", tmp_path).fingerprint


def test_resize_keeps_flat_images_and_chunks_agree():
    flat = torch.full((3, 1, 96, 96), 7, dtype=torch.uint8)
    assert torch.equal(resized(flat, 1, 32), torch.full((3, 1, 32, 32), 7, dtype=torch.uint8))


def test_root_comes_from_the_environment(tmp_path, monkeypatch):
    layouts.npz(tmp_path / "mine.npz")
    monkeypatch.setenv("FEDCON_DATA", str(tmp_path))
    assert load("mine").name == "mine"
    monkeypatch.delenv("FEDCON_DATA")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "mine.npz").rename(tmp_path / "data" / "own.npz")
    assert load("own").name == "own"


def test_available_says_what_is_there(tmp_path):
    layouts.npz(tmp_path / "mine.npz")
    layouts.npz(tmp_path / "pathmnist_64.npz", 64, 3, labels=9)
    np.savez(tmp_path / "other.npz", weights=np.zeros(3))
    (tmp_path / "broken.npz").write_bytes(b"PK")
    rows = {row.name: row for row in available(tmp_path)}
    assert rows["digits"].present
    assert rows["mine"].present
    assert not {"other", "broken", "pathmnist_64", "chestmnist"} & set(rows)
    assert rows["pathmnist"].present
    assert rows["pathmnist"].present_sizes == (64,)
    assert rows["cifar10"].how_to_get == "fedcon data get cifar10"
    assert {name for name, row in rows.items() if row.present} == {
        "digits",
        "nuclei_drawn",
        "mri_drawn",
        "mine",
        "pathmnist",
    }
    assert set(CLASSES) < set(rows)
    assert available(tmp_path / "nowhere")  # a folder that is not there holds nothing


def test_get_keeps_what_is_there(tmp_path, monkeypatch):
    datasets = pytest.importorskip("torchvision.datasets")
    monkeypatch.setattr(datasets, "CIFAR10", lambda *_, **__: pytest.fail("downloads again"))
    layouts.cifar10(tmp_path)
    assert get("cifar10", tmp_path) == tmp_path
    assert get("digits", tmp_path) == tmp_path


def test_load_downloads_when_asked(tmp_path, monkeypatch):
    datasets = pytest.importorskip("torchvision.datasets")
    root = tmp_path / "new" / "folder"
    calls = []

    def stand_in(folder, train, download):
        calls.append((folder, train, download))
        layouts.mnist(root)

    monkeypatch.setattr(datasets, "MNIST", stand_in)
    assert len(load("mnist", root, download=True).train) == 20
    assert calls == [(str(root), True, True)]


def test_arrays_accept_every_whole_number_dtype():
    for dtype in ("u1", "i1", ">i4", "<u8", "i8"):
        assert as_labels(np.array([[1], [0]], dtype=dtype), "x", 2, 2).tolist() == [1, 0]
    assert as_images(np.zeros((2, 5, 5, 1), dtype=np.uint8), "x").shape == (2, 1, 5, 5)


def test_half_the_size_is_the_mean_of_two_by_two_pixels() -> None:
    data = load("digits")
    small = halved(data, "digits_4")
    pixels = data.train.images.numpy().astype(float)
    means = pixels.reshape(len(pixels), 1, 4, 2, 4, 2).mean((3, 5)).round()
    assert small.name == "digits_4" and small.size == 4
    assert np.array_equal(small.train.images.numpy(), means.astype(np.uint8))
    assert (
        torch.equal(small.train.labels, data.train.labels) and small.fingerprint != data.fingerprint
    )
    odd = attrs.evolve(data, train=attrs.evolve(data.train, images=data.train.images[..., :7, :7]))
    with pytest.raises(InputError, match="cannot be halved"):
        halved(odd, "odd")


def test_large_sets_are_one_array_that_is_mapped_into_memory(monkeypatch, tmp_path):
    plain = load("digits")
    monkeypatch.setattr(arrays, "MAPPED", plain.train.images.nbytes)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mapped = load("digits")
    assert mapped.train.images.equal(plain.train.images)
    assert mapped.fingerprint == plain.fingerprint
    assert not list(tmp_path.iterdir())  # the file has no name
    if sys.platform == "linux":
        assert str(tmp_path) in Path("/proc/self/maps").read_text()
    monkeypatch.setattr(arrays, "MAPPED", plain.train.images.nbytes + 1)


def test_without_room_for_a_file_the_images_stay_in_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(arrays, "MAPPED", 1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert len(load("digits").train.images) == len(load("digits").train.labels)


def test_a_file_with_the_name_of_a_known_set_is_not_passed_over(tmp_path):
    layouts.npz(tmp_path / "digits.npz")
    with pytest.raises(InputError, match=r"digits is a data set that is known here; rename"):
        load("digits", tmp_path)
    layouts.npz(tmp_path / "breastmnist.npz", labels=2)  # its own layout
    with pytest.warns(UserWarning, match="not the official file"):
        assert load("breastmnist", tmp_path).num_classes == 2


def test_a_download_that_breaks_leaves_nothing_and_a_damaged_file_is_fetched_anew(
    tmp_path, monkeypatch
):
    """Libraries write under the final name: half a file would be taken for the set."""
    path = tmp_path / "breastmnist.npz"

    def broken(root, size):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    def whole(root, size):
        layouts.npz(path, 28, 1, labels=2)

    def getting(fetch):
        monkeypatch.setitem(
            loading.SOURCES,
            "breastmnist",
            attrs.evolve(loading.SOURCES["breastmnist"], fetch=fetch),
        )
        return get("breastmnist", tmp_path)

    with pytest.raises(KeyboardInterrupt):
        getting(broken)
    assert not path.exists()
    path.write_bytes(b"half")  # of an older program, or cut on its way
    with pytest.raises(InputError, match="get it again"):
        load("breastmnist", tmp_path)
    with pytest.warns(UserWarning, match="not the official file"):
        assert getting(whole) == tmp_path and len(load("breastmnist", tmp_path).train)
    assert getting(broken) == tmp_path  # what can be read is kept
    path.write_bytes(b"half")
    with pytest.raises(InputError, match=f"{path.name} .*; delete it, then get breastmnist again"):
        getting(lambda root, size: None)  # as a library that looks at names only


def test_sets_that_are_put_together_here_may_change_under_their_names():
    assert all(map(is_made_here, ("hospital", "ham10000", "imagenette", "isic2020")))
    assert not any(map(is_made_here, ("digits", "nuclei_drawn", "mnist", "pathmnist")))
