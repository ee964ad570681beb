"""Averages of uploads against NumPy in float64, and robust ones against a poisoner."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.rng import Rng
from core.server import Aggregation, combined, weighted_average


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=6).filter(any), st.integers(0, 1000))
def test_average_equals_float64_numpy(weights, seed):
    values = np.random.default_rng(seed).normal(size=(len(weights), 2, 3)).astype(np.float32)
    uploads = [{"w": torch.tensor(value)} for value in values]
    average = weighted_average(uploads, weights)["w"]
    expected = np.average(values.astype(np.float64), axis=0, weights=weights)
    np.testing.assert_allclose(average.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(combined(uploads, weights, {}, Aggregation())["w"], average)


def test_low_precision_is_summed_in_float32_and_keeps_its_type():
    uploads = [{"w": torch.full((1,), 1.0, dtype=torch.bfloat16)} for _ in range(1000)]
    average = weighted_average(uploads, [1] * 1000)["w"]
    assert average.dtype == torch.bfloat16 and average.item() == 1.0


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


def test_clipping_shortens_long_updates_to_the_median_one():
    """Of lengths 1, 2 and 100 the last comes down to 2; all tensors of an upload together."""
    start = {"w": torch.tensor([5.0, 5.0, 5.0], dtype=torch.float64)}
    moves = torch.diag(torch.tensor([1.0, 2.0, 100.0], dtype=torch.float64))
    uploads = [{"w": start["w"] + move} for move in moves]
    for samples in ([1, 1, 1], [1, 2, 5]):
        found = combined(uploads, samples, start, rule("norm_clipping"))["w"] - start["w"]
        expected = torch.tensor([1.0, 2.0, 2.0]).double() * torch.tensor(samples) / sum(samples)
        torch.testing.assert_close(found, expected)
    near = {"a": torch.tensor([0.6]), "b": torch.tensor([0.8])}
    far = {"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}
    torch.testing.assert_close(
        combined([far, near, near], [1] * 3, {}, rule("norm_clipping")), near
    )


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
    """Weights move by 1, 1 and 10; statistics, which move by 100, become their median."""
    away = torch.tensor([1.0, -1.0, 10.0])
    uploads = [
        {"parameters/w": x[None], statistic: torch.tensor([100.0 + k])} for k, x in enumerate(away)
    ]
    found = combined(uploads, [1, 1, 1], {}, rule("norm_clipping"))
    torch.testing.assert_close(found["parameters/w"], torch.tensor([1 / 3]))
    torch.testing.assert_close(found[statistic], torch.tensor([101.0]))


def test_what_is_sent_beside_a_model_has_a_norm_of_its_own():
    """Models move by 1, 2, 4, control variates by 800, 400, 200: medians are 2 and 400."""
    uploads = [
        {"parameters/w": torch.tensor([move]), "control/w": torch.tensor([800 / move])}
        for move in (1.0, 2.0, 4.0)
    ]
    found = combined(uploads, [1, 1, 1], {}, rule("norm_clipping"))
    assert float(found["parameters/w"]) == pytest.approx((1 + 2 + 2) / 3)
    assert float(found["control/w"]) == pytest.approx((400 + 400 + 200) / 3)
