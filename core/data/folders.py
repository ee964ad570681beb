"""Sets made of folders of images: `train/CLASS/*.png`, `test/CLASS/*.png` and, if there are some,
`val/CLASS/*.png`. Where the images come from several hospitals, `train/HOSPITAL/CLASS/*.png`.

`fedcon data convert NAME FOLDER` writes what `core.data.npz` reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np

from core.data.images import ENDINGS, read_image, resized
from core.data.pixels import as_names, eight_bits, white_level
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
    """Arrays of a set in the layout of MedMNIST (see `assembled`), with the names of classes and
    hospitals. `tell` is given what was read, and what was changed, line by line.

    Hospitals, classes and files are taken in alphabetical order. Images are resized to squares of
    `size` pixels; by default they keep theirs where all are squares of one size, else they get
    `USUAL`. They are grey, (N, S, S) uint8, where all files are, else (N, S, S, 3); of more than 8
    bits as many are scaled to 8 as the brightest pixel of all files uses.

    Raises InputError where a part is missing, has another class than `train`, `train` fewer than two,
    or a class no image to train on, for a file that is damaged, and for every visible file and folder
    that is not read, texts apart.
    """
    groups = {
        part: _groups(folder / name) for part, name in parts.items() if (folder / name).is_dir()
    }
    if not {"train", "test"} <= groups.keys():
        needed = f"{parts['train']} and {parts['test']}"
        raise InputError(f"{folder} should hold the folders {needed}, with one for each class")
    visible(folder, "the folders " + ", ".join(parts.values()), set(parts.values()))
    names = sorted({label for _, label in groups["train"]})
    for part, of_part in groups.items():
        if others := sorted({label for _, label in of_part} - set(names)):
            raise InputError(
                f"{folder / parts[part]} has classes that train lacks: {listed(others)}"
            )
    if len(names) < 2:
        raise InputError(f"{folder / 'train'} has fewer than two classes: nothing to tell apart")
    as_names(names, f"{folder / 'train'}: the names of classes")
    full = {label for (_, label), paths in groups["train"].items() if paths}
    if empty := [name for name in names if name not in full]:
        raise InputError(f"{folder / 'train'} has no image of: {listed(empty)}")
    paths = [path for of_part in groups.values() for each in of_part.values() for path in each]
    forms = _mapped(_look, paths)
    shapes = {shape[:2] for shape, _ in forms}
    height, width = min(shapes)
    side = size or (width if height == width and len(shapes) == 1 else USUAL)
    grey = all(len(shape) == 2 for shape, _ in forms)
    white = white_level(max(top for _, top in forms))

    def pixels(path: Path) -> np.ndarray:
        image = eight_bits(read_image(path), white, str(path))
        return resized(image if grey or image.ndim == 3 else np.stack([image] * 3, 2), side)

    arrays = {"classes": np.array(names)}
    for part, of_part in groups.items():
        rows = [(path, *key) for key, each in of_part.items() for path in each]
        if not rows:
            raise InputError(f"the part {part} has no image")
        arrays[f"{part}_images"] = np.stack(_mapped(pixels, [path for path, *_ in rows]))
        arrays[f"{part}_labels"] = np.array([names.index(label) for *_, label in rows])
        tell(f"{part}: {_counted(label for *_, label in rows)}")
        if any(hospital for hospital, _ in of_part):
            arrays[f"{part}_centre"] = np.array([hospital for _, hospital, _ in rows])
            tell(f"{part}, by hospital: {_counted(hospital for _, hospital, _ in rows)}")
    other = sum(shape[:2] != (side, side) for shape, _ in forms)
    tell(
        f"{side} by {side} pixels, {'grey' if grey else 'colour'}; resized: {other} of {len(forms)}"
    )
    if white > 255:
        tell(f"more than 8 bits: {white} became 255")
    return arrays


def visible(
    place: Path, wanted: str, folders: set[str] | None, files: tuple[str, ...] = ()
) -> list[Path]:
    """Entries of a folder in order: folders of these names (None: of any), files of these endings. Raises
    InputError without the folder, and for other entries but hidden ones and texts.
    """
    if not place.is_dir():
        raise InputError(f"there is no folder {place}, which should hold {wanted}")
    entries = []
    for path in sorted(path for path in place.iterdir() if not path.name.startswith(".")):
        ending = path.suffix.lower()
        if (folders is None or path.name in folders) if path.is_dir() else ending in files:
            entries.append(path)
        elif path.is_dir() or ending not in NOTES:
            raise InputError(f"{path} is not read: {place} should hold {wanted}")
    return entries


def image_files(place: Path) -> list[Path]:
    """Image files of a folder, in order. Raises InputError as `visible`."""
    return visible(place, f"images ({', '.join(ENDINGS)}) and no folders", set(), ENDINGS)


def image_pairs(place: Path, answers: str) -> list[tuple[Path, Path]]:
    """Files of `place/images`, each with that of the same name, but for its ending, in
    `place/<answers>`. Raises InputError where there are none, or one has no partner.
    """
    images, others = (
        {path.stem: path for path in image_files(place / name)} for name in ("images", answers)
    )
    if alone := sorted(images.keys() ^ others.keys()):
        raise InputError(f"{place} has not both an image and one of {answers} named {alone[0]}")
    return [(images[name], others[name]) for name in some(images, place / "images", "image")]


def some(names: Iterable[Result], folder: Path, what: str) -> list[Result]:
    """Names or paths in order. Raises InputError, naming the folder, where there are none."""
    if not (ordered := sorted(names)):  # type: ignore[type-var]
        raise InputError(f"{folder} holds no {what}")
    return ordered


def _groups(place: Path) -> Groups:
    """Image files of a part."""
    inner = visible(place, "a folder for each class, or for each hospital", None)
    if not any(entry.is_dir() and entry.name[0] != "." for of in inner for entry in of.iterdir()):
        return {("", label.name): image_files(label) for label in inner}
    return {
        (hospital.name, label.name): image_files(label)
        for hospital in inner
        for label in visible(hospital, "a folder for each class", None)
    }


def _mapped(function: Callable[[Path], Result], paths: Sequence[Path]) -> list[Result]:
    """Results of a function of every file, in order; Pillow decodes beside Python."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(function, paths))


def _counted(values: Iterable[str]) -> str:
    """Count of each value in words, as in "cat 3, dog 2"."""
    names, counts = np.unique(list(values), return_counts=True)
    return listed([f"{name} {count}" for name, count in zip(names, counts, strict=True)])


def _look(path: Path) -> tuple[tuple[int, ...], int]:
    """Shape of an image, and its brightest pixel where it has more than 8 bits."""
    image = read_image(path)
    return image.shape, 0 if image.dtype == np.uint8 else int(image.max())
