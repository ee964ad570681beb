"""What a run left behind: a small JSON file that tables and figures are computed from."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from core.data import partition
from core.errors import InputError, brief
from core.federation import RoundResult, Task
from core.files import read_json, write_json
from lab import schema
from lab.experiment import Experiment
from lab.source import code_version

REPOSITORY = Path(__file__).resolve().parents[1]
#: where records are kept: `<paper>/<experiment id>.json`
RESULTS = REPOSITORY / "book" / "results"
#: the folder, beside those of papers, for runs that no table asks for
ADHOC = "adhoc"
#: bytes of the largest record that is read
LARGEST = 2**24
#: what to do with one that cannot be read
MEND = "delete it and measure the run again, or bring it back with git checkout"


@attrs.define
class Record:
    """One measured run.

    `rounds` holds a row per round: `round` (from 1), `metrics` (empty where the round was not
    tested), `up` and `down` (bytes over all clients) and `seconds` by phase. `metrics` are those of
    the last round on the test set, as fractions. `bytes` are the run's totals by direction and kind
    of content. `status` is "running", "complete" or "failed".
    """

    experiment: Experiment
    settings: dict[str, Any]
    fingerprint: str
    environment: dict[str, Any]
    code: str
    status: str = "running"
    rounds: list[dict[str, Any]] = attrs.field(factory=list)
    metrics: dict[str, float] = attrs.field(factory=dict)
    bytes: dict[str, dict[str, int]] = attrs.field(factory=dict)
    notes: list[str] = attrs.field(factory=list)
    #: the most bytes held at once, also before it was resumed: by tensors on a GPU, by the whole
    #: process on a CPU, on macOS also before the run began; 0: not measured
    peak_memory: int = 0
    #: SHA-256 of the file in which the partition is written down; "": it is drawn, or the record is
    #: older than this field
    split: str = ""

    def add(self, result: RoundResult) -> None:
        """Enter the next round. Raises InputError, and enters nothing, for one that no record can
        hold.
        """
        rounds, metrics = [*self.rounds, result.row()], dict(result.metrics)
        totals = {"up": result.ledger.total("up"), "down": result.ledger.total("down")}
        after = attrs.evolve(self, rounds=rounds, metrics=metrics, bytes=totals)
        schema.check(after, since=len(self.rounds))
        self.rounds, self.metrics, self.bytes = rounds, metrics, totals

    def sent(self, *ways: str) -> int:
        """Bytes of all kinds that all clients sent ("up") and were sent ("down"); both by default."""
        return sum(sum(self.bytes.get(way, {}).values()) for way in ways or ("up", "down"))

    @property
    def seconds(self) -> float:
        """Wall time of all rounds."""
        return sum(sum(row["seconds"].values()) for row in self.rounds)

    @property
    def core_seconds(self) -> float:
        """Wall time of all rounds, times the threads that computed; nan for a run on a GPU."""
        on_cpu = self.environment.get("device", "cpu") == "cpu"
        return self.seconds * self.environment.get("threads", 1) if on_cpu else math.nan

    def save(self, path: Path) -> None:
        """Write the record atomically. Raises FileError when it cannot be written, and InputError for
        what `load` would not take; `add` has checked the rounds of one that is "running".
        """
        schema.check(self, since=len(self.rounds) if self.status == "running" else 0)
        data = attrs.asdict(self, recurse=False) | {"experiment": self.experiment.to_dict()}
        write_json(path, {"id": self.experiment.id, **data})

    @classmethod
    def load(cls, path: Path, advice: str = MEND) -> Record:
        """Read a record. Raises InputError, naming the file and ending with the advice, for one that
        is damaged, was changed or cannot come from a run.
        """
        try:
            data = read_json(path, LARGEST, "record")
        except InputError as error:
            raise InputError(f"{error}; {advice}") from None
        if not (isinstance(data, dict) and isinstance(data.get("experiment"), dict)):
            raise InputError(f"{path} is no record of a run; {advice}")
        if later := _later_fields(data):
            raise InputError(
                f"the record {path} has what this version of the package does not know ({later}): it "
                "was written by a newer one; update this one"
            )
        try:
            experiment = Experiment.from_dict(data.pop("experiment"))
            identifier = data.pop("id")
            record = cls(experiment=experiment, **data)
            schema.check(record)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"the record {path} is damaged: {error}; {advice}") from None
        if identifier != experiment.id:
            raise InputError(
                f"the record {path} says it is {brief(identifier)}, but its experiment is "
                f"{experiment.id}"
            )
        return record


def _later_fields(data: Mapping[str, Any]) -> str:
    """The names in a record, and in its experiment, that are no field here."""
    known = {"id"} | set(attrs.fields_dict(Record))
    stated = set(data["experiment"]) - set(attrs.fields_dict(Experiment))
    return ", ".join(brief(name) for name in sorted((set(data) - known) | stated))


def reckoning(environment: Mapping[str, Any]) -> dict[str, str]:
    """What of a machine decides the numbers of a run, from a record's environment.

    On a CPU its instructions, the kernels and the number of threads are among it: they decide the
    order of sums, and so their last digits.
    """
    sums = ("cpu", "kernels", "threads") if environment.get("device") == "cpu" else ()
    return {name: str(environment.get(name)) for name in ("torch", "device", "precision", *sums)}


def split_fingerprint(experiment: Experiment) -> str:
    """SHA-256 of the file in which a partition is written down; "" for one that is drawn, and where
    the file is missing.
    """
    path = partition.written(experiment.partition)
    if path is None or not path.is_file():
        return ""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def new_record(experiment: Experiment, task: Task) -> Record:
    """An empty record of an experiment on this machine."""
    return Record(
        experiment=experiment,
        settings=attrs.asdict(experiment.new_algorithm().settings),
        fingerprint=task.dataset.fingerprint,
        environment=task.runtime.describe(),
        code=code_version(experiment.algorithm),
        split=split_fingerprint(experiment),
    )


def book_files(pattern: str = "*.json") -> list[Path]:
    """The files of the book's records: runs of no table are none of it until they are imported."""
    return sorted(path for path in RESULTS.glob(f"*/{pattern}") if path.parent.name != ADHOC)


