"""Checkpoints: one safetensors file with the server's state, the clients' memories and the history
so far.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch

from core.errors import InputError, brief
from core.federation.algorithm import State
from core.federation.client import Client
from core.federation.message import Ledger
from core.federation.task import Task
from core.federation.tensors import fingerprint, put, put_each, take
from core.files import FileError, damaged, read_tensors, write_tensors

#: of a checkpoint's key, meta, ledger, history, peak memory and shared tensors
KINDS: list[type] = [dict, dict, list, list, int, dict]


@attrs.frozen
class Checkpoint:
    """A place to resume from: a state, results of all rounds so far, and the peak of bytes held."""

    state: State
    ledger: Ledger
    history: list[dict[str, Any]]
    peak_memory: int = 0


def save(
    path: Path, key: Mapping[str, str], checkpoint: Checkpoint, clients: Sequence[Client]
) -> None:
    """Write a checkpoint atomically: a kill leaves the old or the new file, whole. A tensor that several
    hold is written once. FileError where it cannot be written.
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
        "peak_memory": checkpoint.peak_memory,
        "same": {name: master for name, master in same.items() if name != master},
    }
    # copies: a file holds no views
    plain = {
        name: tensors[name].detach().cpu().clone(memory_format=torch.contiguous_format)
        for name in first.values()
    }
    text = json.dumps(facts)
    metadata = {"facts": text, "sha256": fingerprint(text, plain)}
    write_tensors(path, plain, metadata)


def restore(
    path: Path, key: Mapping[str, str], task: Task, clients: Sequence[Client]
) -> Checkpoint | None:
    """The checkpoint at `path` if any, memories filled. FileError if damaged or of another key."""
    if not path.exists() and not path.is_symlink():
        return None
    if not path.is_file():
        raise FileError(f"the checkpoint {path} is not a plain file; move it out of the way")
    tensors, metadata = read_tensors(path, "checkpoint")
    try:
        if fingerprint(metadata["facts"], tensors) != metadata["sha256"]:
            raise InputError("its content was changed")
        facts = json.loads(metadata["facts"])
        names = ("key", "meta", "ledger", "history", "peak_memory", "same")
        written, meta, rounds, history, peak, same = (facts[name] for name in names)
        if list(map(type, (written, meta, rounds, history, peak, same))) != KINDS:
            raise InputError("its facts are no checkpoint's")
        tensors = {name: value.to(task.runtime.device) for name, value in tensors.items()}
        tensors |= {name: tensors[master] for name, master in same.items()}
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise damaged("checkpoint", path, error) from None
    _fits(path, written, dict(key))
    for client in clients:
        client.memory.update(take(f"client/{client.id}/", tensors))
    state = State(task, take("state/", tensors), meta)
    return Checkpoint(state, Ledger(rounds, task.runtime.device), history, peak)


def _fits(path: Path, written: dict[str, str], wanted: dict[str, str]) -> None:
    """Raise FileError, naming what differs, where a checkpoint has another key."""
    if written == wanted:
        return
    name = next(name for name in [*wanted, *written] if wanted.get(name) != written.get(name))
    how = f" (OMP_NUM_THREADS={written.get(name)})" if name == "threads" else ""
    raise FileError(
        f"the checkpoint {path} was begun with {name} {brief(written.get(name))}, not "
        f"{brief(wanted.get(name))}: go on as it was begun{how}, or delete it to start again"
    )
