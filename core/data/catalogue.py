"""The data sets known by name: where they come from, how they are read and how they are had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs

from core.data import (
    cifar,
    digits,
    drawn,
    idx,
    imagenette,
    isic,
    medical,
    melanoma,
    monuseg,
    sites,
    stl10,
    svhn,
)
from core.data.arrays import halved
from core.data.dataset import Dataset
from core.data.npz import load_npz
from core.errors import InputError

Files = tuple[str, ...]

HAM10000_BY_HAND = (
    "scale the images of doi:10.7910/DVN/DBW86T to 64x64 and save them as ham10000_64.npz, in "
    "MedMNIST's layout (train_images, train_labels, test_images, ..., and train_centre)"
)


@attrs.frozen(kw_only=True)
class Source:
    """One data set. `read` and `fetch` take the data folder and a size in pixels."""

    name: str
    #: the default first
    sizes: tuple[int, ...]
    origin: str
    licence: str
    #: by size, one or more sets of paths under the data folder: one of them complete means that the
    #: data are there
    layouts: Callable[[int], tuple[Files, ...]]
    read: Callable[[Path, int], Dataset]
    #: a layout with what else belongs to it under a data folder, where one of its files names others
    whole: Callable[[Path, Files], Files] = lambda root, files: files
    #: downloads the set, or prepares what was downloaded by hand; None where there is nothing to do
    #: for a program
    fetch: Callable[[Path, int], None] | None = None
    #: how the set is had where no program can download it
    by_hand: str = ""
    #: whether `fetch` has something to do even where the data are there: it packs a folder of
    #: images into one file
    packs: bool = False

    def title(self, size: int) -> str:
        """The name that `load` takes for this set at `size`."""
        return self.name if size == self.sizes[0] else f"{self.name}_{size}"

    def lacks(self, root: Path, size: int) -> str | None:
        """The first path that is missing under `root`; None when the data are there."""
        missing = [
            [path for path in self.whole(root, files) if not (root / path).exists()]
            for files in self.layouts(size)
        ]
        return None if not all(missing) else missing[0][0]

    def has(self, root: Path, size: int) -> bool:
        """Whether the data of `size` lie under `root`."""
        return self.lacks(root, size) is None

    def how_to_get(self, size: int) -> str:
        """A command or a short instruction."""
        return self.by_hand or f"fedcon data get {self.title(size)}"


def _torchvision(kind: str, *variants: dict[str, str | bool]) -> Callable[[Path, int], None]:
    """Downloads through the class `kind` of torchvision.datasets, once per table of keyword
    arguments.
    """

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


def _natural(
    name: str,
    sizes: tuple[int, ...],
    origin: str,
    licence: str,
    native: tuple[Files, ...],
    read: Callable[[Path, int], Dataset],
    fetch: Callable[[Path, int], None],
    classes: tuple[str, ...],
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
) -> Source:
    """A set in one of torchvision's layouts (`native`, `read`) or else in `<name>.npz`."""

    def either(root: Path, size: int) -> Dataset:
        if any(all((root / path).exists() for path in files) for files in native):
            return read(root, size)
        return load_npz(
            root / f"{source.title(size)}.npz", source.title(size), classes, mean, std, size
        )

    source = Source(
        name=name,
        sizes=sizes,
        origin=origin,
        licence=licence,
        layouts=lambda size: (*native, (f"{source.title(size)}.npz",)),
        read=either,
        fetch=fetch,
    )
    return source


def _idx(kind: idx.IdxSet, origin: str, licence: str) -> Source:
    return _natural(
        kind.name,
        (28,),
        origin,
        licence,
        (kind.files, tuple(f"{path}.gz" for path in kind.files)),
        lambda root, size: kind.load(root),
        _torchvision(kind.folder, {"train": True}),
        kind.classes,
    )


def _medical(name: str) -> Source:
    return Source(
        name=name,
        sizes=medical.SIZES,
        origin="MedMNIST",
        licence=medical.licence(name),
        layouts=lambda size: ((medical.file_of(name, size),),),
        read=lambda root, size: medical.load_medical(root, name, size),
        fetch=lambda root, size: medical.fetch_medical(root, name, size),
    )


def _cifar100(name: str) -> Source:
    return Source(
        name=name,
        sizes=(32,),
        origin="University of Toronto",
        licence="not stated",
        layouts=lambda size: (cifar.FILES100, ("cifar100.npz",)),
        read=lambda root, size: cifar.load_cifar100(root, coarse=name == "cifar100_coarse"),
        fetch=_torchvision("CIFAR100", {"train": True}),
    )


def _sites(kind: sites.Sites) -> Source:
    return Source(
        name=kind.name,
        sizes=kind.sizes,
        origin=kind.origin,
        licence="see the sources",
        layouts=lambda size: ((f"{kind.name}.npz",),),
        read=kind.load,
        by_hand=kind.how(),
    )


