"""Networks that make features or images, and one that judges images.

Three families of methods need them: generators of features (FedGen, FedMK), generators of images
(FedGAN, DFRD, FedIOD) and discriminators (FedGAN, FedIOD). `fresh` makes any of them.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn import functional

from core.errors import InputError, unknown
from core.models.classifier import at_least
from core.models.initialisation import initialise
from core.rng import Rng

Network = TypeVar("Network", bound=nn.Module)

#: slope of LeakyReLU below zero, as in DCGAN (Radford et al. 2016)
SLOPE = 0.2
JUDGE_NORMS = ("instance", "batch")


def fresh(
    kind: type[Network], *args: Any, rng: Rng, device: torch.device | str = "cpu", **options: Any
) -> Network:
    """A network of the given class on a device, in training mode, with weights from `rng`; the global
    generator is not touched. InputError for bad arguments.
    """
    with torch.device("meta"):
        network = kind(*args, **options)
    network.to_empty(device="cpu")
    initialise(network, rng)
    return network.to(device, non_blocking=True)


class FeatureGenerator(nn.Module):
    """Features of a class from noise: linear, batch normalisation, ReLU, linear (FedGen, Zhu et al.
    ICML 2021).

    A label enters as a one-hot vector beside the noise. FedMK's Eq. 10 has a generator of the same
    form.

    Args:
        classes: C; feature_size: D; noise: z, the length of a noise vector; hidden: units of the
            hidden layer.
    """

    def __init__(
        self, classes: int, feature_size: int, *, noise: int = 32, hidden: int = 256
    ) -> None:
        super().__init__()
        at_least("noise", noise, 1)
        at_least("hidden", hidden, 1)
        self.classes, self.noise = classes, noise
        self.hidden = nn.Linear(noise + classes, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.out = nn.Linear(hidden, feature_size)

    def forward(self, noise: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Features (N, D) from noise (N, z) and labels (N,) int64."""
        return self.out(self.norm(self.hidden(_with_labels(noise, labels, self.classes))).relu())


class ImageGenerator(nn.Module):
    """Images from noise: a linear layer to a quarter of the side, then twice upsampling and a 3x3
    convolution.

    This is the generator of data-free distillation (DAFL, Chen et al. ICCV 2019), which DFRD and
    FedIOD use; nearest neighbours and a convolution take the place of transposed convolutions,
    which leave checkerboards. Sizes that are no multiple of 4 are cut at the lower and right edge.

    Args:
        channels, size: images are (N, channels, size, size), size of at least 8.
        noise: z, the length of a noise vector.
        classes: C of a conditional generator, whose labels enter as one-hot vectors beside the
            noise; 0: no labels.
        width: channels of the last hidden map.
        first: channels of the first map, in widths: 2 for DFRD, 4 as in FedIOD's code.
        smooth: whether the second enlargement is bilinear, as in FedIOD's code.
        running: whether batch normalisation keeps running statistics for evaluation; without them
            every batch is normalised by its own.
    """

    def __init__(
        self,
        channels: int,
        size: int,
        *,
        noise: int = 100,
        classes: int = 0,
        width: int = 64,
        first: int = 2,
        smooth: bool = False,
        running: bool = True,
    ) -> None:
        super().__init__()
        at_least("size", size, 8)
        at_least("noise", noise, 1)
        at_least("width", width, 1)
        at_least("first", first, 1)
        self.noise, self.classes, self.size, self.side = noise, classes, size, -(-size // 4)
        self.smooth = smooth
        self.seed = nn.Linear(noise + classes, first * width * self.side**2)
        self.norm0 = nn.BatchNorm2d(first * width, track_running_stats=running)
        self.conv1 = nn.Conv2d(first * width, 2 * width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(2 * width, track_running_stats=running)
        self.conv2 = nn.Conv2d(2 * width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width, track_running_stats=running)
        self.out = nn.Conv2d(width, channels, 3, padding=1)

    def forward(self, noise: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """Images (N, channels, size, size) in [0, 1] of noise (N, z) and, where used, labels (N,)."""
        if (labels is None) == (self.classes > 0):
            raise InputError(
                f"an image generator for {self.classes} classes was called "
                f"{'without' if labels is None else 'with'} labels"
            )
        entry = noise if labels is None else _with_labels(noise, labels, self.classes)
        maps = self.norm0(self.seed(entry).unflatten(1, (-1, self.side, self.side)))
        maps = self.norm1(self.conv1(_twice(maps)))
        maps = functional.leaky_relu(maps, SLOPE)
        maps = self.norm2(self.conv2(_twice(maps, self.smooth)))
        maps = functional.leaky_relu(maps, SLOPE)
        return self.out(maps).sigmoid()[..., : self.size, : self.size]


class PatchDiscriminator(nn.Module):
    """Real or synthetic, patch by patch (Isola et al. CVPR 2017): 32x32 images give 8x8 logits.

    Two 4x4 convolutions of stride 2 and a 1x1 convolution.

    Args:
        channels: of the images; width: channels of the first map.
        norm: "instance": the judgement on one image depends neither on the others in its batch nor
            on earlier ones; "batch", as in FedIOD's code: normalised by the statistics of its batch,
            which is all generated or all real. Neither keeps running statistics.

    Raises InputError for an unknown norm.
    """

    side_by_side = True

    def __init__(self, channels: int, *, width: int = 64, norm: str = "instance") -> None:
        super().__init__()
        at_least("width", width, 1)
        if norm not in JUDGE_NORMS:
            raise unknown("normalisation of a discriminator", norm, JUDGE_NORMS)
        self.conv1 = nn.Conv2d(channels, width, 4, stride=2, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, 4, stride=2, padding=1)
        self.norm = (
            nn.InstanceNorm2d(2 * width, affine=True)
            if norm == "instance"
            else nn.BatchNorm2d(2 * width, track_running_stats=False)
        )
        self.out = nn.Conv2d(2 * width, 1, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (N, 1, S / 4, S / 4), positive for real, of normalised images (N, channels, S, S)."""
        maps = functional.leaky_relu(self.conv1(images), SLOPE)
        maps = functional.leaky_relu(self.norm(self.conv2(maps)), SLOPE)
        return self.out(maps)


def _with_labels(noise: torch.Tensor, labels: torch.Tensor, classes: int) -> torch.Tensor:
    return torch.cat([noise, functional.one_hot(labels, classes).to(noise.dtype)], 1)


def _twice(maps: torch.Tensor, smooth: bool = False) -> torch.Tensor:
    return functional.interpolate(maps, scale_factor=2.0, mode="bilinear" if smooth else "nearest")
