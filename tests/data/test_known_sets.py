"""The public data sets, each read from the layout in which it is published."""

from __future__ import annotations

import gzip
import hashlib
import pickle
import struct
import sys

import numpy as np
import pytest
import torch

from core.data import get, load
from core.data.cifar_names import COARSE_OF_FINE, FINE, GROUPS
from core.data.medical import CLASSES
from core.errors import InputError
from tests.data import layouts


def test_medical_sets_at_every_size(tmp_path):
    for size, stem in (
        (28, "bloodmnist"),
        (64, "bloodmnist_64"),
        (128, "bloodmnist_128"),
        (224, "bloodmnist_224"),
    ):
        layouts.npz(tmp_path / f"{stem}.npz", size, 3, labels=8)
        with pytest.warns(UserWarning, match="is not the official file"):
            data = load("bloodmnist", tmp_path, size=size)
        assert (data.name, data.size, data.num_classes) == (stem, size, 8)
        assert (
            load(stem, tmp_path).fingerprint == data.fingerprint
        )  # and no second warning, which would be an error


def test_medical_official_file_is_silent(tmp_path, monkeypatch, recwarn):
    medmnist = pytest.importorskip("medmnist")
    path = tmp_path / "breastmnist.npz"
    layouts.npz(path, labels=2)
    digest = hashlib.md5(path.read_bytes()).hexdigest()
    monkeypatch.setitem(
        medmnist.INFO, "breastmnist", medmnist.INFO["breastmnist"] | {"MD5": digest}
    )
    assert load("breastmnist", tmp_path).classes == ("malignant", "normal, benign")
    assert not recwarn.list


def test_medical_sets_without_medmnist(tmp_path, monkeypatch, recwarn):
    monkeypatch.setitem(sys.modules, "medmnist", None)
    layouts.npz(tmp_path / "breastmnist.npz", labels=2)
    assert load("breastmnist", tmp_path).classes == ("0", "1")
    assert not recwarn.list
    with pytest.raises(InputError, match="needs the package medmnist"):
        get("pathmnist", tmp_path)


def test_the_list_of_medical_sets_is_medmnists():
    info = pytest.importorskip("medmnist").INFO
    flat = {
        name: row
        for name, row in info.items()
        if "3d" not in name and "multi-label" not in row["task"]
    }
    assert {name: len(row["label"]) for name, row in flat.items()} == CLASSES


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_cifar10_batches(tmp_path, protocol):
    wrote = layouts.cifar10(tmp_path, protocol)
    data = load("cifar10", tmp_path)
    train = np.concatenate([wrote[f"data_batch_{i}"] for i in range(1, 6)])
    assert np.array_equal(data.train.images, train)
    assert np.array_equal(data.test.images, wrote["test_batch"])
    assert data.train.labels.tolist() == [0, 1, 2, 3] * 5
    assert len(data.val) == 0
    assert (data.mean, data.std) == ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))


def test_cifar10_batches_of_python_2(tmp_path):
    layouts.cifar10(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3072), dtype=np.uint8)
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(
        layouts.cifar10_python2_batch(pixels, [7, 0, 9])
    )
    data = load("cifar10", tmp_path)
    assert np.array_equal(data.test.images.reshape(3, -1), pixels)
    assert data.test.labels.tolist() == [7, 0, 9]


