"""`load`, `get`, `convert` and `available`: data sets by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import attrs

from core.checks import is_whole
from core.data.catalogue import CONVERSIONS, SOURCES, Source
from core.data.dataset import Dataset, assembled
from core.data.folders import MOST, from_folders
from core.data.npz import in_layout, read_npz, write_npz
from core.data.roots import data_root
from core.errors import InputError, brief, listed, one_line, unknown


@attrs.frozen
class DatasetInfo:
    """One line of the list of data sets."""

    name: str
    #: sizes in pixels that exist, the default first; empty for a file of the user's own
    sizes: tuple[int, ...]
    source: str
    licence: str
    #: whether some size is in the data folder
    present: bool
    #: how the default size is had, or what keeps a file of the user's own from being a data set
    how_to_get: str
    #: the sizes that are in the data folder
    present_sizes: tuple[int, ...] = ()


def _resolve(name: str) -> tuple[Source, int] | None:
    """Return the known set and size that `name` asks for; None when the set is not a known one."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", name):
        raise InputError(
            "the name of a data set begins with a letter or digit and has only these, _, - and ., "
            f"unlike {brief(name)}"
        )
    base, suffix = name, None
    if name not in SOURCES and (match := re.fullmatch(r"(.+)_(\d{1,6})", name)):
        base, suffix = match[1], int(match[2])
    if base == "chestmnist":
        raise InputError(
            f"{base} has several labels per image, a task that this package does not cover"
        )
    if base not in SOURCES:
        return None
    source = SOURCES[base]
    wanted = source.sizes[0] if suffix is None else suffix
    if wanted not in source.sizes:
        sizes = " or ".join(", ".join(map(str, source.sizes)).rsplit(", ", 1))
        raise InputError(f"{base} comes at {sizes} pixels, not {wanted}")
    return source, wanted


def is_own(name: str) -> bool:
    """Return whether a name is of an own file. InputError for what names no data set."""
    return _resolve(name) is None


def is_made_here(name: str) -> bool:
    """Return whether a data set is a file of the user's own, or is put together on this machine, by hand or
    from images: then its data may change under the same name. Raises InputError as `is_own` does.
    """
    known = _resolve(name)
    return known is None or known[0].made_here


def load(name: str, root: str | Path | None = None) -> Dataset:
    """Load a data set by a name of `available()`, with or without a size ("pneumoniamnist_224"), or of an
    npz file in the data folder `root` (by default $FEDCON_DATA, else `data`). InputError for a
    set that is unknown, missing or broken.
    """
    folder, known = data_root(root), _resolve(name)
    path = folder / f"{name}.npz"
    if known is None:
        if not path.is_file():
            error = unknown("data set", name, {info.name for info in available(folder)})
            raise InputError(f"{error}; nor is there a file {path}; `fedcon data` lists all")
        return assembled(read_npz(path), name, path)
    source, pixels = known
    if wrong := _in_the_way(path):
        raise InputError(wrong)
    if not source.has(folder, pixels):
        place = f"{folder.absolute()} (no {source.missing(folder, pixels)[0][0]})"
        raise InputError(f"{source.title(pixels)} is not in {place}; {_advice(source, pixels)}")
    return source.load(folder, pixels)


def _in_the_way(path: Path) -> str:
    """Fault of an own file that has a known set's name and is not part of it, or ""."""
    known = _resolve(path.stem)
    if known is None or not path.is_file():
        return ""
    layouts = [files for size in known[0].sizes for files in known[0].layouts(size)]
    of_set = any(path.name in files for files in layouts)
    return (
        "" if of_set else f"{path.stem} is a data set that is known here; rename your file {path}"
    )


def _by_hand(source: Source) -> bool:
    return bool(source.how or source.folder)


def _advice(source: Source, size: int) -> str:
    return ("to have it, " if _by_hand(source) else "get it with: ") + source.how_to_get(size)


