"""The data sets known by name: where they come from, how they are read and how they are had. Their list is
`catalogue.yaml`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import runpy
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import yaml

from core.data import brains, digits, drawn, monuseg, sites, tissue, vision
from core.data.dataset import Dataset, assembled
from core.data.folders import from_folders
from core.data.npz import read_npz, write_npz
from core.errors import InputError
from core.files import parsing

Arrays = Mapping[str, np.ndarray]


@attrs.frozen(kw_only=True)
class Source:
    """One data set, with the keys of the catalogue."""

    name: str
    #: sizes in pixels that exist, the default first
    sizes: tuple[int, ...] = attrs.field(converter=tuple)
    origin: str
    licence: str
    #: a name of `READERS`
    read: str
    #: sets of paths under the data folder, files or folders, in which {title} is the name with its size:
    #: one of them complete means that the data are there
    files: list[list[str]]
    #: names of the classes; empty where the file knows them
    classes: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    #: of the channels; empty: 0.5
    mean: tuple[float, ...] = attrs.field(default=(), converter=tuple)
    std: tuple[float, ...] = attrs.field(default=(), converter=tuple)
    #: superclasses with the classes in each, and whether these are predicted
    groups: dict[str, list[str]] = attrs.field(factory=dict)
    coarse: bool = False
    #: in the layout of `core.data.sites`: names of the sites, and what is known of a pixel
    sites: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    answer: str = ""
    #: class of torchvision.datasets that downloads the set, with the arguments of each call
    download: dict[str, list[dict[str, Any]]] = attrs.field(factory=dict)
    #: how the set is had where no program can download it
    how: str = ""
    #: what a person puts into a folder of which `CONVERSIONS` make the set
    folder: str = ""

    @property
    def made_here(self) -> bool:
        """Return whether the set is put together on this machine: its data may change under its name."""
        return any(self.files) and self.read != "medmnist" and self.read not in vision.READERS

    def title(self, size: int) -> str:
        """The name that `load` takes for this set at `size`."""
        return self.name if size == self.sizes[0] else f"{self.name}_{size}"

    def layouts(self, size: int) -> list[list[str]]:
        """Sets of paths under the data folder, one of which must be complete: what torchvision lays out
        may also lie in `<title>.npz`, in the layout of MedMNIST.
        """
        files = [*self.files, *([["{title}.npz"]] if self.read in vision.READERS else [])]
        return [[path.format(title=self.title(size)) for path in paths] for paths in files]

    def missing(self, root: Path, size: int) -> list[list[str]]:
        """Return what is missing under `root` of each set of paths."""
        layouts = self.layouts(size)
        return [[path for path in paths if not (root / path).exists()] for paths in layouts]

    def has(self, root: Path, size: int) -> bool:
        """Return whether the data of `size` lie under `root`."""
        return not all(self.missing(root, size))

    def load(self, root: Path, size: int) -> Dataset:
        """Return the set. Raises InputError for what is missing or broken."""
        each = zip(self.layouts(size), self.missing(root, size), strict=True)
        paths = next((paths for paths, missing in each if not missing), self.layouts(size)[0])
        files = [root / path for path in paths]
        packed = len(files) == 1 and files[0].suffix == ".npz" and self.read in vision.READERS
        arrays = READERS["npz" if packed else self.read](self, files, size)
        if isinstance(arrays, Dataset):
            return arrays
        classes = self.classes
        if self.groups:
            classes = tuple(sorted(name for group in self.groups.values() for name in group))
        source = files[0] if len(files) == 1 else root
        data = assembled(arrays, self.title(size), source, classes or None, self.mean, self.std)
        if data.size != size:
            raise InputError(f"{source} holds images of {data.size} pixels, not {size}")
        return vision.coarse(data, self.groups) if self.coarse else data

    def how_to_get(self, size: int) -> str:
        """A command or a short instruction."""
        if self.folder:
            return f"run fedcon data convert {self.name} FOLDER, where FOLDER holds {self.folder}"
        return self.how or f"fedcon data get {self.title(size)}"

    def fetch(self, root: Path, size: int) -> None:
        """Download the set by medmnist or torchvision, which raise errors of their own."""
        if self.name == "imagenette":
            write_npz(root / self.files[0][0], vision.imagenette(root, size))
        elif self.read == "medmnist":
            with parsing(root, f"a place for {self.name}"):
                import medmnist
            kind = getattr(medmnist, medmnist.INFO[self.name]["python_class"])
            kind(split="train", download=True, root=str(root), size=size)
        else:
            vision.download(root, self.download)


def _medmnist_info() -> dict[str, Any]:
    """What the package medmnist says of its sets, by name; nothing without it. The file alone is run: the
    package imports torchvision, and takes a Ctrl-C meanwhile for a package that is missing.
    """
    package = importlib.util.find_spec("medmnist")
    if package is None or package.origin is None:
        return {}
    return runpy.run_path(str(Path(package.origin).with_name("info.py")))["INFO"]


def _medmnist(source: Source, files: Sequence[Path], size: int) -> Arrays:
    """One set of MedMNIST, with its own class names. Warns when the MD5 of its file is not MedMNIST's.
    Without the package medmnist that is not looked at, and classes are called by their numbers.
    """
    arrays = read_npz(files[0])
    info = _medmnist_info().get(source.name)
    if info is None:
        return {key: array for key, array in arrays.items() if key != "classes"}
    with files[0].open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    official = info.get("MD5" if size == 28 else f"MD5_{size}")
    if digest != official:
        warnings.warn(
            f"{files[0]} is not the official file: its MD5 is {digest}, MedMNIST's {official}",
            stacklevel=2,
        )
    names = [info["label"][str(number)] for number in range(len(info["label"]))]
    return {**arrays, "classes": np.array(names)}


def _ham10000(source: Source, files: Sequence[Path], size: int) -> Arrays:
    """Arrays at 64 pixels as in the file, at 32 means of 2x2; with two classes, melanoma against the rest."""
    arrays = read_npz(files[0])
    if size == 32:
        arrays |= {key: vision.halved(arrays[key]) for key in arrays if key.endswith("_images")}
    if source.classes:
        names = arrays.get("classes", np.array([])).tolist()
        if "mel" not in names:
            raise InputError(f"{files[0]} has no class 'mel'; it has: {', '.join(names)}")
        label = names.index("mel")
        arrays |= {k: (arrays[k] == label).astype(int) for k in arrays if k.endswith("_labels")}
    return arrays


#: what makes a set, or arrays in the layout of MedMNIST, of files that are there
READERS: dict[str, Callable[[Source, Sequence[Path], int], Dataset | Arrays]] = {
    **vision.READERS,
    "digits": lambda source, files, size: digits.digits(),
    "npz": lambda source, files, size: read_npz(files[0]),
    "medmnist": _medmnist,
    "ham10000": _ham10000,
    "monuseg": lambda source, files, size: monuseg.load_monuseg(files[0].parent, size),
    "sites": lambda source, files, size: sites.load_sites(source, files[0], size),
    "nuclei_drawn": lambda source, files, size: drawn.load_nuclei(),
    "mri_drawn": lambda source, files, size: drawn.load_heads(),
}
#: what makes the arrays of a set of a folder that a person brings, the data folder, and a size
CONVERSIONS: dict[str, Callable[[Path, Path, int], Arrays]] = {
    "isic2020": lambda folder, root, size: from_folders(folder, size),
    "nuclei_cross_site": lambda folder, root, size: tissue.cross_site(folder),
    "nuclei_stand_in": lambda folder, root, size: tissue.public_sites(folder, root),
    "brats2018": lambda folder, root, size: brains.tumours(folder),
    "tumours_stand_in": lambda folder, root, size: brains.few_tumours(folder),
    "mri_cross_domain_t1": lambda folder, root, size: brains.heads(folder),
    "mri_cross_domain_t2": lambda folder, root, size: brains.heads(folder),
    "mri_stand_in": lambda folder, root, size: brains.few_heads(folder),
}
SOURCES = {
    name: Source(name=name, **keys)
    for name, keys in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text()).items()
}