def test_cifar10_agrees_with_torchvision(tmp_path, monkeypatch):
    datasets = pytest.importorskip("torchvision.datasets")
    layouts.cifar10(tmp_path)
    meta = {"label_names": ["airplane"] * 10}
    (tmp_path / "cifar-10-batches-py" / "batches.meta").write_bytes(pickle.dumps(meta))
    monkeypatch.setattr(datasets.CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    theirs = datasets.CIFAR10(tmp_path, train=True)
    ours = load("cifar10", tmp_path).train
    assert np.array_equal(ours.images.permute(0, 2, 3, 1), theirs.data)
    assert ours.labels.tolist() == theirs.targets


def test_cifar100_fine_and_coarse(tmp_path):
    wrote = layouts.cifar100(tmp_path)
    fine, coarse = load("cifar100", tmp_path), load("cifar100_coarse", tmp_path)
    assert np.array_equal(fine.train.images, wrote["train"])
    assert np.array_equal(coarse.test.images, wrote["test"])
    assert (fine.num_classes, coarse.num_classes) == (100, 20)
    assert fine.train.labels.tolist() == list(range(100))
    assert coarse.train.labels.tolist() == [
        label // 5 for label in range(100)
    ]  # the file's own coarse labels


def test_cifar100_from_npz(tmp_path):
    labels = np.array(
        [0, 1, 2, 47, 99] * 2 + [52, 98]
    )  # apple, aquarium_fish, baby, maple_tree, worm; oak_tree, woman
    layouts.npz(tmp_path / "cifar100.npz", 32, 3, train_labels=labels)
    fine, coarse = load("cifar100", tmp_path), load("cifar100_coarse", tmp_path)
    assert torch.equal(fine.train.labels, torch.from_numpy(labels))
    assert torch.equal(coarse.train.images, fine.train.images)
    names = [coarse.classes[label] for label in coarse.train.labels[[0, 1, 2, 3, 4, 10, 11]]]
    assert names == [
        "fruit_and_vegetables",
        "fish",
        "people",
        "trees",
        "non-insect_invertebrates",
        "trees",
        "people",
    ]
    assert fine.mean == coarse.mean == (0.5071, 0.4866, 0.4409)


def test_superclasses_are_the_official_table():
    # as published with the python version of CIFAR-100: coarse label of fine label 0, 1, 2, ...
    official = """
    4 1 14 8 0 6 7 7 18 3 3 14 9 18 7 11 3 9 7 11 6 11 5 10 7 6 13 15 3 15 0 11 1 10 12 14 16 9 11 5
    5 19 8 8 15 13 14 17 18 10 16 4 17 4 2 0 17 4 18 17 10 3 2 12 12 16 12 1 9 19 2 10 0 1 16 12 9 13 15 13
    16 19 2 4 6 19 5 5 8 19 18 1 2 15 6 0 17 8 14 13"""
    assert COARSE_OF_FINE.tolist() == [int(number) for number in official.split()]
    assert len(set(FINE)) == 100
    assert list(GROUPS) == sorted(GROUPS)


@pytest.mark.parametrize("packed", [False, True])
def test_mnist(tmp_path, packed):
    wrote = layouts.mnist(tmp_path)
    if packed:
        for path in list((tmp_path / "MNIST" / "raw").iterdir()):
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    data = load("mnist", tmp_path)
    assert np.array_equal(data.train.images, wrote["train"])
    assert np.array_equal(data.test.images, wrote["t10k"])
    assert data.train.labels.tolist() == list(range(10)) * 2
    assert data.mean == data.std == (0.5,)


@pytest.mark.parametrize("kind", ["MNIST", "FashionMNIST", "KMNIST"])
def test_idx_sets_agree_with_torchvision(tmp_path, kind):
    datasets = pytest.importorskip("torchvision.datasets")
    layouts.mnist(tmp_path, kind)
    theirs = getattr(datasets, kind)(tmp_path, train=True)
    ours = load(kind.lower(), tmp_path)
    assert torch.equal(ours.train.images[:, 0], theirs.data)
    assert torch.equal(ours.train.labels, theirs.targets)
    assert kind == "MNIST" or list(ours.classes) == list(theirs.classes)


def test_idx_header_is_the_documented_one():
    assert layouts.idx(np.zeros((2, 28, 28), dtype=np.uint8))[:16] == struct.pack(
        ">IIII", 2051, 2, 28, 28
    )


def test_svhn(tmp_path):
    pytest.importorskip("scipy")
    wrote = layouts.svhn(tmp_path)
    data = load("svhn", tmp_path)
    assert np.array_equal(data.train.images, wrote["train"])
    assert data.train.labels.tolist() == [*range(1, 10), 0] * 2
    datasets = pytest.importorskip("torchvision.datasets")
    theirs = datasets.SVHN.__new__(datasets.SVHN)
    theirs.root, theirs.transform, theirs.target_transform = str(tmp_path), None, None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.SVHN, "_check_integrity", lambda self: True)
        theirs.__init__(str(tmp_path), "test")
    assert np.array_equal(data.test.images, theirs.data)
    assert data.test.labels.tolist() == theirs.labels.tolist()


def test_stl10_is_resized_as_pil_does(tmp_path):
    wrote = layouts.stl10(tmp_path)
    whole = load("stl10_96", tmp_path)
    assert np.array_equal(whole.train.images, wrote["train"])
    assert whole.test.labels.tolist() == [0, 1, 2]
    small = load("stl10", tmp_path)
    assert (small.size, small.name, small.train.labels.tolist()) == (32, "stl10", list(range(10)))
    image = pytest.importorskip("PIL.Image")
    for ours, source in zip(small.train.images, wrote["train"], strict=True):
        theirs = np.asarray(
            image.fromarray(source.transpose(1, 2, 0)).resize((32, 32), image.Resampling.BILINEAR)
        )
        assert np.abs(ours.permute(1, 2, 0).numpy().astype(int) - theirs.astype(int)).max() <= 1


