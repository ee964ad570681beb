"""Statistics per group, against PyTorch's own batch normalisation and finite differences."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from core import models
from core.condensation import LatentEncoder, LatentStatistics
from core.condensation.latent import group_moments
from core.rng import Rng
from tests.condensation.small import stirred
from tests.sentences import refused

NETWORKS = [("convnet", {"width": 8}), ("resnet8", {}), ("resnet18", {}), ("lenet", {})]


def network(name="convnet", size=16, channels=3, **options):
    return stirred(models.build(name, channels, size, 4, Rng(0).at("model"), **options))


def pictures(number, size=16, channels=3, seed=2):
    return torch.randn(number, channels, size, size, generator=torch.Generator().manual_seed(seed))


def zeros(images):
    return torch.zeros(len(images), dtype=torch.int64)


@pytest.mark.parametrize(("name", "options"), NETWORKS)
def test_one_group_is_train_mode_and_leaves_the_model_alone(name, options):
    """With momentum 1 a layer's running statistics become the batch's (variance n / (n - 1))."""
    model, images = network(name, **options), pictures(6)
    before = copy.deepcopy(model.state_dict())
    features, statistics = LatentEncoder(model)(images, zeros(images))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    norms = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    counts = {}
    for layer in norms:
        layer.momentum = 1.0
        layer.register_forward_hook(
            lambda layer, inputs, _: counts.update({layer: inputs[0].numel() / inputs[0].shape[1]})
        )
    torch.testing.assert_close(features, model.train().embed(images), rtol=1e-4, atol=1e-4)
    for (mean, variance), layer in zip(statistics.layers, norms, strict=True):
        torch.testing.assert_close(mean[0], layer.running_mean, rtol=1e-4, atol=1e-4)
        biased = layer.running_var * (1 - 1 / counts[layer])
        torch.testing.assert_close(variance[0], biased, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("name", "options"), NETWORKS)
def test_running_statistics_are_evaluation_mode(name, options):
    model, images = network(name, **options), pictures(5)
    statistics = LatentStatistics.running(model, 3)
    features, used = LatentEncoder(model)(images, torch.tensor([2, 0, 1, 1, 0]), statistics, 3)
    assert used is statistics
    torch.testing.assert_close(features, model.eval().embed(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "options"), NETWORKS[:2])
def test_groups_in_one_batch_are_as_if_alone(name, options):
    """With an empty group; then other images under the same statistics."""
    encoder, images = LatentEncoder(network(name, **options)), pictures(9)
    group = torch.tensor([3, 0, 1, 3, 0, 0, 1, 3, 1])
    features, statistics = encoder(images, group, None, 4)
    others, index = pictures(4, seed=5), torch.tensor([1, 3, 0, 1])
    embedded, _ = encoder(others, index, statistics)
    for g in (0, 1, 3):
        rows = group == g
        alone, own = encoder(images[rows], zeros(images[rows]))
        torch.testing.assert_close(features[rows], alone, rtol=1e-4, atol=1e-4)
        for together, single in zip(statistics.layers, own.layers, strict=True):
            torch.testing.assert_close(together[:, g], single[:, 0], rtol=1e-4, atol=1e-5)
        if (index == g).any():
            fixed, _ = encoder(others[index == g], zeros(others[index == g]), own)
            torch.testing.assert_close(embedded[index == g], fixed, rtol=1e-4, atol=1e-4)
    assert all(layer.isfinite().all() for layer in statistics.layers)


def test_moments_equal_numpy():
    """In float32 a mean far from zero keeps its variance."""
    group = np.array([0, 1, 0, 2, 2, 0, 1])
    for mean_, dtype, near in ((3, torch.float64, 1e-10), (60, torch.float32, 1e-3)):
        maps = np.random.default_rng(0).normal(mean_, 2, (7, 2, 3, 5))
        mean, variance = group_moments(torch.tensor(maps, dtype=dtype), torch.tensor(group), 3)
        for g in range(3):
            values = maps[group == g]
            np.testing.assert_allclose(mean[g], values.mean((0, 2, 3)), rtol=near)
            np.testing.assert_allclose(variance[g], values.var((0, 2, 3)), rtol=near)


@pytest.mark.parametrize("fixed", [False, True])
def test_gradients_equal_finite_differences(fixed):
    """Through the statistics of the batch, and with fixed ones."""
    model = network(size=8, channels=1, width=2, depth=1).double()
    images, group = pictures(4, 8, 1).double().requires_grad_(), torch.tensor([0, 1, 0, 1])
    encoder = LatentEncoder(model)
    given = LatentStatistics((torch.rand(2, 2, 2).double() + 0.5,)) if fixed else None
    torch.autograd.gradcheck(
        lambda x: encoder(x, group, given, 2)[0].square().sum(), (images,), atol=1e-5
    )


def test_only_images_take_gradients_and_constant_images_finite_ones():
    encoder, images = LatentEncoder(network(width=8)), torch.zeros(3, 3, 16, 16, requires_grad=True)
    assert not any(value.requires_grad for value in encoder.parameters())
    features, statistics = encoder(images, zeros(images))
    assert statistics.layers[0].requires_grad
    features.sum().backward()
    assert torch.isfinite(images.grad).all()
    with torch.no_grad():
        assert not encoder(images, zeros(images))[1].layers[0].requires_grad


@pytest.mark.parametrize("norm", ["instance", "none"])
def test_networks_without_batch_normalisation_stay_as_they_are(norm):
    model, images = network(width=8, norm=norm), pictures(3)
    encoder = LatentEncoder(model)
    features, statistics = encoder(images, zeros(images))
    assert not statistics.layers
    torch.testing.assert_close(features, model.embed(images))
    again, _ = encoder(
        images, zeros(images), LatentStatistics.concatenate([statistics, statistics])
    )
    torch.testing.assert_close(again, features)


def test_statistics_stay_float32_under_autocast():
    encoder, images = LatentEncoder(network(width=8)), pictures(8)
    _, exact = encoder(images, zeros(images))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features, rounded = encoder(images, zeros(images))
    assert features.dtype == torch.bfloat16
    for expected, layer in zip(exact.layers, rounded.layers, strict=True):
        assert layer.dtype == torch.float32
        torch.testing.assert_close(expected, layer, rtol=0.03, atol=0.02)


def test_rows_are_chosen_put_together_and_blended():
    a = LatentStatistics((torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]]),))
    b = LatentStatistics((torch.tensor([[[5.0]], [[6.0]]]),))
    both = LatentStatistics.concatenate([a, b])
    assert both.layers[0].squeeze(2).tolist() == [[1, 2, 5], [3, 4, 6]]
    chosen = both[torch.tensor([2, 0, 0])]
    assert chosen.layers[0].squeeze(2).tolist() == [[5, 1, 1], [6, 3, 3]]
    blended = b.blend(chosen[1:2], 0.1).layers[0]
    torch.testing.assert_close(blended, torch.tensor([[[4.6]], [[5.7]]]))


def test_a_model_without_running_statistics_has_none_to_give():
    model = network(width=8)
    model.blocks[0].norm = nn.BatchNorm2d(8, track_running_stats=False)
    refused("running statistics", LatentStatistics.running, model)
