"""Data that are missing, cut short, mistyped or mislabelled: one sentence that names the file."""

from __future__ import annotations

import gzip
import io
import pickle
import sys
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.data import Split, get, load
from core.data.cifar import ArrayUnpickler
from core.errors import InputError
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
        ("chestmnist", None, "several labels per image"),
        ("chestmnist_64", None, "several labels per image"),
        ("", None, "begins with a letter or digit"),
        ("../secret", None, "begins with a letter or digit"),
        (7, None, "begins with a letter or digit"),
        ("pathmnist_32", None, "pathmnist comes at 28, 64, 128 or 224 pixels, not 32"),
        ("cifar10", 64, "cifar10 comes at 32 pixels, not 64"),
        ("digits_0", None, "comes at 8 pixels, not 0"),
        ("pathmnist_64", 28, "asks for 64 pixels but size for 28"),
        ("pathmnist", 0, "size must be a whole number"),
        ("pathmnist", "28", "size must be a whole number"),
        ("pathmnist", True, "size must be a whole number"),
    ],
)
def test_wrong_requests(name, size, message, tmp_path):
    refused(message, name, tmp_path, size=size)


@pytest.mark.parametrize(
    ("name", "looked_for", "command"),
    [
        (
            "cifar10",
            "cifar-10-batches-py/data_batch_1",
            "get it with: fedcon data get cifar10",
        ),
        ("cifar100_coarse", "cifar-100-python/train", "fedcon data get cifar100_coarse"),
        ("mnist", "MNIST/raw/train-images-idx3-ubyte", "fedcon data get mnist"),
        ("svhn", "train_32x32.mat", "fedcon data get svhn"),
        ("stl10", "stl10_binary/train_X.bin", "fedcon data get stl10"),
        ("imagenette_64", "imagenette_64.npz", "fedcon data get imagenette"),
        ("octmnist", "octmnist.npz", "fedcon data get octmnist"),
        ("octmnist_224", "octmnist_224.npz", "fedcon data get octmnist_224"),
        ("ham10000_64", "ham10000_64.npz", "scale the images of doi:10.7910/DVN/DBW86T"),
    ],
)
def test_missing_sets_say_where_and_how(name, looked_for, command, tmp_path):
    text = refused("is not in", name, tmp_path)
    assert str(tmp_path) in text
    assert f"(no {looked_for})" in text
    assert command in text


NPZ_FAULTS = {
    "train_images must hold uint8 pixels, not float64: .* for example multiply by 255": {
        "train_images": np.zeros((12, 28, 28))
    },
    "uint8 pixels, not uint16: scale them to 0-255, for example divide by 257, and store": {
        "train_images": np.zeros((12, 28, 28), dtype=np.uint16)
    },
    "uint8 pixels, not int64: scale them to 0-255, and store them as uint8": {
        "train_images": np.zeros((12, 28, 28), dtype=np.int64)
    },
    r"must have shape \(N, H, W\)": {"train_images": np.zeros((12, 784), dtype=np.uint8)},
    r"must have shape .* not \(12, 28, 28, 4\)": {
        "train_images": np.zeros((12, 28, 28, 4), dtype=np.uint8)
    },
    "square images, not 28 by 20 pixels: pad or crop them": {
        "train_images": np.zeros((12, 28, 20), dtype=np.uint8)
    },
    "val images are": {"val_images": np.zeros((4, 14, 14), dtype=np.uint8)},
    "test images are": {"test_images": np.zeros((6, 28, 28, 3), dtype=np.uint8)},
    "train_labels must hold whole numbers": {"train_labels": np.full(12, np.nan)},
    "train_labels must hold whole numbers, .*U1": {"train_labels": np.array(["a"] * 12)},
    "train_labels holds 11 values for 12 images": {"train_labels": np.zeros(11, dtype=int)},
    "train_labels holds the negative number -1": {"train_labels": np.full(12, -1)},
    "train_labels holds 14 labels per image": {"train_labels": np.zeros((12, 14), dtype=int)},
    "train_labels holds 0 labels per image": {"train_labels": np.zeros((12, 0), dtype=int)},
    "labels go up to 255 although": {"test_labels": np.full(6, 255)},
    "test_labels holds class 2, but the classes are numbered 0 to 1": {
        "classes": np.array(["a", "b"]),
        "train_labels": np.zeros(12, dtype=int),
        "val_labels": np.zeros(4, dtype=int),
    },
    "classes must be a list of names": {"classes": np.arange(3)},
    "two different names, not .*'a', 'a'": {"classes": np.array(["a", "a"])},
    "two different names, not .*'only'": {"classes": np.array(["only"])},
    "train_centre holds 3 values": {"train_centre": np.zeros(3, dtype=int)},
    "the train split is empty": {
        "train_images": np.zeros((0, 28, 28), dtype=np.uint8),
        "train_labels": np.zeros((0, 1), dtype=int),
    },
    "the test split is empty": {
        "test_images": np.zeros((0, 28, 28), dtype=np.uint8),
        "test_labels": np.zeros(0, dtype=int),
    },
    "has no array 'test_labels'; it holds: train_images": {"test_labels": None},
    "has no array 'test_images'; .*; a part to test on is required": {"test_images": None},
    "has no array 'train_labels'; .*; a part to train on is required": {"train_labels": None},
    "has no array 'val_images'": {"val_images": None},
    "has no array 'val_labels'": {"val_labels": None},
    "holds Python objects": {"train_labels": np.array([{}] * 12, dtype=object)},
}