@pytest.mark.parametrize("folder", ["imagenette2-160", "imagenette2"])
def test_imagenette_folders(tmp_path, folder):
    pytest.importorskip("PIL")
    layouts.imagenette(tmp_path, folder)
    data = load("imagenette", tmp_path)
    assert data.train.images.shape == (20, 3, 64, 64)
    assert data.train.labels.tolist() == [label for label in range(10) for _ in range(2)]
    assert data.test.labels.tolist() == list(range(10))
    assert data.classes[0] == "tench"
    for image, label in zip(data.train.images, data.train.labels, strict=True):
        # the sides shrink alike or not: the edge between dark and bright stays in the middle
        assert (image[:, :, :28].float() - 20 * label).abs().max() <= 4
        assert (image[:, :, 36:].float() - 20 * label - 60).abs().max() <= 4


def test_imagenette_keeps_the_sides_of_a_wide_image(tmp_path):
    """As FedVCK's code resizes: the strip at the edge, an eighth of the width, is still there."""
    image = pytest.importorskip("PIL.Image")
    layouts.imagenette(tmp_path)
    pixels = np.zeros((80, 160, 3), dtype=np.uint8)
    pixels[:, :20] = 200
    first = min((tmp_path / "imagenette2-160" / "val" / layouts.WNIDS[0]).iterdir())
    image.fromarray(pixels).save(first, quality=95)
    data = load("imagenette", tmp_path)
    found = data.test.images[0].float()
    assert found[:, :, :7].mean() > 190 and found[:, :, 9:].mean() < 10
    # pixels go to [-1, 1]
    assert data.normalise(torch.tensor([[[[0]], [[0]], [[255]]]]).byte()).flatten().tolist() == [
        -1,
        -1,
        1,
    ]


def test_a_folder_that_lacks_a_part_does_not_hide_a_whole_one(tmp_path):
    pytest.importorskip("PIL")
    (tmp_path / "imagenette2-160" / "train").mkdir(parents=True)
    layouts.imagenette(tmp_path, "imagenette2")
    assert len(load("imagenette", tmp_path).train) == 20
    (tmp_path / "cifar-100-python").mkdir()
    layouts.npz(tmp_path / "cifar100.npz", 32, 3, labels=100)
    assert load("cifar100", tmp_path).num_classes == 100


def test_imagenette_is_packed_once(tmp_path):
    pytest.importorskip("PIL")
    layouts.imagenette(tmp_path)
    before = load("imagenette", tmp_path)
    assert get("imagenette", tmp_path) == tmp_path
    assert (tmp_path / "imagenette_64.npz").is_file()
    for path in (tmp_path / "imagenette2-160" / "train").rglob("*.JPEG"):
        path.unlink()
    after = load("imagenette", tmp_path)
    assert (after.fingerprint, after.classes, after.mean) == (
        before.fingerprint,
        before.classes,
        before.mean,
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "imagenette2-160",
        "imagenette_64.npz",
    ]


def test_torchvision_sets_from_npz(tmp_path):
    layouts.npz(tmp_path / "svhn.npz", 32, 3, labels=10)
    data = load("svhn", tmp_path)
    assert (data.num_classes, data.mean) == (10, (0.4377, 0.4438, 0.4728))


def test_medical_sets_have_the_sizes_that_fedvck_prints():
    """Training, validation and test images. The release of MedMNIST at hand has a few images fewer
    of two sets than the paper prints (13,940, 2,452 and 8,829; 13,000, 2,392 and 8,268).
    """
    medmnist = pytest.importorskip("medmnist")
    printed = {
        "pathmnist": (89_996, 10_004, 7_180),
        "octmnist": (97_477, 10_832, 1_000),
        "pneumoniamnist": (4_708, 524, 624),
    }
    fewer = {"organsmnist": (13_940, 2_452, 8_829), "organcmnist": (13_000, 2_392, 8_268)}
    held = {
        name: tuple(medmnist.INFO[name]["n_samples"][part] for part in ("train", "val", "test"))
        for name in printed | fewer
    }
    assert {name: held[name] for name in printed} == printed
    for name, sizes in fewer.items():
        parts = zip(held[name], sizes, strict=True)
        assert all(0.99 * theirs < ours <= theirs for ours, theirs in parts)
