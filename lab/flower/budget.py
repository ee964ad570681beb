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

from flwr.app import Context

from core.checks import check_number, is_number
from core.errors import InputError
from core.federation import Algorithm
from core.files import FileError, alone, read_json, write_json

#: what the deltas of all runs may add up to where a node states nothing
DELTA = 1e-4
#: bytes that an account may have
LONGEST = 2**20


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
        before = spent.get(key, [0.0, 0.0])
        spent[key] = [max(pair) for pair in zip(algorithm.privacy_budget, before, strict=True)]
        for place, (name, limit) in enumerate(limits.items()):
            total = sum(entry[place] for entry in spent.values())
            if total > limit:
                raise InputError(
                    f"this node gives away {name} {limit:g} at most; with this run it would be {total:g}"
                )
        write_json(path, spent)


def _read(path: Path) -> dict[str, list[float]]:
    """Epsilon and delta by key."""
    found = read_json(path, LONGEST, "account")
    entries = list(found.values()) if isinstance(found, dict) else [None]
    for entry in entries:
        if not (isinstance(entry, list) and len(entry) == 2 and all(map(_spent, entry))):
            raise FileError(
                f"the account {path} is damaged: bring it back; without it nothing is answered"
            )
    return found


def _spent(value: object) -> bool:
    """Whether a value can be what was spent."""
    return is_number(value) and value >= 0  # type: ignore[operator]