class Records(Mapping[str, Record]):
    """The complete records among some files, by experiment id.

    A file is read when its record is asked for: who shows one table does not wait for the records of
    all others, and a damaged one, for which `Record.load` raises InputError, stops only those who need
    it. What was read once stays as it was.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = {path.stem: path for path in paths}
        self._found: dict[str, Record | None] = {}

    def __getitem__(self, name: str) -> Record:
        if name not in self._found and name in self._paths:
            record = _unchanged(self._paths[name])
            self._found[name] = record if record.status == "complete" else None
        if (found := self._found.get(name)) is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._paths if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def readable(self) -> list[Record]:
        """Those that are not damaged, for who can do without one."""
        found = []
        for name in self._paths:
            with contextlib.suppress(InputError, KeyError):
                found.append(self[name])
        return found


def records(root: Path | None = None) -> Records:
    """All complete records below a folder, by experiment id; by default those of the book.

    A file is read again only when it has changed: do not change what is returned. Reading one raises
    InputError as `Record.load` does, and where it is not called by its record's id.
    """
    return Records(book_files() if root is None else sorted(root.glob("*/*.json")))


#: files that were read, as they were then
_READ: dict[Path, tuple[tuple[int, ...], Record]] = {}


def _unchanged(path: Path) -> Record:
    """A record as `Record.load` gives it; its file is read again only when it has changed. Raises
    InputError for a file of another name than its experiment's, too.
    """
    stamp = _stamp(path)
    if path not in _READ or _READ[path][0] != stamp:
        record = Record.load(path)
        if record.experiment.id != path.stem:
            raise InputError(f"the record {path} must be called {record.experiment.id}.json")
        _READ[path] = stamp, record
    return _READ[path][1]


def _stamp(path: Path) -> tuple[int, ...]:
    """What changes whenever a file is replaced or written."""
    with contextlib.suppress(OSError):  # reading it says what is wrong
        found = path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    return ()
