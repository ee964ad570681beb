"""Averages of uploads against NumPy in float64, and robust ones against a poisoner."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InputError
from core.rng import Rng
from core.server import Aggregation, combined, weighted_average


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


# --- robust averages


def models(clients: int) -> list[dict[str, torch.Tensor]]:
    draw = Rng(0).at("robust").numpy()
    shapes = {"parameters/w": (3, 4), "buffers/mean": (5,)}
    return [
        {name: torch.tensor(draw.standard_normal(shape)) for name, shape in shapes.items()}
        for _ in range(clients)
    ]


def rule(name: str, **more) -> Aggregation:
    return Aggregation(aggregation=name, **more)


@pytest.mark.parametrize("clients", [1, 2, 5, 8])
def test_the_median_and_the_trimmed_mean_of_each_number(clients):
    uploads = models(clients)
    for name in uploads[0]:
        values = np.sort([upload[name].numpy() for upload in uploads], axis=0)
        median = combined(uploads, [1] * clients, {}, rule("median"))[name]
        np.testing.assert_allclose(median, np.median(values, axis=0), rtol=1e-12)
        # a quarter, rounded up, as long as something is left
        cut = min(-(-clients // 4), (clients - 1) // 2)
        trimmed = combined(uploads, [1] * clients, {}, rule("trimmed_mean", trim=0.25))[name]
        expected = values[cut : clients - cut].mean(0)
        np.testing.assert_allclose(trimmed, expected, rtol=1e-12)


def test_the_plain_mean_is_that_of_fedavg():
    uploads, samples = models(4), [1, 2, 3, 4]
    plain, average = (
        combined(uploads, samples, {}, Aggregation()),
        weighted_average(uploads, samples),
    )
    assert all(torch.equal(plain[name], average[name]) for name in average)


def test_clipping_shortens_long_updates_to_the_median_one():
    """Three updates of lengths 1, 2 and 100 in orthogonal directions: the last comes down to 2."""
    start = {"w": torch.tensor([5.0, 5.0, 5.0], dtype=torch.float64)}
    moves = torch.diag(torch.tensor([1.0, 2.0, 100.0], dtype=torch.float64))
    uploads = [{"w": start["w"] + move} for move in moves]
    found = combined(uploads, [1, 1, 1], start, rule("norm_clipping"))["w"]
    torch.testing.assert_close(found - start["w"], torch.tensor([1.0, 2.0, 2.0]).double() / 3)


def test_clipping_takes_all_tensors_together_and_zeros_where_there_is_no_start():
    uploads = [{"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}] + 2 * [
        {"a": torch.tensor([0.6]), "b": torch.tensor([0.8])}
    ]
    found = combined(uploads, [1, 1, 1], {}, rule("norm_clipping"))
    torch.testing.assert_close(found["a"], torch.tensor([0.6]))
    torch.testing.assert_close(found["b"], torch.tensor([0.8]))


@pytest.mark.parametrize("name", ["median", "trimmed_mean", "norm_clipping"])
def test_one_of_ten_cannot_carry_the_result_away(name):
    """However far it goes, the result stays within the honest clients' reach; the mean does not."""
    honest = models(9)
    start = {name: torch.zeros_like(value) for name, value in honest[0].items()}
    reach = max(value.abs().max() for upload in honest for value in upload.values())
    poison = {name: torch.full_like(value, 1e4) for name, value in start.items()}
    found = combined([*honest, poison], [1] * 10, start, rule(name))
    assert all(value.abs().max() <= reach for value in found.values())
    carried = combined([*honest, poison], [1] * 10, start, Aggregation())
    assert min(value.min() for value in carried.values()) > 100 * reach


@pytest.mark.parametrize("statistic", ["buffers/mean", "generator/buffers/mean"])
def test_running_statistics_do_not_drown_the_weights(statistic):
    """Lengths of the updates are those of the weights: 1, 1 and 10. Statistics, which moved by 100,
    are their median.
    """
    away = torch.tensor([1.0, -1.0, 10.0])
    uploads = [
        {"parameters/w": x[None], statistic: torch.tensor([100.0 + k])} for k, x in enumerate(away)
    ]
    found = combined(uploads, [1, 1, 1], {}, rule("norm_clipping"))
    torch.testing.assert_close(found["parameters/w"], torch.tensor([1 / 3]))
    torch.testing.assert_close(found[statistic], torch.tensor([101.0]))


def test_what_is_sent_beside_a_model_has_a_norm_of_its_own():
    """Models move by 1, 2 and 4, control variates by 800, 400 and 200: each comes down to its own
    median, 2 and 400.
    """
    uploads = [
        {"parameters/w": torch.tensor([move]), "control/w": torch.tensor([800 / move])}
        for move in (1.0, 2.0, 4.0)
    ]
    found = combined(uploads, [1, 1, 1], {}, rule("norm_clipping"))
    assert float(found["parameters/w"]) == pytest.approx((1 + 2 + 2) / 3)
    assert float(found["control/w"]) == pytest.approx((400 + 400 + 200) / 3)


def test_clipped_updates_are_weighed_by_samples():
    """Updates of 1, 2 and 100 for 1, 2 and 5 samples: (1 * 1 + 2 * 2 + 5 * 2) / 8."""
    uploads = [{"w": torch.tensor([move])} for move in (1.0, 2.0, 100.0)]
    found = combined(uploads, [1, 2, 5], {}, rule("norm_clipping"))
    assert float(found["w"]) == pytest.approx(15 / 8)
