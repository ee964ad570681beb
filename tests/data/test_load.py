"""Data sets that are as they should be."""

from __future__ import annotations

import gzip
import hashlib
import pickle
import struct
import sys
import tempfile
from collections import Counter
from pathlib import Path

import attrs
import numpy as np
import pytest
import torch

from core.data import Dataset, Split, arrays, available, get, load
from core.data.arrays import as_images, as_labels, halved, resized
from core.data.cifar_names import COARSE_OF_FINE, FINE, GROUPS
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


def test_resize_keeps_flat_images_and_chunks_agree():
    flat = torch.full((3, 1, 96, 96), 7, dtype=torch.uint8)
    assert torch.equal(resized(flat, 1, 32), torch.full((3, 1, 32, 32), 7, dtype=torch.uint8))


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
        # shrunk to 96 by 64 and centre cropped: the edge between dark and bright stays in the
        # middle
        assert (image[:, :, :28].float() - 20 * label).abs().max() <= 4
        assert (image[:, :, 36:].float() - 20 * label - 60).abs().max() <= 4


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
    assert rows["cifar10"].how_to_get == "python -m core data get cifar10"
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


def test_a_file_with_the_name_of_a_known_set_is_not_passed_over(tmp_path):
    layouts.npz(tmp_path / "digits.npz")
    with pytest.raises(InputError, match=r"digits is a data set that is known here; rename"):
        load("digits", tmp_path)
    layouts.npz(tmp_path / "breastmnist.npz", labels=2)  # its own layout
    with pytest.warns(UserWarning, match="not the official file"):
        assert load("breastmnist", tmp_path).num_classes == 2
