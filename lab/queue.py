"""The queue of runs that the tables still need."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import attrs

from core import data
from core.data.partition import written
from core.errors import InputError, no_such
from core.federation import Runtime
from core.files import alone, path_of
from lab.experiment import PROFILES, Experiment
from lab.forms import TABLES
from lab.record import (
    ADHOC,
    INSTALLED,
    REPOSITORY,
    RESULTS,
    Record,
    book_files,
    find,
    numerics,
    records,
    split_digest,
)
from lab.running import clean_up, run
from lab.source import code_version
from lab.table import Cell, TableSpec, same_name


@attrs.frozen
class Pending:
    """A run that a table waits for."""

    experiment: Experiment
    paper: str
    #: the addresses of the cells that it fills, as `--cell` takes them
    cells: tuple[str, ...]
    priority: int
    #: why it cannot run here, if so
    missing: str | None = None


def pending(profile: str, root: Path | None = None, only: str | None = None) -> list[Pending]:
    """Runs without a complete record, most urgent first: those that can run here, by seed, then by the
    priority of their table.

    Args:
        only: a paper, a table (fedvck/11), a cell or an algorithm: the runs of this alone.

    Left out are cells that cannot be tested here, runs that would stop before the rounds of their
    heading, and those of which another profile has the very same run on record; also tables that do
    not say that they are run at this profile, unless `only` names the table or a cell of it. A run
    that fills several cells stands once. Raises InputError where `only` names nothing.
    """
    done, present = records(root), data.present_names()
    elsewhere = {  # ids of complete runs, whatever their profile
        name
        for record in done.readable()
        for name in attrs.evolve(record.experiment, profile=PROFILES[0]).ids
    }
    by_id: dict[str, Pending] = {}
    for cell in _wanted(profile, only):
        for asked in cell.experiments:
            if (before := by_id.get(asked.id)) is None:
                if find(done, asked) or attrs.evolve(asked, profile=PROFILES[0]).id in elsewhere:
                    continue
                before = Pending(asked, cell.paper, (), cell.priority, _missing(asked, present))
            by_id[asked.id] = attrs.evolve(before, cells=(*before.cells, cell.address))

    def urgency(item: Pending) -> tuple[bool, int, int, str]:
        away = item.missing is not None
        return away, item.experiment.seed, item.priority, item.experiment.id

    return sorted(by_id.values(), key=urgency)


def _wanted(profile: str, only: str | None) -> Iterator[Cell]:
    """Cells of all tables, or of `only`, that can be run."""
    named = only is None
    part = (only or "").strip("/").casefold()
    papers = {path.parent.name for path in TABLES.glob("*/*.yaml")}
    paper = part.partition("/")[0]
    # where one paper is named, what is wrong with another's tables stops nothing
    for spec in TableSpec.all(paper=paper if paper in papers else "*"):
        if "/" in part and not f"{part}/".startswith(f"{spec.paper}/{spec.table}/".casefold()):
            continue  # a table or a cell is named, and it is none of this table
        cells = [cell for cell in spec.cells(profile) if only is None or _named(cell, only)]
        named = named or bool(cells)
        if profile in spec.run_at or "/" in part:
            yield from (cell for cell in cells if not cell.not_testable and not cell.cut)
    if not named:
        raise InputError(
            f"{only!r} is no paper, table, cell or algorithm of the tables; `fedcon table` "
            "lists them"
        )


def _named(cell: Cell, only: str) -> bool:
    """Return whether a cell is the one named, or of the paper, table or algorithm."""
    above = itertools.accumulate(cell.address.split("/"), "{}/{}".format)
    algorithm = cell.experiments[0].algorithm
    return any(same_name(only, name) for name in above) or only.strip("/").casefold() == algorithm


def _missing(experiment: Experiment, present: Collection[str]) -> str | None:
    """Reason why an experiment cannot begin on these data, with the nearest known name; None if it can."""
    name, file = experiment.dataset, written(experiment.partition)
    if name in present:
        return None if file is None or file.is_file() else f"the split file {file} is not here"
    try:
        if not data.is_own(name):
            return f"the data set {name} is not here"
    except InputError as error:
        return str(error)
    return no_such("data set", name, sorted(info.name for info in data.available()))


def places(experiment: Experiment, paper: str, out: Path | None = None) -> tuple[Path, Path]:
    """Files of an experiment's record and checkpoint; those of other runs stand apart."""
    below = out or RESULTS
    clone = out is None and not INSTALLED
    saved = REPOSITORY / ".checkpoints" if clone else below / "checkpoints"
    saved = saved / ADHOC if paper == ADHOC else saved
    return below / paper / f"{experiment.id}.json", saved / f"{experiment.id}.safetensors"


