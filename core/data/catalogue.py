"""The data sets known by name: where they come from, how they are read and how they are had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs

from core.data import cifar, digits, imagenette, medical, mnist, stl10, svhn
from core.data.dataset import Dataset
from core.data.npz import load_npz
from core.errors import InputError


@attrs.frozen(kw_only=True)
class Source:
    """One data set. `has`, `read` and `fetch` take the data folder and a size in pixels.

    `fetch` is None where the set cannot be downloaded by a program; `by_hand` then says how it is had.
    """

    name: str
    #: the default first
    sizes: tuple[int, ...]
    origin: str
    licence: str
    has: Callable[[Path, int], bool]
    read: Callable[[Path, int], Dataset]
    fetch: Callable[[Path, int], None] | None = None
    by_hand: str = ""

    def title(self, size: int) -> str:
        """The name that `load` takes for this set at `size`."""
        return self.name if size == self.sizes[0] else f"{self.name}_{size}"

    def how_to_get(self, size: int) -> str:
        """A command or a short instruction."""
        return f"python -m core data get {self.title(size)}" if self.fetch else self.by_hand


def _torchvision(kind: str, *variants: dict[str, str | bool]) -> Callable[[Path, int], None]:
    """Downloads through the class `kind` of torchvision.datasets, once per table of keyword arguments."""

    def fetch(root: Path, size: int) -> None:
        try:
            from torchvision import datasets
        except ImportError:
            raise InputError(
                f"getting {kind} needs the package torchvision; install it with: pip install torchvision"
            ) from None
        for variant in variants:
            getattr(datasets, kind)(str(root), download=True, **variant)

    return fetch


def _medical(name: str) -> Source:
    return Source(
        name=name,
        sizes=medical.SIZES,
        origin="MedMNIST",
        licence=medical.licence(name),
        has=lambda root, size: medical.file_of(root, name, size).is_file(),
        read=lambda root, size: medical.load_medical(root, name, size),
        fetch=lambda root, size: medical.fetch_medical(root, name, size),
    )


def _cifar100(name: str) -> Source:
    return Source(
        name=name,
        sizes=(32,),
        origin="University of Toronto",
        licence="not stated",
        has=lambda root, size: cifar.has_cifar100(root),
        read=lambda root, size: cifar.load_cifar100(root, coarse=name == "cifar100_coarse"),
        fetch=_torchvision("CIFAR100", {"train": True}),
    )


def _fetch_imagenette(root: Path, size: int) -> None:
    if not imagenette.has_imagenette(root, size):
        _torchvision("Imagenette", {"split": "train", "size": "160px"})(root, size)
    imagenette.pack(root, size)


_SOURCES = (
    Source(
        name="digits",
        sizes=(8,),
        origin="scikit-learn (UCI, Alpaydin and Kaynak 1998)",
        licence="CC BY 4.0",
        has=lambda root, size: True,
        read=lambda root, size: digits.load_digits(),
        by_hand="comes with scikit-learn",
    ),
    Source(
        name="mnist",
        sizes=(28,),
        origin="LeCun, Cortes and Burges",
        licence="CC BY-SA 3.0",
        has=lambda root, size: mnist.has_mnist(root),
        read=lambda root, size: mnist.load_mnist(root),
        fetch=_torchvision("MNIST", {"train": True}),
    ),
    Source(
        name="svhn",
        sizes=(32,),
        origin="Stanford University",
        licence="non-commercial use",
        has=lambda root, size: svhn.has_svhn(root),
        read=lambda root, size: svhn.load_svhn(root),
        fetch=_torchvision("SVHN", {"split": "train"}, {"split": "test"}),
    ),
    Source(
        name="cifar10",
        sizes=(32,),
        origin="University of Toronto",
        licence="not stated",
        has=lambda root, size: cifar.has_cifar10(root),
        read=lambda root, size: cifar.load_cifar10(root),
        fetch=_torchvision("CIFAR10", {"train": True}),
    ),
    _cifar100("cifar100"),
    _cifar100("cifar100_coarse"),
    Source(
        name="stl10",
        sizes=(32, 96),
        origin="Stanford University",
        licence="ImageNet terms (research)",
        has=lambda root, size: stl10.has_stl10(root),
        read=lambda root, size: stl10.load_stl10(root, size),
        fetch=_torchvision("STL10", {"split": "train"}),
    ),
    Source(
        name="imagenette",
        sizes=(64,),
        origin="fast.ai, from ImageNet",
        licence="ImageNet terms (research)",
        has=imagenette.has_imagenette,
        read=imagenette.load_imagenette,
        fetch=_fetch_imagenette,
    ),
    *(_medical(name) for name in medical.CLASSES),
    Source(
        name="ham10000_64",
        sizes=(64,),
        origin="HAM10000 (Tschandl et al. 2018, doi:10.7910/DVN/DBW86T)",
        licence="CC BY-NC 4.0",
        has=lambda root, size: (root / "ham10000_64.npz").is_file(),
        read=lambda root, size: load_npz(root / "ham10000_64.npz", "ham10000_64"),
        by_hand="pack the images of doi:10.7910/DVN/DBW86T into ham10000_64.npz, as the module core.data.npz describes",
    ),
)

SOURCES = {source.name: source for source in _SOURCES}
