"""What `run --pending` does: runs of the queue, here or on workers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from core.checks import check_number
from core.errors import InputError
from core.files import make_folder
from lab.cli.app import fail_where


def run_queue(
    profile: str,
    out: Path | None,
    how: dict[str, str],
    *,
    minutes: float | None,
    on: str | None,
    gpus_per_run: float | None,
    shard: str | None,
    only: str | None,
) -> None:
    """Run what is pending, here or on workers."""
    from core.federation import Runtime

    minutes = 60.0 if minutes is None else minutes
    check_number("--minutes", minutes, 0, above=True)
    if gpus_per_run is not None and not (on or "").startswith("ray"):
        raise InputError("--gpus-per-run belongs to --on ray")
    if out is not None:
        make_folder(out, "--out")
    items = _runnable(profile, shard, only, out)
    if on is None:
        _run_pending(items, minutes, out, Runtime.choose(**how))
    else:
        share = 0.0 if gpus_per_run is None and how["device"] == "cpu" else gpus_per_run
        _sweep(items, on, share, minutes, out, **how)


def _runnable(profile: str, shard: str | None, only: str | None, out: Path | None) -> list[Any]:
    """The pending runs, or a part of them, that this machine can begin and that are not done; says
    how many cannot run here.
    """
    from lab import queue

    items = queue.pending(profile, only=only)
    if shard:
        items = [item for item in items if queue.in_shard(item.experiment, shard)]
    away = [item for item in items if item.missing]
    if away:
        print(
            f"{len(away)} of {len(items)} pending runs cannot run here, first: {away[0].missing}",
            file=sys.stderr,
        )
    return [item for item in items if not item.missing and not queue.done_before(item, out)]


def _run_pending(items: list[Any], minutes: float, out: Path | None, runtime: Any) -> None:
    from core.files import Busy, FileError
    from core.metrics import headline
    from lab import queue

    stuck = 0
    failed = sum(queue.failed_before(item.experiment, item.paper, out) for item in items)
    complete = 0
    for item, outcome in queue.run_pending(items, minutes, out, runtime, True):
        run = item.experiment
        what = f"{item.cells[0]} seed {run.seed}"
        if isinstance(outcome, Busy):
            print(f"{what}: {outcome}", file=sys.stderr)
        elif isinstance(outcome, FileError):
            stuck += 1
            print(f"left as it is: {item.cells[0]}: {outcome}", file=sys.stderr)
        elif isinstance(outcome, InputError):
            failed += 1
            print(f"failed: {item.cells[0]}: {outcome}", file=sys.stderr)
        elif outcome.status == "complete":
            complete += 1
            name = headline(outcome.metrics) or "accuracy"
            print(
                f"[{complete} of {len(items)}] {what} ({run.dataset}): {name} "
                f"{100 * outcome.metrics[name]:.2f}%, {outcome.seconds:.1f} s"
            )
        else:
            print(f"{what}: {len(outcome.rounds)} of {run.rounds} rounds, goes on next time")
    left = sum(not queue.done_before(item, out) for item in items)
    why = f", {failed} of them failed with this code" if failed else ""
    why += f", {stuck} of them cannot go on as they stand" if stuck else ""
    more = "; the same command goes on" if left > failed + stuck else ""
    print(f"{complete} runs completed, {left} still pending here{why}{more}")
    fail_where(failed + stuck)


def _sweep(
    items: list[Any],
    on: str,
    gpus: float | None,
    minutes: float,
    out: Path | None,
    device: str,
    precision: str,
) -> None:
    import time
    from contextlib import closing

    from lab.ray import display, sweep, workers

    until, shown = time.time() + 60 * minutes, display.Display()
    out = out and out.absolute()
    table: list = []
    with closing(sweep(items, workers(on, gpus), out, device, precision, until)) as progress:
        for table in progress:
            shown.show(table)
    print(display.summary(table) or "nothing is pending here")
    fail_where(any(one.state == "failed" for one in table))
