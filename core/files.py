"""Files: what is read is bounded before it is parsed, what is written is there whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from core.errors import InputError, one_line

if TYPE_CHECKING:
    import torch


#: packages whose name is not that of their module
PACKAGES = {"PIL": "pillow", "skimage": "scikit-image", "sklearn": "scikit-learn"}


class FileError(InputError):
    """A file cannot be written, or belongs to something else: the work is sound and can go on once
    there is space, or the file is out of the way.
    """

    status = 1


class Busy(FileError):
    """Another process is at it."""


def path_of(given: str | os.PathLike[str] | None) -> Path | None:
    """A path from text or path; `~` is home. InputError where there is no such home."""
    try:
        return None if given is None else Path(given).expanduser()
    except (RuntimeError, TypeError) as error:
        raise InputError(f"{given}: {error}") from None


def check_plain(path: Path, most: int, what: str) -> int:
    """Return the bytes that a file has. Raises InputError where it is none (a folder, a pipe, a
    device) and where it has more than `most` bytes. `what` is the name of its kind.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        raise InputError(f"there is no {what} {path}") from None
    except OSError as error:
        raise InputError(f"the {what} {path} cannot be read: {error.strerror or error}") from None
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"the {what} {path} is not a plain file")
    if status.st_size > most:
        raise InputError(f"the {what} {path} is too large: it has more than {_size(most)}")
    return status.st_size


def read_bounded(path: Path, most: int, what: str) -> bytes:
    """The bytes of a file. Raises InputError as `check_plain`, and where it cannot be read."""
    size = check_plain(path, most, what)
    try:
        with path.open("rb") as file:
            content = file.read(size + 1)
    except OSError as error:
        raise InputError(f"the {what} {path} cannot be read: {error.strerror or error}") from None
    if len(content) > size:
        raise InputError(f"the {what} {path} grows while it is read")
    return content


@contextlib.contextmanager
def parsing(path: Path, what: str) -> Iterator[None]:
    """Turn whatever a parser of others raises within it into one InputError that names the file and
    `what` it should be, and a package that is absent into one that names the package.
    """
    try:
        yield
    except InputError:
        raise
    except ImportError as error:
        name = str(error.name).partition(".")[0]
        name = PACKAGES.get(name, name)
        raise InputError(
            f"reading {path} needs the package {name}; install it with: pip install {name}"
        ) from None
    except Exception as error:
        raise InputError(f"{path} cannot be read as {what} ({one_line(error, 150)})") from None


def read_text(path: Path, most: int, what: str) -> str:
    """UTF-8 text of a file without byte order mark. InputError as `read_bounded`, or for other bytes."""
    try:
        return read_bounded(path, most, what).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"the {what} {path} is not text in UTF-8") from None


def read_json(path: Path, most: int, what: str) -> Any:
    """The content of a JSON file, all of whose numbers are finite. Raises InputError as
    `read_text`, and for what is not JSON or is nested too deeply.
    """
    text = read_text(path, most, what)
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise InputError(f"the {what} {path} is damaged: it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise InputError(f"the {what} {path} is damaged: {error}") from None
    except _NotFinite as error:
        raise InputError(f"the {what} {path} is damaged: {error}") from None
    except ValueError:  # Python's own bound on digits
        raise InputError(f"the {what} {path} is damaged: a number has too many digits") from None


class _NotFinite(Exception):
    """A number in a text that is none, or too large."""


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise _NotFinite(f"{text[:20]} is not a finite number")
    return value


def make_folder(path: Path, name: str) -> None:
    """Make a folder where there is none. Raises, calling it by `name`, InputError where there can be none
    of that name or one may not write into it, FileError where the disk does not take it.
    """
    if path.is_file():
        raise InputError(f"{name} {path} is a file, not a folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
        kind = FileError if full else InputError
        raise kind(f"{name} {path} cannot be written: {error.strerror or error}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise InputError(f"{name} {path} cannot be written: you may not write there")


def create(path: Path, mode: int = 0o666) -> BinaryIO:
    """A file that is made anew, open for bytes: what lies at its place is removed, and no link, pipe
    or file of somebody else that is put there meanwhile is written to.
    """
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags, mode), "wb")


def write_whole(path: Path, write: Callable[[BinaryIO], Any], mode: int = 0o666) -> None:
    """Have `write` fill a file beside `path`, of a fixed name, and move it to its place: a kill leaves the
    old or the new file, whole. One writer at a time. FileError where it cannot be written.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        if path.is_dir():
            raise IsADirectoryError(21, "a folder of that name is in the way")
        path.parent.mkdir(parents=True, exist_ok=True)
        with create(part, mode) as file:
            write(file)
        part.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise FileError(f"{path} cannot be written: {error.strerror or error}") from None
        raise


def write_json(path: Path, content: Any) -> None:
    """Write content as JSON, as `write_whole` does. ValueError for numbers that are not finite."""
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    write_whole(path, lambda file: file.write(text.encode()))


def write_tensors(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    metadata: Mapping[str, str],
    secret: bool = False,
) -> None:
    """Write a safetensors file as `write_whole` does; one that is `secret` only its owner may read.
    The library's own writer makes a file of a random name first, which a kill would leave there for
    ever.
    """
    from safetensors.torch import save

    content = save(dict(tensors), dict(metadata))
    write_whole(path, lambda file: file.write(content), 0o600 if secret else 0o666)


def read_tensors(
    path: Path, what: str, device: str = "cpu"
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors of a safetensors file, on a device, and its metadata. FileError names the kind `what`."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device=device) as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, file.metadata() or {}
    except SafetensorError as error:
        raise damaged(what, path, error) from None
    except OSError as error:
        reason = error.strerror or one_line(error, 80)
        raise FileError(f"the {what} {path} cannot be read: {reason}") from None


def damaged(what: str, path: Path, error: Exception) -> FileError:
    """The error for a file of the program's own that is not as it was written."""
    return FileError(
        f"the {what} {path} is damaged ({one_line(error, 80)}); delete it to start again"
    )


#: seconds that a lock may take to come free
PATIENCE = 2.0


@contextlib.contextmanager
def alone(path: Path, what: str, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the lock file at `path`, freed when the process ends in any way; wait some seconds for one that
    is being killed. Raises Busy where another holds it, FileError where it cannot be written.
    """
    from filelock import FileLock, Timeout

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, timeout=patience).acquire()
    except Timeout:
        raise Busy(f"another process is at {what}; wait for it (its lock is {path})") from None
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror or error}") from None
    with lock:
        yield


def _size(count: int) -> str:
    return f"{count / 2**20:.0f} MiB" if count >= 2**20 else f"{count} bytes"
