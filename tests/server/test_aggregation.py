"""Averages of uploads."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InputError
from core.server import weighted_average


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=6).filter(any), st.integers(0, 1000))
def test_average_equals_float64_numpy(weights, seed):
    draw = np.random.default_rng(seed)
    values = draw.normal(size=(len(weights), 2, 3)).astype(np.float32)
    average = weighted_average([{"w": torch.tensor(value)} for value in values], weights)
    np.testing.assert_allclose(
        average["w"].numpy(),
        np.average(values.astype(np.float64), axis=0, weights=weights),
        rtol=1e-5,
        atol=1e-6,
    )


def test_low_precision_is_summed_in_float32_and_keeps_its_type():
    uploads = [{"w": torch.full((1,), 1.0, dtype=torch.bfloat16)} for _ in range(1000)]
    average = weighted_average(uploads, [1] * 1000)["w"]
    assert average.dtype == torch.bfloat16 and average.item() == 1.0


@pytest.mark.parametrize(
    ("uploads", "weights"),
    [
        ([], []),
        ([{"w": torch.ones(1)}], [0]),
        ([{"w": torch.ones(1)}], [-1]),
        ([{"w": torch.ones(1)}], [1, 2]),
        ([{"w": torch.ones(1)}, {"v": torch.ones(1)}], [1, 1]),
    ],
)
def test_impossible_averages_are_refused(uploads, weights):
    with pytest.raises(InputError):
        weighted_average(uploads, weights)


def test_a_negative_weight_is_refused():
    with pytest.raises(InputError, match="negative"):
        weighted_average([{"w": torch.ones(1)}] * 2, [3, -1])
