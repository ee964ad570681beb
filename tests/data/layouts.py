"""Small files in the layouts of the real sets, for the tests. Each function returns the images it
wrote.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np

Pixels = dict[str, np.ndarray]


def _draw(
    rng: np.random.Generator, count: int, channels: int, size: int, classes: int
) -> tuple[np.ndarray, ...]:
    pixels = rng.integers(0, 256, (count, channels, size, size), dtype=np.uint8)
    return pixels, np.arange(count) % classes


def npz(
    path: Path,
    size: int = 28,
    channels: int = 1,
    labels: int = 3,
    val: bool = True,
    **more: np.ndarray | None,
) -> Pixels:
    """A file in the MedMNIST layout; arrays in `more` replace or join the usual ones, None leaves
    one out.
    """
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for split, count in (("train", 12), ("val", 4), ("test", 6)):
        if split == "val" and not val:
            continue
        pixels, numbers = _draw(rng, count, channels, size, labels)
        arrays[f"{split}_images"] = pixels[:, 0] if channels == 1 else pixels.transpose(0, 2, 3, 1)
        arrays[f"{split}_labels"] = numbers.astype(np.uint8)[:, None]
    kept = {key: value for key, value in (arrays | more).items() if value is not None}
    np.savez(path, **kept)
    return kept


def cifar10(root: Path, protocol: int = 2) -> Pixels:
    """Six batches of four images each, pickled with text keys as Python 3 does."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    out = {}
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        pixels, labels = _draw(rng, 4, 3, 32, 10)
        table = {"data": pixels.reshape(4, 3072), "labels": labels.tolist(), "batch_label": b"x"}
        (folder / name).write_bytes(pickle.dumps(table, protocol=protocol))
        out[name] = pixels
    return out


def python2_string(value: bytes) -> bytes:
    """BINSTRING: how Python 2 wrote a str, which Python 3 can read but not write."""
    return b"T" + len(value).to_bytes(4, "little") + value


def cifar10_python2_batch(pixels: np.ndarray, labels: list[int]) -> bytes:
    """A batch as Python 2 wrote it: byte-string keys, pixels in a byte string."""
    count, width = pixels.shape
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t"
        + python2_string(b"b")
        + b"tR(K\x01(K"
        + bytes([count])
        + b"M"
        + width.to_bytes(2, "little")
        + b"tcnumpy\ndtype\n("
        + python2_string(b"u1")
        + b"K\x00K\x01tR(K\x03"
        + python2_string(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        + python2_string(pixels.tobytes())
        + b"tb"
    )
    numbers = b"".join(b"K" + bytes([label]) for label in labels)
    return (
        b"\x80\x02}("
        + python2_string(b"data")
        + array
        + python2_string(b"labels")
        + b"]("
        + numbers
        + b"eu."
    )


def cifar100(root: Path) -> dict[str, np.ndarray]:
    """`train` with one image per fine class, `test` with five images; coarse labels are the fine
    ones divided by 5.
    """
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(2)
    out = {}
    for name, count in (("train", 100), ("test", 5)):
        pixels, labels = _draw(rng, count, 3, 32, 100)
        table = {
            "data": pixels.reshape(count, 3072),
            "fine_labels": labels.tolist(),
            "coarse_labels": (labels // 5).tolist(),
        }
        (folder / name).write_bytes(pickle.dumps(table, protocol=2))
        out[name] = pixels
    return out


def idx(array: np.ndarray) -> bytes:
    """A uint8 array as an idx file."""
    return (
        bytes([0, 0, 8, array.ndim])
        + b"".join(side.to_bytes(4, "big") for side in array.shape)
        + array.tobytes()
    )


def mnist(root: Path, kind: str = "MNIST") -> Pixels:
    folder = root / kind / "raw"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(3)
    out = {}
    for stem, count in (("train", 20), ("t10k", 10)):
        pixels, labels = _draw(rng, count, 1, 28, 10)
        (folder / f"{stem}-images-idx3-ubyte").write_bytes(idx(pixels[:, 0]))
        (folder / f"{stem}-labels-idx1-ubyte").write_bytes(idx(labels.astype(np.uint8)))
        out[stem] = pixels
    return out


def svhn(root: Path) -> Pixels:
    """Labels 1 to 10, where 10 stands for the digit 0."""
    from scipy.io import savemat

    rng = np.random.default_rng(4)
    out = {}
    for split, count in (("train", 20), ("test", 10)):
        pixels, labels = _draw(rng, count, 3, 32, 10)
        savemat(
            root / f"{split}_32x32.mat",
            {"X": pixels.transpose(2, 3, 1, 0), "y": (labels + 1)[:, None]},
        )
        out[split] = pixels
    return out


def stl10(root: Path) -> Pixels:
    folder = root / "stl10_binary"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(5)
    out = {}
    for split, count in (("train", 10), ("test", 3)):
        pixels, labels = _draw(rng, count, 3, 96, 10)
        # smooth, so that resizing is not all rounding
        pixels = (pixels // 8 + np.arange(96, dtype=np.uint8)[None, None, :, None] * 2).astype(
            np.uint8
        )
        (folder / f"{split}_X.bin").write_bytes(pixels.transpose(0, 1, 3, 2).tobytes())
        (folder / f"{split}_y.bin").write_bytes((labels + 1).astype(np.uint8).tobytes())
        out[split] = pixels
    (folder / "class_names.txt").write_text(
        "airplane\nbird\ncar\ncat\ndeer\ndog\nhorse\nmonkey\nship\ntruck\n"
    )
    (folder / "unlabeled_X.bin").write_bytes(b"")
    (folder / "fold_indices.txt").write_text("\n")
    return out


NUMBERS = (1440764, 2102040, 2979186, 3000684, 3028079, 3394916, 3417042, 3425413, 3445777, 3888257)
WNIDS = [f"n{number:08}" for number in NUMBERS]


def imagenette(root: Path, folder: str = "imagenette2-160") -> None:
    """Two training images and one test image per class, 120 by 80 pixels: left half dark, right
    half bright.
    """
    from PIL import Image

    for split, count in (("train", 2), ("val", 1)):
        for label, wnid in enumerate(WNIDS):
            where = root / folder / split / wnid
            where.mkdir(parents=True)
            for number in range(count):
                pixels = np.full((80, 120, 3), 20 * label, dtype=np.uint8)
                pixels[:, 60:] += 60
                # files are made in reverse order: the reader must sort
                Image.fromarray(pixels).save(where / f"image_{count - number}.JPEG", quality=95)
