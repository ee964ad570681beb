"""Speed, measured in pairs in one run: ours beside a plain loop, and both beside the machine's
ceiling. And accuracies, where they could hang on the precision or on the version of the program.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import (
    again,
    bilevel,
    clients,
    commits,
    condensation,
    distillation,
    local_training,
    precision,
    runs,
    shadows,
)
from core.errors import InputError, unknown
from core.federation import Runtime
from core.files import write_json
from lab.record import REPOSITORY
from lab.source import check_code, code_version

#: where bench records lie, one for each bench and kind of machine
BENCH = REPOSITORY / "book" / "bench"
BENCHES: dict[str, Callable[[Runtime], dict[str, Any]]] = {
    "bilevel": bilevel.measure,
    "clients": clients.measure,
    "condensation": condensation.measure,
    "distillation": distillation.measure,
    "local-training": local_training.measure,
    "precision": precision.measure,
    "records": again.measure,
    "run": runs.measure,
    "shadows": shadows.measure,
}


def measure(
    what: str, runtime: Runtime, authors: Path | None = None, commit: str | None = None
) -> dict[str, Any]:
    """Run a bench and keep its record in `book/bench`. "run" against a checkout of the authors' FedVCK
    has a record of its own, and so has the package beside itself at a commit.
    Raises InputError for an unknown bench, and where there is no such checkout or commit; FileError
    where the package has changed since this process began.

    Returns: the unit, and per contestant its rate and what it stands beside,
    the ratios pair by pair (median, lowest, highest) and the share of the machine's
    matrix-product ceiling.
    """
    if what not in BENCHES:
        raise unknown("bench", what, BENCHES)
    if authors is not None and what != "run":
        raise InputError(f"only `bench run` takes the authors' code, not {what!r}")
    check_code()
    if commit is not None:
        found, name = commits.measure(what, commit, runtime), f"{what}-since"
    else:
        found = runs.against_authors(runtime, authors) if authors else BENCHES[what](runtime)
        name = f"{what}-authors" if authors else what
    result = {
        "bench": name,
        **found,
        "environment": runtime.describe(),
        "code": code_version(),
    }
    path = BENCH / f"{name}-{_kind(result['environment'])}.json"
    write_json(path, result)
    return result


def _kind(machine: dict[str, Any]) -> str:
    """What sets the speed of a machine apart from that of others: "cuda" or the vectors of its
    processor, and the precision, as in "avx512-float32".
    """
    vectors = str(machine.get("cpu", "")).lower()
    where = vectors if machine["device"] == "cpu" and vectors.isalnum() else machine["device"]
    return f"{where}-{machine['precision']}"


def ceilings_in_words(result: dict[str, Any]) -> str:
    """The machine's ceilings, for example "float32 194, bfloat16 432", in GFLOP/s."""
    return ", ".join(f"{name} {rate / 1e9:,.0f}" for name, rate in result["ceilings"].items())


def report(result: dict[str, Any]) -> str:
    """A few lines for the terminal."""
    machine = result["environment"]
    lines = [
        f"{result['bench']} on {machine['device_name']}, {machine['threads']} threads, "
        f"{machine['precision']}: "
        f"{result['what']}"
    ]
    for name, one in result["contestants"].items():
        ratio = one.get("ratio")
        beside = (
            f"  {ratio['median']:5.1f} x {one.get('beside', 'plain')} "
            f"({ratio['lowest']:.1f} to {ratio['highest']:.1f})"
            if ratio
            else ""
        )
        share = (
            f"  {100 * one['ceiling_share']:.0f}% of the matrix-product ceiling"
            if "ceiling_share" in one
            else ""
        )
        memory = f"  {one['peak_memory'] / 2**20:,.0f} MB at most" if "peak_memory" in one else ""
        if "accuracy" in one:
            ours, theirs = (statistics.fmean(one["accuracy"][side]) for side in ("ours", "theirs"))
            memory += f"  accuracy {ours:.1f}% beside {theirs:.1f}%"
        lines.append(f"  {name:22}{one['rate']:12,.1f} {result['unit']}{beside}{share}{memory}")
    if "ceilings" in result:
        lines.append(f"  a matrix product reaches {ceilings_in_words(result)} GFLOP/s")
    return "\n".join(lines)
