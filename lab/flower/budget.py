"""A hospital's own limit on what it gives away.

The settings of a run, its budget among them, come from the server. A node that states `epsilon` in
its configuration takes part in a run only while the epsilons of all its runs, added up, stay within
it, and while the delta of each is at most its own `delta` (1e-5 where it states none). Epsilons and
deltas of several releases add up (Dwork and Roth, 2014, Theorem 3.16). The number of samples, which
a node tells before a run, is not part of it, nor is what a method tells beside its noisy answers, as
FedIOD how many samples of each class a client has.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context

from core.checks import check_number
from core.errors import InputError
from core.federation import Algorithm
from core.files import alone, read_json, write_json

#: the largest delta of a run where a node states none
DELTA = 1e-5
#: bytes that an account may have
LONGEST = 2**20


def charge(
    context: Context, number: int, experiment: str, algorithm: Algorithm, folder: str | None
) -> None:
    """Enter an experiment (its id) of a run into the node's account, once for each client that the node
    is, before it answers; the account lies in the node's `memory` folder. Without a limit nothing is
    entered.

    Raises InputError for a run without noise or beyond what is left, and where there is no folder.
    """
    limit = context.node_config.get("epsilon")
    if limit is None:
        return
    most = context.node_config.get("delta", DELTA)
    for name, value in (("epsilon", limit), ("delta", most)):
        check_number(f"{name} of the --node-config", value, 0, above=True)
    if folder is None:
        raise InputError("a node with an epsilon in its --node-config needs a memory folder there")
    if algorithm.privacy_budget is None:
        raise InputError(
            f"this node gives away epsilon {limit:g} at most, and the run asks for answers without a bound"
        )
    epsilon, delta = algorithm.privacy_budget
    if delta > most:
        raise InputError(f"this node takes a delta of {most:g} at most, and the run has {delta:g}")
    path, run = Path(folder) / "spent.json", f"{context.run_id}/{experiment}/{number}"
    with alone(path.with_suffix(".lock"), f"the account {path}"):
        spent = read_json(path, LONGEST, "account") if path.exists() else {}
        spent[run] = max(epsilon, spent.get(run, 0.0))
        if (total := sum(spent.values())) > limit:
            raise InputError(
                f"this node gives away epsilon {limit:g} at most; with this run it would be {total:g}"
            )
        write_json(path, spent)
