"""What keeps the cells of tables waiting, for the verbs that list them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from core.errors import no_such


def say_where_run(only: str, profile: str) -> None:
    """Say at which profiles the tables of a paper, or those with an algorithm, are run that are not
    run at this one.
    """
    from lab import TableSpec

    name = only.strip("/").casefold()
    for spec in TableSpec.all():
        named = name in {spec.paper, *(row.fields["algorithm"] for row in spec.rows)}
        if named and profile not in spec.run_at:
            print(f"{spec.paper}/{spec.table} is run at the profile {' or '.join(spec.run_at)}")


def say_what_is_not_written(specs: Iterable[Any], only: str | None = None) -> None:
    """Name the algorithms of tables that are not here, which may be misspelt; `only` is a paper or a
    table, of which alone it is said.
    """
    from core import algorithms

    names = algorithms.names()
    for spec in specs:
        address = f"{spec.paper}/{spec.table}"
        if only is None or f"{address}/".startswith(f"{only.strip('/').casefold()}/"):
            for name in dict.fromkeys(row.fields["algorithm"] for row in spec.rows):
                if name not in names:
                    print(f"{address}: its cells wait, as {no_such('algorithm', name, names)}")


def first_of(waiting: Any, spec: Any, known: Mapping[str, Any]) -> str:
    """How to run the first pending cell of a table, one whose data are here if there is any."""
    from core.data import present_names
    from lab import queue

    elsewhere, here = queue.recorded_elsewhere(known), present_names()
    profiles = waiting.profile.unique()
    counted = [
        cell
        for profile in profiles
        for cell in spec.cells(profile)
        if cell.implemented and not cell.cut
    ]
    here_rows = {(cell.row, cell.column, cell.profile) for cell in counted}
    if not any((row.row, row.column, row.profile) in here_rows for row in waiting.itertuples()):
        written = any(cell.implemented for cell in spec.cells(profiles[0]))
        return f"pending: runs at {profiles[0]} stop before the rounds of the columns" * written
    needed = {
        (cell.row, cell.column, cell.profile): cell.experiments[0].dataset in here
        for cell in counted
        if not all(map(elsewhere, cell.experiments))
    }
    for ready in (True, False):
        for row in waiting.itertuples():
            if needed.get((row.row, row.column, row.profile)) == ready:
                away = "" if ready else " (no data for it here: fedcon data says how to get them)"
                return f"pending: run the first with {row.command}{away}"
    told = [reason for reason in waiting.reason if reason.startswith("its records")]
    return (
        f"pending: {told[0] if told else 'the very same runs are on record with another profile'}"
    )
