"""Records of runs: small JSON files that tables and figures are computed from."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
from pydantic_core import from_json

from core import data
from core.checks import shown_briefly
from core.data import partition
from core.data.auxiliary import FRAMED_DIGITS, PHOTOGRAPHS
from core.errors import InputError, brief
from core.federation import Algorithm, RoundResult, Task
from core.files import path_of, read_bounded, write_json
from lab import schema
from lab.experiment import Experiment
from lab.source import REPOSITORY, code_version

#: whether this is the package alone, without the book and its records
INSTALLED = not (REPOSITORY / "_toc.yml").is_file()
#: where records are kept: `<paper>/<experiment id>.json`
RESULTS = Path("results") if INSTALLED else REPOSITORY / "book" / "results"
#: the folder, beside those of papers, for runs that no table asks for
ADHOC = "adhoc"
#: bytes of the largest record that is read
LARGEST = 2**24
#: what to do with one that cannot be read
MEND = "delete it and measure the run again, or bring it back with git checkout"


@attrs.define(field_transformer=shown_briefly)
class Record:
    """One measured run.

    `rounds` holds a row per round: `round` (from 1), `metrics` (empty where the round was not
    tested), `up` and `down` (bytes over all clients) and `seconds` by phase. `metrics` are those of
    the last round on the test set, as fractions. `bytes` are the run's totals by direction and kind
    of content. `status` is "running", "complete" or "failed".
    """

    experiment: Experiment
    settings: dict[str, Any]
    #: SHA-256 of the data set
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
    #: SHA-256 of what the run reads beside the data set, by name; a record may be older than this
    inputs: dict[str, str] = attrs.field(factory=dict)

    @property
    def fingerprints(self) -> dict[str, str]:
        """SHA-256 of all that the run reads, by name: the data set, an auxiliary set, a split file."""
        return {self.experiment.dataset: self.fingerprint, **self.inputs}

    def add(self, result: RoundResult) -> None:
        """Enter the next round. InputError, with nothing entered, for one that no record can hold."""
        rounds, metrics = [*self.rounds, result.row()], dict(result.metrics)
        totals = {"up": result.ledger.total("up"), "down": result.ledger.total("down")}
        attrs.evolve(self, rounds=rounds, metrics=metrics, bytes=totals).check()
        self.rounds, self.metrics, self.bytes = rounds, metrics, totals

    def check(self) -> None:
        """Raise InputError, naming the field, for a record that no run can have written."""
        schema.check(self._fields(), self.experiment, self.experiment.partition)

    def _fields(self) -> dict[str, Any]:
        fields = attrs.asdict(self, recurse=False)
        del fields["experiment"]
        return fields

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
        """Write the record atomically. FileError if it cannot be; InputError for what `load` refuses."""
        self.check()
        experiment = {"id": self.experiment.id, "experiment": self.experiment.to_dict()}
        write_json(path, experiment | self._fields())

    @classmethod
    def load(cls, path: Path, advice: str = MEND) -> Record:
        """Read a record. Raises InputError, naming the file and ending with the advice, for one that
        is damaged, was changed or cannot come from a run.
        """
        try:
            data = from_json(read_bounded(path, LARGEST, "record"), allow_inf_nan=False)
        except InputError as error:
            raise InputError(f"{error}; {advice}") from None
        except ValueError as error:
            raise InputError(f"the record {path} is damaged: {error}; {advice}") from None
        if not (isinstance(data, dict) and isinstance(data.get("experiment"), dict)):
            raise InputError(f"{path} is no record of a run; {advice}")
        experiment = data.pop("experiment")
        if split := data.pop("split", ""):  # as the only input beside the data set was called
            data["inputs"] = {str(experiment.get("partition", {}).get("file")): split}
        known = {"id"} | set(attrs.fields_dict(cls)), set(attrs.fields_dict(Experiment))
        if later := sorted((set(data) - known[0]) | (set(experiment) - known[1])):
            raise InputError(
                f"the record {path} has what this version of the package does not know "
                f"({', '.join(map(brief, later))}): it was written by a newer one; update this one"
            )
        try:
            name = data.pop("id")
            record = cls(experiment=Experiment.from_dict(experiment), **data)
            record.check()
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"the record {path} is damaged: {error}; {advice}") from None
        if name != record.experiment.id:
            raise InputError(
                f"the record {path} says it is {brief(name)}, but its experiment is "
                f"{record.experiment.id}"
            )
        return record


def numerics(environment: Mapping[str, Any]) -> dict[str, str]:
    """Return what of an environment decides a run's last digits; on a CPU also what orders sums."""
    sums = ("cpu", "kernels", "threads") if environment.get("device") == "cpu" else ()
    return {name: str(environment.get(name)) for name in ("torch", "device", "precision", *sums)}