def get(name: str, root: str | Path | None = None) -> Path:
    """Download a data set into the data folder, by medmnist or torchvision, and return the folder; what
    can be read stays. InputError for an unknown set or a failed download, which leaves nothing.
    """
    folder = data_root(root)
    known = _resolve(name)
    if known is None:
        raise unknown("data set", name, SOURCES)
    source, pixels = known
    title = source.title(pixels)
    try:
        if source.has(folder, pixels) and source.load(folder, pixels):
            return folder
    except InputError:  # a damaged one is fetched anew
        pass
    if _by_hand(source):
        raise InputError(
            f"{source.name} cannot be downloaded by a program; {_advice(source, pixels)}"
        )
    paths = {folder / path for files in source.layouts(pixels) for path in files}
    there = {path for path in paths if path.exists()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        source.fetch(folder, pixels)
    except BaseException as error:
        for path in paths - there:  # libraries write under the final name
            if path.is_file():
                path.unlink()
        if isinstance(error, InputError) or not isinstance(error, Exception):
            raise
        # network, disk, checksum: each library raises its own kinds, medmnist a manual around the cause
        cause = error.__context__ if isinstance(error, RuntimeError) else error
        reason = one_line(cause if isinstance(cause, Exception) else error, 200)
        raise InputError(f"{title} could not be downloaded to {folder} ({reason})") from None
    if not source.has(folder, pixels):
        raise InputError(
            f"{title} was downloaded to {folder}, but its files are not where expected"
        )
    try:
        source.load(folder, pixels)
    except InputError as error:  # a library may keep a file for its name alone
        raise InputError(f"{error}; delete it, then get {title} again") from None
    return folder


def convert(
    name: str,
    folder: str | Path,
    root: str | Path | None = None,
    size: int | None = None,
    tell: Callable[[str], object] = lambda line: None,
) -> Path:
    """Write an npz file into the data folder, made from `folder`, and return its path.

    Args:
        name: a set that `available` says is converted, or a name of one's own for images in folders
            by class.
        size: of one's own, pixels of a side (see `from_folders`).
        tell: is given what was found and changed among images of one's own, line by line.

    Raises InputError where the name is that of another known set, and for what is missing, damaged or
    does not fit together.
    """
    given, root = Path(folder), data_root(root)
    known = _resolve(name)
    if known and known[0].name not in CONVERSIONS:
        error = unknown("set that is converted", name, CONVERSIONS)
        raise InputError(f"{error}; your own images get a name that no set here has")
    if size is not None and (known or not is_whole(size, 1, MOST)):
        raise InputError(
            f"size is a whole number of pixels, at most {MOST:,}, for images of your own: not {size!r}"
        )
    if not given.is_dir():
        raise InputError(f"there is no folder {given}")
    if known:
        source, pixels = known
        target = root / source.layouts(pixels)[0][0]
        write_npz(target, CONVERSIONS[source.name](given, root, pixels))
        return target
    if not (given / "train").is_dir():
        raise InputError(
            f"{given} has no folder train with a folder for each class; what others give out is converted "
            f"under its own name: {listed(list(CONVERSIONS))}"
        )
    write_npz(root / f"{name}.npz", from_folders(given, size, tell=tell))
    return root / f"{name}.npz"


def available(root: str | Path | None = None) -> list[DatasetInfo]:
    """Every known data set, then the user's own npz files, with what is in the data folder and how
    to get the rest. Own files that are no data set are not present, and say why.
    """
    folder, rows = data_root(root), []
    for source in SOURCES.values():
        there = tuple(size for size in source.sizes if source.has(folder, size))
        how = source.how_to_get(source.sizes[0])
        origin, licence = source.origin, source.licence
        rows.append(
            DatasetInfo(source.name, source.sizes, origin, licence, bool(there), how, there)
        )
    for path in sorted(folder.glob("*.npz")):
        try:
            wrong = _in_the_way(path)
            if not wrong and not is_own(path.stem):
                continue
            if not wrong and not in_layout(path):
                wrong = "is no npz file with an array train_images"
        except InputError as error:
            wrong = str(error)
        name, how = (path.name, wrong) if wrong else (path.stem, f"is {path.name}")
        rows.append(DatasetInfo(name, (), "your own file", "yours", not wrong, how))
    return rows


def present_names() -> set[str]:
    """Every name, with and without size, of data sets that can be loaded here."""
    names = set()
    for info in available():
        names |= {f"{info.name}_{size}" for size in info.present_sizes}
        if info.present and (not info.sizes or info.sizes[0] in info.present_sizes):
            names.add(info.name)
    return names
