"""`load`, `get` and `available`: data sets by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from core.checks import is_whole
from core.data import medical
from core.data.arrays import on_disk
from core.data.catalogue import SOURCES, Source
from core.data.dataset import Dataset
from core.data.npz import in_layout, load_npz
from core.data.roots import data_root
from core.errors import InputError, brief, one_line, unknown


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
    #: the command, or a short instruction, that gets the default size
    how_to_get: str
    #: the sizes that are in the data folder
    present_sizes: tuple[int, ...] = ()


def _resolve(name: str, size: int | None) -> tuple[Source, int] | None:
    """The known set and size that `name` and `size` ask for; None when the set is not a known
    one.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", name):
        raise InputError(
            "the name of a data set begins with a letter or digit and has only these, _, - and ., "
            f"unlike {brief(name)}"
        )
    if size is not None and not is_whole(size, 1):
        raise InputError(f"size must be a whole number of pixels, not {size!r}")
    base, suffix = name, None
    if name not in SOURCES and (match := re.fullmatch(r"(.+)_(\d{1,6})", name)):
        base, suffix = match[1], int(match[2])
    if base in medical.MULTI_LABEL:
        raise InputError(
            f"{base} has several labels per image, a task that this package does not cover"
        )
    if base not in SOURCES:
        return None
    if suffix is not None and size is not None and suffix != size:
        raise InputError(f"the name {name!r} asks for {suffix} pixels but size for {size}")
    source = SOURCES[base]
    wanted = next(value for value in (suffix, size, source.sizes[0]) if value is not None)
    if wanted not in source.sizes:
        raise InputError(f"{base} comes at {_list(source.sizes)} pixels, not {wanted}")
    return source, wanted


def _list(sizes: tuple[int, ...]) -> str:
    return str(sizes[0]) if len(sizes) == 1 else f"{', '.join(map(str, sizes[:-1]))} or {sizes[-1]}"


def present_names() -> set[str]:
    """Every name, with and without a size at its end, under which a data set that is here can be
    loaded.
    """
    names = set()
    for info in available():
        names |= {f"{info.name}_{size}" for size in info.present_sizes}
        if info.present and (not info.sizes or info.sizes[0] in info.present_sizes):
            names.add(info.name)
    return names


def is_own(name: str) -> bool:
    """Whether a name can only be that of a file of the user's own. Raises InputError for a name that
    no data set can have.
    """
    return _resolve(name, None) is None


def is_made_here(name: str) -> bool:
    """Whether a data set is a file of the user's own, or is put together on this machine, by hand or
    from images: then its data may change under the same name. Raises InputError as `is_own` does.
    """
    known = _resolve(name, None)
    if known is None:
        return True
    source, pixels = known
    return bool(source.by_hand or source.packs) and any(source.layouts(pixels))


def _own(name: str, size: int | None, folder: Path) -> Path:
    """The user's own file for `name`; raises InputError that lists the known names when there is
    none.
    """
    stems = [name] if size is None else [f"{name}_{size}", name]
    for stem in stems:
        if (folder / f"{stem}.npz").is_file():
            return folder / f"{stem}.npz"
    mine = {info.name for info in available(folder)}
    known = unknown("data set", name, {*SOURCES, *mine})
    raise InputError(
        f"{known}; nor is there a file {folder / stems[0]}.npz; `fedcon data` lists all"
    )


def load(
    name: str, root: str | Path | None = None, size: int | None = None, download: bool = False
) -> Dataset:
    """Load a data set; large ones are mapped into memory, see `core.data.arrays.on_disk`.

    `name` is a name of `available()`, with or without a size in pixels at its end
    ("pneumoniamnist_224"), or the name of an npz file in the MedMNIST layout that lies in the data
    folder. `root` is the data folder: by default the one in the environment variable FEDCON_DATA,
    else `data`. `download` gets the set first where it is missing. Raises InputError when the set
    is unknown, missing or broken.
    """
    folder = data_root(root)
    known = _resolve(name, size)
    if known is None:
        path = _own(name, size, folder)
        return on_disk(load_npz(path, path.stem, size=size))
    source, pixels = known
    if mine := in_the_way(name, folder):
        raise InputError(f"{name} is a data set that is known here; rename your file {mine}")
    if not source.has(folder, pixels):
        if not download:
            where = f"{folder.absolute()} (no {source.lacks(folder, pixels)})"
            raise InputError(f"{source.title(pixels)} is not in {where}; {_advice(source, pixels)}")
        get(source.title(pixels), folder)
    return on_disk(source.read(folder, pixels))


