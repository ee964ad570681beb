"""A hospital's own limit on what it gives away.

The settings of a run, its budget among them, come from the server. A node that states `epsilon` in
its configuration takes part in a run only while the epsilons of all its runs, added up, stay within
it, and the deltas within its own `delta` (1e-4 where it states none). Epsilons and deltas of several
releases add up (Dwork and Roth, 2014, Theorem 3.16). The number of samples, which a node tells before a
run, is not part of it, nor is what a method tells beside its noisy answers, as FedIOD how many samples
of each class a client has.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from flwr.app import Context
from pydantic import Field, TypeAdapter

from core.checks import check_number
from core.errors import InputError
from core.federation import Algorithm
from core.files import FileError, alone, read_bounded, write_json

#: what the deltas of all runs may add up to where a node states nothing
DELTA = 1e-4
#: bytes that an account may have
LONGEST = 2**20
Spent = Annotated[float, Field(ge=0, allow_inf_nan=False)]
#: epsilon and delta by key
ACCOUNT = TypeAdapter(dict[str, tuple[Spent, Spent]])


def charge(context: Context, key: str, algorithm: Algorithm, folder: str | None) -> None:
    """Enter what a run gives away into the node's account (in `memory`), if it has a limit. InputError for a
    run without noise, beyond the limit or without folder; FileError for a changed account.
    """
    if context.node_config.get("epsilon") is None:
        return
    limits = {name: context.node_config.get(name, DELTA) for name in ("epsilon", "delta")}
    for name, limit in limits.items():
        check_number(f"{name} of the --node-config", limit, 0, above=True)
    if folder is None:
        raise InputError("a node with an epsilon in its --node-config needs a memory folder there")
    if algorithm.privacy_budget is None:
        raise InputError(
            f"this node gives away epsilon {limits['epsilon']:g} at most, and the run asks for answers "
            "without a bound"
        )
    path = Path(folder) / "spent.json"
    with alone(path.with_suffix(".lock"), f"the account {path}"):
        spent = _read(path) if path.exists() else {}
        (epsilon, delta), before = algorithm.privacy_budget, spent.get(key, (0.0, 0.0))
        spent[key] = max(epsilon, before[0]), max(delta, before[1])
        for place, (name, limit) in enumerate(limits.items()):
            total = sum(entry[place] for entry in spent.values())
            if total > limit:
                raise InputError(
                    f"this node gives away {name} {limit:g} at most; with this run it would be {total:g}"
                )
        write_json(path, spent)


def _read(path: Path) -> dict[str, tuple[float, float]]:
    try:
        return ACCOUNT.validate_json(read_bounded(path, LONGEST, "account"))
    except ValueError:
        raise FileError(
            f"the account {path} is damaged: bring it back; without it nothing is answered"
        ) from None
