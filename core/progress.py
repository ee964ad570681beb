"""Progress of long loops, for whoever shows it.

A loop that takes a while hands its steps through `counted`; a bar listens with `listening`. Nothing is
computed from what is counted, no GPU is waited for, and where nobody listens the steps are handed on
as they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import attrs

T = TypeVar("T")


@attrs.define(eq=False)
class Stage:
    """One loop: what it does, as in "clients", how many steps it has and how many are done."""

    doing: str
    total: int
    done: int = 0

    def __str__(self) -> str:
        return f"{self.doing} {self.done}/{self.total}"


@attrs.frozen(eq=False)
class _Listener:
    tell: Callable[[Sequence[Stage]], None]
    #: which thread listens; what others count would be beside its loops, not in them
    thread: int = attrs.field(factory=threading.get_ident)
    #: the loops that run now, the outermost first
    stages: list[Stage] = attrs.field(factory=list)


_listening: ContextVar[_Listener | None] = ContextVar("listening", default=None)


@contextmanager
def listening(tell: Callable[[Sequence[Stage]], None]) -> Iterator[None]:
    """Call `tell` before every counted step in this thread, with the running loops, outermost first."""
    token = _listening.set(_Listener(tell))
    try:
        yield
    finally:
        _listening.reset(token)


def counted(steps: Iterable[T], doing: str, total: int) -> Iterator[T]:
    """The steps as they come, of which there are `total`; a listener is called before each."""
    listener = _listening.get()
    if listener is None or listener.thread != threading.get_ident():
        yield from steps
        return
    stage = Stage(doing, total)
    listener.stages.append(stage)
    try:
        for step in steps:
            listener.tell(listener.stages)
            yield step
            stage.done += 1
    finally:
        listener.stages.remove(stage)
