"""The one error that a person can mend."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable
from typing import Any


class InputError(ValueError):
    """Something given to the package is wrong: one sentence says what, where and what to do. The command
    line prints it without a traceback and exits with its `status`.
    """

    status = 2


class Diverged(InputError):
    """Training has left numbers that are not finite: with other settings, or another seed, it need
    not. Nothing given is wrong by itself, so the status is that of a run that failed.
    """

    status = 1


def unknown(kind: str, name: object, known: Iterable[str]) -> InputError:
    """The InputError (to be raised) for a name that is not in `known`, with the nearest as a hint."""
    # numbers first, by size
    names = sorted(known, key=lambda each: (0, int(each)) if each.isdecimal() else (1, each))
    said = no_such(kind, name, names)
    return InputError(
        f"{said}{' ' if said.endswith('?') else '; '}known: {listed(names) or 'none'}"
    )


def no_such(kind: str, name: object, known: Iterable[str]) -> str:
    """Say that a name is not one of `known`, with the nearest one as a hint."""
    small = {each.casefold(): each for each in known}
    near = difflib.get_close_matches(brief(name).casefold(), small, n=1, cutoff=0.5)
    hint = f"; did you mean {small[near[0]]!r}?" if near else ""
    return f"there is no {kind} named {brief(name)}{hint}"


def one_line(error: BaseException, most: int = 240) -> str:
    """An error of any library as one line that can be printed, with its kind where it is no InputError.
    What is too long loses its middle: the end often says what to do.
    """
    text = printable(" ".join(str(error).split()))
    if not isinstance(error, InputError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if len(text) <= most:
        return text
    end = most // 3
    return f"{text[: most - 3 - end]}...{text[-end:]}"


def printable(text: str) -> str:
    """A text that any terminal and any record can hold: a question mark for each control character."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def listed(names: list[str]) -> str:
    """Names in a message: as many as fit into about 120 characters."""
    text = ", ".join(names)
    if len(text) <= 120:
        return text
    shown = text[:120].rsplit(", ", 1)[0]
    return f"{shown} and {len(names) - shown.count(', ') - 1} more"


def brief(value: object) -> str:
    """Return a value as a message shows it: in at most about 80 characters, whatever it is."""
    return printable(_BRIEF.repr(value))


class _Brief(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxdict, self.maxlist, self.maxtuple = 2, 3, 4, 4
        self.maxstring = self.maxother = 60

    def repr_int(self, x: int, level: int) -> str:
        """Python refuses to print a number of more than 4,300 digits."""
        size = x.bit_length() * 30103 // 100000
        return f"a number of about {size} digits" if size > 40 else repr(x)

    def repr_Tensor(self, x: Any, level: int) -> str:
        """Return its type and shape."""
        return f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"


_BRIEF = _Brief()