@pytest.mark.parametrize("message", NPZ_FAULTS)
def test_npz_faults(message, tmp_path):
    layouts.npz(tmp_path / "own.npz", **NPZ_FAULTS[message])
    assert str(tmp_path / "own.npz") in refused(message, "own", tmp_path)


@settings(max_examples=60)
@given(st.floats(0, 1, exclude_max=True), st.booleans())
def test_npz_cut_short_or_scribbled_over(tmp_path_factory, where, cut):
    root = tmp_path_factory.mktemp("npz")
    wrote = layouts.npz(root / "own.npz")
    np.savez_compressed(root / "own.npz", **wrote)
    good = load("own", root).fingerprint
    data = (root / "own.npz").read_bytes()
    at = int(where * len(data))
    (root / "own.npz").write_bytes(
        data[:at] if cut else data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
    )
    try:
        # a byte that nobody reads, such as a date, may change without harm
        assert load("own", root).fingerprint == good
        assert not cut
    except InputError as error:
        assert str(root / "own.npz") in str(error)


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04"])
def test_files_that_are_no_npz(content, tmp_path):
    (tmp_path / "own.npz").write_bytes(content)
    assert str(tmp_path / "own.npz") in refused("cannot be read as an npz file", "own", tmp_path)


def test_an_array_whose_header_is_broken(tmp_path):
    layouts.npz(tmp_path / "own.npz")
    with zipfile.ZipFile(tmp_path / "own.npz") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["train_images.npy"] = members["train_images.npy"].replace(b")", b" ", 1)
    with zipfile.ZipFile(tmp_path / "own.npz", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    assert str(tmp_path / "own.npz") in refused("cannot be read as an npz file", "own", tmp_path)


def test_single_array_named_npz(tmp_path):
    with (tmp_path / "own.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    refused("is a single array", "own", tmp_path)


def test_medical_file_of_another_size_or_set(tmp_path):
    layouts.npz(tmp_path / "breastmnist_64.npz", 28, labels=2)
    refused("holds images of 28 pixels, not 64", "breastmnist_64", tmp_path)
    layouts.npz(tmp_path / "breastmnist.npz", labels=3)
    refused("classes are numbered 0 to 1", "breastmnist", tmp_path)


def batch(**changes):
    table = {"data": np.zeros((2, 3072), dtype=np.uint8), "labels": [0, 1]} | changes
    return pickle.dumps(
        {key: value for key, value in table.items() if value is not None}, protocol=2
    )


CIFAR_FAULTS = {
    r"data must be uint8 of shape \(N, 3072\)": batch(data=np.zeros((2, 3071), dtype=np.uint8)),
    "data must be uint8": batch(data=np.zeros((2, 3072))),
    "data must be uint8 ": batch(data=b"pixels"),
    "has no 'labels'; it holds: data": batch(labels=None),
    "has no 'data'": batch(data=None),
    "labels must be a list of whole numbers": batch(labels=[0, "x"]),
    "labels must be a list of whole": batch(labels=7),
    "labels holds 3 values for 2 images": batch(labels=[0, 1, 2]),
    "labels holds class 10": batch(labels=[0, 10]),
    "labels holds the negative number -3": batch(labels=[0, -3]),
    "labels must hold whole numbers": batch(labels=[0, 2**70]),
    "it holds a list": pickle.dumps([1]),
    "cannot be read as a CIFAR batch ": b"",
    "cannot be read as a CIFAR": batch()[:-50],
}


@pytest.mark.parametrize("message", CIFAR_FAULTS)
def test_cifar_faults(message, tmp_path):
    layouts.cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    path.write_bytes(CIFAR_FAULTS[message])
    assert str(path) in refused(message.strip(), "cifar10", tmp_path)


class Evil:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def test_pickles_that_would_run_something_are_refused(tmp_path):
    layouts.cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "test_batch"
    mark = tmp_path / "mark"
    for protocol in range(5):
        for evil in (
            Evil(open, str(mark), "w"),
            Evil(exec, f"open({str(mark)!r}, 'w')"),
            Evil(np.load, str(mark)),
        ):
            path.write_bytes(pickle.dumps({"data": evil, "labels": [0]}, protocol=protocol))
            assert str(path) in refused("which is not allowed", "cifar10", tmp_path)
            assert not mark.exists()


@pytest.mark.parametrize(
    "body",
    [
        b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x05\x00\x00\x00rot13tR.",  # another codec
        b"cnumpy\nndarray\n(K\x05tR.",  # the array type called directly
        # a huge array
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(J\xff\xff\xff\x7ftC\x01btR.",
        b"cnumpy\ndtype.type.__class__\n.",  # a dotted name
        b"cbuiltins\neval\n.",
    ],
)
def test_unpickler_has_no_back_door(body):
    with pytest.raises((pickle.UnpicklingError, TypeError)):
        ArrayUnpickler(io.BytesIO(b"\x80\x04" + body)).load()


def test_cifar_folder_with_a_missing_batch(tmp_path):
    layouts.cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_4").unlink()
    refused(r"no cifar-10-batches-py/data_batch_4\); get it with", "cifar10", tmp_path)


def test_cifar100_npz_of_another_size(tmp_path):
    layouts.npz(tmp_path / "cifar100.npz", 28, 3)
    refused("holds images of 28 pixels, not 32", "cifar100_coarse", tmp_path)
    layouts.npz(tmp_path / "cifar100.npz", 32, 3, train_labels=np.full(12, 100))
    refused("classes are numbered 0 to 99", "cifar100_coarse", tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not an idx file"),
        (b"\0\0\x0d\x03" + b"\0" * 12, "is not an idx file of bytes"),
        (b"\0\0\x08\x03\0\0", "ends within its header"),
        (
            layouts.idx(np.zeros((2, 28, 28), dtype=np.uint8))[:-1],
            "holds 1567 bytes where its header announces 1568",
        ),
        (layouts.idx(np.zeros((2, 28, 28), dtype=np.uint8)) + b"x", "holds 1569 bytes"),
        (layouts.idx(np.zeros((20, 28, 27), dtype=np.uint8)), "square"),
    ],
)
def test_mnist_images_faults(content, message, tmp_path):
    layouts.mnist(tmp_path)
    path = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    path.write_bytes(content)
    assert str(path) in refused(message, "mnist", tmp_path)


def test_mnist_labels_faults(tmp_path):
    layouts.mnist(tmp_path)
    path = tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte"
    path.write_bytes(layouts.idx(np.full(10, 10, dtype=np.uint8)))
    refused("holds class 10", "mnist", tmp_path)
    path.write_bytes(layouts.idx(np.zeros(9, dtype=np.uint8)))
    refused("holds 9 values for 10 images", "mnist", tmp_path)


def test_mnist_gzip_cut_short(tmp_path):
    layouts.mnist(tmp_path)
    for path in list((tmp_path / "MNIST" / "raw").iterdir()):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes())[:-20])
        path.unlink()
    refused(r"ubyte\.gz cannot be read", "mnist", tmp_path)


