"""The bar of a run: rounds, and within a round how far its loops have come."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Self

from tqdm.auto import tqdm

from core.federation import RoundResult
from core.metrics import headline
from core.progress import Stage

#: seconds after which the loops within a round are shown anew, on a terminal and in the file of a log
EVERY, IN_A_LOG = 1.0, 30.0


class Bar:
    """A bar with rounds, accuracy, traffic, time left and current work, if `shown`."""

    def __init__(self, name: str, rounds: int, shown: bool) -> None:
        self._bar = tqdm(
            total=rounds, desc=name, disable=not shown, unit="round", dynamic_ncols=True
        )
        self._last, self._told = dict[str, str](), time.monotonic()
        self._every = EVERY if sys.stderr.isatty() else IN_A_LOG

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def show(self, result: RoundResult) -> None:
        """A round has ended. One that a checkpoint had says nothing about the time left."""
        name = headline(result.metrics)
        tested = {name: f"{100 * result.metrics[name]:.1f}%"} if name else {}
        sent = {"up": result.up, "down": result.down}
        self._last = tested | {way: f"{count / 2**20:.1f}MB" for way, count in sent.items()}
        if result.restored:  # the rate is that of the rounds to come
            self._bar.initial = self._bar.n = self._bar.last_print_n = result.round
            self._bar.start_t = self._bar.last_print_t = time.time()
        self._bar.set_postfix(self._last)
        if not result.restored:
            self._bar.update()

    def tell(self, stages: Sequence[Stage]) -> None:
        """The loops that run now, for `core.progress.heard`; those of one step say nothing."""
        if time.monotonic() - self._told < self._every:
            return
        self._told = time.monotonic()
        doing = ", ".join(str(stage) for stage in stages if stage.total > 1)
        self._bar.set_postfix(({"now": doing} if doing else {}) | self._last)
