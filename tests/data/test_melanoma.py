"""HAM10000 as melanoma against the rest."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from core.data import available, load
from core.data.partition import split
from core.errors import InputError
from tests.data import layouts

CLASSES = np.array(["akiec", "bcc", "mel", "nv"])


def write(root, classes=CLASSES):
    centre = np.array([0, 1, 2, 3] * 3, dtype=np.uint8)
    return layouts.npz(
        root / "ham10000_64.npz", 64, 3, labels=len(classes), classes=classes, train_centre=centre
    )


@pytest.mark.parametrize("size", [64, 32])
def test_labels_are_melanoma_or_not_and_all_else_stays(tmp_path, size):
    wrote = write(tmp_path)
    data, source = load(f"ham10000_melanoma_{size}", tmp_path), load(f"ham10000_{size}", tmp_path)
    assert (data.name, data.classes, data.size) == (
        f"ham10000_melanoma_{size}",
        ("other", "melanoma"),
        size,
    )
    for word, part, full in (
        ("train", data.train, source.train),
        ("val", data.val, source.val),
        ("test", data.test, source.test),
    ):
        assert part.labels.tolist() == [
            int(label == 2) for label in wrote[f"{word}_labels"].ravel()
        ]
        assert torch.equal(part.images, full.images)
    assert data.train.centre.tolist() == wrote["train_centre"].tolist()
    assert data.fingerprint != source.fingerprint


def test_the_centres_are_a_natural_partition(tmp_path):
    write(tmp_path)
    parts = split({"name": "natural"}, load("ham10000_melanoma_64", tmp_path).train, 4, 0)
    assert [part.tolist() for part in parts] == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]


def test_a_file_without_melanoma_is_refused(tmp_path):
    write(tmp_path, np.array(["cat", "dog"]))
    with pytest.raises(InputError, match=r"ham10000_64\.npz has no class 'mel'; it has: cat, dog"):
        load("ham10000_melanoma_64", tmp_path)


def test_both_names_come_from_one_file(tmp_path):
    with pytest.raises(InputError, match=r"no ham10000_64\.npz.*scale the images"):
        load("ham10000_melanoma_64", tmp_path)
    write(tmp_path)
    here = {info.name for info in available(tmp_path) if info.present}
    assert {"ham10000", "ham10000_melanoma"} <= here and "ham10000_64" not in here
