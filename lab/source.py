"""The version of the source: two runs with the same one ran the same program."""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from core import algorithms
from core.errors import InputError
from core.files import FileError

REPOSITORY = Path(__file__).resolve().parents[1]
#: what of the laboratory decides a run: how it is put together and carried out
DECIDES = ("attack.py", "experiment.py", "running.py")
#: an algorithm's file or package; what all of them share, `__init__.py`, is none
ALGORITHM = re.compile(r"core/(?:algorithms|baselines)/(?!__init__)(\w+)")


def source() -> dict[str, bytes]:
    """The files that runs go through, as they are now, by their path."""
    core = (REPOSITORY / "core").rglob("*.py")
    files = sorted([*core, *(REPOSITORY / "lab" / name for name in DECIDES)])
    return {file.relative_to(REPOSITORY).as_posix(): file.read_bytes() for file in files}


def version(files: Mapping[str, bytes], algorithm: str | None = None) -> str:
    """A hash of the source; with the name of an algorithm, of what its runs go through: the files of
    other algorithms are left out, but for those that it names.
    """
    digest, used = hashlib.sha256(), algorithm and _named_by(algorithm, files)
    for name, content in files.items():
        of = ALGORITHM.match(name)
        if not used or not of or of[1] in used:
            digest.update(name.encode() + content)
    return digest.hexdigest()[:12]


def _named_by(algorithm: str, files: Mapping[str, bytes]) -> set[str]:
    """An algorithm and those whose names are words in its files, or in theirs: no import is missed."""
    texts: dict[str, bytes] = {}
    for name, content in files.items():
        if of := ALGORITHM.match(name):
            texts[of[1]] = texts.get(of[1], b"") + content
    used, left = set[str](), {algorithm}
    while left:
        used |= left
        read = b"\n".join(texts.get(name, b"") for name in left).decode(errors="replace")
        words = set(re.findall(r"\w+", read))
        left = (words & texts.keys()) - used
    return used


#: modules are read when they are first needed, so what counts is what the first of them was read from
_BEGUN_WITH = source()


def code_version(algorithm: str | None = None) -> str:
    """The `version` of the source with which this process began, and of the file, or the notebook's
    functions, in which a registered algorithm is written. Raises InputError where that is nowhere.
    """
    if (own := algorithms.OWN.get(algorithm or "")) is None:
        return _begun_with(algorithm)
    file = getattr(sys.modules.get(own.__module__), "__file__", None)
    if file and Path(file).is_file():
        text = Path(file).read_bytes()
    else:
        functions = filter(inspect.isfunction, vars(own).values())
        try:
            text = "".join(map(inspect.getsource, functions)).encode()
        except OSError:
            raise InputError(f"{own.__name__} is written in no file and no notebook") from None
    return version(_BEGUN_WITH | {f"core/algorithms/{algorithm}.py": text}, algorithm)


@functools.cache
def _begun_with(algorithm: str | None) -> str:
    return version(_BEGUN_WITH, algorithm)


def check_code(asked: str | None = None) -> None:
    """Raise FileError where the source is no longer that with which this process began, or is not
    that of the hash that is asked for: what is computed now would be of two versions.
    """
    if source() != _BEGUN_WITH or asked not in (None, code_version()):
        raise FileError("the program changed since this process began; start again")
