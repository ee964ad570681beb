"""A set of one's own from folders of images: `train/CLASS/*.png`, `test/CLASS/*.png` and, if there are
some, `val/CLASS/*.png`. Where the images come from several hospitals, `train/HOSPITAL/CLASS/*.png`.

`fedcon data convert NAME FOLDER` writes what `core.data.npz` reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np

from core.data.images import ENDINGS, read_image, resized
from core.data.pixels import eight_bits, white_level
from core.errors import InputError, listed

#: parts of a set and their folders; the first and the last are needed
PARTS = {"train": "train", "val": "val", "test": "test"}
#: endings of texts that may lie beside images
NOTES = (".csv", ".html", ".json", ".md", ".pdf", ".rst", ".tsv", ".txt", ".xml", ".yaml", ".yml")
#: pixels of a side where the images differ in size, or are no squares
USUAL = 64
#: the most of them: an image of such a size takes 12 MB as a network reads it
MOST = 1024
Result = TypeVar("Result")
#: the files of each hospital ("" where there are none) and class
Groups = dict[tuple[str, str], list[Path]]


def from_folders(
    folder: Path,
    size: int | None = None,
    parts: Mapping[str, str] = PARTS,
    tell: Callable[[str], object] = lambda line: None,
) -> dict[str, np.ndarray]:
    """The arrays of a set in the layout of MedMNIST (see `assembled`), with the names of classes and
    hospitals. What was found, and what was changed, is told line by line.

    Hospitals, classes and files are taken in alphabetical order. Images are resized to squares of
    `size` pixels; by default they keep theirs where all are squares of one size, else they get
    `USUAL`. They are grey, (N, S, S) uint8, where all files are, else (N, S, S, 3); of more than 8
    bits as many are scaled to 8 as the brightest pixel of all files uses.

    Raises InputError where a part is missing, has another class than `train`, `train` fewer than two,
    or a class no image to train on, for a file that is damaged, and for every visible file and folder
    that is not read, texts apart.
    """
    here = [part for part, name in parts.items() if (folder / name).is_dir()]
    found = {part: _groups(folder / parts[part]) for part in here}
    if not {"train", "test"} <= found.keys():
        needed = f"{parts['train']} and {parts['test']}"
        raise InputError(f"{folder} should hold the folders {needed}, with one for each class")
    _visible(folder, "the folders " + ", ".join(parts.values()), set(parts.values()))
    names = sorted({label for _, label in found["train"]})
    for part, groups in found.items():
        if others := sorted({label for _, label in groups} - set(names)):
            raise InputError(
                f"{folder / parts[part]} has classes that train lacks: {listed(others)}"
            )
    if len(names) < 2:
        raise InputError(f"{folder / 'train'} has fewer than two classes: nothing to tell apart")
    full = {label for (_, label), paths in found["train"].items() if paths}
    if bare := [name for name in names if name not in full]:
        raise InputError(f"{folder / 'train'} has no image of: {listed(bare)}")
    paths = [path for groups in found.values() for each in groups.values() for path in each]
    seen = mapped(_look, paths)
    shapes = {shape[:2] for shape, _ in seen}
    height, width = min(shapes)
    side = size or (width if height == width and len(shapes) == 1 else USUAL)
    grey = all(len(shape) == 2 for shape, _ in seen)
    white = white_level(max(top for _, top in seen))

    def pixels(path: Path) -> np.ndarray:
        return _fitted(eight_bits(read_image(path), white, str(path)), side, grey)

    arrays = {"classes": np.array(names)}
    for part, groups in found.items():
        rows = [(path, *key) for key, paths in groups.items() for path in paths]
        if not rows:
            raise InputError(f"the part {part} has no image")
        arrays[f"{part}_images"] = np.stack(mapped(pixels, [path for path, *_ in rows]))
        arrays[f"{part}_labels"] = np.array([names.index(label) for *_, label in rows])
        if any(site for site, _ in groups):
            arrays[f"{part}_centre"] = np.array([site for _, site, _ in rows])
        tell(f"{part}: {counted(label for *_, label in rows)}")
        if any(site for site, _ in groups):
            tell(f"{part}, by hospital: {counted(site for _, site, _ in rows)}")
    other = sum(shape[:2] != (side, side) for shape, _ in seen)
    tell(
        f"{side} by {side} pixels, {'grey' if grey else 'colour'}; resized: {other} of {len(seen)}"
    )
    if white > 255:
        tell(f"more than 8 bits: {white} became 255")
    return arrays


def mapped(function: Callable[[Path], Result], paths: Sequence[Path]) -> list[Result]:
    """What a function makes of every file, in order; Pillow decodes beside Python."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(function, paths))


def some(found: Iterable[Path], folder: Path, what: str) -> list[Path]:
    """Paths in order. Raises InputError, naming the folder, where there are none."""
    if not (paths := sorted(found)):
        raise InputError(f"{folder} holds no {what}")
    return paths


def counted(values: Iterable[str]) -> str:
    """How often each value occurs, as in "cat 3, dog 2"."""
    names, counts = np.unique(list(values), return_counts=True)
    return listed([f"{name} {count}" for name, count in zip(names, counts, strict=True)])


def _visible(
    place: Path, wanted: str, folders: set[str] | None, files: tuple[str, ...] = ()
) -> list[Path]:
    """The entries of a folder that are read, in order: folders of these names (None: of any), and
    files of these endings. Raises InputError for any other but hidden ones and texts.
    """
    entries = sorted(path for path in place.iterdir() if not path.name.startswith("."))
    read = []
    for path in entries:
        ending = path.suffix.lower()
        if (folders is None or path.name in folders) if path.is_dir() else ending in files:
            read.append(path)
        elif path.is_dir() or ending not in NOTES:
            raise InputError(f"{path} is not read: {place} should hold {wanted}")
    return read


def _groups(place: Path) -> Groups:
    """The image files of a part."""
    inner = _visible(place, "a folder for each class, or for each hospital", None)
    if not any(entry.is_dir() and entry.name[0] != "." for one in inner for entry in one.iterdir()):
        return {("", label.name): _files(label) for label in inner}
    labels = [
        (site, label) for site in inner for label in _visible(site, "a folder for each class", None)
    ]
    return {(site.name, label.name): _files(label) for site, label in labels}


def _files(place: Path) -> list[Path]:
    return _visible(place, f"images ({', '.join(ENDINGS)}) and no folders", set(), ENDINGS)


def _look(path: Path) -> tuple[tuple[int, ...], int]:
    """Shape of an image, and its brightest pixel where it has more than 8 bits."""
    image = read_image(path)
    return image.shape, 0 if image.dtype == np.uint8 else int(image.max())


def _fitted(image: np.ndarray, side: int, grey: bool) -> np.ndarray:
    """A uint8 image as a square, (side, side) or, where some are in colour, (side, side, 3)."""
    if not grey and image.ndim == 2:
        image = np.stack([image] * 3, 2)
    return resized(image, side)
