"""Checkpoints: one safetensors file with the server's state, the clients' memories and the history
so far.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import safetensors.torch
from safetensors import SafetensorError, safe_open

from core.errors import InputError
from core.federation.algorithm import State
from core.federation.client import Client
from core.federation.message import Ledger
from core.federation.task import Task
from core.federation.tensors import put, put_each, take
from core.files import write_whole


@attrs.frozen
class Checkpoint:
    """A place to resume from: the state after a round, with the results of that round and all
    before it.
    """

    state: State
    ledger: Ledger
    history: list[dict[str, Any]]


def save(path: Path, key: str, checkpoint: Checkpoint, clients: Sequence[Client]) -> None:
    """Write a checkpoint atomically: after a kill at any moment either the old or the new file is
    there, whole.

    A tensor that the server and clients hold together, as the same object, is written once.
    """
    tensors = put("state/", checkpoint.state.tensors)
    tensors |= put_each("client/", {client.id: client.memory for client in clients})
    first: dict[int, str] = {}
    same = {name: first.setdefault(id(value), name) for name, value in tensors.items()}
    facts = {
        "key": key,
        "meta": checkpoint.state.meta,
        "ledger": checkpoint.ledger.rounds,
        "history": checkpoint.history,
        "same": {name: one for name, one in same.items() if name != one},
    }
    plain = {name: tensors[name].detach().cpu().contiguous() for name in first.values()}
    metadata = {"facts": json.dumps(facts)}
    write_whole(path, lambda part: safetensors.torch.save_file(plain, part, metadata=metadata))


def restore(path: Path, key: str, task: Task, clients: Sequence[Client]) -> Checkpoint | None:
    """The checkpoint at `path`, or None when there is none; fills the clients' memories.

    Raises InputError when the file is damaged or belongs to another run.
    """
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt", device=str(task.runtime.device)) as file:
            facts = json.loads(file.metadata()["facts"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            tensors |= {name: tensors[one] for name, one in facts.get("same", {}).items()}
    except (SafetensorError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise InputError(
            f"the checkpoint {path} is damaged ({error}); delete it to start the run again"
        ) from None
    if facts["key"] != key:
        raise InputError(
            f"the checkpoint {path} belongs to another run or other data; delete it to start again"
        )
    for client in clients:
        client.memory.update(take(f"client/{client.id}/", tensors))
    state = State(task, take("state/", tensors), facts["meta"])
    return Checkpoint(state, Ledger(facts["ledger"]), facts["history"])
