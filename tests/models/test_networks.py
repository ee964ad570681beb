"""The networks: sizes, parameter counts printed in the papers, and outputs against independent
computations.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from core.errors import InputError
from core.models import build, count_parameters, load, parameters_and_buffers
from core.rng import Rng


def images(count: int, channels: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("name", "channels", "size", "classes", "options", "count"),
    [
        # FedVCK's Table 9, in MiB for ten clients: 12.13, 11.65, 12.20, 12.21, 14.55
        ("convnet", 3, 28, 9, {}, 317_961),
        ("convnet", 1, 28, 4, {}, 305_412),
        ("convnet", 1, 28, 11, {}, 319_755),
        ("convnet", 3, 32, 10, {}, 320_010),
        ("convnet", 3, 64, 10, {}, 381_450),
        ("convnet", 3, 32, 10, {"norm": "instance"}, 320_010),
        ("convnet", 3, 32, 10, {"norm": "none"}, 320_010 - 3 * 2 * 128),
        # FedVCK's Pneumonia (426.15 MiB for ten clients), GDD-FL's two classes of colour images
        ("resnet18", 1, 224, 2, {}, 11_171_266),
        ("resnet18", 3, 224, 2, {}, 11_177_538),
        ("resnet18", 1, 224, 2, {"pool": "released"}, 11_171_266),
        # FedGen's network for MNIST: 60 + 12 + 880 + 32 + 784 * 32 + 32 + 330
        ("lenet", 1, 28, 10, {}, 26_434),
        ("lenet", 3, 32, 20, {}, 26_434 + 2 * 54 + (1024 - 784) * 32 + 10 * 33),
        (
            "lenet",
            3,
            32,
            10,
            {"first": 16, "second": 32, "features": 64},
            28 * 16 + 32 + 145 * 32 + 64 + 2049 * 64 + 65 * 10,
        ),
        # the CIFAR ResNet-8 with option B shortcuts: 464 + 4,672 + 14,528 + 57,728 + 650
        ("resnet8", 3, 32, 10, {"width": 16, "grid": 1}, 78_042),
        ("resnet8", 3, 32, 10, {}, 3_712 + 295_424 + 919_040 + 3_673_088 + 20_490),
    ],
)
def test_parameter_counts(
    name: str, channels: int, size: int, classes: int, options: dict, count: int
) -> None:
    assert count_parameters(build(name, channels, size, classes, Rng(0), **options)) == count


@pytest.mark.parametrize(
    ("count", "printed"),
    [
        (317_961, 12.13),
        (305_412, 11.65),
        (319_755, 12.20),
        (320_010, 12.21),
        (381_450, 14.55),
        (11_171_266, 426.15),
    ],
)
def test_counts_are_fedvcks_printed_megabytes(count: int, printed: float) -> None:
    assert round(count * 4 * 10 / 2**20, 2) == printed


def test_lenet_is_fedmks_105_kilobytes() -> None:
    size = 4 * count_parameters(build("lenet", 1, 28, 10, Rng(0)))
    assert size // 1000 == 105


@pytest.mark.parametrize(
    ("name", "channels", "size", "options", "features"),
    [
        ("convnet", 1, 8, {}, 128),
        ("convnet", 3, 28, {}, 2048),
        ("convnet", 1, 64, {"norm": "instance", "width": 16}, 16 * 64),
        ("convnet", 1, 28, {"depth": 4, "width": 8, "norm": "none"}, 8 * 4),
        ("convnet", 1, 2, {"depth": 1}, 128),
        ("lenet", 1, 8, {}, 32),
        ("lenet", 3, 33, {}, 32),
        ("lenet", 3, 33, {"features": 5}, 5),
        ("resnet8", 3, 32, {}, 2048),
        ("resnet8", 1, 18, {"width": 8}, 128),
        ("resnet8", 1, 8, {"width": 8, "grid": 1}, 32),
        ("resnet18", 1, 8, {}, 512),
        ("resnet18", 3, 65, {"stem": "imagenet"}, 512),
        ("resnet18", 1, 256, {"pool": "released"}, 4 * 512),
    ],
)
def test_shapes(name: str, channels: int, size: int, options: dict, features: int) -> None:
    model = build(name, channels, size, 5, Rng(1), **options).eval()
    assert model.training is False
    batch = images(2, channels, size)
    with torch.no_grad():
        embedded, logits = model.embed(batch), model(batch)
    assert embedded.shape == (2, features)
    assert model.feature_size == features
    assert logits.shape == (2, 5)
    weight, bias = model.classifier.weight, model.classifier.bias
    assert torch.allclose(logits, embedded @ weight.T + bias, atol=1e-5)
    assert batch.equal(images(2, channels, size))  # nothing in place reaches the caller's images


@pytest.mark.parametrize("norm", ["batch", "instance", "none"])
def test_convnet_layer_by_layer(norm: str) -> None:
    model = build("convnet", 2, 20, 3, Rng(2), depth=2, width=6, norm=norm)
    batch = images(5, 2, 20)
    maps = batch
    state = model.state_dict()
    for i in range(2):
        maps = functional.conv2d(
            maps, state[f"blocks.{i}.conv.weight"], state[f"blocks.{i}.conv.bias"], padding=1
        )
        if norm != "none":
            over = (0, 2, 3) if norm == "batch" else (2, 3)
            variance = maps.var(over, unbiased=False, keepdim=True)
            maps = (maps - maps.mean(over, keepdim=True)) / (
                variance + 1e-5
            ).sqrt()  # scale 1 and shift 0 at first
        maps = maps.clamp(min=0)
        maps = (
            maps[..., ::2, ::2]
            + maps[..., 1::2, ::2]
            + maps[..., ::2, 1::2]
            + maps[..., 1::2, 1::2]
        ) / 4
    assert torch.allclose(model.embed(batch), maps.flatten(1), atol=1e-5)


def test_convnet_pads_28_to_32() -> None:
    small, large = (
        build("convnet", 3, 28, 9, Rng(3)).eval(),
        build("convnet", 3, 32, 9, Rng(4)).eval(),
    )
    load(large, {**parameters_and_buffers(small)[0], **parameters_and_buffers(small)[1]})
    batch = images(2, 3, 28)
    assert torch.allclose(small(batch), large(functional.pad(batch, (2, 2, 2, 2))), atol=1e-5)


def test_lenet_layer_by_layer() -> None:
    model = build("lenet", 1, 28, 10, Rng(5)).eval()
    state, maps = model.state_dict(), images(3, 1, 28)
    for i in (1, 2):
        maps = functional.conv2d(
            maps, state[f"conv{i}.weight"], state[f"conv{i}.bias"], stride=2, padding=1
        )
        maps = (maps / (1 + 1e-5) ** 0.5).clamp(min=0)  # running mean 0, running variance 1
    expected = maps.flatten(1) @ state["hidden.weight"].T + state["hidden.bias"]
    assert torch.allclose(model.embed(images(3, 1, 28)), expected, atol=1e-5)


def torchvision_twin(model: nn.Module, classes: int) -> nn.Module:
    resnet = pytest.importorskip("torchvision.models.resnet")
    twin = resnet.resnet18(num_classes=classes)
    twin.load_state_dict(
        {name.replace("classifier", "fc"): value for name, value in model.state_dict().items()}
    )
    return twin


@pytest.mark.parametrize(("size", "training"), [(64, True), (96, False), (224, False)])
def test_resnet18_is_torchvisions(size: int, training: bool) -> None:
    model = build("resnet18", 3, size, 7, Rng(6))
    twin = torchvision_twin(model, 7).train(training)
    model.train(training)
    batch = images(3, 3, size)
    with torch.no_grad():
        assert torch.allclose(model(batch), twin(batch), atol=1e-5)
    for ours, theirs in zip(
        model.buffers(), twin.buffers(), strict=True
    ):  # the statistics moved alike, too
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_released_pooling_sees_16_of_49_cells() -> None:
    model = build("resnet18", 3, 224, 2, Rng(7), pool="released").eval()
    twin = torchvision_twin(model, 2).eval()
    maps = []
    twin.layer4.register_forward_hook(lambda layer, given, output: maps.append(output))
    batch = images(2, 3, 224)
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
    blocks = []
    for i, (inputs, outputs, stride) in enumerate([(16, 16, 1), (16, 32, 2), (32, 64, 2)], start=1):
        shortcut = None
        if inputs != outputs:
            shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )
        block = resnet.BasicBlock(inputs, outputs, stride, shortcut)
        block.load_state_dict(model.get_submodule(f"layer{i}").state_dict())
        blocks.append(block)
    twin = nn.Sequential(
        model.conv1, model.bn1, nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).eval()
    with torch.no_grad():
        assert torch.allclose(model.embed(images(2, 3, 32)), twin(images(2, 3, 32)), atol=1e-5)


@pytest.mark.parametrize("width", [1, 4, 8])
def test_gradients_of_a_narrow_resnet8(width: int) -> None:
    """As in float64, where no library's kernel takes over. On some CPUs such shapes have killed the
    interpreter.
    """
    model = build("resnet8", 3, 16, 10, Rng(8), width=width, grid=1).to(
        memory_format=torch.channels_last
    )
    twin = build("resnet8", 3, 16, 10, Rng(8), width=width, grid=1).double()
    few = images(16, 3, 16)
    model(few.contiguous(memory_format=torch.channels_last)).square().mean().backward()
    twin(few.double()).square().mean().backward()
    for (name, mine), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.allclose(mine.grad.double(), theirs.grad, rtol=1e-3, atol=1e-6), name


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (("convnt", 1, 28, 2), {}, "did you mean 'convnet'"),
        (("convnet", 1, 28, 2), {"widht": 3}, "did you mean 'width'"),
        (("lenet", 1, 28, 2), {"width": 3}, "no option of lenet named 'width'"),
        (("convnet", 0, 28, 2), {}, "channels"),
        (("convnet", 1, 28.5, 2), {}, "size"),
        (("convnet", 1, 28, 1), {}, "classes"),
        (("convnet", 1, 7, 2), {}, "at least 8x8, not 7x7"),
        (("convnet", 1, 28, 2), {"depth": 20_000}, "at most 16"),
        (("convnet", 1, 28, 2), {"width": -1}, "width"),
        (("convnet", 1, 28, 2), {"norm": "batchnorm"}, "did you mean 'batch'"),
        (("lenet", 1, 7, 2), {}, "at least 8x8"),
        (("lenet", 1, 8, 2), {"first": 0}, "first"),
        (("resnet8", 1, 4, 2), {}, "1x1 cells"),
        (("resnet8", 1, 20, 2), {"grid": 4}, "5x5 cells"),
        (("resnet18", 1, 28, 2), {"stem": "big"}, "stem"),
        (("resnet18", 1, 64, 2), {"pool": "released"}, "leave 2x2"),
    ],
)
def test_mistakes(arguments: tuple, options: dict, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        build(*arguments, Rng(0), **options)
    assert "\n" not in str(caught.value)
