"""The public data sets, each read from the layout in which it is published."""

from __future__ import annotations

import hashlib
import pickle
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from core.data import catalogue, get, load
from core.data.catalogue import SOURCES
from core.data.partition import split
from core.data.pixels import resized
from core.data.vision import IMAGENETTE
from tests.data import layouts
from tests.sentences import refused

MEDMNIST = [name for name, source in SOURCES.items() if source.read == "medmnist"]


@pytest.fixture
def datasets():
    return pytest.importorskip("torchvision.datasets")


def test_digits_are_those_of_scikit_learn_split_by_class():
    from sklearn.datasets import load_digits

    data, source = load("digits"), load_digits()
    parts, total = (data.train, data.val, data.test), np.bincount(source.target)
    counts = [np.bincount(part.labels, minlength=10) for part in parts]
    assert np.array_equal(sum(counts), total)
    for count, share in zip(counts, (0.7, 0.1, 0.2), strict=True):
        assert np.abs(count - share * total).max() <= 1
    # every image of the source comes back exactly once, with its label
    ours = [
        (np.rint(np.asarray(x) * (16 / 255)).astype(int).tobytes(), int(y))
        for part in parts
        for x, y in zip(part.images, part.labels, strict=True)
    ]
    theirs = zip(source.images.astype(int), source.target, strict=True)
    assert sorted(ours) == sorted((x.tobytes(), int(y)) for x, y in theirs)


def test_the_names_are_medmnists_and_an_official_file_is_silent(tmp_path, monkeypatch, recwarn):
    medmnist = pytest.importorskip("medmnist")
    flat = {
        name
        for name, row in medmnist.INFO.items()
        if "3d" not in name and "multi-label" not in row["task"]
    }
    assert flat == set(MEDMNIST)
    assert all(medmnist.INFO[name]["license"] == SOURCES[name].licence for name in MEDMNIST)
    path = tmp_path / "breastmnist.npz"
    layouts.npz(path, labels=2)
    assert catalogue._medmnist_info() == medmnist.INFO
    info = medmnist.INFO["breastmnist"] | {"MD5": hashlib.md5(path.read_bytes()).hexdigest()}
    monkeypatch.setattr(catalogue, "_medmnist_info", lambda: {"breastmnist": info})
    assert load("breastmnist", tmp_path).classes == ("malignant", "normal, benign")
    monkeypatch.undo()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert load("breastmnist", tmp_path).classes == ("0", "1") and not recwarn.list
    monkeypatch.setitem(sys.modules, "medmnist", None)
    refused("needs the package medmnist", get, "pathmnist", tmp_path)


