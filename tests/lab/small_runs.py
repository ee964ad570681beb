"""The small runs that tests of records and of the queue start from."""

import functools
import json
import tempfile
from pathlib import Path

from core.federation import Runtime
from lab import Experiment, Record, run

PLAIN = {"algorithm": "fedavg", "dataset": "digits"}


def small(**changes) -> Experiment:
    given = {"settings": {"local_steps": 1}, "model_options": {"width": 4}, "profile": "quick"}
    return Experiment(**PLAIN | {"clients": 2, "rounds": 3} | given | changes)


def written(seed: int = 0) -> str:
    """The record of a small run, as it is written; of one seed always the same."""
    return _written(seed)


@functools.cache
def _written(seed: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        run(small(seed=seed), runtime=Runtime(), record=Path(folder) / "r.json")
        return (Path(folder) / "r.json").read_text()


def put(folder: Path, record: Record | dict | str, name: str = "", paper: str = "adhoc") -> Path:
    """Lay a record into a folder as `run --out` does."""
    if isinstance(record, Record):
        path = folder / paper / (name or f"{record.experiment.id}.json")
        record.save(path)
        return path
    data = json.loads(record) if isinstance(record, str) and not name else record
    path = folder / paper / (name or f"{data['id']}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(record if isinstance(record, str) else json.dumps(record))
    return path


def measured(folder: Path, seed: int = 0, **changes) -> Record:
    """The record of a small run in a folder, with changes."""
    path = put(folder, written(seed))
    record = Record.load(path)
    if changes:
        path.unlink()
        for name, value in changes.items():
            setattr(record, name, value)
        put(folder, record)
    return record
