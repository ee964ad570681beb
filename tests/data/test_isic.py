"""ISIC 2020 in the layouts of the challenge and of Kaggle, in miniature."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch
from PIL import Image

from core.data import convert, isic, load
from core.errors import InputError

#: 40 images, 5 malignant
MALIGNANT = {3, 8, 21, 22, 39}
OFFICIAL, PARTS = isic.OFFICIAL, isic.PARTS


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Images 60 by 40, each of a grey of its own, their right halves brighter; the table has its rows in
    another order.
    """
    monkeypatch.setattr(isic, "OFFICIAL", (40, 5))
    monkeypatch.setattr(isic, "PARTS", (24, 8, 8))
    (tmp_path / "in" / "train").mkdir(parents=True)
    for number in range(40):
        pixels = np.full((40, 60, 3), 6 * number, np.uint8)
        pixels[:, 30:] += 15
        Image.fromarray(pixels).save(
            tmp_path / "in" / "train" / f"ISIC_{number:07}.jpg", quality=95
        )
    write(tmp_path / "in" / isic.TABLES[0], rows())
    return tmp_path / "in"


def rows():
    return [
        {
            "image_name": f"ISIC_{number:07}",
            "patient_id": "IP_1",
            "benign_malignant": isic.CLASSES[number in MALIGNANT],
            "target": str(int(number in MALIGNANT)),
        }
        for number in reversed(range(40))
    ]


def write(path, lines):
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


def test_the_split_of_the_official_numbers_is_that_of_the_paper():
    labels = torch.zeros(OFFICIAL[0], dtype=torch.int64)
    labels[torch.randperm(len(labels))[: OFFICIAL[1]]] = 1
    parts = isic.split(labels)
    assert tuple(map(len, parts)) == PARTS == (26_500, 3_312, 3_314)
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(len(labels)))
    assert [int(labels[part].sum()) for part in parts] == [467, 59, 58]


@pytest.mark.parametrize("kaggle", [False, True])
@pytest.mark.parametrize("name", ["isic2020", "isic2020_64"])
def test_a_folder_is_converted(folder, tmp_path, kaggle, name):
    if kaggle:
        (folder / isic.TABLES[0]).rename(folder / isic.TABLES[1])
        (folder / "jpeg").mkdir()
        (folder / "train").rename(folder / "jpeg" / "train")
    assert convert(name, folder, tmp_path).name == f"{name}.npz"
    data, size = load(name, tmp_path), 224 if name == "isic2020" else 64
    assert (data.classes, data.size) == (isic.CLASSES, size)
    assert [len(one) for one in (data.train, data.val, data.test)] == [24, 8, 8]
    numbers = []
    for part in (data.train, data.val, data.test):
        cuts = part.images[..., : size * 7 // 16], part.images[..., size * 9 // 16 :]
        left, right = (cut.float().mean((1, 2, 3)) for cut in cuts)
        assert ((right - left - 15).abs() < 3).all()  # nothing was cropped
        own = (left / 6).round().int().tolist()
        assert part.labels.tolist() == [int(number in MALIGNANT) for number in own]
        assert own == sorted(own) and int(part.labels.sum()) in (1, 3)
        numbers += own
    assert sorted(numbers) == list(range(40))


def change(number, **values):
    return [line | values if row == number else line for row, line in enumerate(rows())]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (rows()[1:], r"lists 39 images, 4 of them malignant, where ISIC 2020 has 40 and 5"),
        (change(1, target="1", benign_malignant="malignant"), "lists 40 images, 6 of them"),
        (
            change(2, target="1"),
            r"line 4: the diagnosis is 'benign' and the target '1', which do not",
        ),
        (change(3, benign_malignant="unclear"), r"line 5: the diagnosis is 'unclear'"),
        (
            change(4, image_name="ISIC_0000039"),
            "line 6: no image can be named 'ISIC_0000039', or again",
        ),
        (change(5, image_name="../other"), r"line 7: no image can be named '../other'"),
        ([{"image_name": "a"}], "line 2: the diagnosis is ''"),
        ([{"target": "a"}], "line 2: no image can be named ''"),
        ([{"image_name": "x" * 200_000}], "cannot be read as a table"),
    ],
)
def test_a_bad_table_is_named_with_its_line(folder, lines, message):
    write(folder / isic.TABLES[0], lines)
    with pytest.raises(InputError, match=message) as caught:
        isic.from_folder(folder, 64)
    assert str(folder / isic.TABLES[0]) in str(caught.value) and "\n" not in str(caught.value)


def test_what_is_no_table_and_images_that_are_missing(folder):
    path, table = folder / "train" / "ISIC_0000007.jpg", folder / isic.TABLES[0]
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(InputError, match=r"ISIC_0000007\.jpg cannot be read as an image"):
        isic.from_folder(folder, 64)
    path.unlink()
    with pytest.raises(InputError, match=r"there is no image .*ISIC_0000007\.jpg"):
        isic.from_folder(folder, 64)
    for content, message in ((b"\xff\xfe\0\1", "not text in UTF-8"), (b"", "lists 0 images")):
        table.write_bytes(content)
        with pytest.raises(InputError, match=message):
            isic.from_folder(folder, 64)
