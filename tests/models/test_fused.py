"""The fused passes beside PyTorch's own layers in float64, which take the eager path."""

from __future__ import annotations

import contextlib
import copy
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from core.errors import InputError
from core.models import build, convolution, fresh, kernels, names
from core.models.fused import activate, affine, standardise
from core.models.generative import ImageGenerator, PatchDiscriminator
from core.rng import Rng
from lab.record import REPOSITORY

fused = pytest.mark.skipif(kernels.library() is None, reason="there is no C++ compiler")
NORMS = {
    "batch": lambda: nn.BatchNorm2d(5),
    "running": lambda: nn.BatchNorm2d(5).eval(),
    "instance": lambda: nn.GroupNorm(5, 5),
    "affine instance": lambda: nn.InstanceNorm2d(5, affine=True),
    "none": lambda: None,
}


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=Rng(seed).generator())


def layer(kind: str) -> nn.Module | None:
    made = NORMS[kind]()
    for place, tensor in enumerate([] if made is None else made.state_dict().values()):
        if tensor.is_floating_point():
            tensor.copy_(normal(5, seed=place).abs() + 0.5)
    return made


def all_of(norm, maps, shortcut, pull, slope, pool):
    """Result, gradients of all inputs and what the layer keeps, in float64."""
    maps = maps.clone().requires_grad_()
    shortcut = None if shortcut is None else shortcut.clone().requires_grad_()
    own = [] if norm is None else list(norm.parameters())
    result = activate(maps, norm, shortcut=shortcut, slope=slope, pool=pool)
    inputs = [maps, *own, *([] if shortcut is None else [shortcut])]
    found = torch.autograd.grad((result * pull.to(result.dtype)).sum(), inputs)
    kept = [] if norm is None else list(norm.buffers())
    return [each.double() for each in (result, *found, *kept)]


@fused
@pytest.mark.parametrize("side", [(6, 4), (5, 7)])
@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize(
    "shortcut, slope, pool", [(False, 0.0, 2), (True, 0.0, 1), (False, 0.2, 1), (True, 1.0, 2)]
)
def test_values_gradients_and_running_statistics_are_those_of_pytorch(
    kind, side, shortcut, slope, pool
):
    # far from 0, where a variance is a small difference of large squares
    maps = normal(3, 5, *side) + 30
    beside = normal(3, 5, *side, seed=1) if shortcut else None
    pull = normal(3, 5, side[0] // pool, side[1] // pool, seed=2)
    norm = layer(kind)
    ours = all_of(norm, maps, beside, pull, slope, pool)
    wide = None if norm is None else layer(kind).double()
    with kernels.eager():
        theirs = all_of(
            wide, maps.double(), None if beside is None else beside.double(), pull, slope, pool
        )
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=2e-4, atol=2e-4)


@fused
def test_a_channel_that_hardly_varied_is_divided_by_what_keeps_it_from_zero():
    norm, maps = nn.BatchNorm2d(2).eval(), normal(3, 2, 4, 4)
    norm.running_var.copy_(torch.tensor([0.0, 1e-5]))
    with torch.no_grad():
        found = activate(maps, norm, slope=1.0)
    wanted = maps.double() / torch.tensor([1e-5, 2e-5]).double().sqrt()[:, None, None]
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-3)


@fused
def test_the_statistics_of_groups_carry_gradients():
    maps, weight, bias = normal(6, 3, 4, 4) + 5, normal(3, seed=1), normal(3, seed=2)
    group, found = torch.tensor([2, 0, 2, 0, 0, 2]), []
    for dtype in (torch.float32, torch.float64):
        inputs = [each.to(dtype).requires_grad_() for each in (maps, weight, bias)]
        _, mean, variance = standardise(*inputs, group, 3, 1e-5)
        y, _, _ = standardise(*inputs, group, 3, 1e-5, None, 0.0, 2)
        total = y.sum() + (mean * normal(3, 3, seed=3)).sum() + (variance**2).sum()
        found.append(
            [each.double() for each in (mean, variance, *torch.autograd.grad(total, inputs))]
        )
        assert not mean[1].any() and not variance[1].any()  # nobody is there
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    own = maps[group == 2]
    torch.testing.assert_close(found[0][0][2], own.double().mean((0, 2, 3)), rtol=1e-5, atol=1e-5)


