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
from pathlib import Path

import numpy as np
import torch

from core.data.folders import mapped
from core.data.images import read_image, resized
from core.errors import InputError
from core.files import parsing, read_text
from core.rng import Rng

#: the file of diagnoses and the folder of images, as the challenge names them and as Kaggle does
TABLES = ("ISIC_2020_Training_GroundTruth.csv", "train.csv")
IMAGES = ("train", "jpeg/train")
CLASSES = ("benign", "malignant")
#: bytes of the largest table that is read; the official one has 2 million
LARGEST = 2**24
#: images, and malignant ones among them
OFFICIAL = (33_126, 584)
#: images for training, validation and test in GDD-FL
PARTS = (26_500, 3_312, 3_314)
FOLDER = (
    "ISIC_2020_Training_GroundTruth.csv and the unpacked ISIC_2020_Training_JPEG.zip of "
    "https://challenge2020.isic-archive.com"
)


def from_folder(folder: Path, size: int) -> dict[str, np.ndarray]:
    """The three splits of GDD-FL as arrays in the layout of MedMNIST. Raises InputError when the table
    or an image is missing, broken or not official.
    """
    tables, places = ([folder / one for one in of] for of in (TABLES, IMAGES))
    labels = read_table(next((one for one in tables if one.is_file()), tables[0]))
    place = next((one for one in places if one.is_dir()), places[0])

    def pixels(path: Path) -> np.ndarray:
        # JPEG can be decoded at 1/2, 1/4 or 1/8; twice the final size is left for a smooth resize
        image = read_image(path, 2 * size)
        return resized(np.stack([image] * 3, 2) if image.ndim == 2 else image, size)

    images = np.stack(mapped(pixels, [place / f"{name}.jpg" for name in labels]))
    numbers = np.array([*labels.values()])
    arrays = {"classes": np.array(CLASSES)}
    for part, rows in zip(("train", "val", "test"), split(torch.tensor(numbers)), strict=True):
        arrays |= {f"{part}_images": images[rows], f"{part}_labels": numbers[rows]}
    return arrays


def read_table(path: Path) -> dict[str, int]:
    """Names of the images, in alphabetical order, and their labels: 1 for malignant.

    Raises InputError, naming file and line, for a column that is missing, a name or label that
    makes no sense, a name that occurs twice, and for numbers that are not the official ones.
    """
    found: dict[str, int] = {}
    text = io.StringIO(read_text(path, LARGEST, "table"), newline="")
    with parsing(path, "a table"):
        for line, row in enumerate(csv.DictReader(text), 2):
            name, word, target = (
                row.get(key) or "" for key in ("image_name", "benign_malignant", "target")
            )
            if not name.replace("_", "").isalnum() or name in found:
                raise InputError(f"{path}, line {line}: no image can be named {name!r}, or again")
            if word not in CLASSES or target != str(CLASSES.index(word)):
                raise InputError(
                    f"{path}, line {line}: the diagnosis is {word!r} and the target {target!r}, which "
                    "do not fit together"
                )
            found[name] = int(target)
    counts = len(found), sum(found.values())
    if counts != OFFICIAL:
        raise InputError(
            f"{path} lists {counts[0]} images, {counts[1]} of them malignant, where ISIC 2020 has "
            f"{OFFICIAL[0]} and {OFFICIAL[1]}; get it again"
        )
    return dict(sorted(found.items()))


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
    parts, before = [], (0, 0)
    for end in np.cumsum(PARTS).tolist():
        some = round(len(malignant) * end / total)
        after = some, end - some
        rows = torch.cat([malignant[before[0] : after[0]], benign[before[1] : after[1]]])
        parts.append(rows.sort().values)
        before = after
    return parts
