"""Quality of synthetic images: inception score and Fréchet distance.

Inception score: Salimans, Goodfellow, Zaremba, Cheung, Radford, Chen. Improved Techniques for
Training GANs. NeurIPS 2016. Fréchet inception distance: Heusel, Ramsauer, Unterthiner, Nessler,
Hochreiter. GANs Trained by a Two Time-Scale Update Rule Converge to a Local Nash Equilibrium.
NeurIPS 2017, Eq. 6.

Both were defined on one network, Inception trained on ImageNet, which must be downloaded. Here they
take probabilities of any classifier and features of any network. `RandomFeatures` needs no download;
`inception` is the original where its weights are on disk. Scores of two networks cannot be compared.
"""

from __future__ import annotations

import hashlib
import io
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from core.errors import InputError
from core.rng import Rng

#: from images (N, C, H, W) in [0, 1] to features (N, D)
Features = Callable[[torch.Tensor], torch.Tensor]

#: the file that torchvision keeps Inception's weights in; its name has the beginning of its SHA-256
INCEPTION_FILE = "inception_v3_google-0cc3c7bd.pth"
INCEPTION_SHA256 = "0cc3c7bd"
#: the most bytes that the file can have; the true one has 104 MiB
INCEPTION_BYTES = 2**28
#: side of the images that Inception was trained on, and ImageNet's mean and deviation
INCEPTION_SIZE = 299
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def inception_score(probabilities: torch.Tensor) -> float:
    """exp(E_x KL(p(y|x) || p(y))) of a classifier's probabilities (N, C), from 1 (all images look the same)
    to C (sharp, all classes alike). InputError for another shape, and for rows that are no probabilities.
    """
    p = _probabilities(probabilities, 2)
    # KL(p(y|x) || p(y)) = sum_y p(y|x) (log p(y|x) - log p(y)); 0 log 0 = 0
    divergence = torch.special.xlogy(p, p) - torch.special.xlogy(p, p.mean(0, keepdim=True))
    return float(divergence.sum(1).mean().exp())


def adapted_inception_score(probabilities: torch.Tensor) -> float:
    """Mean inception score of K clients' classifiers (FedIOD, Table 7, "adapted"), of probabilities
    (K, N, C) for the same images. InputError as `inception_score`.
    """
    return float(np.mean([inception_score(each) for each in _probabilities(probabilities, 3)]))


def _probabilities(values: torch.Tensor, dimensions: int) -> torch.Tensor:
    """Checked probabilities in float64 on the CPU."""
    p = values.detach().to("cpu", torch.float64)
    if p.ndim != dimensions or 0 in p.shape:
        shape = "(N, C)" if dimensions == 2 else "(K, N, C)"
        raise InputError(
            f"an inception score needs probabilities {shape} of one image or more, not {tuple(p.shape)}"
        )
    if not bool((p >= 0).all()) or not bool(((p.sum(-1) - 1).abs() < 1e-3).all()):
        raise InputError(
            "an inception score needs probabilities: numbers that are not negative and sum to 1 per image"
        )
    return p / p.sum(-1, keepdim=True)


def fid(
    real: torch.Tensor, synthetic: torch.Tensor, features: Features, batch_size: int = 250
) -> float:
    """The Fréchet distance between the features of two sets of images, at least 0; 0 for equal mean
    and covariance.

    Args:
        real, synthetic: (N, C, H, W), uint8 or floating point in [0, 1]; the two N may differ, and
            are at least 2.
        features: for example `RandomFeatures(channels)`, `inception()`, or a classifier of the task
            behind its normalisation; they get floating point in [0, 1].

    The distance grows as fewer images are given, so only numbers from equally many images can be
    compared. Raises InputError for fewer than two images or features that are not finite.
    """
    return frechet_distance(
        *(_moments(images, features, batch_size) for images in (real, synthetic))
    )


def frechet_distance(a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]) -> float:
    """d^2 = ||m - m_w||^2 + Tr(C + C_w - 2 (C C_w)^(1/2)) of two (mean (D,), covariance (D, D))."""
    (m, c), (m_w, c_w) = a, b
    # C^(1/2) C_w C^(1/2) is symmetric and has the eigenvalues of C C_w, whose own root loses digits
    # where it is close to singular, as of few images
    squares, vectors = np.linalg.eigh(c)
    root = (vectors * np.sqrt(squares.clip(min=0))) @ vectors.T
    values = np.linalg.eigvalsh(root @ c_w @ root).clip(min=0)
    distance = np.square(m - m_w).sum() + np.trace(c) + np.trace(c_w) - 2 * np.sqrt(values).sum()
    return float(max(distance, 0.0))