@fused
def test_the_gradient_of_a_scale_and_a_shift():
    maps, scale, shift = normal(4, 3, 2, 2), normal(1, 3, seed=1), normal(1, 3, seed=2)
    found = []
    for dtype in (torch.float32, torch.float64):
        inputs = [each.to(dtype).requires_grad_() for each in (maps, scale, shift)]
        found.append(torch.autograd.grad(affine(*inputs, None, 0.0, 2).square().sum(), inputs))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)


@fused
@pytest.mark.parametrize("slope, pool", [(0.0, 2), (0.2, 1), (1.0, 2)])
def test_gradients_are_those_of_finite_differences(slope, pool):
    """Of the passes in float32, beside differences of their formula in float64 NumPy."""
    given = [normal(4, 3, 4, 4), normal(3, seed=1).abs() + 0.5, normal(3, seed=2)]
    pull = normal(4, 3, 4 // pool, 4 // pool, seed=3)

    def formula(x, weight, bias):
        z = (x - x.mean((0, 2, 3), keepdims=True)) / np.sqrt(
            x.var((0, 2, 3), keepdims=True) + 0.1
        ) * weight[:, None, None] + bias[:, None, None]
        z = np.where(z > 0, z, slope * z)
        z = z.reshape(4, 3, 4 // pool, pool, 4 // pool, pool).mean((3, 5))
        return float((z * pull.double().numpy()).sum())

    inputs = [each.clone().requires_grad_() for each in given]
    result, *_ = standardise(*inputs, None, 1, 0.1, None, slope, pool)
    found = torch.autograd.grad((result * pull).sum(), inputs)
    exact = [each.double().numpy() for each in given]
    for place, gradient in enumerate(found):
        for index in np.ndindex(*gradient.shape):
            ends = []
            for move in (1e-6, -1e-6):
                moved = [each.copy() for each in exact]
                moved[place][index] += move
                ends.append(formula(*moved))
            expected = (ends[0] - ends[1]) / 2e-6
            assert gradient[index].item() == pytest.approx(expected, rel=2e-4, abs=2e-4)


@fused
def test_a_second_derivative_is_that_of_pytorch():
    found = []
    for dtype in (torch.float32, torch.float64):
        norm, maps = layer("batch").to(dtype), normal(4, 5, 4, 4).to(dtype).requires_grad_()
        first = torch.autograd.grad(
            activate(maps, norm, pool=2).pow(3).sum(), maps, create_graph=True
        )
        found.append(torch.autograd.grad(first[0].square().sum(), [maps, norm.weight]))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-3, atol=1e-3)


@fused
@pytest.mark.parametrize("twice", [False, True])
def test_a_shortcut_from_which_the_maps_come_counts_once(twice):
    """As in a residual block; a gradient that is to be differentiated again takes a way of its own."""
    found = []
    for dtype in (torch.float32, torch.float64):
        norm, leaf = layer("batch").to(dtype), normal(4, 5, 4, 4).to(dtype).requires_grad_()
        y = activate(3 * leaf.sin(), norm, shortcut=leaf)
        slopes = torch.autograd.grad(y.pow(3).sum(), leaf, create_graph=twice)
        if twice:
            slopes += torch.autograd.grad(slopes[0].square().sum(), [leaf, norm.weight])
        found.append(slopes)
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-3, atol=1e-3)


def everything(network: nn.Module, inputs: torch.Tensor, precision: torch.dtype) -> torch.Tensor:
    inputs = inputs.clone().requires_grad_()
    with torch.autocast("cpu", dtype=precision, enabled=precision == torch.bfloat16):
        outputs = network(inputs).to(inputs.dtype)
    found = torch.autograd.grad(outputs.square().mean(), [inputs, *network.parameters()])
    return torch.cat([each.double().flatten() for each in (outputs, *found)])


def network_of(name: str, seed: int) -> tuple[nn.Module, torch.Tensor]:
    if name == "generator":
        return fresh(ImageGenerator, 3, 16, noise=8, width=8, rng=Rng(0)), normal(6, 8, seed=seed)
    if name == "discriminator":
        return fresh(PatchDiscriminator, 3, width=8, rng=Rng(0)), normal(6, 3, 16, 16, seed=seed)
    name, _, norm = name.partition(" ")
    options = {"norm": norm} if norm else {"resnet8": {"width": 16, "grid": 1}}.get(name, {})
    return build(name, 3, 16, 4, Rng(0), **options), normal(6, 3, 16, 16, seed=seed)


