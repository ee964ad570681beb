"""The earth mover's distance against cases solved by hand and against an assignment solved by
SciPy.
"""

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from core.errors import InputError
from core.metrics import earth_movers_distance
from core.metrics.transport import solver


def points(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def test_without_pot_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    with pytest.raises(InputError, match="pip install POT"):
        solver()
    with pytest.raises(InputError, match="pip install POT"):
        earth_movers_distance(points([1.0]), points([1.0]))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (torch.zeros(0, 2), torch.zeros(1, 2)),
        (torch.zeros(1, 2), torch.zeros(1, 3)),
        (torch.zeros(1, 2), torch.full((1, 2), torch.nan)),
    ],
)
def test_sets_that_cannot_be_compared_are_refused(first, second):
    with pytest.raises(InputError):
        earth_movers_distance(first, second)


def test_an_unknown_ground_distance_is_refused():
    with pytest.raises(InputError, match="did you mean 'cosine'"):
        earth_movers_distance(torch.ones(1, 2), torch.ones(1, 2), "cosin")


class TestWithPot:
    @pytest.fixture(autouse=True)
    def pot(self):
        pytest.importorskip("ot")

    def test_masses_of_unequal_sets_are_split_as_by_hand(self):
        """Two points of 1/2 on a line against three of 1/3: 0 gives 1/3 to 0 and 1/6 to 3; 10 gives
        1/6 to 3 and 1/3 to 10. Work: 1/6 * 3 + 1/6 * 7 = 5/3.
        """
        far = earth_movers_distance(
            points([0.0], [10.0]), points([0.0], [3.0], [10.0]), "euclidean"
        )
        assert far == pytest.approx(5 / 3)

    def test_the_plan_crosses_over_where_that_is_shorter(self):
        """The nearest neighbour of both (0, 0) and (0, 1) is (0, 1): one of them must go to (3, 0)
        all the same. (0, 0) -> (3, 0) and (0, 1) -> (0, 1) cost 3 / 2; the other plan costs (1 +
        sqrt(10)) / 2.
        """
        far = earth_movers_distance(
            points([0.0, 0.0], [0.0, 1.0]), points([0.0, 1.0], [3.0, 0.0]), "euclidean"
        )
        assert far == pytest.approx(1.5)

    def test_the_cosine_looks_at_angles_only(self):
        """Angles of 0, 60 and 180 degrees cost 0, 1/2 and 2, whatever the lengths."""
        for angle, cost in ((0.0, 0.0), (np.pi / 3, 0.5), (np.pi, 2.0)):
            second = points([7 * np.cos(angle), 7 * np.sin(angle)])
            assert earth_movers_distance(points([2.0, 0.0]), second) == pytest.approx(
                cost, abs=1e-12
            )

    @settings(max_examples=20)
    @given(seed=st.integers(0, 1000), small=st.integers(1, 4), times=st.integers(1, 4))
    def test_it_is_the_best_assignment_where_one_set_is_a_multiple_of_the_other(
        self, seed, small, times
    ):
        draw = np.random.default_rng(seed)
        first, second = draw.normal(size=(small, 3)), draw.normal(size=(small * times, 3))
        for ground in ("cosine", "euclidean"):
            costs = np.repeat(cdist(first, second, ground), times, axis=0)
            rows, columns = linear_sum_assignment(costs)
            far = earth_movers_distance(torch.from_numpy(first), torch.from_numpy(second), ground)
            assert far == pytest.approx(costs[rows, columns].mean(), abs=1e-9)

    def test_images_are_flattened_and_a_set_has_no_distance_to_itself_in_another_order(self):
        images = torch.randn(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
        assert earth_movers_distance(images, images.flip(0), "euclidean") == pytest.approx(
            0, abs=1e-12
        )
        assert earth_movers_distance(images, images.flip(0)) == pytest.approx(0, abs=1e-6)


def test_a_problem_that_stops_early_has_no_answer(monkeypatch):
    """The solver gives a finite cost after one step, and only warns."""
    pytest.importorskip("ot")
    monkeypatch.setattr("core.metrics.transport.STEPS", 1)
    one, other = (torch.randn(40, 3, generator=torch.Generator().manual_seed(k)) for k in (0, 1))
    with pytest.warns(UserWarning), pytest.raises(InputError, match="did not converge"):
        earth_movers_distance(one, other)
