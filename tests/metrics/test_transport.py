"""The earth mover's distance by hand and against an assignment solved by SciPy."""

import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from core.errors import InputError
from core.metrics import earth_movers_distance
from tests.sentences import refused


def points(*rows):
    return torch.tensor(rows, dtype=torch.float64)


@pytest.fixture(autouse=True)
def pot():
    pytest.importorskip("ot")


def test_without_pot_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    refused("pip install POT", earth_movers_distance, points([1.0]), points([1.0]))


@pytest.mark.parametrize(
    ("first", "second", "more"),
    [
        (torch.zeros(0, 2), torch.zeros(1, 2), []),
        (torch.zeros(1, 2), torch.zeros(1, 3), []),
        (torch.zeros(1, 2), torch.full((1, 2), torch.nan), []),
        (torch.ones(1, 2), torch.ones(1, 2), ["cosin"]),
    ],
)
def test_sets_that_cannot_be_compared_are_refused(first, second, more):
    refused(None, earth_movers_distance, first, second, *more)


@pytest.mark.parametrize(
    ("first", "second", "work"),
    [
        # masses of 1/2 and 1/3 are split: 0 gives 1/3 to 0 and 1/6 to 3; 10 gives 1/6 to 3
        (points([0.0], [10.0]), points([0.0], [3.0], [10.0]), 5 / 3),
        # (0, 1) is next to both, so one must cross over; the other plan costs (1 + sqrt(10)) / 2
        (points([0.0, 0.0], [0.0, 1.0]), points([0.0, 1.0], [3.0, 0.0]), 3 / 2),
    ],
)
def test_plans_by_hand(first, second, work):
    assert earth_movers_distance(first, second, "euclidean") == pytest.approx(work)


def test_the_cosine_looks_at_angles_only():
    """Angles of 0, 60 and 180 degrees cost 0, 1/2 and 2, whatever the lengths."""
    for angle, cost in ((0.0, 0.0), (np.pi / 3, 0.5), (np.pi, 2.0)):
        second = points([7 * np.cos(angle), 7 * np.sin(angle)])
        far = earth_movers_distance(points([2.0, 0.0]), second)
        assert far == pytest.approx(cost, abs=1e-12)


@given(seed=st.integers(0, 1000), small=st.integers(1, 4), times=st.integers(1, 4))
def test_it_is_the_best_assignment_where_one_set_is_a_multiple_of_the_other(seed, small, times):
    """Images are flattened."""
    draw = np.random.default_rng(seed)
    first, second = draw.normal(size=(small, 4)), draw.normal(size=(small * times, 4))
    for ground in ("cosine", "euclidean"):
        costs = np.repeat(cdist(first, second, ground), times, axis=0)
        rows, columns = linear_sum_assignment(costs)
        images = (torch.from_numpy(each).view(-1, 1, 2, 2) for each in (first, second))
        far = earth_movers_distance(*images, ground)
        assert far == pytest.approx(costs[rows, columns].mean(), abs=1e-9)


def test_a_problem_that_stops_early_has_no_answer(monkeypatch):
    """The solver gives a finite cost after one step, and only warns."""
    monkeypatch.setattr("core.metrics.transport.STEPS", 1)
    one, other = (torch.randn(40, 3, generator=torch.Generator().manual_seed(k)) for k in (0, 1))
    with pytest.warns(UserWarning), pytest.raises(InputError, match="did not converge"):
        earth_movers_distance(one, other)
