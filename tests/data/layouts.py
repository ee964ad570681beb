"""Small files in the layouts of the real sets. Each function returns the images it wrote."""

from __future__ import annotations

import pickle
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from core.data.vision import IMAGENETTE

Pixels = dict[str, np.ndarray]


def draw(seed: int, count: int, *shape: int, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Random images of a shape, and labels that count through the classes."""
    pixels = np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)
    return pixels, np.arange(count) % classes


def npz(path: Path, size: int = 28, channels: int = 1, labels: int = 3, **more: object) -> Pixels:
    """A file in the layout of MedMNIST; `more` replaces or adds arrays, None leaves one out."""
    arrays: dict[str, np.ndarray] = {}
    for seed, (split, count) in enumerate((("train", 12), ("val", 4), ("test", 6))):
        shape = (size, size, 3) if channels == 3 else (size, size)
        pixels, numbers = draw(seed, count, *shape, classes=labels)
        arrays[f"{split}_images"] = pixels
        arrays[f"{split}_labels"] = numbers.astype(np.uint8)[:, None]
    found = {key: value for key, value in (arrays | more).items() if value is not None}
    np.savez(path, **found)
    return found


def write_idx(array: np.ndarray) -> bytes:
    """A uint8 array as an idx file."""
    sides = b"".join(side.to_bytes(4, "big") for side in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sides + array.tobytes()


def mnist(root: Path, kind: str = "MNIST") -> Pixels:
    folder = root / kind / "raw"
    folder.mkdir(parents=True)
    out = {}
    for seed, (stem, count) in enumerate((("train", 20), ("t10k", 10))):
        pixels, labels = draw(seed, count, 28, 28)
        (folder / f"{stem}-images-idx3-ubyte").write_bytes(write_idx(pixels))
        (folder / f"{stem}-labels-idx1-ubyte").write_bytes(write_idx(labels.astype(np.uint8)))
        out[stem] = pixels
    return out


def batch(**changes: object) -> bytes:
    """One of CIFAR's python batches; arguments replace or join its entries, None leaves one out."""
    table = {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1]} | changes
    return pickle.dumps({k: v for k, v in table.items() if v is not None}, protocol=4)


def old_batch(pixels: np.ndarray, labels: list[int]) -> bytes:
    """A batch as Python 2 wrote it, as the official ones are: texts of bytes, one of them the pixels."""

    def text(value: bytes) -> bytes:
        return b"T" + len(value).to_bytes(4, "little") + value

    count, width = pixels.shape
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + text(b"b")
    array += b"tR(K\x01(K" + bytes([count]) + b"M" + width.to_bytes(2, "little")
    array += b"tcnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR(K\x03" + text(b"|")
    array += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89" + text(pixels.tobytes()) + b"tb"
    numbers = b"".join(b"K" + bytes([label]) for label in labels)
    return b"\x80\x02}(" + text(b"labels") + b"](" + numbers + b"e" + text(b"data") + array + b"u."


def cifar10(root: Path) -> Pixels:
    """Six batches of four images each."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    out = {}
    for seed, name in enumerate((*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")):
        out[name], labels = draw(seed, 4, 3, 32, 32)
        content = old_batch(out[name].reshape(4, 3072), labels.tolist())
        (folder / name).write_bytes(content)
    return out


def cifar100(root: Path) -> Pixels:
    """`train` with one image for each of the 100 classes, `test` with five images."""
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    out = {}
    for seed, (name, count) in enumerate((("train", 100), ("test", 5))):
        out[name], labels = draw(seed, count, 3, 32, 32, classes=100)
        content = batch(
            data=out[name].reshape(count, 3072),
            labels=None,
            coarse_labels=[0] * count,
            fine_labels=labels.tolist(),
        )
        (folder / name).write_bytes(content)
    return out


def svhn(root: Path) -> Pixels:
    """Labels 1 to 10, where 10 stands for the digit 0."""
    from scipy.io import savemat

    out = {}
    for seed, (split, count) in enumerate((("train", 20), ("test", 10))):
        out[split], labels = draw(seed, count, 3, 32, 32)
        table = {"X": out[split].transpose(2, 3, 1, 0), "y": (labels + 1)[:, None]}
        savemat(root / f"{split}_32x32.mat", table)
    return out


def stl10(root: Path) -> Pixels:
    folder = root / "stl10_binary"
    folder.mkdir(parents=True)
    out = {}
    for seed, (split, count) in enumerate((("train", 10), ("test", 3))):
        pixels, labels = draw(seed, count, 3, 96, 96)
        # smooth, so that resizing is not all rounding
        slope = np.arange(96, dtype=np.uint8)[:, None] * 2
        out[split] = pixels // 8 + slope
        (folder / f"{split}_X.bin").write_bytes(out[split].transpose(0, 1, 3, 2).tobytes())
        (folder / f"{split}_y.bin").write_bytes((labels + 1).astype(np.uint8).tobytes())
    return out


def imagenette(root: Path, folder: str = "imagenette2-160") -> None:
    """Two images a class to train on and one to test on: left half dark, right half bright."""
    for split, count in (("train", 2), ("val", 1)):
        for label, wnid in enumerate(IMAGENETTE):
            place = root / folder / split / wnid
            place.mkdir(parents=True)
            pixels = np.full((80, 120, 3), 20 * label, dtype=np.uint8)
            pixels[:, 60:] += 60
            for number in range(count):
                Image.fromarray(pixels).save(place / f"{number}.JPEG", quality=95)


def png(pixels: np.ndarray, colour: int, bits: int = 8, extra: bytes = b"") -> bytes:
    """An image file by the specification of PNG alone: `colour` 0 grey, 2 RGB, 4 grey and alpha, 6 RGBA."""
    height, width = pixels.shape[:2]
    rows = [b"\0" + row.astype(">u2" if bits == 16 else "u1").tobytes() for row in pixels]
    head = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    parts = [chunk(b"IHDR", head), extra, chunk(b"IDAT", zlib.compress(b"".join(rows)))]
    return b"\x89PNG\r\n\x1a\n" + b"".join([*parts, chunk(b"IEND", b"")])


def chunk(kind: bytes, content: bytes) -> bytes:
    """A part of a PNG file."""
    sum_ = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + sum_


def exif(orientation: int) -> bytes:
    """EXIF metadata that hold nothing but an orientation."""
    return b"MM\0*\0\0\0\x08\0\x01" + struct.pack(">HHIHHI", 0x112, 3, 1, orientation, 0, 0)