def test_cifar10_is_read_as_torchvision_does_from_old_and_new_batches(
    tmp_path, monkeypatch, datasets
):
    wrote = layouts.cifar10(tmp_path)
    folder = tmp_path / "cifar-10-batches-py"
    table = {"data": wrote["test_batch"].reshape(4, -1), "labels": [7, 0, 9, 255 % 10]}
    (folder / "test_batch").write_bytes(pickle.dumps(table, protocol=4))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": ["airplane"] * 10}))
    monkeypatch.setattr(datasets.CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    data = load("cifar10", tmp_path)
    for part, train in ((data.train, True), (data.test, False)):
        theirs = datasets.CIFAR10(tmp_path, train=train)
        assert np.array_equal(part.images.permute(0, 2, 3, 1), theirs.data)
        assert part.labels.tolist() == theirs.targets
    assert (data.mean, data.std) == ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
    assert len(data.val) == 0 and data.classes[0] == "airplane"


#: as published with CIFAR-100: superclass of class 0, 1, 2, ...
SUPERCLASSES = """
4 1 14 8 0 6 7 7 18 3 3 14 9 18 7 11 3 9 7 11 6 11 5 10 7 6 13 15 3 15 0 11 1 10 12 14 16 9 11 5
5 19 8 8 15 13 14 17 18 10 16 4 17 4 2 0 17 4 18 17 10 3 2 12 12 16 12 1 9 19 2 10 0 1 16 12 9 13 15 13
16 19 2 4 6 19 5 5 8 19 18 1 2 15 6 0 17 8 14 13"""


def test_cifar100_fine_and_coarse_from_batches_or_npz(tmp_path):
    wrote = layouts.cifar100(tmp_path / "a")
    fine, coarse = load("cifar100", tmp_path / "a"), load("cifar100_coarse", tmp_path / "a")
    assert np.array_equal(fine.train.images, wrote["train"])
    assert torch.equal(coarse.train.images, fine.train.images)
    assert (fine.num_classes, coarse.num_classes) == (100, 20)
    assert fine.train.labels.tolist() == list(range(100))
    assert coarse.train.labels.tolist() == [int(number) for number in SUPERCLASSES.split()]
    assert coarse.fingerprint != fine.fingerprint and len(set(fine.classes)) == 100
    (tmp_path / "cifar-100-python").mkdir()  # a folder that lacks a part does not hide a whole file
    labels = np.array([0, 1, 2, 47, 99, 52] * 2)
    layouts.npz(tmp_path / "cifar100.npz", 32, 3, labels=100, train_labels=labels)
    packed = load("cifar100_coarse", tmp_path)
    assert packed.train.labels.tolist() == [int(SUPERCLASSES.split()[k]) for k in labels]
    assert packed.mean == (0.5071, 0.4866, 0.4409)


@pytest.mark.parametrize("kind", ["MNIST", "KMNIST"])
def test_idx_sets_agree_with_torchvision(tmp_path, kind, datasets):
    layouts.mnist(tmp_path, kind)
    theirs = getattr(datasets, kind)(tmp_path, train=True)
    data = load(kind.lower(), tmp_path)
    assert torch.equal(data.train.images[:, 0], theirs.data) and len(data.test) == 10
    assert torch.equal(data.train.labels, theirs.targets) and data.mean == data.std == (0.5,)
    assert kind == "MNIST" or list(data.classes) == list(theirs.classes)


def test_svhn_is_torchvisions_once_its_sum_is_right(tmp_path, monkeypatch, datasets):
    wrote = layouts.svhn(tmp_path)
    words = r"train_32x32\.mat cannot be read as a file of SVHN .*corrupted"
    refused(words, load, "svhn", tmp_path)
    monkeypatch.setattr(datasets.SVHN, "_check_integrity", lambda self: True)
    data = load("svhn", tmp_path)
    assert np.array_equal(data.train.images, wrote["train"])
    assert np.array_equal(data.test.images, wrote["test"])
    assert data.train.labels.tolist() == [*range(1, 10), 0] * 2
    assert (data.num_classes, data.mean) == (10, (0.4377, 0.4438, 0.4728))


def test_stl10_is_resized(tmp_path):
    wrote = layouts.stl10(tmp_path)
    whole, small = load("stl10_96", tmp_path), load("stl10", tmp_path)
    assert np.array_equal(whole.train.images, wrote["train"])
    assert whole.test.labels.tolist() == [0, 1, 2]
    assert (small.size, small.name, small.train.labels.tolist()) == (32, "stl10", list(range(10)))
    assert torch.equal(small.train.images, resized(whole.train.images, 3, 32))


def test_imagenette_is_packed_once_with_its_sides_resized_alike_or_not(tmp_path):
    """As FedVCK's code resizes: the strip at the edge of a wide image is still there."""
    layouts.imagenette(tmp_path)
    first = tmp_path / "imagenette2-160" / "val" / IMAGENETTE[0] / "0.JPEG"
    pixels = np.zeros((80, 160, 3), dtype=np.uint8)
    pixels[:, :20] = 200
    Image.fromarray(pixels).save(first, quality=95)
    assert get("imagenette", tmp_path) == tmp_path
    first.unlink()
    data = load("imagenette", tmp_path)
    assert (data.train.images.shape, data.classes[0]) == ((20, 3, 64, 64), "tench")
    assert data.train.labels.tolist() == [label for label in range(10) for _ in range(2)]
    assert data.test.labels.tolist() == list(range(10)) and data.mean == (0.5,) * 3
    dark = data.train.images - 20 * data.train.labels[:, None, None, None]
    assert dark[..., :28].abs().max() <= 4 and (dark[..., 36:] - 60).abs().max() <= 4
    found = data.test.images[0].float()
    assert found[:, :, :7].mean() > 190 and found[:, :, 9:].mean() < 10
    assert get("imagenette", tmp_path) == tmp_path  # from the file


@pytest.fixture
def skin(tmp_path):
    names = np.array(["akiec", "bcc", "mel", "nv"])
    more = {"classes": names, "train_centre": np.arange(12) % 4}
    return layouts.npz(tmp_path / "ham10000_64.npz", 64, 3, labels=4, **more)


def test_skin_at_half_its_size_and_melanoma_or_not(tmp_path, skin):
    """Half the size is the mean of two by two pixels; the centres are a natural partition."""
    pixels = skin["train_images"].astype(float).reshape(12, 32, 2, 32, 2, 3).mean((2, 4)).round()
    small = load("ham10000_32", tmp_path)
    assert np.array_equal(small.train.images.permute(0, 2, 3, 1), pixels)
    assert small.classes == ("akiec", "bcc", "mel", "nv")
    for size, source in ((64, load("ham10000", tmp_path)), (32, small)):
        data = load(f"ham10000_melanoma_{size}", tmp_path)
        assert (data.classes, data.size) == (("other", "melanoma"), size)
        for word in ("train", "val", "test"):
            labels = (skin[f"{word}_labels"].ravel() == 2).astype(int)
            assert getattr(data, word).labels.tolist() == labels.tolist()
            assert torch.equal(getattr(data, word).images, getattr(source, word).images)
        assert data.fingerprint != source.fingerprint
    parts = split({"name": "natural"}, data.train, 4, 0)
    assert [part.tolist() for part in parts] == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]
    layouts.npz(tmp_path / "ham10000_64.npz", 64, 3, labels=2, classes=np.array(["cat", "dog"]))
    words = r"ham10000_64\.npz has no class 'mel'; it has: cat, dog"
    refused(words, load, "ham10000_melanoma", tmp_path)


def test_medical_sets_have_the_sizes_that_fedvck_reports():
    """The release at hand has a few images fewer of two sets than the paper reports."""
    info = pytest.importorskip("medmnist").INFO
    reported = {
        "pathmnist": (89_996, 10_004, 7_180),
        "octmnist": (97_477, 10_832, 1_000),
        "pneumoniamnist": (4_708, 524, 624),
        "organsmnist": (13_940, 2_452, 8_829),
        "organcmnist": (13_000, 2_392, 8_268),
    }
    for name, sizes in reported.items():
        ours = [info[name]["n_samples"][part] for part in ("train", "val", "test")]
        least = 0.99 if name in ("organsmnist", "organcmnist") else 1
        assert all(least * size <= own <= size for own, size in zip(ours, sizes, strict=True))
