"""A data pack: the real data sets that fit a memory stick, with their origins and licences."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from core.data.catalogue import SOURCES, Source
from core.data.roots import data_root
from core.errors import InputError
from core.files import write_whole

#: bytes of a pack that can be handed round in a class
LIMIT = 50 * 2**20
#: licences under which everybody may pass a data set on, with their conditions
FREE = ("CC BY", "MIT")
_HEAD = """\
# Data pack

Unpack this anywhere, and let the environment variable `FEDCON_DATA` name the folder.

| data set | files | from | licence |
|---|---|---|---|
"""


def pack(target: Path, root: Path | None = None, limit: int = LIMIT) -> list[str]:
    """Zip data sets that are here, the smallest first, into a file of at most `limit` bytes; return their
    names. Only sets that everybody may pass on are taken, and each once: of one that is here in two
    layouts the smaller. `LICENCES.md` in the pack says where each is from. Raises InputError when
    there is nothing to pack.
    """
    folder, room = data_root(root), limit - 2**16  # the rest is for LICENCES.md and the directory
    chosen: dict[str, tuple[Source, list[Path]]] = {}
    for size, name, source, files in sorted(_candidates(folder), key=lambda entry: entry[:2]):
        if name not in chosen and size <= room:
            chosen[name], room = (source, files), room - size
    if not chosen:
        raise InputError(
            f"{folder} holds no data set that may be passed on and fits {limit / 2**20:.0f} MB; "
            "fedcon data get pneumoniamnist gets one"
        )
    rows = [
        f"| {name} | {', '.join(file.relative_to(folder).as_posix() for file in files)} | "
        f"{source.origin} | {source.licence} |\n"
        for name, (source, files) in chosen.items()
    ]

    def write(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
            archive.writestr("LICENCES.md", _HEAD + "".join(rows))
            for path in dict.fromkeys(path for _, files in chosen.values() for path in files):
                archive.write(path, path.relative_to(folder))

    write_whole(target, write)
    return list(chosen)


def shareable() -> list[str]:
    """The names of the data sets that a pack may hold, by their licences, here or not."""
    return [name for name, source in SOURCES.items() if source.licence.startswith(FREE)]


def _candidates(folder: Path) -> Iterator[tuple[int, str, Source, list[Path]]]:
    """Bytes in a pack, name, source and files of each set that is here and may be passed on."""
    seen = []
    for source in map(SOURCES.__getitem__, shareable()):
        for size in source.sizes:
            for paths in source.layouts(size):
                below = [
                    own for path in paths for own in (folder / path, *(folder / path).glob("*"))
                ]
                files = sorted({path for path in below if path.is_file() and path.name[0] != "."})
                present = all((folder / path).exists() for path in paths)
                raw = sum(path.stat().st_size for path in files)
                if files and present and files not in seen and raw < 50 * LIMIT:
                    seen.append(files)
                    packed = sum(len(zlib.compress(path.read_bytes(), 1)) for path in files)
                    yield packed, source.title(size), source, files