@torch.no_grad()
def _moments(
    images: torch.Tensor, features: Features, batch_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Mean (D,) and covariance (D, D) of the features, in float64."""
    if images.ndim != 4 or len(images) < 2:
        raise InputError(
            f"the Fréchet distance needs images (N, C, H, W) with N >= 2, not {tuple(images.shape)}"
        )
    parts = [
        features(part.float() / 255 if part.dtype == torch.uint8 else part)
        for part in images.split(batch_size)
    ]
    rows = torch.cat(parts).cpu().double().numpy()
    if not np.isfinite(rows).all():
        raise InputError("the features of the images are not finite")
    return rows.mean(0), np.atleast_2d(np.cov(rows, rowvar=False))


class RandomFeatures(nn.Module):
    """Features of a small convolutional network with fixed random weights: means of the maps of three 3x3
    convolutions of stride 2 with ReLU, (N, 224): colour, edges and texture, no classes. Naeem et al. (ICML
    2020) recommend a random network where images are far from ImageNet.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        rng, widths = Rng(0).at("image quality", channels), (channels, 32, 64, 128)
        for number, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
            drawn = torch.randn(outputs, inputs, 3, 3, generator=rng.at(number).generator())
            self.register_buffer(f"weight{number}", drawn * (2 / (9 * inputs)) ** 0.5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Features (N, 224) of images (N, C, H, W) in [0, 1]."""
        maps, means = 2 * images - 1, []
        for weight in self.buffers():
            maps = functional.conv2d(maps, weight.to(maps), stride=2, padding=1).relu()
            means.append(maps.mean((2, 3)))
        return torch.cat(means, 1)


def inception(device: torch.device | str = "cpu") -> Features:
    """Inception v3 as torchvision has it, trained on ImageNet: features (N, 2048) of images in [0, 1],
    resized to 299x299. Published distances have other weights. Nothing is downloaded: InputError without
    torchvision or its weights.
    """
    network = _inception().to(device).eval()
    network.fc = nn.Identity()
    return lambda images: network(_for_inception(images.to(device)))


def inception_probabilities(device: torch.device | str = "cpu") -> Features:
    """Probabilities (N, 1000) of the same network, for the inception score; raises as `inception`."""
    network = _inception().to(device).eval()
    return lambda images: network(_for_inception(images.to(device))).softmax(1)


def inception_file() -> Path:
    """The file of Inception's weights in torchvision's folder on this machine."""
    return Path(torch.hub.get_dir()) / "checkpoints" / INCEPTION_FILE


def _inception() -> Any:
    try:
        from torchvision.models import inception_v3
    except ImportError:
        raise InputError(
            "Inception needs the package torchvision; install it with: pip install torchvision"
        ) from None
    weights = _inception_weights(inception_file())
    with torch.random.fork_rng(devices=[]):  # building it draws weights that are then replaced
        network = inception_v3(weights=None, init_weights=False, transform_input=True)
    network.load_state_dict(weights)
    return network


def _inception_weights(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of the file. Any program may have written to its folder: so its hash must begin as
    the published name says, and it is read as tensors only (`weights_only`), which runs no code.
    """
    if not path.is_file():
        raise InputError(
            f"the weights of Inception are not on this machine (no {path}); get them with: python -c "
            "\"from torchvision.models import inception_v3; inception_v3(weights='DEFAULT')\""
        )
    content = path.read_bytes() if path.stat().st_size <= INCEPTION_BYTES else b""
    if not hashlib.sha256(content).hexdigest().startswith(INCEPTION_SHA256):
        raise InputError(f"{path} does not hold the published weights of Inception; delete it")
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for what is no list of tensors
        raise InputError(
            f"{path} cannot be read as weights ({type(error).__name__}); delete it"
        ) from None


def _for_inception(images: torch.Tensor) -> torch.Tensor:
    """(N, 1 or 3, H, W) in [0, 1] as torchvision's weights take them."""
    size = (INCEPTION_SIZE, INCEPTION_SIZE)
    images = functional.interpolate(
        images.expand(-1, 3, -1, -1), size, mode="bilinear", antialias=True
    )
    mean, std = (images.new_tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    return (images - mean) / std
