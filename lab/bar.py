"""The bar of a run: rounds, and within a round how far its loops have come."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from tqdm.auto import tqdm

from core.federation import RoundResult
from core.metrics import headline
from core.progress import Stage

#: seconds after which the loops within a round are shown anew, on a terminal and in the file of a log
EVERY, IN_A_LOG = 1.0, 30.0


class Bar(tqdm):
    """A bar with rounds, accuracy, traffic, time left and current work, if `shown`."""

    def __init__(self, name: str, rounds: int, shown: bool) -> None:
        every = EVERY if sys.stderr.isatty() else IN_A_LOG
        how: Any = {"dynamic_ncols": True, "mininterval": every, "miniters": 0}
        super().__init__(total=rounds, desc=name, disable=not shown, unit="round", **how)
        self._result = dict[str, str]()

    def show(self, result: RoundResult) -> None:
        """A round has ended. One that a checkpoint had says nothing about the time left."""
        name = headline(result.metrics)
        tested = {name: f"{100 * result.metrics[name]:.1f}%"} if name else {}
        sent = {"up": result.up, "down": result.down}
        self._result = tested | {way: f"{count / 2**20:.1f}MB" for way, count in sent.items()}
        if result.restored:  # the rate is that of the rounds to come
            self.initial = self.n = self.last_print_n = result.round
            self.unpause()
        else:
            self.update()
        self.set_postfix(self._result)

    def tell(self, stages: Sequence[Stage]) -> None:
        """The loops that run now, for `core.progress.listening`; those of one step say nothing."""
        doing = ", ".join(str(stage) for stage in stages if stage.total > 1)
        self.set_postfix(({"now": doing} if doing else {}) | self._result, refresh=False)
        self.update(0)