def measure(
    experiment: Experiment,
    paper: str,
    *,
    out: str | Path | None = None,
    runtime: Runtime | None = None,
    progress: bool = False,
    deadline: float | None = None,
    stale: Callable[[Record], bool] = lambda record: False,
) -> tuple[Record, Path, bool]:
    """Run an experiment unless its record is complete already, in the folder `out` or, without
    one, in the book.

    Args:
        stale: which record, complete or not, does not count: its checkpoint goes at once, and it goes
            when another is complete.

    Returns the record, its file and whether anything was computed. An interrupted run resumes from
    its checkpoint. Raises FileError while another process runs the same experiment, and InputError
    where a record is complete but the user's own data set or split file has changed since, and where
    its file holds another run.
    """
    out = path_of(out)
    path, checkpoint = places(experiment, paper, out)
    apart = out is not None or paper == ADHOC
    files = [path, *(() if apart else book_files(f"{experiment.id}.json"))]
    if (known := _complete(experiment, files, checkpoint)) and not stale(known[0]):
        _same_input(*known)
        return *known, False
    lock, old = checkpoint.with_suffix(".lock"), path.with_name(f"{path.name}.old")
    with alone(lock, f"the run {experiment.id}"):
        if path.exists() and stale(Record.load(path)):
            path.replace(old)
            clean_up(checkpoint)
        # the process that held the lock may have finished it
        if known := _complete(experiment, files, checkpoint):
            _same_input(*known)
            return *known, False
        record = run(
            experiment,
            runtime=runtime,
            record=path,
            checkpoint=checkpoint,
            progress=progress,
            deadline=deadline,
        )
        if record.status == "complete":
            old.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # who waits for it finds the record complete
                lock.unlink()
    return record, path, True


def measure_anew(
    experiment: Experiment, paper: str, out: Path, runtime: Runtime
) -> tuple[Record, Path, bool]:
    """Run an experiment in a scratch folder, whatever the book has of it, as `measure`. What lies there
    counts where the same code computed it in the same way.
    """
    wanted = code_version(experiment.algorithm), numerics(runtime.describe())

    def stale(record: Record) -> bool:
        return (record.code, numerics(record.environment)) != wanted

    return measure(experiment, paper, out=out, runtime=runtime, progress=True, stale=stale)


def _complete(
    experiment: Experiment, files: Sequence[Path], checkpoint: Path
) -> tuple[Record, Path] | None:
    """The first file with a complete record of an experiment, whose old checkpoint is removed."""
    for known in files:
        if not known.exists():
            continue
        record = Record.load(known)
        if record.experiment.id != experiment.id:
            raise InputError(
                f"{known} holds another run, {record.experiment.id}; move it out of the way"
            )
        if record.status == "complete":
            clean_up(checkpoint)
            return record, known
    return None


def _same_input(record: Record, path: Path) -> None:
    """Raise InputError where what a name stands for is no longer what the record was measured on: a
    split file, or a data set that is the user's own or was made here.
    """
    experiment, present = record.experiment, data.present_names()
    now = {
        name: data.load(name).fingerprint
        for name in record.fingerprints.keys() & present
        if data.is_made_here(name)
    }
    if (split := split_digest(experiment)) is not None:
        now[str(experiment.partition["file"])] = split
    for name, digest in now.items():
        if record.fingerprints.get(name, digest) != digest:
            raise InputError(
                f"{name} has changed since this run was measured; give another folder as --out, or "
                f"delete {path}"
            )


def failed_before(experiment: Experiment, paper: str, out: Path | None = None) -> bool:
    """Return whether the last try, with the same code, ended in an error: it would again."""
    path, _ = places(experiment, paper, out)
    code = code_version(experiment.algorithm)
    with contextlib.suppress(InputError):  # a damaged one is named when its turn comes
        record = Record.load(path) if path.exists() else None
        return record is not None and (record.status, record.code) == ("failed", code)
    return False


def in_shard(experiment: Experiment, shard: str) -> bool:
    """Return whether an experiment is in a part of the queue, "3/16" or such. InputError for other texts."""
    part, _, parts = shard.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise InputError(f"--shard is PART/PARTS, such as 3/16 with parts from 1, not {shard!r}")
    return int(experiment.id, 16) % int(parts) == int(part) - 1