@fused
@pytest.mark.parametrize(
    "name", [*names(), "convnet instance", "convnet none", "generator", "discriminator"]
)
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_every_network_gives_what_it_gives_without_the_kernels(name, precision, monkeypatch):
    monkeypatch.setattr(convolution, "MANY", {})  # the convolutions have tests of their own
    assert any(no_further_than_pytorch(name, precision, seed) for seed in range(3))


def no_further_than_pytorch(name: str, precision: torch.dtype, seed: int) -> bool:
    """Whether values and gradients lie as near the exact ones as those of PyTorch's kernels do; a
    value within rounding of the rectifier's kink may fall on the other side, which a few gradients
    then show.
    """
    network, inputs = network_of(name, seed)
    exact = everything(copy.deepcopy(network).double(), inputs.double(), torch.float64)
    with kernels.eager():
        theirs = everything(network, inputs, precision)
    ours = everything(network, inputs, precision)
    assert torch.equal(ours, everything(network, inputs, precision))  # bit for bit again
    assert (ours - exact).norm() < 0.01 * exact.norm() or precision == torch.bfloat16
    return bool((ours - exact).norm() < 3 * (theirs - exact).norm())


@fused
def test_the_result_does_not_depend_on_the_number_of_threads():
    maps, threads, found = normal(9, 8, 12, 12), torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            norm, leaf = nn.BatchNorm2d(8), maps.clone().requires_grad_()
            y = activate(leaf, norm, pool=2)
            found.append((y.detach(), torch.autograd.grad(y.square().sum(), leaf)[0]))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for one in found[1:] for a, b in zip(one, found[0], strict=True))


@pytest.mark.parametrize("way", ["fused", "eager"])
def test_one_value_of_a_channel_has_no_statistics(way, monkeypatch):
    """Whatever computes it: PyTorch refuses it too, but its layer does not say what to do."""
    monkeypatch.setenv("FEDCON_KERNELS", "" if way == "fused" else "eager")
    one, several = torch.randn(1, 4, 1, 1), torch.randn(2, 4, 1, 1)
    norm = nn.BatchNorm2d(4)
    with pytest.raises(InputError, match="1 maps of 1x1 pixels; take larger batches"):
        activate(one, norm)
    activate(several, norm)
    activate(one, norm.eval())
    with pytest.raises(InputError, match="more than one value"):
        activate(several, nn.InstanceNorm2d(4, affine=True))


def test_other_tensors_take_pytorchs_way():
    assert not kernels.fits(normal(1, 2, 2, 2).double())
    assert not kernels.fits(normal(1, 2, 2, 2), normal(1, 2, 2, 2).bfloat16())
    assert not kernels.fits(torch.empty(1, 2, 2, 2, device="meta"))
    with kernels.eager():
        assert kernels.in_use() == "eager" and not kernels.fits(normal(1, 2, 2, 2))
    norm = nn.GroupNorm(4, 4)
    each = torch.func.vmap(lambda maps: activate(maps, norm, pool=2))(normal(2, 3, 4, 4, 4))
    whole = F.avg_pool2d(F.relu(norm(normal(2, 3, 4, 4, 4).flatten(0, 1))), 2)
    torch.testing.assert_close(each.flatten(0, 1), whole)


def test_every_inner_loop_becomes_vectors(tmp_path):
    """Also with AVX2, which has no masks for the choice in a rectifier."""
    compiler = shutil.which("g++")
    if compiler is None or platform.machine() != "x86_64" or sys.platform != "linux":
        pytest.skip("needs GCC for x86-64")
    told = ("-march=x86-64-v3", "-fopenmp", "-fopt-info-vec", "-o", str(tmp_path / "fused.so"))
    said = subprocess.run(
        [compiler, *kernels.FLAGS, *told, str(kernels.SOURCES[0])],
        check=True,
        capture_output=True,
        text=True,
    ).stderr
    vectors = {int(line) for line in re.findall(r":(\d+):.*loop vectorized", said)}
    lines = kernels.SOURCES[0].read_text(encoding="utf-8").splitlines()
    inner = [n for n, line in enumerate(lines, 1) if line.lstrip().startswith("for (int64_t c = 0")]
    # the compiler names the loop by its first lines
    assert inner and all(vectors & set(range(n, n + 5)) for n in inner)