def split_digest(experiment: Experiment) -> str | None:
    """SHA-256 of a partition's file; None where it is drawn or there is no such file."""
    file = partition.written(experiment.partition)
    return hashlib.sha256(file.read_bytes()).hexdigest() if file and file.is_file() else None


def inputs(experiment: Experiment, algorithm: Algorithm) -> dict[str, str]:
    """SHA-256 of what a run reads beside its data set, by name: the auxiliary set of its algorithm, and
    the file in which its partition is written down. What the program makes has none.
    """
    digests, split = {}, split_digest(experiment)
    if split is not None:
        digests[str(experiment.partition["file"])] = split
    auxiliary = getattr(algorithm.settings, "auxiliary", PHOTOGRAPHS)
    if auxiliary not in (PHOTOGRAPHS, FRAMED_DIGITS):
        digests[auxiliary] = data.load(auxiliary).fingerprint
    return digests


def new_record(experiment: Experiment, task: Task, algorithm: Algorithm | None = None) -> Record:
    """An empty record of an experiment here, with the experiment's settings unless others run."""
    algorithm = algorithm or experiment.new_algorithm()
    return Record(
        experiment=experiment,
        settings=attrs.asdict(algorithm.settings),
        fingerprint=task.dataset.fingerprint,
        environment=task.runtime.describe(),
        code=code_version(experiment.algorithm),
        inputs=inputs(experiment, algorithm),
    )


def book_files(pattern: str = "*.json") -> list[Path]:
    """The files of the book's records: runs of no table are none of it until they are imported."""
    return sorted(path for path in RESULTS.glob(f"*/{pattern}") if path.parent.name != ADHOC)


def find(known: Mapping[str, Record], experiment: Experiment) -> Record | None:
    """The record of an experiment among some by id, if there is one; see `Experiment.ids`."""
    return next((known[name] for name in experiment.ids if name in known), None)


class Records(Mapping[str, Record]):
    """The complete records among some files, by experiment id; a file is read when its record is asked for,
    so that a damaged one, an InputError of `Record.load`, stops only those who need it.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = {path.stem: path for path in paths}
        self._cache: dict[str, Record | None] = {}

    def __getitem__(self, name: str) -> Record:
        if name not in self._cache and name in self._paths:
            path = self._paths[name]
            stamp = path.stat() if path.is_file() else None  # reading it says what is wrong
            record = _read(path, stamp and (stamp.st_ino, stamp.st_size, stamp.st_mtime_ns))
            self._cache[name] = record if record.status == "complete" else None
        if (complete := self._cache.get(name)) is None:
            raise KeyError(name)
        return complete

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._paths if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def readable(self) -> list[Record]:
        """Records that are not damaged, for who can do without one."""
        intact = []
        for name in self._paths:
            with contextlib.suppress(InputError, KeyError):
                intact.append(self[name])
        return intact


def records(root: str | Path | None = None) -> Records:
    """All complete records by experiment id below a folder, by default the book's, shared: do not change
    them. InputError as `Record.load`, and where a file is not called by its id.
    """
    folder = path_of(root)
    return Records(book_files() if folder is None else sorted(folder.glob("*/*.json")))


@functools.lru_cache(maxsize=2**15)
def _read(path: Path, _stamp: object) -> Record:
    """A record as `Record.load` gives it; its file is read again only when it has changed."""
    record = Record.load(path)
    if record.experiment.id != path.stem:
        raise InputError(f"the record {path} must be called {record.experiment.id}.json")
    return record
