"""Partitions: what must hold for any labels, and closed forms where there are some."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from core.data import Split
from core.data import partition as p
from tests.sentences import refused

LABELS = st.lists(st.integers(0, 7), min_size=1, max_size=120).map(np.array)
SEEDS = st.integers(0, 2**40)
# from the smallest positive number to the largest
ALPHAS = st.one_of(
    st.sampled_from([5e-324, 1e-300, 1e-12, 0.02, 0.05, 1.0, 1e6, 1.7e308]), st.floats(1e-3, 1e3)
)
TEN = np.repeat(np.arange(10), 100)


def everything_once(parts, count):
    assert all(part.dtype == np.int64 for part in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(count))


def same(a, b):
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def lengths(parts):
    return [len(part) for part in parts]


@given(LABELS, st.integers(1, 12), SEEDS)
def test_iid(labels, clients, seed):
    assume(clients <= len(labels))
    parts = p.iid(labels, clients, seed)
    everything_once(parts, len(labels))
    assert len(parts) == clients and max(lengths(parts)) - min(lengths(parts)) <= 1
    assert same(parts, p.iid(torch.from_numpy(labels), clients, seed))


@given(LABELS, st.integers(1, 12), ALPHAS, SEEDS, st.integers(0, 4), st.booleans())
def test_dirichlet_gives_every_sample_once_and_min_size(labels, clients, alpha, seed, least, cap):
    assume(clients * least <= len(labels))
    parts = p.dirichlet(labels, clients, alpha, seed, least, cap)
    assert len(parts) == clients and min(lengths(parts)) >= least
    everything_once(parts, len(labels))
    assert same(parts, p.dirichlet(labels, clients, alpha, seed, least, cap))


@given(st.integers(2, 40), st.integers(1, 8), st.integers(2, 10), ALPHAS, SEEDS)
def test_size_cap(per_class, classes, clients, alpha, seed):
    """A client that holds N / clients samples or more gets no further class."""
    labels = np.repeat(np.arange(classes), per_class)
    for part in p.dirichlet(labels, clients, alpha, seed, min_size=0, cap=True):
        own = labels[part]
        if len(own):
            assert (own < own.max()).sum() * clients < len(labels)


def test_dirichlet_follows_the_dirichlet_distribution():
    """The share that one client gets of a class is Beta(alpha, (clients - 1) alpha)."""
    labels, clients, runs = np.zeros(2000, dtype=np.int64), 5, 400
    at = np.linspace(0.01, 0.99, 99)  # away from 0 and 1, where shares are rounded to whole samples
    for alpha in (0.05, 0.3, 2.0):
        parts = [p.dirichlet(labels, clients, alpha, seed, min_size=0) for seed in range(runs)]
        shares = sorted(len(each[2]) / 2000 for each in parts)
        below = np.searchsorted(shares, at, side="right") / runs
        # the largest gap between the two, at the 1% critical value of Kolmogorov and Smirnov
        expected = stats.beta(alpha, (clients - 1) * alpha).cdf(at)
        assert np.abs(below - expected).max() < 1.63 / math.sqrt(runs)


def test_limits_of_alpha():
    for part in p.dirichlet(TEN, 5, 1.7e308, 0, min_size=0):
        assert np.bincount(TEN[part], minlength=10).tolist() == [20] * 10
    for part in p.dirichlet(TEN, 5, 5e-324, 0, min_size=0):
        assert set(np.bincount(TEN[part], minlength=10).tolist()) <= {0, 100}
    # the smallest has no favourite client
    parts = p.dirichlet(np.repeat(np.arange(400), 2), 4, 5e-324, 3, min_size=0)
    assert stats.chisquare(np.array(lengths(parts)) / 2).pvalue > 0.01


def test_per_class_gives_out_so_many_random_samples_of_a_class():
    labels = np.repeat([0, 1, 2], [300, 50, 200])
    out = np.concatenate(p.dirichlet(labels, 4, 0.5, seed=3, per_class=100))
    assert len(np.unique(out)) == len(out)
    assert np.bincount(labels[out]).tolist() == [100, 50, 100]
    assert (np.sort(out)[:100] != np.arange(100)).any()  # not the first hundred
    assert same(p.dirichlet(labels, 4, 0.5, 3, per_class=300), p.dirichlet(labels, 4, 0.5, 3))


def test_repair_takes_from_the_largest_and_ends_at_once_at_tiny_alpha():
    one_class = np.zeros(1000, dtype=np.int64)
    assert lengths(p.dirichlet(one_class, 100, 1e-9, 0, min_size=10)) == [10] * 100
    assert sorted(lengths(p.dirichlet(one_class, 4, 1e-9, 0, min_size=7))) == [7, 7, 7, 979]
    big = p.dirichlet(np.zeros(60_000, dtype=np.int64), 1000, 1e-9, 0, min_size=60)
    assert set(lengths(big)) == {60}


@given(st.integers(1, 8), st.integers(1, 15), st.integers(1, 8), SEEDS)
def test_pathological(classes, clients, per_client, seed):
    assume(per_client <= classes <= clients * per_client)
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(classes) * 3, 20))
    parts = p.pathological(labels, clients, per_client, seed)
    everything_once(parts, len(labels))
    held = [np.unique(labels[part]) for part in parts]
    assert len(parts) == clients and all(len(own) == per_client for own in held)
    owners = np.unique(np.concatenate(held), return_counts=True)[1]
    assert owners.max() - owners.min() <= 1
    for label in np.unique(labels):
        shares = [n for n in ((labels[part] == label).sum() for part in parts) if n]
        assert max(shares) - min(shares) <= 1
    assert same(parts, p.pathological(labels, clients, per_client, seed))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60).map(np.array))
def test_natural(centre):
    assume(centre.max() < len(centre))
    parts = p.natural(centre)
    everything_once(parts, len(centre))
    assert len(parts) == centre.max() + 1
    assert all((centre[part] == number).all() for number, part in enumerate(parts))


def write(path, idx, classes=None):
    more = {} if classes is None else {"client_classes": classes}
    path.write_text(json.dumps({"client_idx": idx} | more), encoding="utf-8-sig")
    return path


def lists(parts):
    return [part.tolist() for part in parts]


def test_from_file(tmp_path):
    path = write(tmp_path / "s.json", [[4, 0], [], [3, 1]], [[0], [], [1]])
    assert lists(p.from_file(path)) == lists(p.from_file(path, 5)) == [[4, 0], [], [3, 1]]
    labels = np.array([0, 0, 0, 1, 1])
    assert lists(p.from_file(path, 5, labels)) == [[0], [], [3]]
    for samples in (None, 3, 9):
        few = np.zeros(3, dtype=int)
        refused("holds sample 4, but there are only 3", p.from_file, path, samples, few)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12, unique=True), st.data())
def test_a_copy_that_lacks_images_and_has_another_order_gets_what_it_has(
    tmp_path_factory, index, draws
):
    """`index` says which image of the official file stands where."""
    cuts = sorted(draws.draw(st.lists(st.integers(0, 31), min_size=2, max_size=2)))
    official = np.split(np.arange(31), cuts)
    path = write(tmp_path_factory.mktemp("split") / "s.json", lists(official))
    if len(index) < 31:
        with pytest.warns(UserWarning, match=f"{31 - len(index)} of 31 samples are not here"):
            parts = p.from_file(path, 31, index=np.array(index))
    for part, own in zip(parts, official, strict=True):
        assert [index[row] for row in part] == [number for number in own if number in index]


def test_split_dispatches(tmp_path):
    labels, centre = torch.arange(4).repeat(10), torch.arange(40) % 3
    split = Split(torch.zeros(40, 1, 2, 2, dtype=torch.uint8), labels, centre)
    write(tmp_path / "s.json", [list(range(39)), []], [[0], [1]])
    dirichlet = p.dirichlet(labels, 5, 1, 3, min_size=2, cap=True)
    of_file = {"file": "s.json", "listed_classes_only": True}
    cases = {
        "iid": ({}, 5, p.iid(labels, 5, 3)),
        "dirichlet": ({"alpha": 1, "min_size": 2, "cap": True}, 5, dirichlet),
        "pathological": ({"classes_per_client": 2}, 5, p.pathological(labels, 5, 2, 3)),
        "natural": ({}, 3, p.natural(centre)),
        "file": (of_file, 2, [np.arange(0, 39, 4), np.array([])]),
    }
    assert set(cases) == set(p.PARTITIONS)
    for name, (options, clients, expected) in cases.items():
        assert same(p.split({"name": name, **options}, split, clients, 3, tmp_path), expected)


def test_file_is_looked_for_in_the_data_folder_and_counts_by_the_index(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCON_DATA", str(tmp_path))
    images, labels = torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.zeros(3).long()
    path = write(tmp_path / "s.json", [[2], [0, 1]])
    for index, wanted in ((None, [[2], [0, 1]]), (torch.tensor([2, 0, 1]), [[0], [1, 2]])):
        split = Split(images, labels, index=index)
        for file in ("s.json", str(path)):
            assert lists(p.split({"name": "file", "file": file}, split, 2, 0)) == wanted
    assert p.written({"name": "file", "file": "s.json"}) == path
    assert p.written({"name": "iid"}) is None
    refused("needs 'file'", p.written, {"name": "file"})


SPLIT = Split(torch.zeros(6, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 0, 0, 1, 1, 2]))
BAD_SPECS = [
    ({}, 2, "a partition is a table with a 'name'"),
    ({"name": "iid", "alpha": 1}, 2, "takes no options, but 'alpha'"),
    ({"name": "dirichlet", "alpah": 1}, 2, "did you mean 'alpha'"),
    ({"name": "iid"}, 0, "clients must be a whole number of at least 1"),
    ({"name": "iid"}, 7, "6 samples cannot give each of 7 clients at least one sample"),
    *(
        ({"name": "dirichlet", "alpha": a}, 2, "alpha must be a number above 0")
        for a in (0, math.nan, "x")
    ),
    ({"name": "dirichlet", "alpha": 1, "min_size": 4}, 2, "at least 4 samples"),
    ({"name": "dirichlet", "alpha": 1, "min_size": -1}, 2, "min_size must be a whole number"),
    ({"name": "dirichlet", "alpha": 1, "cap": 1}, 2, "cap must be true or false"),
    ({"name": "dirichlet", "alpha": 1, "per_class": 0}, 2, "per_class must be a whole number"),
    ({"name": "dirichlet", "alpha": 1, "per_class": 1}, 4, "3 samples cannot give each of 4"),
    ({"name": "pathological", "classes_per_client": 4}, 2, "the samples have 3 classes"),
    ({"name": "pathological", "classes_per_client": 1}, 2, "cannot hold all 3 classes"),
    ({"name": "pathological", "classes_per_client": 0}, 2, "classes_per_client must be"),
    ({"name": "pathological", "classes_per_client": 3}, 2, "class 2 has 1 samples for 2 clients"),
    ({"name": "file", "file": 3}, 2, "file must be the path"),
    ({"name": "file", "file": "x", "listed_classes_only": "yes"}, 2, "must be true or false"),
]


@pytest.mark.parametrize(("spec", "clients", "message"), BAD_SPECS)
def test_impossible_requests(spec, clients, message, tmp_path):
    refused(message, p.split, spec, SPLIT, clients, 0, tmp_path)


def test_wrong_number_of_clients(tmp_path):
    write(tmp_path / "s.json", [[0], [1]])
    spec, words = {"name": "file", "file": "s.json"}, "the file s.json has 2 clients, not 3"
    refused(f"{words}: give --clients 2", p.split, spec, SPLIT, 3, 0, tmp_path)
    centred = Split(SPLIT.images, SPLIT.labels, torch.tensor([0, 1, 0, 1, 0, 1]))
    refused("has 2 clients, not 3: give --clients 2", p.split, {"name": "natural"}, centred, 3, 0)


BAD_FILES = [
    ("[", r"is damaged|is not text"),
    ("[1]", "must hold a table"),
    ("{}", "'client_idx' must be a list"),
    ('{"client_idx": [1]}', "'client_idx' must be a list"),
    ('{"client_idx": [[1.0]]}', "something other than whole numbers"),
    ('{"client_idx": [[0], ["1"]]}', "of client 1 holds something"),
    ('{"client_idx": [[-1]]}', "the negative number -1"),
    ('{"client_idx": [[99999999999999999999]]}', "too large"),
    ('{"client_idx": [[6]]}', "sample 6, but there are only 6"),
    ('{"client_idx": [[0], [1, 0]]}', "sample 0 is given out 2 times"),
    ('{"client_idx": [[0], [1]], "client_classes": [[0]]}', "lists 1 clients, client_idx 2"),
    ('{"client_idx": [[0], [1]]}', "'client_classes' must be a list"),
    ("\xff", "is not text"),
]


@pytest.mark.parametrize(("text", "message"), BAD_FILES)
def test_broken_split_files(text, message, tmp_path):
    (path := tmp_path / "s.json").write_bytes(text.encode("latin-1"))
    refused(f"{re.escape(str(path))}.*{message}|{message}", p.from_file, path, 6, SPLIT.labels)
    refused("is not a plain file", p.from_file, tmp_path)


def test_labels_and_centres_that_are_none():
    none = np.array([], dtype=np.int64)
    for words, labels, seed in (
        ("labels must be whole numbers", np.zeros((2, 2), dtype=int), 0),
        ("labels must be whole numbers", np.array([0.5, 1.0]), 0),
        ("labels must be whole numbers", np.array(["a"]), 0),
        ("no samples", none, 0),
        ("seed must be", np.zeros(3, dtype=int), -1),
    ):
        refused(words, p.iid, labels, 1, seed)
    for make in (lambda: p.dirichlet(none, 1, 1.0, 0, 0), lambda: p.pathological(none, 1, 1, 0)):
        refused("no samples", make)
    for centre in (np.array([-1, 0]), np.array([0, 5]), none):
        refused("centres", p.natural, centre)


def test_classes_are_drawn_independently():
    labels = np.repeat([0, 1], 1000)
    parts = [p.dirichlet(labels, 4, 0.5, seed, min_size=0)[0] for seed in range(300)]
    share = np.array([[(labels[part] == c).sum() for c in (0, 1)] for part in parts])
    assert abs(stats.spearmanr(share[:, 0], share[:, 1]).statistic) < 0.15