def test_without_a_compiler_one_line_says_so(monkeypatch, capsys):
    kernels.library.cache_clear()
    monkeypatch.setattr("shutil.which", lambda name: None)
    try:
        assert kernels.library() is None and kernels.in_use() == "eager"
        assert activate(normal(1, 2, 4, 4), nn.BatchNorm2d(2), pool=2).shape == (1, 2, 2, 2)
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "no C++ compiler" in said
    finally:
        kernels.library.cache_clear()


def test_without_the_kernels_only_the_result_of_an_affine_map_is_rounded():
    """Maps far from zero with a narrow spread: a scale or a shift in bfloat16 would be off by more
    than the result's own rounding.
    """
    maps = (normal(64, 3, 8, 8) + 100).bfloat16()
    scale, shift = torch.full((1, 3), 1 / 3), torch.full((1, 3), -100 / 3)
    with kernels.eager():
        found = affine(maps, scale, shift, slope=1.0)
    exact = maps.double() / 3 - 100 / 3
    assert found.dtype == torch.bfloat16
    assert ((found.double() - exact).abs() <= 2**-8 * exact.abs() + 1e-5).all()


@pytest.mark.parametrize("without", [False, True])
def test_a_narrow_spread_far_from_zero_keeps_its_variance(without):
    """Two groups and an empty one, beside NumPy in float64."""
    maps, group = normal(6, 2, 8, 8) / 10 + 300, torch.tensor([0, 2, 0, 2, 2, 0])
    plain = torch.ones(2), torch.zeros(2)
    with kernels.eager() if without else contextlib.nullcontext():
        found, mean, variance = standardise(maps, *plain, group, 3, 1e-5, slope=1.0)
    for g in (0, 2):
        own = maps[group == g].double().numpy()
        m, v = own.mean((0, 2, 3)), own.var((0, 2, 3))
        np.testing.assert_allclose(mean[g], m, rtol=1e-6)
        np.testing.assert_allclose(variance[g], v, rtol=1e-3)
        wanted = (own - m[:, None, None]) / np.sqrt(v + 1e-5)[:, None, None]
        np.testing.assert_allclose(found[group == g], wanted, atol=5e-3)
    assert mean[1].abs().max() == variance[1].abs().max() == 0


@fused
@pytest.mark.parametrize("pool", [1, 2])
def test_weight_and_bias_have_their_own_gradients_in_bfloat16(pool):
    """Each by itself: in the norm over a whole network a wrong one of them would not show."""
    norm = nn.BatchNorm2d(8)
    with torch.no_grad():
        norm.weight.copy_(0.5 + normal(8, seed=1).abs()), norm.bias.copy_(normal(8, seed=2))
    maps, slope = (
        normal(6, 8, 12, 12, seed=3).bfloat16(),
        normal(6, 8, 12 // pool, 12 // pool, seed=4),
    )

    def gradients(norm: nn.Module, maps: torch.Tensor) -> list[torch.Tensor]:
        leaf = maps.clone().requires_grad_()
        y = activate(leaf, norm, pool=pool)
        loss = (y.to(norm.weight.dtype) * slope.to(norm.weight.dtype)).sum()
        return [one.double() for one in torch.autograd.grad(loss, [norm.weight, norm.bias, leaf])]

    with kernels.eager():
        exact = gradients(copy.deepcopy(norm).double(), maps.double())
    for ours, true in zip(gradients(norm, maps), exact, strict=True):
        assert (ours - true).norm() < 0.02 * true.norm()


@fused
def test_a_library_that_lost_its_end_is_compiled_anew(tmp_path):
    """As after a full disk or a power cut: the process that called it would die."""
    told = (
        "from core.models import kernels; assert kernels.in_use(); print(kernels.library()._name)"
    )
    environment = os.environ | {"FEDCON_CACHE": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}

    def run() -> Path:
        found = subprocess.run(
            [sys.executable, "-c", told],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
        return Path(found.stdout.strip())

    path = run()
    whole = path.stat().st_size
    path.write_bytes(path.read_bytes()[:4096])
    assert run() == path and path.stat().st_size == whole