def _fetch_imagenette(root: Path, size: int) -> None:
    if not any((root / folder).exists() for folder in imagenette.FOLDERS):
        _torchvision("Imagenette", {"split": "train", "size": "160px"})(root, size)
    imagenette.pack(root, size)


def _melanoma(root: Path, size: int) -> Dataset:
    return melanoma.melanoma_or_not(
        _ham10000(root, size), f"ham10000_melanoma_{size}", root / "ham10000_64.npz"
    )


def _ham10000(root: Path, size: int) -> Dataset:
    """At 64 pixels as the file holds it; at 32 the means of 2x2 pixels."""
    full = load_npz(root / "ham10000_64.npz", "ham10000_64", size=64)
    return full if size == 64 else halved(full, "ham10000_32")


_SOURCES = (
    Source(
        name="digits",
        sizes=(8,),
        origin="scikit-learn (UCI, Alpaydin and Kaynak 1998)",
        licence="CC BY 4.0",
        layouts=lambda size: ((),),
        read=lambda root, size: digits.load_digits(),
        by_hand="comes with scikit-learn",
    ),
    _idx(idx.MNIST, "LeCun, Cortes and Burges", "CC BY-SA 3.0"),
    _idx(idx.FASHION_MNIST, "Zalando Research (Xiao, Rasul, Vollgraf 2017)", "MIT"),
    _idx(idx.KMNIST, "ROIS-DS CODH (Clanuwat et al. 2018)", "CC BY-SA 4.0"),
    _natural(
        "svhn",
        (32,),
        "Stanford University",
        "non-commercial use",
        (tuple(svhn.FILES.values()),),
        lambda root, size: svhn.load_svhn(root),
        _torchvision("SVHN", {"split": "train"}, {"split": "test"}),
        idx.DIGITS,
        svhn.MEAN,
        svhn.STD,
    ),
    _natural(
        "cifar10",
        (32,),
        "University of Toronto",
        "not stated",
        (cifar.FILES10,),
        lambda root, size: cifar.load_cifar10(root),
        _torchvision("CIFAR10", {"train": True}),
        cifar.CIFAR10_CLASSES,
        cifar.MEAN10,
        cifar.STD10,
    ),
    _cifar100("cifar100"),
    _cifar100("cifar100_coarse"),
    _natural(
        "stl10",
        (32, 96),
        "Stanford University",
        "ImageNet terms (research)",
        (stl10.FILES,),
        stl10.load_stl10,
        _torchvision("STL10", {"split": "train"}),
        stl10.CLASSES,
    ),
    Source(
        name="imagenette",
        sizes=(64,),
        origin="fast.ai, from ImageNet",
        licence="ImageNet terms (research)",
        layouts=imagenette.layouts,
        read=imagenette.load_imagenette,
        fetch=_fetch_imagenette,
        packs=True,
    ),
    *(_medical(name) for name in medical.CLASSES),
    Source(
        name="ham10000",
        sizes=(64, 32),
        origin="HAM10000 (Tschandl et al. 2018, doi:10.7910/DVN/DBW86T)",
        licence="CC BY-NC 4.0",
        layouts=lambda size: (("ham10000_64.npz",),),
        read=_ham10000,
        by_hand=HAM10000_BY_HAND,
    ),
    Source(
        name="ham10000_melanoma",
        sizes=(64, 32),
        origin="HAM10000 (Tschandl et al. 2018, doi:10.7910/DVN/DBW86T), melanoma against the rest",
        licence="CC BY-NC 4.0",
        layouts=lambda size: (("ham10000_64.npz",),),
        read=_melanoma,
        by_hand=HAM10000_BY_HAND,
    ),
    Source(
        name="isic2020",
        sizes=(224, 64),
        origin="ISIC 2020 (Rotemberg et al. 2021, doi:10.34970/2020-ds01)",
        licence="CC BY-NC 4.0",
        layouts=isic.layouts,
        read=isic.load_isic,
        fetch=isic.pack,
        by_hand=isic.HOW,
        packs=True,
    ),
    Source(
        name="monuseg",
        sizes=monuseg.SIZES,
        origin="MoNuSeg (Kumar et al. 2017, 2020), tissue of TCGA",
        licence="CC BY-NC-SA 4.0",
        layouts=monuseg.layouts,
        whole=monuseg.whole,
        read=monuseg.load_monuseg,
        by_hand=monuseg.HOW,
    ),
    *(_sites(one) for one in sites.ALL),
    Source(
        name="nuclei_drawn",
        sizes=(drawn.PATCH,),
        origin="drawn by this package: no tissue",
        licence="MIT",
        layouts=lambda size: ((),),
        read=lambda root, size: drawn.load_nuclei("nuclei_drawn"),
        by_hand="comes with this package",
    ),
    Source(
        name="mri_drawn",
        sizes=(drawn.PATCH,),
        origin="drawn by this package: no patients",
        licence="MIT",
        layouts=lambda size: ((),),
        read=lambda root, size: drawn.load_heads("mri_drawn"),
        by_hand="comes with this package",
    ),
)

SOURCES = {source.name: source for source in _SOURCES}
