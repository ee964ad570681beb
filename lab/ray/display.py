"""The table that a person watches while a sweep runs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

from lab.ray import Progress

STATES = ("queued", "running", "complete", "cut", "failed")


def line(one: Progress) -> str:
    """A run in one line."""
    experiment = one.item.experiment
    score = "" if one.score is None else f"  {one.score[0]} {100 * one.score[1]:.2f}%"
    again = f"  (worker lost {one.losses} times)" if one.losses else ""
    return (
        f"{one.state:8}  {one.item.cells[0]} seed {experiment.seed}  "
        f"round {one.rounds} of {experiment.rounds}{score}{again}"
        + (f"  {one.reason}" if one.reason else "")
    )


def summary(table: Sequence[Progress]) -> str:
    """How many runs stand where."""
    counts = Counter(one.state for one in table)
    return ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])


class Display:
    """Runs that ended stay on the screen, below them those that run; without a terminal only what
    ended is printed.
    """

    def __init__(self) -> None:
        self._told: set[int] = set()
        self._drawn = 0

    def show(self, table: Sequence[Progress]) -> None:
        """Draw how things stand."""
        ended = [one for one in table if one.state not in ("queued", "running")]
        new = [one for one in ended if id(one) not in self._told]
        self._told |= {id(one) for one in new}
        live = sys.stdout.isatty()
        text = "\n".join(map(line, new))
        if live:
            below = [*(line(one) for one in table if one.state == "running"), summary(table)]
            # back to the first line of the old drawing, and clear what is below
            up = f"\x1b[{self._drawn}F\x1b[J" if self._drawn else ""
            text = up + "\n".join([*map(line, new), *below])
            self._drawn = len(below)
        if text:
            print(text, flush=True)
