"""Ctrl-C, and what schedulers send, that cannot get lost."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def kept_interrupts() -> Iterator[Callable[[], None]]:
    """Interrupts work as ever, and the function that this yields raises one again that a library
    has dropped.

    Python raises KeyboardInterrupt at any instruction, so also inside a bare `except`, which drops
    it. `copy.deepcopy` comes by such a place many times in each copy of a network
    (`copyreg._slotnames` of the standard library). Only Python's own handler is replaced, of SIGINT
    and of SIGTERM where it has that one too, and only in the main thread; a program that has another
    one keeps it.
    """
    main = threading.current_thread() is threading.main_thread()
    mine = [
        number
        for number in (signal.SIGINT, signal.SIGTERM)
        if main and signal.getsignal(number) is signal.default_int_handler
    ]
    came = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        signal.default_int_handler(number, frame)

    def again() -> None:
        if came:
            raise KeyboardInterrupt

    for number in mine:
        signal.signal(number, handle)
    try:
        yield again
    finally:
        for number in mine:
            signal.signal(number, signal.default_int_handler)
