"""Clients that condense are served in lists of bounded size, with the same uploads."""

import functools

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core import data
from core.families import condensing
from core.families.condensing import chunks, to_wire
from core.federation import Client, Message, Runtime, Task
from core.rng import Rng
from lab import make_clients, make_task
from tests.lab.small_runs import small


@functools.cache
def digits() -> Task:
    return Task(data.load("digits"), "convnet", {"width": 4}, Runtime())


def owner(number: int, classes: int) -> Client:
    """A client with one image of each of so many classes."""
    train = digits().dataset.train
    return Client(number, digits(), train.images[:classes], torch.arange(classes))


@pytest.mark.parametrize("draws", ["batch", "image"])
def test_a_batch_has_one_kind_of_augmentation(draws):
    """The same for all its images, or with parameters of its own for each; batches differ."""
    kinds, grey = set(), torch.full((6, 1, 8, 8), 3.0)
    transform = condensing.augmenter("color_cutout", 8, Rng(0), torch.device("cpu"), draws)
    for _ in range(20):
        found = transform(grey)
        cut = found.flatten(1).std(1) > 1e-3  # colours leave a grey image grey
        assert cut.all() or not cut.any()
        kinds.add(bool(cut.any()))
        assert all(torch.equal(one, found[0]) for one in found) == (draws == "batch")
    assert kinds == {True, False}


@given(st.lists(st.integers(1, 10), min_size=1, max_size=20), st.integers(1, 40))
def test_chunks_keep_the_order_and_are_as_long_as_the_bound_allows(classes, most):
    clients = [owner(number, count) for number, count in enumerate(classes)]
    found = [[client.id for client in some] for some in chunks(clients, most)]
    assert [number for some in found for number in some] == list(range(len(clients)))
    sizes = [sum(classes[number] for number in some) for some in found]
    assert all(size <= most or len(some) == 1 for size, some in zip(sizes, found, strict=True))
    following = [classes[some[0]] for some in found[1:]]
    assert all(size + more > most for size, more in zip(sizes, following, strict=False))


SMALL = {
    "fedvck": {"iterations": 3, "min_images": 2, "real_batch": 4, "estimator": "expectation"},
    "gddfl": {"iterations": 3, "images_per_class": 2, "real_batch": 4, "encoder_width": 4},
    "dc": {"images_per_class": 1, "iterations": 1, "real_batch": 4, "encoder_width": 4},
    "fedmk": {"iterations": 2, "images_per_class": 2},
}


@pytest.mark.parametrize("name", SMALL)
def test_in_chunks_or_at_once_clients_upload_the_same(name, monkeypatch):
    """Images within one grey level; memories too. Clients remember one copy of a model."""
    stated = small(algorithm=name, clients=4, settings=SMALL[name])
    task = make_task(stated, Runtime())
    algorithm, found = stated.new_algorithm(), []
    state = algorithm.initialise(task, Rng(0))
    wanted = {str(number): [1] * 10 for number in range(4)}
    state = attrs.evolve(state, meta=state.meta | {"wanted": wanted})
    for most in (10**9, 21):
        clients = make_clients(stated, task)
        messages = {client.id: algorithm.broadcast(state, client.id) for client in clients}
        monkeypatch.setattr(condensing, "chunks", functools.partial(chunks, most=most))
        uploads = algorithm.at_clients("client_update", clients, messages, Rng(1).at("client"))
        assert list(uploads) == [0, 1, 2, 3]
        found.append([*uploads.values(), *(Message(client.memory) for client in clients)])
        places = {tuple(value.data_ptr() for value in one.memory.values()) for one in clients}
        assert len(places) <= (1 if most > 21 else 2)  # two clients of ten classes in a chunk
    for whole, parts in zip(*found, strict=True):
        assert whole.tensors.keys() == parts.tensors.keys()
        for key, one in whole.tensors.items():
            if one.dtype == torch.uint8 and one.dim() > 1:
                assert (one.int() - parts.tensors[key].int()).abs().max() <= 1, key
            else:
                torch.testing.assert_close(one, parts.tensors[key], rtol=1e-3, atol=1e-3)


# images as bytes

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
SPLIT = data.Split(torch.zeros(1, 3, 4, 4).byte(), torch.zeros(1).long())
COLOURED = data.Dataset("any", SPLIT, SPLIT, SPLIT, ("a", "b"), MEAN, STD, "")


@given(st.integers(0, 1000))
def test_images_in_range_come_back_within_half_a_grey_level(seed):
    levels = np.random.default_rng(seed).uniform(0, 255, (2, 3, 4, 4))
    mean, std = (np.array(values).reshape(1, 3, 1, 1) for values in (MEAN, STD))
    images = torch.tensor((levels / 255 - mean) / std, dtype=torch.float32)
    wire = to_wire(images, MEAN, STD)
    assert wire.dtype == torch.uint8
    assert np.abs(wire.numpy() - levels).max() <= 0.5 + 1e-3
    back = COLOURED.normalise(wire).double().numpy()
    assert np.abs((back * std + mean) * 255 - levels).max() <= 0.5 + 1e-3


def test_every_grey_level_survives_and_values_beyond_the_range_are_clamped():
    levels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(1, 3, 16, 16)
    assert torch.equal(to_wire(COLOURED.normalise(levels), MEAN, STD), levels)
    images = torch.tensor([-9.0, 9.0, -1.0, 1.0]).view(1, 1, 2, 2)
    assert to_wire(images, (0.5,), (0.5,)).flatten().tolist() == [0, 255, 0, 255]
