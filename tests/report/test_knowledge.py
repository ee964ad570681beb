"""Looking at condensed knowledge: distances of adjacent rounds, lines, heat maps, listings."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core import data
from core.errors import InputError
from core.experiments.spec import TABLES
from core.report import knowledge

LONG = pd.DataFrame(
    {"x": [1, 1, 2, 2, 1, 2], "y": [1.0, 3.0, 5.0, 5.0, 7.0, 8.0], "label": list("aaaabb")}
)


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


def test_lines_are_means_with_a_band():
    pytest.importorskip("matplotlib")
    figure = knowledge.lines(LONG, "x", "y", ylabel="loss", title="Two")
    first, second = figure.axes[0].get_lines()
    assert first.get_xydata().tolist() == [[1, 2], [2, 5]] and second.get_xydata().tolist() == [
        [1, 7],
        [2, 8],
    ]
    (band,) = figure.axes[0].collections  # b has one value per x, so it has no band
    assert band.get_paths()[0].vertices[:, 1].min() == pytest.approx(2 - np.sqrt(2))
    assert figure.get_label() == "Two. loss against x: a goes from 2 to 5; b goes from 7 to 8."
    assert all(tick == int(tick) for tick in figure.axes[0].get_xticks())  # x holds whole numbers
    assert knowledge.lines(LONG, "x", "y", log="y").axes[0].get_yscale() == "log"


def test_lines_refuse_what_they_cannot_draw():
    with pytest.raises(InputError, match="no column 'z': x, y, label"):
        knowledge.lines(LONG, "x", "z")
    with pytest.raises(InputError, match="empty"):
        knowledge.lines(LONG[:0], "x", "y")


def test_a_scatter_shows_every_point_and_says_where_each_cloud_lies():
    pytest.importorskip("matplotlib")
    points = pd.DataFrame({"x": [1.0, 3.0, 10.0], "y": [2.0, 2.0, -4.0], "label": ["a", "a", "b"]})
    figure = knowledge.scatter(points, "x", "y", ylabel="height", title="Two")
    a, b = figure.axes[0].collections
    assert a.get_offsets().tolist() == [[1, 2], [3, 2]] and b.get_offsets().tolist() == [[10, -4]]
    assert not np.array_equal(a.get_facecolor(), b.get_facecolor())
    assert not np.array_equal(
        a.get_paths()[0].vertices, b.get_paths()[0].vertices
    )  # told apart without colour
    assert figure.get_label() == (
        "Two. Points of height against x, mean ± standard deviation of each cloud: a lies at 2 "
        "± 1 across and 2 ± 0 "
        "up; b lies at 10 ± 0 across and -4 ± 0 up."
    )
    with pytest.raises(InputError, match="no column 'z'"):
        knowledge.scatter(points, "x", "z")
    with pytest.raises(InputError, match="empty"):
        knowledge.scatter(points[:0], "x", "y")


def test_a_heat_map_says_what_it_shows():
    pytest.importorskip("matplotlib")
    figure = knowledge.heat_map(
        torch.tensor([[2.0, 1.0], [3.0, 0.0]]),
        ["cat", "dog"],
        marked=torch.tensor([[1, -1], [0, -1]]),
        title="Logits",
    )
    assert len(figure.axes[0].patches) == 2
    assert [text.get_text() for text in figure.axes[0].texts] == ["2.0", "1.0", "3.0", "0.0"]
    assert "from 0.00 to 3.00" in figure.get_label() and "in 1 of 2 rows" in figure.get_label()
    with pytest.raises(InputError, match="as many rows"):
        knowledge.heat_map(np.zeros((2, 3)), ["cat", "dog"])


def test_a_listing_leaves_the_docstring_out():
    pytest.importorskip("IPython")
    text = knowledge.body(knowledge.adjacent_mmd).data
    assert text.startswith("```python\ndef adjacent_mmd(") and text.endswith(
        "return pd.DataFrame(rows)\n```"
    )
    assert "Squared MMD" not in text and '"""' not in text


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
    }
    assert (sizes[sizes["dataset"] == "cifar10"].groupby("class")["images"].sum() == 5_000).all()
    for dataset, file in (("cifar10", "CIFAR10"), ("imagenette", "ImageNette")):
        try:
            found = knowledge.split_sizes(dataset, f"splits/{file}_clients10_alpha0.05.json")
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
    assert knowledge.split_sizes("digits", "split.json").to_numpy().tolist() == [
        [0, 0, 7, True],
        [0, 9, 2, False],
        [1, 9, 3, True],
    ]
