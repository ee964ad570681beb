"""ISIC 2020 in the layouts of the challenge and of Kaggle, written here in miniature."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from core.data import available, get, isic, load
from core.errors import InputError

pytest.importorskip("PIL")
COLUMNS = (
    "image_name",
    "patient_id",
    "sex",
    "age_approx",
    "anatom_site_general_challenge",
    "diagnosis",
    "benign_malignant",
    "target",
)
#: as they stand in the module, before the tests make them small
OFFICIAL, PARTS = isic.OFFICIAL, isic.PARTS
#: 40 images, 5 malignant
MALIGNANT = {3, 8, 21, 22, 39}


def rows() -> list[dict[str, str]]:
    return [
        dict(
            zip(
                COLUMNS,
                (
                    f"ISIC_{number:07}",
                    f"IP_{number % 7}",
                    "female",
                    "45.0",
                    "torso",
                    "unknown",
                    "malignant" if number in MALIGNANT else "benign",
                    str(int(number in MALIGNANT)),
                ),
                strict=True,
            )
        )
        for number in reversed(range(40))
    ]


def write_table(
    path: Path, lines: list[dict[str, str]], columns: tuple[str, ...] = COLUMNS
) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(lines)


def lay_out(root: Path, table: str = isic.TABLES[0], images: str = isic.IMAGES[0]) -> Path:
    """Images of 60 by 40 pixels: grey level 6 times the image's number, the right half 15 levels
    brighter.
    """
    from PIL import Image

    folder = root / "isic2020"
    (folder / images).mkdir(parents=True)
    write_table(folder / table, rows())
    for number in range(40):
        pixels = np.full((40, 60, 3), 6 * number, dtype=np.uint8)
        pixels[:, 30:] += 15
        Image.fromarray(pixels).save(folder / images / f"ISIC_{number:07}.jpg", quality=95)
    return folder


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(isic, "OFFICIAL", (40, 5))
    monkeypatch.setattr(isic, "PARTS", (24, 8, 8))


@pytest.mark.parametrize("table", isic.TABLES)
@pytest.mark.parametrize("images", isic.IMAGES)
def test_both_layouts_are_read(tmp_path, table, images):
    lay_out(tmp_path, table, images)
    data = load("isic2020_64", tmp_path)
    assert (data.name, data.channels, data.size, data.classes) == (
        "isic2020_64",
        3,
        64,
        ("benign", "malignant"),
    )
    assert [len(part) for part in (data.train, data.val, data.test)] == [24, 8, 8]
    seen = []
    for part in (data.train, data.val, data.test):
        left, right = (
            part.images[..., :28].float().mean((1, 2, 3)),
            part.images[..., 36:].float().mean((1, 2, 3)),
        )
        assert (
            (right - left - 15).abs() < 3
        ).all()  # the whole image is there: nothing was cropped
        number = (left / 6).round().long()
        assert part.labels.tolist() == [int(one in MALIGNANT) for one in number.tolist()]
        assert number.tolist() == sorted(
            number.tolist()
        )  # in the order of the names, not of the table
        seen += number.tolist()
    assert sorted(seen) == list(range(40))


def test_every_part_has_its_share_of_malignant_images_and_the_split_is_always_the_same():
    labels = torch.zeros(33_126, dtype=torch.int64)
    labels[torch.randperm(33_126, generator=torch.Generator().manual_seed(1))[:584]] = 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isic, "PARTS", PARTS)
        parts, again = isic.split(labels), isic.split(labels)
    assert tuple(len(part) for part in parts) == PARTS
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(33_126))
    for part, size in zip(parts, PARTS, strict=True):
        assert abs(int(labels[part].sum()) - 584 * size / 33_126) <= 1
    # up to the end of each part it is the nearest whole number: 467, 526 and 584
    counts = torch.tensor([int(labels[part].sum()) for part in parts])
    assert counts.cumsum(0).tolist() == [
        round(584 * end / 33_126) for end in (26_500, 29_812, 33_126)
    ]
    assert all(torch.equal(a, b) for a, b in zip(parts, again, strict=True))


def test_the_official_numbers_are_those_of_the_paper():
    assert OFFICIAL == (33_126, 584)
    assert PARTS == (26_500, 3_312, 3_314) and sum(PARTS) == OFFICIAL[0]


def test_the_images_are_packed_once(tmp_path):
    folder = lay_out(tmp_path)
    first = load("isic2020", tmp_path, size=64)
    assert get("isic2020_64", tmp_path) == tmp_path
    for path in (folder / "train").iterdir():
        path.unlink()
    packed = load("isic2020_64", tmp_path)
    assert packed.fingerprint == first.fingerprint and packed.classes == first.classes
    assert get("isic2020_64", tmp_path) == tmp_path  # and nothing is decoded again
    assert sorted(path.name for path in tmp_path.iterdir()) == ["isic2020", "isic2020_64.npz"]


def test_absent_images_come_with_instructions(tmp_path):
    for act in (lambda: load("isic2020_224", tmp_path), lambda: get("isic2020", tmp_path)):
        with pytest.raises(
            InputError,
            match=r"download ISIC_2020_Training_JPEG\.zip and \.\.\._GroundTruth\.csv",
        ):
            act()
    info = {one.name: one for one in available(tmp_path)}["isic2020"]
    assert (info.present, info.sizes) == (False, (224, 64))
    assert "fedcon data get isic2020" in info.how_to_get
    lay_out(tmp_path)
    assert {one.name: one for one in available(tmp_path)}["isic2020"].present_sizes == (224, 64)


def change(number: int, **values: str) -> list[dict[str, str]]:
    lines = rows()
    lines[number] |= values
    return lines


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (rows()[1:], r"lists 39 images, 4 of them malignant, where ISIC 2020 has 40 and 5"),
        (
            change(1, target="1", benign_malignant="malignant"),
            "lists 40 images, 6 of them malignant",
        ),
        (
            change(2, target="1"),
            r"line 4: the diagnosis is 'benign' and the target '1', which do not fit together",
        ),
        (change(3, benign_malignant="unclear"), r"line 5: the diagnosis is 'unclear'"),
        (change(4, image_name="ISIC_0000039"), r"line 6: the image ISIC_0000039 stands twice"),
        (change(5, image_name="../other"), r"line 7: '../other' is not the name of an image"),
        (change(6, image_name=""), "line 8: '' is not the name of an image"),
    ],
    ids=["short", "counts", "mismatch", "word", "twice", "path", "empty"],
)
def test_a_bad_table_is_named_with_its_line(tmp_path, lines, message):
    folder = lay_out(tmp_path)
    write_table(folder / isic.TABLES[0], lines)
    with pytest.raises(InputError, match=message) as caught:
        load("isic2020", tmp_path)
    assert str(folder / isic.TABLES[0]) in str(caught.value)


@pytest.mark.parametrize("column", ["image_name", "benign_malignant", "target"])
def test_a_missing_column_is_named(tmp_path, column):
    folder = lay_out(tmp_path)
    write_table(folder / isic.TABLES[0], rows(), tuple(one for one in COLUMNS if one != column))
    with pytest.raises(InputError, match=f"there is no '{column}'"):
        load("isic2020", tmp_path)


def test_a_file_that_is_no_table(tmp_path):
    folder = lay_out(tmp_path)
    (folder / isic.TABLES[0]).write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(InputError, match="is not text in UTF-8"):
        load("isic2020", tmp_path)
    (folder / isic.TABLES[0]).write_text("")
    with pytest.raises(InputError, match="lists 0 images"):
        load("isic2020", tmp_path)


def test_a_missing_or_broken_image_is_named(tmp_path):
    folder = lay_out(tmp_path)
    path = folder / "train" / "ISIC_0000007.jpg"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"ISIC_0000007\.jpg cannot be read as an image"):
        load("isic2020_64", tmp_path)
    path.unlink()
    with pytest.raises(InputError, match=r"ISIC_0000007\.jpg is missing"):
        load("isic2020_64", tmp_path)
