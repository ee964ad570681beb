"""The data pack: what goes in, what stays out, and that it can be read where it is unpacked."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest

from core import data
from core.errors import InputError
from lab.datapack import pack
from tests.data import layouts


@pytest.fixture
def folder(tmp_path):
    """A free set, a larger free one, and one that may not be passed on."""
    for name, count in (("breastmnist", 20), ("pneumoniamnist", 200), ("stl10", 20)):
        parts = {}
        for seed, part in enumerate(("train", "val", "test")):
            parts[f"{part}_images"], labels = layouts.draw(seed, count, 28, 28, classes=2)
            parts[f"{part}_labels"] = labels[:, None]
        np.savez(tmp_path / f"{name}.npz", **parts)
    return tmp_path


def test_free_sets_are_packed_with_their_licences(folder, tmp_path):
    target = tmp_path / "out" / "pack.zip"
    assert pack(target, folder) == ["breastmnist", "pneumoniamnist"]
    with zipfile.ZipFile(target) as archive:
        assert archive.namelist() == ["LICENCES.md", "breastmnist.npz", "pneumoniamnist.npz"]
        text = archive.read("LICENCES.md").decode()
        assert "| breastmnist | breastmnist.npz | MedMNIST" in text and "| CC BY 4.0 |" in text
        archive.extractall(tmp_path / "elsewhere")
    with pytest.warns(UserWarning, match="not the official file"):
        assert len(data.load("breastmnist", tmp_path / "elsewhere").train) == 20


def test_what_does_not_fit_stays_out_and_the_file_is_below_its_limit(folder, tmp_path):
    limit = 2**16 + 60_000
    assert pack(tmp_path / "pack.zip", folder, limit) == ["breastmnist"]
    assert (tmp_path / "pack.zip").stat().st_size <= limit
    with pytest.raises(InputError, match="no data set that may be passed on"):
        pack(tmp_path / "pack.zip", tmp_path / "out")
