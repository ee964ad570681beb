"""The 2D sets of MedMNIST (Yang et al. 2023, doi:10.1038/s41597-022-01721-8) at 28, 64, 128 and 224
pixels.

The files are read here; the package medmnist is needed only to download them and, where it is
installed, gives the class names and the official MD5 sums.
"""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import Any

from core.data.dataset import Dataset
from core.data.npz import load_npz
from core.errors import InputError

SIZES = (28, 64, 128, 224)
#: number of classes, by name
CLASSES = {
    "pathmnist": 9,
    "dermamnist": 7,
    "octmnist": 4,
    "pneumoniamnist": 2,
    "retinamnist": 5,
    "breastmnist": 2,
    "bloodmnist": 8,
    "tissuemnist": 8,
    "organamnist": 11,
    "organcmnist": 11,
    "organsmnist": 11,
}
#: several labels per image: another task
MULTI_LABEL = ("chestmnist",)

_warned: set[tuple[Path, str]] = set()


def licence(name: str) -> str:
    """The licence of a set, as MedMNIST states it."""
    return "CC BY-NC 4.0" if name == "dermamnist" else "CC BY 4.0"


def file_of(name: str, size: int) -> str:
    """The file of a set, named as medmnist names it."""
    return f"{name}.npz" if size == 28 else f"{name}_{size}.npz"


def _info(name: str) -> dict[str, Any] | None:
    try:
        from medmnist import INFO
    except ImportError:
        return None
    return INFO.get(name)


def _class_names(name: str, info: dict[str, Any] | None) -> tuple[str, ...]:
    count = CLASSES[name]
    labels = info["label"] if info else {}
    return tuple(str(labels.get(str(number), number)) for number in range(count))


def _warn_if_unofficial(path: Path, official: str) -> None:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False))
    found = digest.hexdigest()
    if found != official and (path, found) not in _warned:
        _warned.add((path, found))
        warnings.warn(
            f"{path} is not the official file: its MD5 is {found}, MedMNIST's is {official}",
            stacklevel=5,
        )


def load_medical(root: Path, name: str, size: int) -> Dataset:
    """One set at one size; mean and standard deviation 0.5, as in FedVCK.

    Warns, once per file, when the MD5 is not MedMNIST's and goes on. Without the package medmnist
    the MD5 is not looked at and classes are called by their numbers.
    """
    path = root / file_of(name, size)
    info = _info(name)
    loaded = load_npz(path, path.stem, _class_names(name, info), size=size)
    official = info.get("MD5" if size == 28 else f"MD5_{size}") if info else None
    if official:
        _warn_if_unofficial(path, official)
    return loaded


def fetch_medical(root: Path, name: str, size: int) -> None:
    """Download one set at one size into `root` through medmnist, which checks the MD5."""
    try:
        import medmnist
    except ImportError:
        raise InputError(
            f"getting {name} needs the package medmnist; install it with: pip install medmnist"
        ) from None
    kind = getattr(medmnist, medmnist.INFO[name]["python_class"])
    kind(split="train", download=True, root=str(root), size=size)
