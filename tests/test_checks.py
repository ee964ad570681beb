"""Numbers as settings."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from core.checks import number, plain
from core.errors import InputError
from lab import Experiment


def test_numbers_of_numpy_are_pythons():
    given = {"a": np.int64(3), "b": [np.float32(0.5), np.array([1, 2])], "c": ("x", np.bool_(True))}
    assert repr(plain(given)) == "{'a': 3, 'b': [0.5, [1, 2]], 'c': ('x', True)}"
    ours, theirs = (
        Experiment(
            algorithm="fedavg", dataset="digits", rounds=whole(2), settings={"lr": real(0.1)}
        )
        for whole, real in ((np.int32, np.float64), (int, float))
    )
    assert ours.id == theirs.id and repr(ours) == repr(theirs)


@attrs.frozen(kw_only=True)
class Descent:
    lr: float = attrs.field(validator=number(0))


@pytest.mark.parametrize("value", [3.5e38, 1e300, 10**400, float("inf"), float("nan")])
def test_a_number_fits_a_float32(value):
    with pytest.raises(InputError, match="lr must be a number of at least 0"):
        Descent(lr=value)
    assert Descent(lr=3.4e38).lr == 3.4e38