def in_the_way(name: str, root: str | Path | None = None) -> Path | None:
    """A file of the user's own in the data folder that has the name of a known set and is not part of
    it: what keeps that set from being loaded under this name. None where there is none.
    """
    known, mine = _resolve(name, None), data_root(root) / f"{name}.npz"
    if known is None or not mine.is_file():
        return None
    source = known[0]
    theirs = {path for one in source.sizes for files in source.layouts(one) for path in files}
    return None if mine.name in theirs else mine


def _advice(source: Source, size: int) -> str:
    return ("to have it, " if source.by_hand else "get it with: ") + source.how_to_get(size)


def get(name: str, root: str | Path | None = None) -> Path:
    """Download a data set into the data folder, through medmnist or torchvision, and return that
    folder.

    What is there and can be read is kept. Raises InputError when the set is unknown, cannot be
    downloaded, or the download fails; then no file of it is left half written.
    """
    folder = data_root(root)
    known = _resolve(name, None)
    if known is None:
        raise unknown("data set", name, SOURCES)
    source, pixels = known
    if source.fetch is None:
        if source.has(folder, pixels):
            return folder
        raise InputError(
            f"{source.name} cannot be downloaded by a program; {_advice(source, pixels)}"
        )
    if source.packs or not _readable(source, folder, pixels):
        _fetch(source, folder, pixels)
    return folder


def _fetch(source: Source, folder: Path, size: int) -> None:
    """Download a set, or pack it. Raises InputError where that fails, and where what it leaves cannot
    be read.
    """
    assert source.fetch is not None
    title = source.title(size)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _whole_or_none(source, folder, size):
            source.fetch(folder, size)
    except InputError:
        raise
    except Exception as error:  # network, disk, checksum: each library raises its own kinds
        reason = one_line(error, 150)
        raise InputError(f"{title} could not be downloaded to {folder} ({reason})") from None
    if not source.has(folder, size):
        raise InputError(
            f"{title} was downloaded to {folder}, but its files are not where expected"
        )
    if not source.packs:
        try:
            source.read(folder, size)
        except InputError as error:  # a library may keep a file for its name alone
            said = str(error).partition(";")[0]
            raise InputError(f"{said}; delete it, then get {title} again") from None


def _readable(source: Source, folder: Path, size: int) -> bool:
    """Whether a set is there and undamaged; a damaged one is fetched anew."""
    try:
        return source.has(folder, size) and bool(source.read(folder, size))
    except InputError:
        return False


@contextmanager
def _whole_or_none(source: Source, folder: Path, size: int) -> Iterator[None]:
    """Where this ends in an error or is interrupted, files of the set that began in it are removed:
    libraries write under the final name.
    """
    paths = {folder / path for files in source.layouts(size) for path in files}
    new = {path for path in paths if not path.exists()}
    try:
        yield
    except BaseException:
        for path in new:
            if path.is_file():
                path.unlink()
        raise


def available(root: str | Path | None = None) -> list[DatasetInfo]:
    """Every known data set, then the user's own npz files, with what is in the data folder and how
    to get the rest.
    """
    folder = data_root(root)
    rows = []
    for source in SOURCES.values():
        there = tuple(size for size in source.sizes if source.has(folder, size))
        how = source.how_to_get(source.sizes[0])
        rows.append(
            DatasetInfo(
                source.name, source.sizes, source.origin, source.licence, bool(there), how, there
            )
        )
    for path, wrong in _yours(folder):
        if not wrong:
            rows.append(
                DatasetInfo(path.stem, (), "your own file", "yours", True, f"is {path.name}", ())
            )
    return rows


def no_data() -> dict[str, str]:
    """The user's own npz files in the data folder that are no data set, by name, and why."""
    return {path.name: wrong for path, wrong in _yours(data_root()) if wrong}


def _yours(folder: Path) -> Iterator[tuple[Path, str]]:
    """The npz files that are not of a known data set, and what keeps one from being a data set."""
    for path in sorted(folder.glob("*.npz")):
        try:
            if _resolve(path.stem, None) is not None:
                continue
        except InputError as error:
            yield path, str(error)
        else:
            yield path, "" if in_layout(path) else "is no npz file with an array train_images"
