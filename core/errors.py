"""The one error that a person can mend."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Something given to the package is wrong. The message is one sentence that says what, where
    and what to do.

    The command line prints it on one line, without a traceback, and exits with status 2.
    """


def unknown(kind: str, name: object, known: Iterable[str]) -> InputError:
    """The error for a name that is not one of `known`, with the nearest name as a hint.

    Returns (does not raise) the error: `raise unknown("data set", "cifar", names)`.
    """
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return InputError(f"there is no {kind} named {name!r}; {hint}known: {', '.join(names)}")
