"""ISIC 2020 as the challenge ships it: a CSV file of diagnoses and a folder of JPEG files.

Rotemberg et al. A patient-centric dataset of images and metadata for identifying melanomas using
clinical context. Scientific Data 8, 34, 2021, doi:10.34970/2020-ds01. 33,126 images of the training
set, 584 of them malignant; the labels of the test set are not public.

GDD-FL (MICCAI 2023, Sec. 3.1) divides the training set into 26,500, 3,312 and 3,314 images and
resizes them to 224x224. It does not say how: here the split is random, with the same share of
malignant images in each part, and each image is resized as a whole, so that its sides may change in
proportion. Nor does it say whether the images of a patient stay together; sizes that fit to the
last image speak against it, and here they do not.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from core.data.arrays import assemble
from core.data.dataset import Dataset, Split
from core.data.npz import load_npz, save_npz
from core.data.pictures import decoded
from core.errors import InputError
from core.files import read_text
from core.rng import Rng

if TYPE_CHECKING:
    from PIL.Image import Image

FOLDER = "isic2020"
#: the file of diagnoses as the challenge names it, and as Kaggle does
TABLES = ("ISIC_2020_Training_GroundTruth.csv", "train.csv")
#: the folder of images as ISIC_2020_Training_JPEG.zip holds it, and as Kaggle does
IMAGES = ("train", "jpeg/train")
CLASSES = ("benign", "malignant")
#: bytes of the largest table that is read; the official one has 2 million
LARGEST = 2**24
#: images, and malignant ones among them
OFFICIAL = (33_126, 584)
#: images for training, validation and test in GDD-FL
PARTS = (26_500, 3_312, 3_314)
HOW = (
    "download ISIC_2020_Training_JPEG.zip and ..._GroundTruth.csv from "
    "https://challenge2020.isic-archive.com, "
    f"unpack them in the data folder's {FOLDER}, run: fedcon data get isic2020"
)


def layouts(size: int) -> tuple[tuple[str, ...], ...]:
    """What is looked for, relative to the data folder: a table and a folder of images, or the
    packed file.
    """
    return (
        *((f"{FOLDER}/{table}", f"{FOLDER}/{images}") for table in TABLES for images in IMAGES),
        (packed(size),),
    )


def packed(size: int) -> str:
    """The file that holds the decoded images of `size` pixels."""
    return f"isic2020_{size}.npz"


def load_isic(root: Path, size: int) -> Dataset:
    """The three splits of GDD-FL; from the packed file where it is there, else by decoding all JPEG
    files.

    Raises InputError when a table or an image is missing, broken or not official.
    """
    name = f"isic2020_{size}"
    if (root / packed(size)).is_file():
        return load_npz(root / packed(size), name, CLASSES, size=size)
    folder = root / FOLDER
    table = next(
        (folder / table for table in TABLES if (folder / table).is_file()), folder / TABLES[0]
    )
    names, labels = read_table(table)
    images = next(
        (folder / images for images in IMAGES if (folder / images).is_dir()), folder / IMAGES[0]
    )
    pixels = decode([images / f"{name}.jpg" for name in names], size)
    train, val, test = (Split(pixels[rows], labels[rows]) for rows in split(labels))
    return assemble(name, train, val, test, CLASSES, None, None, folder)


def pack(root: Path, size: int) -> None:
    """Decode once and keep the result as `isic2020_<size>.npz`; does nothing where it is there.

    Raises InputError, saying how the files are had, when they are not there.
    """
    target = root / packed(size)
    if target.is_file():
        return
    if not any(all((root / path).exists() for path in paths) for paths in layouts(size)):
        raise InputError(f"ISIC 2020 is not in {root / FOLDER}; {HOW}")
    save_npz(target, load_isic(root, size))


def read_table(path: Path) -> tuple[list[str], torch.Tensor]:
    """Names of the images, in alphabetical order, and their labels (N,) int64: 1 for malignant.

    Raises InputError, naming file and line, for a column that is missing, a name or label that
    makes no sense, a name that stands twice, and for numbers that are not the official ones.
    """
    found: dict[str, int] = {}
    try:
        text = read_text(path, LARGEST, "table").removeprefix("\ufeff")
        for line, row in enumerate(csv.DictReader(io.StringIO(text, newline="")), 2):
            name, label = _entry(row, f"{path}, line {line}")
            if name in found:
                raise InputError(f"{path}, line {line}: the image {name} stands twice")
            found[name] = label
    except csv.Error as error:
        raise InputError(f"{path} cannot be read as a table ({error}); get it again") from None
    counts = len(found), sum(found.values())
    if counts != OFFICIAL:
        raise InputError(
            f"{path} lists {counts[0]} images, {counts[1]} of them malignant, where ISIC 2020 has "
            f"{OFFICIAL[0]} and {OFFICIAL[1]}; get it again"
        )
    names = sorted(found)
    return names, torch.tensor([found[name] for name in names])


def _entry(row: dict[str, str], where: str) -> tuple[str, int]:
    """Name and label in a row of the table."""
    for column in ("image_name", "benign_malignant", "target"):
        if row.get(column) is None:
            raise InputError(f"{where}: there is no {column!r}; get the table again")
    name, word, target = row["image_name"], row["benign_malignant"], row["target"]
    if not name.replace("_", "").isalnum():
        raise InputError(f"{where}: {name!r} is not the name of an image")
    if word not in CLASSES or target != str(CLASSES.index(word)):
        raise InputError(
            f"{where}: the diagnosis is {word!r} and the target {target!r}, which do not fit together"
        )
    return name, int(target)


def split(labels: torch.Tensor) -> list[torch.Tensor]:
    """Rows of the training, validation and test images, each ascending: random, always the same,
    with equal shares.

    Every part gets its share of malignant images, to the nearest whole number.
    """
    rng, total = Rng(0).at("isic2020", "split"), len(labels)
    benign, malignant = (
        rows[torch.randperm(len(rows), generator=rng.at(word).generator())]
        for label, word in enumerate(CLASSES)
        for rows in [(labels == label).nonzero()[:, 0]]
    )
    ends = [sum(PARTS[:number]) for number in (1, 2, 3)]
    parts, before = [], (0, 0)
    for end in ends:
        some = round(len(malignant) * end / total)
        after = some, end - some
        parts.append(
            torch.cat([malignant[before[0] : after[0]], benign[before[1] : after[1]]]).sort().values
        )
        before = after
    return parts


def decode(paths: Sequence[Path], size: int) -> torch.Tensor:
    """The images as uint8 (N, 3, size, size), each resized as a whole.

    Raises InputError when pillow is absent and for a file that is missing or broken.
    """
    pixels = torch.empty(len(paths), 3, size, size, dtype=torch.uint8)

    def small(image: Image) -> np.ndarray:
        from PIL.Image import Resampling

        # JPEG can be decoded at 1/2, 1/4 or 1/8; twice the final size is left for a smooth resize
        image.draft("RGB", (2 * size, 2 * size))
        return np.array(image.convert("RGB").resize((size, size), Resampling.BILINEAR))

    def read(row: int) -> None:
        if not paths[row].exists():
            raise InputError(
                f"the image {paths[row]} is missing; unpack ISIC_2020_Training_JPEG.zip again"
            )
        pixels[row] = torch.from_numpy(decoded(paths[row], small)).permute(2, 0, 1)

    with ThreadPoolExecutor() as pool:
        for _ in pool.map(read, range(len(paths))):
            pass
    return pixels
