"""Files of data from others: what they announce is looked at before anything is unpacked."""

import io
import json
import os
import re
import struct
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.data import available, idx, isic, load, monuseg, pictures, stl10, svhn
from core.data import cifar as cifar_module
from core.data.npz import GROWN
from core.errors import InputError
from tests.data import layouts


def sound(**changes) -> dict[str, np.ndarray]:
    return {
        f"{split}_{what}": value
        for split in ("train", "test")
        for what, value in (
            ("images", np.zeros((20, 28, 28), np.uint8)),
            ("labels", np.arange(20).reshape(-1, 1) % 2),
        )
    } | changes


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def header(text: str) -> bytes:
    content = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(content)) + content


def announcing(shape: str, dtype: str = "|u1") -> bytes:
    return (
        header(f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}") + b"\0" * 64
    )


HEADERS = {
    "10^12 images": announcing("(1000000000000, 28, 28)"),
    "more bytes than a number holds": announcing("(" + "9" * 30 + ", 28, 28)"),
    "a negative number of images": announcing("(-5, 28, 28)"),
    "a text for a shape": announcing("'many'"),
    "nested brackets": header("(" * 5000 + ")" * 5000),
    "nested dtypes": announcing("(1,)", "('" * 500),
    "no header": b"\x93NUMPY\x01\x00",
    "another version": b"\x93NUMPY\x09\x00" + b"\0" * 64,
    "nothing": b"",
    "Python objects": announcing("(1,)", "|O"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_lies(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "own.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for key, value in sound().items():
            content = HEADERS[name] if key == "train_images" else npy(value)
            archive.writestr(f"{key}.npy", content)
    with pytest.raises(InputError, match=r"own\.npz") as error:
        load("own", tmp_path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_a_bomb_is_not_unpacked(tmp_path):
    """One byte in a thousand: half a gigabyte of zeros in half a megabyte."""
    with (
        zipfile.ZipFile(
            tmp_path / "own.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1
        ) as archive,
        archive.open("train_images.npy", "w") as file,
    ):
        file.write(announcing(f"({2 * GROWN}, 1, 1)"))
        for _ in range(2 * GROWN // 2**20):
            file.write(bytes(2**20))
    with pytest.raises(InputError, match="would grow to"):
        load("own", tmp_path)


def test_an_encrypted_entry(tmp_path):
    path = tmp_path / "own.npz"
    np.savez(path, **sound())
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\x01\x02")
    content[at + 8] |= 1  # the flag of the first entry in the directory
    path.write_bytes(content)
    with pytest.raises(InputError, match="is encrypted"):
        load("own", tmp_path)


@pytest.mark.parametrize("largest", [2**31, 2**63, 2**64 - 1])
def test_labels_that_are_no_classes(tmp_path, largest):
    labels = np.array([0] * 19 + [largest], np.uint64)
    np.savez(tmp_path / "own.npz", **sound(train_labels=labels))
    with pytest.raises(InputError, match="which is no class"):
        load("own", tmp_path)


def test_a_file_without_images_is_called_so(tmp_path):
    none = {
        f"{split}_{what}": value[:0]
        for split in ("train", "test")
        for what, value in (
            ("images", np.zeros((1, 28, 28), np.uint8)),
            ("labels", np.zeros(1, int)),
        )
    }
    np.savez(tmp_path / "own.npz", **none)
    with pytest.raises(InputError, match="is empty"):
        load("own", tmp_path)


def test_labels_that_are_counted_from_one(tmp_path):
    counted = {f"{split}_labels": np.arange(20) % 3 + 1 for split in ("train", "test")}
    given = sound(**counted)
    np.savez(tmp_path / "own.npz", **given)
    with pytest.raises(InputError, match="count labels from 0, or name the classes"):
        load("own", tmp_path)
    np.savez(tmp_path / "own.npz", **given, classes=np.array(["none", "a", "b", "c"]))
    assert load("own", tmp_path).num_classes == 4


def test_a_pipe_does_not_stop_the_list_of_data_sets(tmp_path):
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "zero.npz").symlink_to("/dev/zero")
    assert {"pipe", "zero"}.isdisjoint(info.name for info in available(tmp_path))


def test_a_sound_file_loads(tmp_path):
    np.savez_compressed(tmp_path / "own.npz", **sound())
    assert len(load("own", tmp_path).train) == 20


# the other readers


def cifar(body: bytes) -> bytes:
    """A pickle in protocol 4 that builds something and then stops."""
    return b"\x80\x04" + body + b"."


PICKLES = {
    "a call of the system": cifar(b"cos\nsystem\n(X\x04\x00\x00\x00truetR"),
    "a name with dots": cifar(b"cnumpy\ndtype.__class__\n"),
    "a place for 10^9 objects": cifar(b"Nr\xff\xff\xff\x3f"),
    "text that names such a place": cifar(b"Np999999999999\n"),
    "bytes that are not there": cifar(b"\x8e" + (2**50).to_bytes(8, "little")),
    "a frame that is not there": cifar(b"\x95" + (2**50).to_bytes(8, "little")),
    "an array of objects": cifar(b"cnumpy\ndtype\n(X\x02\x00\x00\x00O8tR"),
    "an array with a state of lists": cifar(
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tC\x01btR(K\x01]tb"
    ),
    "an array of another size": cifar(
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tC\x01btR"
        b"(K\x01J\xff\xff\xff\x7f\x85cnumpy\ndtype\n(X\x02\x00\x00\x00u1tR\x89C\x01atb"
    ),
    "a function with a state": cifar(b"c_codecs\nencode\n}X\x01\x00\x00\x00aK\x01sb"),
    "a persistent object": cifar(b"Px\n"),
    "an extension": cifar(b"\x82\x01"),
    "a number of a million digits": cifar(b"L" + b"9" * 10**6 + b"L\n"),
    "a thousand lists": cifar(b"]" * 1000 + b"a" * 999),
    "nothing on the stack": cifar(b"a"),
    "no end": b"\x80\x04]",
    "nothing": b"",
}


@pytest.mark.parametrize("name", PICKLES)
def test_a_batch_that_is_none(tmp_path, name):
    layouts.cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_2"
    path.write_bytes(PICKLES[name])
    refused_file("cifar10", tmp_path, path)


def refused_file(name, root, path) -> str:
    """One line that names the file, and no memory taken for what the file announces."""
    tracemalloc.start()
    try:
        with pytest.raises(InputError) as error:
            load(name, root)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    line = str(error.value)
    assert str(path) in line and "\n" not in line and len(line) < 300 + len(str(path))
    assert most < 2**28
    return line


READERS = {
    "cifar10": (layouts.cifar10, "cifar-10-batches-py/test_batch", cifar_module.LARGEST),
    "cifar100": (layouts.cifar100, "cifar-100-python/train", cifar_module.LARGEST),
    "stl10": (layouts.stl10, "stl10_binary/test_X.bin", stl10.LARGEST),
    "svhn": (layouts.svhn, "test_32x32.mat", svhn.LARGEST),
    "imagenette": (
        layouts.imagenette,
        "imagenette2-160/val/n01440764/image_1.JPEG",
        pictures.LARGEST,
    ),
    "mnist": (layouts.mnist, "MNIST/raw/t10k-images-idx3-ubyte", idx.LARGEST),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", ["large", "device", "pipe", "folder", "text"])
def test_what_lies_in_the_place_of_a_file_of_images(tmp_path, name, kind):
    lay, file, largest = READERS[name]
    lay(tmp_path)
    path = tmp_path / file
    path.unlink()
    match kind:
        case "large":
            with path.open("wb") as opened:
                opened.truncate(largest + 1)
        case "device":
            path.symlink_to("/dev/zero")
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "text":
            path.write_text("<script>alert(1)</script>")
    with pytest.raises(InputError) as error:
        load(name, tmp_path)
    line = str(error.value)
    assert path.name.split(".")[0].removesuffix("-images-idx3-ubyte") in line and "\n" not in line


def png(width: int, height: int) -> bytes:
    """The begin of an image of that size."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [struct.pack(">I", 13), head, struct.pack(">I", zlib.crc32(head))]
    return b"".join([b"\x89PNG\r\n\x1a\n", *chunks, struct.pack(">I", 9), b"IDAT"])


PICTURES = {
    "two billion pixels": (png(50_000, 50_000), "50000 by 50000|2500000000 pixels"),
    "more pixels than allowed": (png(9_000, 9_000), "9000 by 9000"),
    "nothing of what it announces": (png(100, 100), "cannot be read as an image"),
    # Pillow would start another program for it
    "PostScript": (
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n",
        "no JPEG or PNG",
    ),
}


@pytest.mark.parametrize("name", PICTURES)
def test_an_image_that_is_not_decoded(tmp_path, name):
    layouts.imagenette(tmp_path)
    path = tmp_path / "imagenette2-160" / "train" / "n01440764" / "image_2.JPEG"
    content, words = PICTURES[name]
    path.write_bytes(content)
    assert re.search(words, refused_file("imagenette", tmp_path, path))
    with pytest.raises(InputError, match=words):
        isic.decode([path], 8)


def mat(part: bytes, kind: int = svhn.COMPRESSED) -> bytes:
    return b" " * 124 + b"\x00\x01IM" + struct.pack("<II", kind, len(part)) + part


def test_a_mat_file_that_grows(tmp_path, monkeypatch):
    monkeypatch.setattr(svhn, "GROWN", 2**22)
    layouts.svhn(tmp_path)
    path = tmp_path / "train_32x32.mat"
    path.write_bytes(mat(zlib.compress(bytes(2**23))))
    assert "would unpack to more than" in refused_file("svhn", tmp_path, path)
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(99))
    assert "not of version 5" in refused_file("svhn", tmp_path, path)


@given(
    st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=5),
    st.integers(1, 12),
    st.integers(-1, 1),
    st.integers(0, 9),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_part_of_a_mat_file_is_measured_whatever_its_slices(
    monkeypatch, parts, slice_, off, level
):
    """The limit is on the bytes of the largest part, to the byte."""
    largest = max(map(len, parts))
    monkeypatch.setattr(svhn, "SLICE", slice_)
    monkeypatch.setattr(svhn, "GROWN", largest + off)
    content = mat(zlib.compress(parts[0], level))
    content += b"".join(mat(zlib.compress(one, level))[128:] for one in parts[1:])
    if off < 0:
        with pytest.raises(ValueError, match="would unpack to more"):
            svhn._bounded(content)
    else:
        svhn._bounded(content)


def test_a_large_mat_file_is_not_copied_again_and_again(monkeypatch):
    """What zlib is given in all: each byte about once, not all that is left after every megabyte."""
    handed, new = [], zlib.decompressobj

    class Unpacker:
        def __init__(self):
            self.real = new()

        def decompress(self, data, most):
            handed.append(len(data))
            return self.real.decompress(data, most)

        def __getattr__(self, name):
            return getattr(self.real, name)

    monkeypatch.setattr(svhn.zlib, "decompressobj", Unpacker)
    packed = zlib.compress(np.random.default_rng(0).bytes(2**24), 0)
    svhn._bounded(mat(packed))
    assert len(packed) <= sum(handed) < 1.5 * len(packed)


@pytest.mark.parametrize(
    "text",
    ["", "image_name\n", "\xff", 'image_name,"' + "x" * 200_000 + '"\n1', "a,b\n" * 3, "\0"],
    ids=["empty", "header", "no UTF-8", "a long field", "other columns", "a zero byte"],
)
def test_a_table_of_diagnoses_that_is_none(tmp_path, text):
    path = tmp_path / "train.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=r"train\.csv"):
        isic.read_table(path)
    with path.open("wb") as file:
        file.truncate(isic.LARGEST + 1)
    with pytest.raises(InputError, match="too large"):
        isic.read_table(path)


# nuclei: a list of images, images, masks, polygons


@pytest.mark.parametrize("id_", ["../secret", "*", "a/b", "", "x" * 200, 3.5, None, "<b>"])
def test_a_list_that_names_what_is_no_image(tmp_path, id_):
    folder = tmp_path / "monuseg"
    folder.mkdir()
    entry = {"id": id_, "organ": "liver", "split": "train"}
    (folder / "manifest.json").write_text(json.dumps([entry]))
    with pytest.raises(InputError, match=r"is not the name of an image|has 0 images"):
        load("monuseg", tmp_path)


POLYGONS = {
    "nothing": "",
    "no polygon": "<A></A>",
    "a corner that is no number": "<A><Region><Vertex X='a' Y='1'/></Region></A>",
    "corners at no place": "<A><Region>" + "<Vertex X='nan' Y='inf'/>" * 3 + "</Region></A>",
    "entities that explode": '<!DOCTYPE a [<!ENTITY a "xxxxxxxxxx">'
    + "".join(
        f'<!ENTITY {one} "{f"&{before};" * 10}">'
        for before, one in zip("abcdefghi", "bcdefghij", strict=True)
    )
    + "]><A>&j;</A>",
    "a file of the system": '<!DOCTYPE a [<!ENTITY a SYSTEM "file:///etc/passwd">]><A>&a;</A>',
    "nested": "<A>" * 100_000,
}


@pytest.mark.parametrize("name", POLYGONS)
def test_annotations_that_are_none(tmp_path, name):
    path = tmp_path / "a.xml"
    path.write_text(POLYGONS[name])
    with pytest.raises(InputError, match=r"a\.xml") as error:
        monuseg.from_polygons(path, (8, 8))
    assert "\n" not in str(error.value)


def test_corners_far_outside_draw_what_is_inside(tmp_path):
    path = tmp_path / "a.xml"
    corners = "".join(
        f"<Vertex X='{x}' Y='{y}'/>"
        for x, y in ((-1e6, -1e6), (1e6, -1e6), (1e6, 1e6), (-1e6, 1e6))
    )
    path.write_text(f"<A><Region>{corners}</Region></A>")
    assert (monuseg.from_polygons(path, (8, 8)) == 1).all()
