"""Looking at condensed knowledge: distances of adjacent rounds, sizes of splits."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core import data
from core.data import partition
from core.data.roots import data_root
from core.errors import InputError
from lab.forms import TABLES
from lab.report import knowledge


def split_sizes(dataset: str, file: str) -> pd.DataFrame:
    """How many training images of a class each client has in a split file: `client`, `class`,
    `images`, `listed`.

    `listed` says whether the class stands in the client's list of classes; the authors' code leaves
    the others out. One row for every class that a client holds. `split_sizes.csv` was made so.
    """
    train = data.load(dataset).train
    path = data_root() / file
    whole, kept = (partition.from_file(path, len(train), labels) for labels in (None, train.labels))
    rows = []
    for client, (part, listed) in enumerate(zip(whole, kept, strict=True)):
        counts, left = (
            np.bincount(train.labels.numpy()[rows_]) if len(rows_) else np.zeros(0, int)
            for rows_ in (part, listed)
        )
        rows += [
            {
                "client": client,
                "class": int(cls),
                "images": int(counts[cls]),
                "listed": bool(cls < len(left) and left[cls]),
            }
            for cls in counts.nonzero()[0]
        ]
    return pd.DataFrame(rows)


def test_the_mmd_of_adjacent_rounds_is_the_squared_distance_of_class_means():
    random = np.random.default_rng(0)
    features, labels = random.normal(size=(40, 3)), random.integers(0, 2, 40)
    rounds = np.repeat([0, 1, 2, 3], 10)
    found = knowledge.adjacent_mmd(*map(torch.as_tensor, (features, labels, rounds)))
    assert found[["round", "class"]].to_numpy().tolist() == [
        [r, c] for r in (1, 2, 3) for c in (0, 1)
    ]
    for row in found.itertuples():
        now, before = (
            features[(rounds == r) & (labels == row[2])].mean(0) for r in (row.round, row.round - 1)
        )
        assert row.mmd == pytest.approx(((now - before) ** 2).sum())


@given(shift=st.floats(-5, 5), count=st.integers(1, 6))
def test_repeated_knowledge_has_no_distance_and_shifted_knowledge_that_of_the_shift(shift, count):
    first = torch.randn(count, 4, generator=torch.Generator().manual_seed(count)).double()
    features = torch.cat([first, first, first + shift])
    labels, rounds = torch.zeros(3 * count), torch.arange(3).repeat_interleave(count)
    same, moved = knowledge.adjacent_mmd(features, labels.long(), rounds)["mmd"]
    assert same == 0 and moved == pytest.approx(4 * shift**2, abs=1e-12)


def test_a_class_that_skips_a_round_has_no_distance_for_it():
    features = torch.tensor([[0.0], [1.0], [5.0], [3.0]])
    labels, rounds = torch.tensor([0, 1, 1, 0]), torch.tensor([0, 0, 1, 2])
    assert knowledge.adjacent_mmd(features, labels, rounds).to_numpy().tolist() == [[1, 1, 16]]
    with pytest.raises(InputError, match="two adjacent rounds"):
        knowledge.adjacent_mmd(features[[0, 3]], labels[[0, 3]], rounds[[0, 3]])
    with pytest.raises(InputError, match="as many labels"):
        knowledge.adjacent_mmd(features, labels[:3], rounds)


def test_condensed_images_are_a_share_rounded_up_and_at_least_five():
    sizes = pd.DataFrame({"images": [1000, 40, 250, 251], "listed": [True, False, True, True]})
    assert knowledge.condensed_total(sizes, 0.02) == 20 + 5 + 6
    assert knowledge.condensed_total(sizes, 0.02, listed_only=False) == 20 + 5 + 5 + 6
    assert knowledge.condensed_total(sizes, 0.02, min_images=1, listed_only=False) == 20 + 1 + 5 + 6


def test_the_sizes_of_the_authors_splits_are_those_of_their_data_sets():
    sizes = pd.read_csv(TABLES / "fedvck" / "split_sizes.csv")
    assert sizes.groupby("dataset")["images"].sum().to_dict() == {
        "cifar10": 50_000,
        "imagenette": 9_469,
        "stl10": 5_000,
    }
    for dataset, count in (("cifar10", 5_000), ("stl10", 500)):
        assert (sizes[sizes["dataset"] == dataset].groupby("class")["images"].sum() == count).all()
    for dataset, file in (("cifar10", "CIFAR10"), ("imagenette", "ImageNette"), ("stl10", "STL32")):
        try:
            found = split_sizes(dataset, f"splits/{file}_clients10_alpha0.05.json")
        except InputError:
            continue  # the data are not at hand
        pd.testing.assert_frame_equal(
            found, sizes[sizes["dataset"] == dataset].iloc[:, 1:].reset_index(drop=True)
        )


def test_sizes_of_a_split(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCON_DATA", str(tmp_path))
    labels = data.load("digits").train.labels.tolist()
    zeros = [i for i, label in enumerate(labels) if label == 0]
    nines = [i for i, label in enumerate(labels) if label == 9]
    split = {
        "client_idx": [zeros[:7] + nines[:2], nines[2:5], []],
        "client_classes": [[0], [9], []],
    }
    (tmp_path / "split.json").write_text(json.dumps(split))
    assert split_sizes("digits", "split.json").to_numpy().tolist() == [
        [0, 0, 7, True],
        [0, 9, 2, False],
        [1, 9, 3, True],
    ]
