"""Files of data from others: what they announce is looked at before anything is unpacked."""

import io
import os
import struct
import zipfile

import numpy as np
import pytest

from core.data import available, load
from core.data.npz import GROWN
from core.errors import InputError


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


def test_a_pipe_does_not_stop_the_list_of_data_sets(tmp_path):
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "zero.npz").symlink_to("/dev/zero")
    assert {"pipe", "zero"}.isdisjoint(info.name for info in available(tmp_path))


def test_a_sound_file_loads(tmp_path):
    np.savez_compressed(tmp_path / "own.npz", **sound())
    assert len(load("own", tmp_path).train) == 20
