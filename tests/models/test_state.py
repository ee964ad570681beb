"""Initial weights, and a network's state as named tensors."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from core.models import build, initialise, load, names, parameters_and_buffers
from core.models.convnet import ConvNet
from core.models.resnet8 import ResNet8
from core.rng import Rng
from tests.sentences import refused


def everything(model: nn.Module) -> dict[str, torch.Tensor]:
    parameters, buffers = parameters_and_buffers(model)
    return parameters | buffers


@pytest.mark.parametrize("name", names())
def test_weights_are_a_function_of_the_stream(name: str) -> None:
    """And of no global generator, which stays where it is."""
    before = torch.get_rng_state(), np.random.get_state()[1], random.getstate()  # noqa: NPY002
    first, second, other = (everything(build(name, 1, 16, 3, Rng(seed))) for seed in (0, 0, 1))
    assert torch.equal(before[0], torch.get_rng_state()) and before[2] == random.getstate()
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002
    assert all(torch.equal(first[key], second[key]) for key in first)
    drawn = [key for key in first if first[key].std() > 0]
    assert {"classifier.weight", "classifier.bias"} <= set(drawn)
    assert not any(torch.equal(first[key], other[key]) for key in drawn)
    assert all(value.isfinite().all() for value in first.values())


def test_each_parameter_has_its_own_stream() -> None:
    ten, eleven = (everything(build("convnet", 1, 28, classes, Rng(5))) for classes in (10, 11))
    shared = [key for key in ten if not key.startswith("classifier")]
    assert all(torch.equal(ten[key], eleven[key]) for key in shared)
    draws, bound = Rng(5).at("blocks.1.conv.bias").generator(), 1 / math.sqrt(128 * 9)
    expected = torch.empty(128).uniform_(-bound, bound, generator=draws)
    assert torch.equal(ten["blocks.1.conv.bias"], expected)
    assert not torch.equal(ten["blocks.1.conv.weight"], ten["blocks.2.conv.weight"])


@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [("convnet", ConvNet, {"norm": "instance"}), ("resnet8", ResNet8, {"width": 32})],
)
def test_distributions_are_pytorchs_defaults(
    name: str, kind: type[nn.Module], options: dict
) -> None:
    ours = build(name, 3, 32, 10, Rng(3), **options).state_dict()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        theirs = kind(3, 32, 10, **options).state_dict()
    assert list(ours) == list(theirs)
    compared = 0
    for key, value in theirs.items():
        assert (ours[key].shape, ours[key].dtype) == (value.shape, value.dtype)
        if value.numel() == 1 or value.float().std() == 0:  # scales, shifts, statistics of no data
            assert torch.equal(ours[key], value), key
            continue
        compared += 1
        mine, reference = ours[key].flatten().numpy(), value.flatten().numpy()
        assert stats.ks_2samp(mine, reference).pvalue > 1e-4, key
        if value.numel() > 5000:
            assert np.abs(mine).max() == pytest.approx(np.abs(reference).max(), rel=2e-3), key
            assert mine.std() == pytest.approx(reference.std(), rel=0.03), key
    assert compared >= 8


def test_initialise_undoes_training_and_knows_its_layers() -> None:
    model = build("lenet", 1, 16, 3, Rng(4))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model(torch.randn(4, 1, 16, 16, generator=Rng(0).generator()))
    assert model.norm1.num_batches_tracked == 1
    initialise(model, Rng(4))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    plain = nn.InstanceNorm2d(3, affine=True, track_running_stats=True)
    nn.init.constant_(plain.weight, 7)
    initialise(plain, Rng(0))
    assert plain.weight.tolist() == [1, 1, 1]


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))


def test_any_layer_that_can_reset_itself_is_drawn_from_its_stream() -> None:
    network = nn.Sequential(
        nn.Conv1d(2, 3, 3), nn.LayerNorm(4), nn.PReLU(), nn.MultiheadAttention(4, 2), nn.GRU(4, 4)
    )
    before = torch.get_rng_state()
    drawn = []
    for seed in (0, 0, 1):
        initialise(network, Rng(seed))
        drawn.append({name: value.clone() for name, value in network.state_dict().items()})
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(value, drawn[1][name]) for name, value in drawn[0].items())
    for name in ("0.weight", "3.in_proj_weight", "4.weight_hh_l0"):
        assert not torch.equal(drawn[0][name], drawn[2][name])
    refused(r"Odd \(0\) has no reset_parameters", initialise, nn.Sequential(Odd()), Rng(0))


@pytest.mark.parametrize("name", names())
def test_load_carries_a_state_over(name: str) -> None:
    source, target = (build(name, 1, 16, 3, Rng(seed)) for seed in (0, 1))
    batch = torch.randn(4, 1, 16, 16, generator=Rng(2).generator())
    source(batch)  # moves the running statistics
    load(target, {key: value.double() for key, value in everything(source).items()})
    assert all(parameter.requires_grad for parameter in target.parameters())
    assert not any(key.endswith("num_batches_tracked") for key in everything(source))
    assert torch.equal(source.eval()(batch), target.eval()(batch))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"norm1.running_var": None}, "'norm1.running_var' is missing"),
        ({"extra": torch.zeros(1)}, "no 'extra'"),
        ({"classifier.bias": torch.zeros(4)}, "shape"),
    ],
)
def test_load_refuses_what_does_not_fit_and_changes_nothing(change, words: str) -> None:
    model, other = (build("lenet", 1, 16, 3, Rng(seed)) for seed in (0, 1))
    before, state = everything(model), everything(other) | change
    refused(words, load, model, {key: value for key, value in state.items() if value is not None})
    after = everything(model)
    assert all(torch.equal(before[key], after[key]) for key in before)
