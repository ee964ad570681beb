"""Streams of random numbers by a seed and a purpose."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.rng import Rng, SecretRng

PATHS = st.lists(st.one_of(st.integers(-(2**40), 2**40), st.text(max_size=4)), max_size=4)


@given(st.integers(-(2**62), 2**62), PATHS)
def test_a_stream_is_that_of_a_value_whatever_kind_of_integer_holds_it(seed, path):
    plain = Rng(seed).at(*path)
    kinds = [np.int64(part) if isinstance(part, int) else part for part in path]
    assert Rng(np.int64(seed)).at(*kinds).key == plain.key == Rng(seed, tuple(path)).key
    assert Rng(torch.tensor(seed)).key == Rng(seed).key


@given(PATHS, PATHS)
def test_other_paths_are_other_streams(one, other):
    assert (one == other) == (Rng(0).at(*one).key == Rng(0).at(*other).key)


def test_a_seed_is_a_whole_number():
    with pytest.raises(TypeError, match="float"):
        Rng(1.5)


@given(st.integers(0, 2**128), PATHS)
def test_a_secret_fills_the_whole_state_of_the_generator(secret, path):
    """NumPy's Mersenne twister with the 624 words that SHAKE-256 makes of seed and path."""
    node = SecretRng(secret).at(*path)
    drawn = torch.rand(700, generator=node.generator())
    name = repr((secret, *path)).encode()
    twister = np.random.MT19937()
    twister.state = {
        "bit_generator": "MT19937",
        "state": {"key": np.frombuffer(hashlib.shake_256(name).digest(2496), "<u4"), "pos": 624},
    }
    # a number is made of the last 24 bits of a word
    assert drawn.tolist() == (twister.random_raw(700) % 2**24 / 2**24).tolist()


def test_what_a_secret_draws_is_no_stream_of_a_seed():
    seed, node = Rng(5).at("noise"), SecretRng(5).at("noise")
    again = [torch.randn(9, generator=node.generator()) for _ in range(2)]
    assert torch.equal(*again)
    assert not torch.equal(again[0], torch.randn(9, generator=seed.generator()))
