"""The networks: sizes, the parameter counts of the papers, outputs of independent programs."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from core.models import build, count_parameters, load, parameters_and_buffers
from core.rng import Rng


def images(count: int, channels: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(seed))


SMALL_LENET = {"first": 16, "second": 32, "features": 64}
#: and what FedVCK's Table 9 reports, in MiB for ten clients
COUNTS = [
    ("convnet", 3, 28, 9, {}, 317_961, 12.13),
    ("convnet", 1, 28, 4, {}, 305_412, 11.65),
    ("convnet", 1, 28, 11, {}, 319_755, 12.20),
    ("convnet", 3, 32, 10, {}, 320_010, 12.21),
    ("convnet", 3, 64, 10, {}, 381_450, 14.55),
    ("convnet", 3, 32, 10, {"norm": "instance"}, 320_010, None),
    ("convnet", 3, 32, 10, {"norm": "none"}, 320_010 - 3 * 2 * 128, None),
    # FedVCK's Pneumonia, GDD-FL's two classes of colour images
    ("resnet18", 1, 224, 2, {}, 11_171_266, 426.15),
    ("resnet18", 3, 224, 2, {}, 11_177_538, None),
    ("resnet18", 1, 224, 2, {"pool": "released"}, 11_171_266, None),
    # FedGen's network for MNIST: 60 + 12 + 880 + 32 + 784 * 32 + 32 + 330
    ("lenet", 1, 28, 10, {}, 26_434, None),
    ("lenet", 3, 32, 20, {}, 26_434 + 2 * 54 + (1024 - 784) * 32 + 10 * 33, None),
    ("lenet", 3, 32, 10, SMALL_LENET, 28 * 16 + 32 + 145 * 32 + 64 + 2049 * 64 + 65 * 10, None),
    # the CIFAR ResNet-8 with option B shortcuts: 464 + 4,672 + 14,528 + 57,728 + 650
    ("resnet8", 3, 32, 10, {"width": 16, "grid": 1}, 78_042, None),
    ("resnet8", 3, 32, 10, {}, 3_712 + 295_424 + 919_040 + 3_673_088 + 20_490, None),
]


@pytest.mark.parametrize(
    ("name", "channels", "size", "classes", "options", "count", "reported"), COUNTS
)
def test_counts_are_fedvcks_printed_megabytes(
    name, channels, size, classes, options, count, reported
):
    assert count_parameters(build(name, channels, size, classes, Rng(0), **options)) == count
    assert reported in (None, round(count * 4 * 10 / 2**20, 2))


def test_lenet_is_fedmks_105_kilobytes() -> None:
    size = 4 * count_parameters(build("lenet", 1, 28, 10, Rng(0)))
    assert size // 1000 == 105


@pytest.mark.parametrize(
    ("name", "channels", "size", "options", "features"),
    [
        ("convnet", 1, 64, {"norm": "instance", "width": 16}, 16 * 64),
        ("convnet", 1, 28, {"depth": 4, "width": 8, "norm": "none"}, 8 * 4),
        ("convnet", 1, 2, {"depth": 1}, 128),
        ("lenet", 3, 33, {"features": 5}, 5),
        ("resnet8", 1, 8, {"width": 8, "grid": 1}, 32),
        ("resnet18", 3, 65, {}, 512),
        ("resnet18", 1, 256, {"pool": "released"}, 4 * 512),
    ],
)
def test_shapes(name: str, channels: int, size: int, options: dict, features: int) -> None:
    model = build(name, channels, size, 5, Rng(1), **options).eval()
    batch = images(2, channels, size)
    with torch.no_grad():
        embedded, logits = model.embed(batch), model(batch)
    assert embedded.shape == (2, features) == (2, model.feature_size) and logits.shape == (2, 5)
    weight, bias = model.classifier.weight, model.classifier.bias
    assert torch.allclose(logits, embedded @ weight.T + bias, atol=1e-5)
    assert batch.equal(images(2, channels, size))  # nothing in place reaches the caller's images


@pytest.mark.parametrize("norm", ["batch", "instance", "none"])
def test_convnet_layer_by_layer(norm: str) -> None:
    model = build("convnet", 2, 20, 3, Rng(2), depth=2, width=6, norm=norm)
    maps = batch = images(5, 2, 20)
    for block in model.blocks:
        maps = functional.conv2d(maps, block.conv.weight, block.conv.bias, padding=1)
        if norm != "none":  # scale 1 and shift 0 at first
            over = (0, 2, 3) if norm == "batch" else (2, 3)
            variance = maps.var(over, unbiased=False, keepdim=True)
            maps = (maps - maps.mean(over, keepdim=True)) / (variance + 1e-5).sqrt()
        maps = maps.clamp(min=0)
        maps = sum(maps[..., down::2, right::2] for down in (0, 1) for right in (0, 1)) / 4
    assert torch.allclose(model.embed(batch), maps.flatten(1), atol=1e-5)


def test_convnet_pads_28_to_32() -> None:
    small, large = (build("convnet", 3, size, 9, Rng(size)).eval() for size in (28, 32))
    load(large, {**parameters_and_buffers(small)[0], **parameters_and_buffers(small)[1]})
    batch = images(2, 3, 28)
    assert torch.allclose(small(batch), large(functional.pad(batch, (2, 2, 2, 2))), atol=1e-5)


def test_lenet_layer_by_layer() -> None:
    model, maps = build("lenet", 1, 28, 10, Rng(5)).eval(), images(3, 1, 28)
    for conv in (model.conv1, model.conv2):
        maps = functional.conv2d(maps, conv.weight, conv.bias, stride=2, padding=1)
        maps = (maps / (1 + 1e-5) ** 0.5).clamp(min=0)  # running mean 0, running variance 1
    expected = maps.flatten(1) @ model.hidden.weight.T + model.hidden.bias
    assert torch.allclose(model.embed(images(3, 1, 28)), expected, atol=1e-5)


def torchvision_twin(model: nn.Module, classes: int) -> nn.Module:
    resnet = pytest.importorskip("torchvision.models.resnet")
    twin = resnet.resnet18(num_classes=classes)
    state = model.state_dict()
    twin.load_state_dict({name.replace("classifier", "fc"): state[name] for name in state})
    return twin


@pytest.mark.parametrize(("size", "training"), [(64, True), (96, False)])
def test_resnet18_is_torchvisions(size: int, training: bool) -> None:
    model = build("resnet18", 3, size, 7, Rng(6)).train(training)
    twin, batch = torchvision_twin(model, 7).train(training), images(3, 3, size)
    with torch.no_grad():
        assert torch.allclose(model(batch), twin(batch), atol=1e-5)
    # the statistics moved alike, too
    for ours, theirs in zip(model.buffers(), twin.buffers(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_released_pooling_sees_16_of_49_cells() -> None:
    model, maps = build("resnet18", 3, 224, 2, Rng(7), pool="released").eval(), []
    twin, batch = torchvision_twin(model, 2).eval(), images(1, 3, 224)
    twin.layer4.register_forward_hook(lambda layer, given, output: maps.append(output))
    with torch.no_grad():
        twin(batch)
        assert maps[0].shape[2:] == (7, 7)
        assert torch.allclose(model.embed(batch), maps[0][:, :, :4, :4].mean((2, 3)), atol=1e-5)


@pytest.mark.parametrize(("size", "layers"), [(28, 3), (63, 3), (64, 7)])
def test_resnet18_stem_follows_the_size(size: int, layers: int) -> None:
    assert build("resnet18", 1, size, 2, Rng(0)).conv1.weight.shape[-1] == layers


def test_resnet8_from_torchvisions_blocks() -> None:
    resnet = pytest.importorskip("torchvision.models.resnet")
    model = build("resnet8", 3, 32, 10, Rng(8), width=16, grid=1).eval()
    shortcuts = [
        nn.Sequential(nn.Conv2d(k, 2 * k, 1, 2, bias=False), nn.BatchNorm2d(2 * k))
        for k in (16, 32)
    ]
    blocks = [
        resnet.BasicBlock(16, 16),
        resnet.BasicBlock(16, 32, 2, shortcuts[0]),
        resnet.BasicBlock(32, 64, 2, shortcuts[1]),
    ]
    for i, block in enumerate(blocks, start=1):
        block.load_state_dict(model.get_submodule(f"layer{i}").state_dict())
    end = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    twin = nn.Sequential(model.conv1, model.bn1, nn.ReLU(), *blocks, *end).eval()
    with torch.no_grad():
        assert torch.allclose(model.embed(images(2, 3, 32)), twin(images(2, 3, 32)), atol=1e-5)
