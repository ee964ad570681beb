"""Running an experiment to its record."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from core import algorithms, data, federation
from core.checks import check_kind
from core.errors import InputError, brief, one_line
from core.federation import Algorithm, Client, RoundResult, Runtime, Task
from core.files import FileError, path_of
from core.privacy.membership import LikelihoodRatio
from core.progress import listening
from core.rng import Rng
from lab.attack import OutOfTime, attack, check_can_be_attacked
from lab.bar import Bar
from lab.experiment import Experiment
from lab.record import Record, inputs, new_record, numerics
from lab.source import check_code, code_version

AnyPath = str | os.PathLike[str]


def make_task(experiment: Experiment, runtime: Runtime | None = None) -> Task:
    """Load the data and fix the model of an experiment. Raises InputError where there are no such
    data, and where they test a class that they do not teach.
    """
    dataset = data.load(experiment.dataset)
    task = task_on(dataset, experiment, runtime or Runtime.choose())
    if task.kind == "classification":
        tested, taught = (set(split.labels.tolist()) for split in (dataset.test, dataset.train))
        if extra := sorted(tested - taught):
            raise InputError(
                f"the test set of {dataset.name} has class {dataset.classes[extra[0]]}, of which its "
                "training set has no image; do the labels of both begin at the same number?"
            )
    return task


def task_on(dataset: data.Dataset, experiment: Experiment, runtime: Runtime) -> Task:
    """The task of an experiment on data at hand, with a validation split where asked for."""
    if experiment.evaluate_on == "val":
        dataset = data.with_validation(dataset, Rng(0).at("validation"))
    parties = dataset.sites if experiment.partition.get("name") == "natural" else ()
    return federation.task_of(dataset, experiment.model, experiment.model_options, runtime, parties)


def make_clients(experiment: Experiment, task: Task) -> list[Client]:
    """The clients of an experiment, with the training data distributed over them."""
    e = experiment
    return federation.distribute(task, e.partition, e.clients, e.seed, e.train_fraction)


def rounds(
    experiment: Experiment,
    *,
    task: Task | None = None,
    clients: Sequence[Client] | None = None,
    algorithm: Algorithm | None = None,
    checkpoint: AnyPath | None = None,
    deadline: float | None = None,
) -> Iterator[RoundResult]:
    """Run an experiment round by round; see `core.federation.rounds`. Where it states an attack, the
    last result holds what the attack found; it does not come where the attack was not done by the
    `deadline`, a `time.monotonic()` value.

    `task`, `clients` and `algorithm` may be given to look at them or to change them; by default
    they are made here. Raises FileError where the package has changed since this process began.
    """
    check_code()
    check_kind("experiment", experiment, Experiment)
    task = task or make_task(experiment)
    algorithm = algorithm or experiment.new_algorithm()
    if experiment.attack:
        check_can_be_attacked(task, algorithm)
    federation.check_serves(algorithm, task)
    clients = make_clients(experiment, task) if clients is None else clients
    key, seed, saved = _key(experiment, task, algorithm), experiment.seed, path_of(checkpoint)
    for result in federation.rounds(algorithm, task, clients, seed, checkpoint=saved, key=key):
        if not experiment.attack or result.round < experiment.rounds:
            yield result
            continue
        how, file = LikelihoodRatio(**experiment.attack), saved and _of_attack(saved)
        slot: dict[str, Any] = {"key": json.dumps(key), "in_time": _in_time(deadline)}
        try:
            outcome = attack(algorithm, task, clients, seed, how, file=file, **slot)
        except OutOfTime:
            return
        seconds = result.seconds | {"attack": outcome.seconds}
        yield attrs.evolve(result, metrics=result.metrics | outcome.metrics(), seconds=seconds)


def _of_attack(checkpoint: Path) -> Path:
    """The file beside a checkpoint from which an attack that was cut goes on."""
    return checkpoint.with_suffix(".attack.safetensors")


def clean_up(checkpoint: Path) -> None:
    """Remove what a run resumes from, once its record is complete."""
    for path in (checkpoint, _of_attack(checkpoint)):
        path.unlink(missing_ok=True)


def _key(experiment: Experiment, task: Task, algorithm: Algorithm) -> dict[str, str]:
    """Key of a checkpoint: all that must be the same when a run goes on."""
    return {
        "experiment": experiment.id,
        "settings": json.dumps(attrs.asdict(algorithm.settings), default=repr),
        "data": task.dataset.fingerprint,
        **{f"input {name}": digest for name, digest in inputs(experiment, algorithm).items()},
        "code": code_version(experiment.algorithm),
        **numerics(task.runtime.describe()),
    }


def run(
    experiment: Experiment,
    *,
    runtime: Runtime | None = None,
    task: Task | None = None,
    clients: Sequence[Client] | None = None,
    algorithm: Algorithm | None = None,
    record: AnyPath | None = None,
    checkpoint: AnyPath | None = None,
    progress: bool = False,
    deadline: float | None = None,
    notes: list[str] | None = None,
) -> Record:
    """Run an experiment and return its `Record`.

    Args:
        task, clients, algorithm: as in `rounds`; `runtime` is that of a task that is made here. The
            record has the settings of the algorithm that ran.
        record: the file that keeps the record; it is written after every round, atomically.
        checkpoint: the file to resume from; it is removed when the run is complete.
        progress: show a bar with round, accuracy, traffic and time left.
        deadline: a `time.monotonic()` value; the run stops cleanly before a round, or a shadow run
            of an attack, that would probably end later, and its record keeps the status "running".
        notes: those of the record; lines that come while it runs are saved with the next round.

    Raises InputError for bad input and for a run that diverges; whatever ends a run, its record
    then has the status "failed" and says why. Raises FileError, and leaves the record as it was,
    where a file cannot be written, the package has changed since this process began, or the
    checkpoint was computed with other code, in another precision or on another kind of machine.
    """
    check_kind("experiment", experiment, Experiment)
    path, saved = path_of(record), path_of(checkpoint)
    task = task or make_task(experiment, runtime)
    algorithm = algorithm or experiment.new_algorithm()
    # a method for other data and a partition that cannot be made are mistakes, and leave no record
    federation.check_serves(algorithm, task)
    own = {"model": task.model, **attrs.asdict(algorithm.settings, recurse=False)}
    own = {name: value for name, value in own.items() if callable(value)}
    if not algorithm.remote and type(algorithm) is not algorithms.find(experiment.algorithm):
        own["algorithm"] = type(algorithm)
    for name, value in own.items():
        raise InputError(
            f"a record names its {name}: give {brief(value)} a name by `register` (see How to run), "
            "and that name to the experiment"
        )
    clients = make_clients(experiment, task) if clients is None else clients
    measured = new_record(experiment, task, algorithm)
    measured.notes = measured.notes if notes is None else notes
    task.runtime.forget_peak_memory()
    results = rounds(
        experiment,
        task=task,
        clients=clients,
        algorithm=algorithm,
        checkpoint=saved,
        deadline=deadline,
    )
    if _taken(results, measured, task.runtime, path, progress, deadline):
        measured.status = "complete"
        if path:
            measured.save(path)
        if saved:
            clean_up(saved)
    return measured


def _taken(
    results: Iterable[RoundResult],
    record: Record,
    runtime: Runtime,
    path: Path | None,
    progress: bool,
    deadline: float | None,
) -> bool:
    """Enter rounds into the record and its file as they come; whether there was time for all."""
    in_time, total = _in_time(deadline), record.experiment.rounds
    name = f"{record.experiment.algorithm}, seed {record.experiment.seed}"
    with Bar(name, total, progress) as bar, listening(bar.tell), _failure_recorded(record, path):
        in_time()  # from here on the first round is timed
        for result in results:
            record.add(result)
            if result.followed:
                bar.show(result)
                continue
            record.peak_memory = max(result.peak_memory, runtime.peak_memory())
            if path:
                record.save(path)
            bar.show(result)
            if not in_time():
                break
    return len(record.rounds) == total


@contextmanager
def _failure_recorded(record: Record, path: Path | None) -> Iterator[None]:
    """Enter into the record, and its file, what ends the block; but a file's error leaves it as it
    was: the run is sound and goes on when the file is.
    """
    try:
        yield
    except FileError:
        raise
    except Exception as error:
        record.status = "failed"
        record.notes.append(one_line(error, 2000))
        if path:
            record.save(path)
        raise


def _in_time(deadline: float | None) -> Callable[[], bool]:
    """Between rounds, or runs: whether one a fifth longer than the longest so far would end before the
    deadline. The first answer says only whether the deadline is ahead.
    """
    started = longest = 0.0

    def ask() -> bool:
        nonlocal started, longest
        now = time.monotonic()
        longest, started = max(longest, now - started if started else 0.0), now
        return not deadline or now + 1.2 * longest <= deadline

    return ask