def test_svhn_faults(tmp_path):
    scipy_io = pytest.importorskip("scipy.io")
    layouts.svhn(tmp_path)
    path = tmp_path / "test_32x32.mat"
    content = path.read_bytes()
    for broken in (b"", b"text", content[: len(content) // 2]):
        path.write_bytes(broken)
        assert str(path) in refused("cannot be read as a .mat file", "svhn", tmp_path)
    pixels = np.zeros((32, 32, 3, 2), dtype=np.uint8)
    for table, message in (
        ({"X": pixels}, "has no array 'y'"),
        ({"X": pixels[..., 0], "y": [[1], [2]]}, "X must have shape"),
        ({"X": pixels, "y": [[1], [11]]}, "holds class 11"),
        ({"X": pixels, "y": [[1.5], [1]]}, "must hold whole numbers"),
        ({"X": pixels.astype(float), "y": [[1], [1]]}, "must hold uint8"),
    ):
        scipy_io.savemat(path, table)
        assert str(path) in refused(message, "svhn", tmp_path)


def test_stl10_faults(tmp_path):
    layouts.stl10(tmp_path)
    images, labels = (tmp_path / "stl10_binary" / f"test_{kind}.bin" for kind in "Xy")
    good = images.read_bytes()
    for broken in (b"", good[:-1]):
        images.write_bytes(broken)
        assert str(images) in refused("bytes, not a multiple of 27648", "stl10", tmp_path)
    images.write_bytes(good)
    for broken, message in (
        (b"\0\1\2", "negative number -1"),
        (b"\1\2", "2 values for 3"),
        (b"\1\2\x0b", "class 10"),
    ):
        labels.write_bytes(broken)
        assert str(labels) in refused(message, "stl10", tmp_path)


def test_imagenette_faults(tmp_path):
    pytest.importorskip("PIL")
    layouts.imagenette(tmp_path)
    folder = tmp_path / "imagenette2-160" / "train"
    broken = folder / "n01440764" / "image_1.JPEG"
    content = broken.read_bytes()
    for text in (b"", b"text", content[:300]):
        broken.write_bytes(text)
        assert str(broken) in refused("cannot be read as an image", "imagenette", tmp_path)
    broken.write_bytes(content)
    for path in (folder / "n03888257").iterdir():
        path.unlink()
    assert "n03888257" in refused("holds no .JPEG files", "imagenette", tmp_path)
    (folder / "n03888257").rmdir()
    refused("should hold the folders", "imagenette", tmp_path)


@pytest.mark.parametrize(
    ("package", "name", "lay"),
    [("PIL", "imagenette", layouts.imagenette), ("scipy.io", "svhn", layouts.svhn)],
)
def test_missing_packages_are_named(package, name, lay, tmp_path, monkeypatch):
    pytest.importorskip(package)
    lay(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    refused("needs the package", name, tmp_path)


def test_downloads_that_fail(tmp_path, monkeypatch):
    datasets = pytest.importorskip("torchvision.datasets")

    def no_network(*_, **__):
        raise OSError("no route\nto host")

    monkeypatch.setattr(datasets, "CIFAR10", no_network)
    message = refused(
        r"could not be downloaded to .* \(OSError: no route to host\)",
        "cifar10",
        tmp_path,
        download=True,
    )
    assert str(tmp_path) in message
    monkeypatch.setattr(datasets, "CIFAR10", lambda *_, **__: None)
    with pytest.raises(InputError, match="its files are not where expected"):
        get("cifar10", tmp_path)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(InputError, match="needs the package torchvision"):
        get("cifar10", tmp_path)


def test_get_refuses(tmp_path):
    with pytest.raises(InputError, match="did you mean 'cifar10'"):
        get("cifar11", tmp_path)
    with pytest.raises(InputError, match="cannot be downloaded by a program"):
        get("ham10000_64", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="could not be downloaded"):
        get("cifar10", tmp_path / "file")


IMAGES, NUMBERS = torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("images", "labels", "centre", "message"),
    [
        (IMAGES.float(), NUMBERS, None, "images must be uint8"),
        (IMAGES[0], NUMBERS, None, "images must be uint8"),
        (IMAGES[..., :3], NUMBERS, None, "images must be square"),
        (IMAGES, NUMBERS[:1], None, "labels must be int64, one per image"),
        (IMAGES, NUMBERS.int(), None, "labels must be int64"),
        (IMAGES, NUMBERS, NUMBERS[:1], "centre must be int64"),
    ],
)
def test_splits_that_do_not_fit_together(images, labels, centre, message):
    with pytest.raises(InputError, match=message):
        Split(images, labels, centre)
