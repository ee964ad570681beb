"""Partitions: what must hold for any labels, and closed forms where there are some."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from core.data import Split
from core.data import partition as p
from core.errors import InputError

LABELS = st.lists(st.integers(0, 7), min_size=1, max_size=120).map(np.array)
SEEDS = st.integers(0, 2**40)
# from the smallest positive number to the largest
ALPHAS = st.one_of(
    st.sampled_from([5e-324, 1e-300, 1e-12, 0.02, 0.05, 1.0, 1e6, 1.7e308]), st.floats(1e-3, 1e3)
)


def everything_once(parts, count):
    assert all(part.dtype == np.int64 for part in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(count))


def same(a, b):
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@given(LABELS, st.integers(1, 12), SEEDS)
def test_iid(labels, clients, seed):
    assume(clients <= len(labels))
    parts = p.iid(labels, clients, seed)
    everything_once(parts, len(labels))
    sizes = [len(part) for part in parts]
    assert len(sizes) == clients
    assert max(sizes) - min(sizes) <= 1
    assert same(parts, p.iid(torch.from_numpy(labels), clients, seed))


@given(LABELS, st.integers(1, 12), ALPHAS, SEEDS, st.integers(0, 4), st.booleans())
def test_dirichlet_gives_every_sample_once_and_min_size(
    labels, clients, alpha, seed, min_size, cap
):
    assume(clients * min_size <= len(labels))
    parts = p.dirichlet(labels, clients, alpha, seed, min_size, cap)
    assert len(parts) == clients
    everything_once(parts, len(labels))
    assert min(len(part) for part in parts) >= min_size
    assert same(parts, p.dirichlet(labels, clients, alpha, seed, min_size, cap))


@given(st.integers(2, 40), st.integers(1, 8), st.integers(2, 10), ALPHAS, SEEDS)
def test_size_cap(per_class, classes, clients, alpha, seed):
    # a client that holds N / clients samples or more gets no further class
    labels = np.repeat(np.arange(classes), per_class)
    parts = p.dirichlet(labels, clients, alpha, seed, min_size=0, cap=True)
    for part in parts:
        own = labels[part]
        if len(own):
            before_last_class = (own < own.max()).sum()
            assert before_last_class * clients < len(labels)


def test_dirichlet_follows_the_dirichlet_distribution():
    # the share that one client gets of a class is Beta(alpha, (clients - 1) alpha)
    labels, clients, runs = np.zeros(2000, dtype=np.int64), 5, 400
    at = np.linspace(0.01, 0.99, 99)  # away from 0 and 1, where shares are rounded to whole samples
    for alpha in (0.05, 0.3, 2.0):
        shares = [
            len(p.dirichlet(labels, clients, alpha, seed, min_size=0)[2]) / 2000
            for seed in range(runs)
        ]
        below = np.searchsorted(np.sort(shares), at, side="right") / runs
        expected = stats.beta(alpha, (clients - 1) * alpha).cdf(at)
        # the largest gap between the two, at the 1% critical value of Kolmogorov and Smirnov
        assert np.abs(below - expected).max() < 1.63 / math.sqrt(runs)


def test_classes_are_drawn_independently():
    labels = np.repeat([0, 1], 1000)
    parts = [p.dirichlet(labels, 4, 0.5, seed, min_size=0)[0] for seed in range(300)]
    share = np.array([[(labels[part] == c).sum() for c in (0, 1)] for part in parts])
    assert abs(stats.spearmanr(share[:, 0], share[:, 1]).statistic) < 0.15


def test_limits_of_alpha():
    labels = np.repeat(np.arange(10), 100)
    for part in p.dirichlet(labels, 5, 1.7e308, 0, min_size=0):
        assert np.bincount(labels[part], minlength=10).tolist() == [20] * 10
    counts = [
        np.bincount(labels[part], minlength=10)
        for part in p.dirichlet(labels, 5, 5e-324, 0, min_size=0)
    ]
    assert set(np.concatenate(counts).tolist()) <= {0, 100}


def test_the_smallest_alpha_has_no_favourite_client():
    labels = np.repeat(np.arange(400), 2)
    sizes = [len(part) for part in p.dirichlet(labels, 4, 5e-324, 3, min_size=0)]
    assert stats.chisquare(np.array(sizes) / 2).pvalue > 0.01


def test_cap_evens_out_sizes():
    labels = np.repeat(np.arange(10), 100)
    spread = {
        cap: np.mean(
            [np.std([len(q) for q in p.dirichlet(labels, 10, 0.05, s, 0, cap)]) for s in range(40)]
        )
        for cap in (False, True)
    }
    assert spread[True] < 0.8 * spread[False]


def test_per_class_gives_out_so_many_random_samples_of_a_class():
    labels = np.repeat([0, 1, 2], [300, 50, 200])
    parts = p.dirichlet(labels, 4, 0.5, seed=3, per_class=100)
    out = np.concatenate(parts)
    assert len(np.unique(out)) == len(out)
    assert np.bincount(labels[out]).tolist() == [100, 50, 100]
    # not the first hundred: about a third of them are expected among the first
    assert (np.sort(out)[:100] != np.arange(100)).any()
    assert same(p.dirichlet(labels, 4, 0.5, 3, per_class=300), p.dirichlet(labels, 4, 0.5, 3))
    with pytest.raises(InputError, match="3 samples cannot give each of 4 clients"):
        p.dirichlet(labels, 4, 0.5, seed=3, per_class=1)
    with pytest.raises(InputError, match="per_class must be a whole number of at least 1"):
        p.dirichlet(labels, 4, 0.5, seed=3, per_class=0)


def test_repair_takes_from_the_largest_and_ends_at_once_at_tiny_alpha():
    labels = np.zeros(1000, dtype=np.int64)
    sizes = sorted(len(part) for part in p.dirichlet(labels, 100, 1e-9, 0, min_size=10))
    assert sizes == [10] * 100
    sizes = sorted(len(part) for part in p.dirichlet(labels, 4, 1e-9, 0, min_size=7))
    assert sizes == [7, 7, 7, 979]
    big = p.dirichlet(np.zeros(60_000, dtype=np.int64), 1000, 1e-9, 0, min_size=60)
    assert {len(part) for part in big} == {60}


def test_seeds_differ():
    labels = np.repeat(np.arange(4), 50)
    for make in (
        lambda s: p.iid(labels, 4, s),
        lambda s: p.dirichlet(labels, 4, 0.5, s),
        lambda s: p.pathological(labels, 4, 2, s),
    ):
        assert not same(make(0), make(1))


@given(st.integers(1, 8), st.integers(1, 15), st.integers(1, 8), SEEDS)
def test_pathological(classes, clients, per_client, seed):
    assume(per_client <= classes <= clients * per_client)
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(classes) * 3, 20))
    parts = p.pathological(labels, clients, per_client, seed)
    everything_once(parts, len(labels))
    assert len(parts) == clients
    held = [np.unique(labels[part]) for part in parts]
    assert all(len(own) == per_client for own in held)
    owners = np.unique(np.concatenate(held), return_counts=True)[1]
    assert owners.max() - owners.min() <= 1
    for label in np.unique(labels):
        shares = [n for n in ((labels[part] == label).sum() for part in parts) if n]
        assert max(shares) - min(shares) <= 1
    assert same(parts, p.pathological(labels, clients, per_client, seed))


def test_pathological_of_fedmk_mixes_class_sets():
    labels = np.repeat(np.arange(10), 100)
    held = {tuple(np.unique(labels[part])) for part in p.pathological(labels, 20, 5, 0)}
    assert len(held) > 10


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60).map(np.array))
def test_natural(centre):
    assume(centre.max() < len(centre))
    parts = p.natural(centre)
    everything_once(parts, len(centre))
    assert len(parts) == centre.max() + 1
    assert all((centre[part] == number).all() for number, part in enumerate(parts))


def write(path, idx, classes=None):
    path.write_text(
        json.dumps(
            {"client_idx": idx} | ({"client_classes": classes} if classes is not None else {})
        )
    )
    return path


def test_from_file(tmp_path):
    path = write(tmp_path / "s.json", [[4, 0], [], [3, 1]], [[0], [], [1]])
    assert [part.tolist() for part in p.from_file(path)] == [[4, 0], [], [3, 1]]
    assert [part.tolist() for part in p.from_file(path, 5)] == [[4, 0], [], [3, 1]]
    assert all(part.dtype == np.int64 for part in p.from_file(path))
    listed = p.from_file(path, 5, np.array([0, 0, 0, 1, 1]))
    assert [part.tolist() for part in listed] == [[0], [], [3]]


@pytest.mark.parametrize("samples", [None, 3, 9])
def test_a_sample_without_a_label_is_refused(tmp_path, samples):
    path = write(tmp_path / "s.json", [[0, 3]], [[0]])
    with pytest.raises(InputError, match=r"holds sample 3, but there are only 3 training samples"):
        p.from_file(path, samples, np.zeros(3, dtype=int))


def test_split_dispatches(tmp_path):
    labels = torch.arange(4).repeat(10)
    centre = torch.arange(40) % 3
    split = Split(torch.zeros(40, 1, 2, 2, dtype=torch.uint8), labels, centre)
    write(tmp_path / "s.json", [list(range(39)), []], [[0], [1]])
    cases = {
        "iid": ({}, 5, p.iid(labels, 5, 3)),
        "dirichlet": (
            {"alpha": 1, "min_size": 2, "cap": True},
            5,
            p.dirichlet(labels, 5, 1, 3, min_size=2, cap=True),
        ),
        "pathological": ({"classes_per_client": 2}, 5, p.pathological(labels, 5, 2, 3)),
        "natural": ({}, 3, p.natural(centre)),
        "file": (
            {"file": "s.json", "listed_classes_only": True},
            2,
            [np.arange(0, 39, 4), np.array([])],
        ),
    }
    assert set(cases) == set(p.PARTITIONS)
    for name, (options, clients, expected) in cases.items():
        assert same(p.split({"name": name, **options}, split, clients, 3, tmp_path), expected)


def test_file_is_looked_for_in_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCON_DATA", str(tmp_path))
    split = Split(torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64))
    path = write(tmp_path / "s.json", [[2], [0, 1]])
    for file in ("s.json", str(path)):
        assert [part.tolist() for part in p.split({"name": "file", "file": file}, split, 2, 0)] == [
            [2],
            [0, 1],
        ]


SPLIT = Split(torch.zeros(6, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 0, 0, 1, 1, 2]))

BAD_SPECS = [
    ({}, 2, "a partition is a table with a 'name'"),
    ("iid", 2, "a partition is a table with a 'name'"),
    ({"name": 3}, 2, "a partition is a table with a 'name'"),
    ({"name": "dirichle"}, 2, "did you mean 'dirichlet'"),
    ({"name": "iid", "alpha": 1}, 2, "takes no options, but 'alpha'"),
    ({"name": "dirichlet", "alpah": 1}, 2, "did you mean 'alpha'"),
    ({"name": "dirichlet"}, 2, "needs 'alpha'"),
    ({"name": "pathological"}, 2, "needs 'classes_per_client'"),
    ({"name": "iid"}, 0, "clients must be a whole number of at least 1"),
    ({"name": "iid"}, True, "clients must be a whole number"),
    ({"name": "iid"}, 2.0, "clients must be a whole number"),
    ({"name": "iid"}, 7, "6 samples cannot give each of 7 clients at least one sample"),
    *(
        ({"name": "dirichlet", "alpha": a}, 2, "alpha must be a number above 0")
        for a in (0, -1, math.nan, math.inf, "x", None, True)
    ),
    ({"name": "dirichlet", "alpha": 1, "min_size": 4}, 2, "at least 4 samples"),
    (
        {"name": "dirichlet", "alpha": 1, "min_size": -1},
        2,
        "min_size must be a whole number of at least 0",
    ),
    ({"name": "dirichlet", "alpha": 1, "cap": 1}, 2, "cap must be true or false"),
    ({"name": "pathological", "classes_per_client": 4}, 2, "the samples have 3 classes"),
    ({"name": "pathological", "classes_per_client": 1}, 2, "cannot hold all 3 classes"),
    ({"name": "pathological", "classes_per_client": 0}, 2, "classes_per_client must be"),
    ({"name": "pathological", "classes_per_client": 3}, 2, "class 2 has 1 samples for 2 clients"),
    ({"name": "natural"}, 2, "needs the centre of each sample"),
    ({"name": "file"}, 2, "needs 'file'"),
    ({"name": "file", "file": 3}, 2, "file must be the path"),
    ({"name": "file", "file": "no.json"}, 2, "there is no split file"),
    ({"name": "file", "file": "x", "listed_classes_only": "yes"}, 2, "must be true or false"),
]


@pytest.mark.parametrize(("spec", "clients", "message"), BAD_SPECS)
def test_impossible_requests(spec, clients, message, tmp_path):
    with pytest.raises(InputError, match=message) as caught:
        p.split(spec, SPLIT, clients, 0, tmp_path)
    assert "\n" not in str(caught.value)


def test_the_queue_asks_for_the_file_of_a_partition_that_names_none():
    """And hears what a run would."""
    with pytest.raises(InputError, match="needs 'file'"):
        p.written({"name": "file"})
    assert p.written({"name": "iid"}) is None


def test_wrong_number_of_clients(tmp_path):
    write(tmp_path / "s.json", [[0], [1]])
    with pytest.raises(InputError, match=r"the file s.json has 2 clients, not 3: give --clients 2"):
        p.split({"name": "file", "file": "s.json"}, SPLIT, 3, 0, tmp_path)
    centred = Split(SPLIT.images, SPLIT.labels, torch.tensor([0, 1, 0, 1, 0, 1]))
    with pytest.raises(InputError, match="has 2 clients, not 3: give --clients 2"):
        p.split({"name": "natural"}, centred, 3, 0)


BAD_FILES = [
    ("[", r"is damaged|is not text"),
    ("[1]", "must hold a table"),
    ("{}", "'client_idx' must be a list"),
    ('{"client_idx": []}', "'client_idx' must be a list"),
    ('{"client_idx": [1]}', "'client_idx' must be a list"),
    ('{"client_idx": [[1.0]]}', "something other than whole numbers"),
    ('{"client_idx": [[true]]}', "something other than whole numbers"),
    ('{"client_idx": [[0], ["1"]]}', "of client 1 holds something"),
    ('{"client_idx": [[-1]]}', "the negative number -1"),
    ('{"client_idx": [[99999999999999999999]]}', "too large"),
    ('{"client_idx": [[6]]}', "sample 6, but there are only 6"),
    ('{"client_idx": [[0, 0]]}', "sample 0 is given out 2 times"),
    ('{"client_idx": [[0], [1, 0]]}', "sample 0 is given out 2 times"),
    ('{"client_idx": [[0], [1]], "client_classes": [[0]]}', "lists 1 clients, client_idx 2"),
    ('{"client_idx": [[0], [1]]}', "'client_classes' must be a list"),
]


@pytest.mark.parametrize(("text", "message"), BAD_FILES)
def test_broken_split_files(text, message, tmp_path):
    path = tmp_path / "s.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        p.from_file(path, 6, SPLIT.labels)
    assert str(path) in str(caught.value)


def test_split_file_that_is_no_text(tmp_path):
    (tmp_path / "s.json").write_bytes(b"\xff\xfe")
    for path in (tmp_path, tmp_path / "s.json"):
        with pytest.raises(InputError, match=r"is not (text|a plain file)"):
            p.from_file(path)


@pytest.mark.parametrize(
    "labels", [np.zeros((2, 2), dtype=int), np.array([0.5, 1.0]), np.array(["a"])]
)
def test_labels_that_are_no_labels(labels):
    with pytest.raises(InputError, match="labels must be whole numbers"):
        p.iid(labels, 1, 0)


@pytest.mark.parametrize("centre", [np.array([-1, 0]), np.array([0, 5]), np.array([], dtype=int)])
def test_centres_that_are_no_centres(centre):
    with pytest.raises(InputError, match="centres"):
        p.natural(centre)


def test_no_samples():
    nothing = np.array([], dtype=np.int64)
    ways = (
        (p.iid, {}),
        (p.dirichlet, {"alpha": 1.0, "min_size": 0}),
        (p.pathological, {"classes_per_client": 1}),
    )
    for make, options in ways:
        with pytest.raises(InputError, match="no samples"):
            make(nothing, 1, seed=0, **options)


def test_seed_must_be_a_whole_number():
    with pytest.raises(InputError, match="seed must be"):
        p.iid(np.zeros(3, dtype=int), 1, -1)
