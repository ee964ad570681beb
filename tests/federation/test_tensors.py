"""The codec of named tensors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from core.errors import InputError
from core.federation.tensors import (
    in_a_row,
    pack,
    pack_optimiser,
    put,
    put_each,
    take,
    take_each,
    unpack,
    unpack_optimiser,
    weights,
)
from core.models import build
from core.rng import Rng

NAMES = st.text("ab/.1", min_size=1, max_size=4)
TENSORS = st.dictionaries(NAMES, st.integers(0, 9).map(torch.tensor), min_size=1, max_size=3)


def network(seed):
    model = build("resnet8", 1, 8, 3, Rng(seed), width=4)
    model(torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(seed)))
    return model


@given(st.dictionaries(st.integers(0, 12), TENSORS), TENSORS)
def test_owners_come_back_in_order_and_alone(owners, others):
    state = put_each("members/", owners) | put("member/", others)
    back = take_each("members/", state)
    assert list(back) == sorted(owners)
    assert back == {owner: dict(tensors) for owner, tensors in owners.items()}
    assert take("member/", state) == others


def test_a_network_comes_back_from_below_its_prefix():
    one, other = network(0), network(1)
    state = pack(one, "student/") | pack(other) | {"student/optimiser/step": torch.tensor(1.0)}
    assert weights(state).keys() == pack(other).keys()
    assert unpack(other, state, "student/") is other
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    with pytest.raises(InputError, match="missing"):
        unpack(other, state, "teacher/")


def test_tensors_in_a_row_are_a_vector_whose_gradient_reaches_each():
    first = torch.arange(24.0, requires_grad=True)
    # laid out otherwise in memory, as weights of convolutions are
    maps = first.view(1, 4, 2, 3).contiguous(memory_format=torch.channels_last)
    row = in_a_row({"b": maps, "a": torch.tensor([[1.0], [2.0]])})
    assert row.tolist() == [1, 2, *range(24)]
    (gradient,) = torch.autograd.grad(row @ row, [first])
    assert torch.equal(gradient, 2 * first.detach())


def test_what_is_packed_is_a_copy():
    model = network(0)
    kept = pack(model)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.zero_()
    assert all(value.any() for name, value in kept.items() if name.endswith("conv1.weight"))


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_an_optimiser_goes_on_where_it_stopped(kind):
    """Two steps, a way through named tensors, and a third step: what three steps give."""
    options = {"lr": 0.1} | ({"momentum": 0.9} if kind is torch.optim.SGD else {})
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))

    def step(model, optimiser):
        optimiser.zero_grad()
        model(x).square().mean().backward()
        optimiser.step()

    torch.manual_seed(0)
    whole = nn.Linear(3, 2)
    broken = nn.Linear(3, 2)
    broken.load_state_dict(whole.state_dict())
    one, first = kind(whole.parameters(), **options), kind(broken.parameters(), **options)
    for _ in range(2):
        step(whole, one)
        step(broken, first)
    state = pack(broken, "g/") | pack_optimiser(first, broken, "g/optimiser/")
    again = nn.Linear(3, 2)
    unpack(again, state, "g/")
    second = kind(again.parameters(), **options)
    unpack_optimiser(second, again, state, "g/optimiser/")
    step(whole, one)
    step(again, second)
    assert torch.equal(whole.weight, again.weight) and torch.equal(whole.bias, again.bias)
