"""Damaged or hostile files of data: one line names the file, no code runs, no memory is taken."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.data import load, npz, vision
from core.errors import InputError
from tests import sentences
from tests.data import layouts


def refused(message, name, root, path):
    if name == "cifar10":  # the others import libraries, which takes memory of its own
        tracemalloc.start()
    line = sentences.refused(message, load, name, root)
    assert tracemalloc.get_traced_memory()[1] < 2**28
    tracemalloc.stop()
    assert str(path) in line and len(line) < 350 + len(str(path))


NPZ_FAULTS = {
    "val_images are|val images are": {"val_images": np.zeros((4, 14, 14), np.uint8)},
    "test images are": {"test_images": np.zeros((6, 28, 28, 3), np.uint8)},
    "test_labels holds class 2, but the classes are numbered 0 to 1": {
        "classes": np.array(["a", "b"]),
        "train_labels": np.zeros(12, int),
        "val_labels": np.zeros(4, int),
    },
    "two different names, not .*'only'": {"classes": np.array(["only"])},
    "has no array 'val_labels'": {"val_labels": None},
    "Object arrays cannot be loaded": {"train_labels": np.array([{}] * 12, dtype=object)},
    "the negative number -1": {"train_index": np.full(12, -1)},
}


@pytest.mark.parametrize("message", NPZ_FAULTS)
def test_npz_faults(message, tmp_path):
    layouts.npz(tmp_path / "own.npz", **NPZ_FAULTS[message])
    refused(message, "own", tmp_path, tmp_path / "own.npz")


@settings(max_examples=60)
@given(st.floats(0, 1, exclude_max=True), st.booleans())
def test_npz_cut_short_or_scribbled_over(tmp_path_factory, where, cut):
    root = tmp_path_factory.mktemp("npz")
    np.savez_compressed(root / "own.npz", **layouts.npz(root / "own.npz"))
    good, data = load("own", root).fingerprint, (root / "own.npz").read_bytes()
    at = int(where * len(data))
    scribbled = data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
    (root / "own.npz").write_bytes(data[:at] if cut else scribbled)
    try:
        # a byte that nobody reads, such as a date, may change without harm
        assert load("own", root).fingerprint == good and not cut
    except InputError as error:
        assert str(root / "own.npz") in str(error)


def header(text):
    content = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(content)) + content


def announcing(shape, dtype="|u1"):
    table = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    return header(table) + b"\0" * 64


HEADERS = {
    "10^12 images": announcing("(1000000000000, 28, 28)"),
    "nested dtypes": announcing("(1,)", "('" * 500),
    "no header": b"\x93NUMPY\x01\x00",
    "nothing": b"",
    "Python objects": announcing("(1,)", "|O"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_lies(tmp_path, name):
    arrays = layouts.npz(tmp_path / "own.npz")
    with zipfile.ZipFile(tmp_path / "own.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for key, value in arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, value)
            content = HEADERS[name] if key == "train_images" else buffer.getvalue()
            archive.writestr(f"{key}.npy", content)
    words = "cannot be read as an npz file|has no array 'train_images'"
    refused(words, "own", tmp_path, tmp_path / "own.npz")


def test_files_that_are_no_npz(tmp_path, monkeypatch):
    path = tmp_path / "own.npz"
    layouts.npz(path)
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1  # the first entry is encrypted
    single = io.BytesIO()
    np.save(single, np.zeros(3))
    for text in (b"", b"not an archive", b"PK\x03\x04", bytes(content), single.getvalue()):
        path.write_bytes(text)
        refused("cannot be read as an npz file", "own", tmp_path, path)
    monkeypatch.setattr(npz, "GROWN", 2**20)
    np.savez_compressed(path, train_images=np.zeros((2**21, 1, 1), np.uint8))
    refused("would grow to", "own", tmp_path, path)
    with pytest.warns(UserWarning, match="official"):
        layouts.npz(tmp_path / "breastmnist_64.npz", 28, labels=2)
        refused("images of 28 pixels, not 64", "breastmnist_64", tmp_path, "breastmnist_64.npz")
        layouts.npz(tmp_path / "breastmnist.npz", labels=3)
        refused("classes are numbered 0 to 1", "breastmnist", tmp_path, "breastmnist.npz")


class Evil:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def cifar(body):
    """A pickle in protocol 4 that builds something and then stops."""
    return b"\x80\x04" + body + b"."


BATCHES = {
    "pixels of another width": (layouts.batch(data=np.zeros((2, 3071), np.uint8)), "a CIFAR batch"),
    "by columns": (layouts.batch(data=np.ones((3072, 2), np.uint8).T), "row by row"),
    "no labels": (layouts.batch(labels=None), "it has no 'labels'"),
    "a label too many": (layouts.batch(labels=[0, 1, 2]), "a CIFAR batch"),
    "no such class": (layouts.batch(labels=[0, 10]), "holds class 10"),
    "a large label": (layouts.batch(labels=[0, 2**70]), "whole numbers|is no class"),
    "cut": (layouts.batch()[:-50], "a CIFAR batch"),
    "a place for 10^9 objects": (cifar(b"Nr\xff\xff\xff\x3f"), "a CIFAR batch"),
    "a frame that is not there": (cifar(b"\x95" + (2**50).to_bytes(8, "little")), "a CIFAR batch"),
}


@pytest.mark.parametrize(("content", "words"), BATCHES.values(), ids=BATCHES)
def test_cifar_faults(content, words, tmp_path):
    layouts.cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    path.write_bytes(content)
    # all batches are put together before their labels are looked at
    refused(words, "cifar10", tmp_path, tmp_path if "class" in words else path)


@pytest.mark.parametrize("protocol", [0, 4])
def test_nothing_in_a_batch_is_executed(protocol, tmp_path):
    layouts.cifar10(tmp_path)
    path, mark = tmp_path / "cifar-10-batches-py" / "test_batch", tmp_path / "mark"
    for evil in (Evil(open, str(mark), "w"), Evil(os.system, f"touch {mark}"), Evil(eval, "1/0")):
        path.write_bytes(pickle.dumps({"data": evil, "labels": [0, 1]}, protocol=protocol))
        refused("a CIFAR batch", "cifar10", tmp_path, path)
        assert not mark.exists()


IMAGES = layouts.write_idx(np.zeros((20, 28, 28), np.uint8))
TRAIN, TEST = "MNIST/raw/train-images-idx3-ubyte", "MNIST/raw/t10k-labels-idx1-ubyte"
TENS, FEW = (layouts.write_idx(np.full(n, 10 * (n == 10), np.uint8)) for n in (10, 9))
OTHERS = [
    ("mnist", TRAIN, b"\0\0\x0d\x03" + b"\0" * 12, "an idx file"),
    ("mnist", TRAIN, b"\0\0\x08\x03\0\0", "an idx file of bytes"),
    ("mnist", TRAIN, IMAGES[:-1], "an idx file of bytes"),
    ("mnist", TEST, TENS, "class 10"),
    ("mnist", TEST, FEW, "9 values"),
    ("stl10", "stl10_binary/test_X.bin", bytes(27_647), "images of 96 by 96 pixels"),
    ("stl10", "stl10_binary/test_X.bin", b"", "is empty"),
    ("stl10", "stl10_binary/test_y.bin", b"\0\1\2", "negative number -1"),
]


@pytest.mark.parametrize(("name", "file", "content", "message"), OTHERS)
def test_other_faults(name, file, content, message, tmp_path):
    getattr(layouts, name)(tmp_path)
    (tmp_path / file).write_bytes(content)
    in_file = "file" in message or "images" in message
    refused(message, name, tmp_path, tmp_path / file if in_file else tmp_path)


def large(path):
    with path.open("wb") as opened:
        opened.truncate(vision.LARGEST + 1)


IN_THE_PLACE = {
    "large": large,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "text": lambda path: path.write_text("<script>alert(1)</script>"),
}


@pytest.mark.parametrize("put", IN_THE_PLACE.values(), ids=IN_THE_PLACE)
def test_what_lies_in_the_place_of_a_file(tmp_path, put):
    layouts.cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-py/test_batch"
    path.unlink()
    put(path)
    refused("plain file|too large|cannot be read", "cifar10", tmp_path, path)
