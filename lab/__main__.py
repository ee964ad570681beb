"""The command line: `fedcon …`."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import warnings
from typing import Any

try:
    from core.errors import InputError, one_line
    from lab.cli import cells, run, tools  # noqa: F401  (their verbs enter the application)
    from lab.cli.app import app
except ModuleNotFoundError as missing:
    if missing.name is None or missing.name.split(".")[0] in ("core", "lab"):
        raise
    sys.exit(
        f"error: the package {missing.name} is not installed for {sys.executable}; "
        "run `make install` once, then `. .venv/bin/activate` in every shell"
    )

#: what goes on where it was interrupted
GOES_ON = ("run", "check", "book")
NO_MEMORY = (
    "memory ran out; a smaller network or smaller batches take less (such as --model-set width=32, "
    "--set batch_size=16; `fedcon algorithms NAME` lists what an algorithm has)"
)


def _joined(arguments: list[str]) -> list[str]:
    """`-p NAME VALUE`, papermill's form, as Typer's `-p NAME=VALUE`."""
    joined: list[str] = []
    for text in arguments:
        if joined[-2:-1] in (["-p"], ["--parameter"]) and "=" not in joined[-1]:
            if text.startswith("--"):
                raise InputError(f"-p {joined[-1]} lacks a value: give -p NAME VALUE")
            joined[-1] += f"={text}"
        else:
            joined.append(text)
    return joined


def _failed(text: object, status: int, hint: str = "") -> int:
    """Print one line of under 300 characters, and hand on the status."""
    print(f"error: {one_line(InputError(str(text)), 285 - len(hint))}{hint}", file=sys.stderr)
    return status


def _misused(error: Any) -> int:
    """Print what Typer says of the arguments, and which help to see."""
    context = getattr(error, "ctx", None)
    verb = context.info_name if context is not None and context.parent else None
    said = error.format_message()
    if verb == "run" and said.startswith("No such option"):
        said += "; a setting goes as --set NAME=VALUE"
    return _failed(said, 2, f" (see {' '.join(filter(None, ['fedcon', verb, '--help']))})")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line. A mistake gives one clear line and status 2; a run that diverges, and what
    the machine lacks, such as memory, one with status 1; an interruption status 130.
    """
    if sys.stdout is None or sys.stderr is None:  # what is opened next would be written into
        return _failed("standard output or error is closed; send it to /dev/null instead", 1)
    for stream in (sys.stdout, sys.stderr):  # a terminal that cannot show ± shows a question mark
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    arguments = arguments or sys.argv[1:]
    try:
        status = int(app(_joined(arguments) or ["--help"], standalone_mode=False) or 0)
        sys.stdout.flush()
    except InputError as error:
        return _failed(error, error.status)
    except (BrokenPipeError, SystemExit):  # who reads has enough, as `head` has: so Typer exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        at = f": {error.filename}" if error.filename else ""
        return _failed(f"{error.strerror or error}{at}", 1)
    except Exception as error:
        # PyTorch's are RuntimeErrors that say so, of a GPU and of a CPU
        full = "out of memory" in str(error) or "can't allocate memory" in str(error)
        if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and full):
            return _failed(NO_MEMORY, 1)
        # Typer's usage errors: some versions take the class from click, others carry their own copy
        # of it
        if not hasattr(error, "format_message"):
            raise
        return _misused(error)
    if status == 130:
        goes_on = "; the same command goes on where it stopped" * (arguments[0] in GOES_ON)
        print(f"interrupted{goes_on}", file=sys.stderr)
    return status


def _die_of_ctrl_c() -> None:
    """Die of Ctrl-C: a shell leaves its loop only where a command did; a status does not tell it."""
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.raise_signal(signal.SIGINT)


def begin() -> None:
    """The console script `fedcon`."""
    # in one line, without the source
    warnings.formatwarning = lambda text, *_, **__: f"warning: {' '.join(str(text).split())}\n"
    # what schedulers and `timeout` send ends a run as Ctrl-C does; also one that a script started in the
    # background, where Ctrl-C is ignored
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    status = 0
    # registered first, it is the last that Python does at its exit, when `status` is known
    atexit.register(lambda: _die_of_ctrl_c() if status == 130 and os.name == "posix" else None)
    status = main()
    sys.exit(status)


if __name__ == "__main__":
    begin()
