"""What keeps the cells of tables waiting, for the verbs that list them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from core.errors import unknown


def say_where_run(only: str, profile: str) -> None:
    """Say at which profiles the tables of a paper, or those with an algorithm, are run that are not
    run at this one.
    """
    from core.experiments import TableSpec

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
                    said = str(unknown("algorithm", name, names)).partition(" known: ")[0]
                    print(f"{address}: its cells wait, as {said.rstrip(';')}")
