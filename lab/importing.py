"""The way of records from one machine to the book of another."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import yaml

from core import models
from core.errors import InputError, brief, unknown
from core.files import path_of
from lab.experiment import Experiment
from lab.record import ADHOC, RESULTS, Record, records
from lab.table import TableSpec

#: settings that a method has no more, by the only value that records have of them
GONE: dict[str, dict[str, Any]] = yaml.safe_load("""{
dc: {network_lr: 0.01}, dsa: {network_lr: 0.01}, feddf: {kept_apart: 0.1}, feddm: {stop_factor: null},
fedgan: {warm_up: 1}, fedgen: {generated_steps: null, generator_weight_decay: 0.01},
fediod: {gan_last_lr: 0.0}, fedvck: {stop_factor: null}, flmrcm: {identifier_width: 16},
}""")


@attrs.frozen
class Imported:
    """Counts of an import's records. `of_no_table` are those of the new that no table asks for."""

    new: int
    of_no_table: int
    known: int
    unfinished: int


def import_records(folder: str | Path, root: Path | None = None) -> Imported:
    """Copy complete records from a folder that `run --out` filled into the book's. Records already
    there are kept. One that was not run as a cell of a table goes to the paper in whose table it
    stands, if there is one.

    Raises InputError when the folder holds no record, or one of them is damaged, cannot come from a
    run, belongs to an algorithm that is not here, was measured on other data than the book's, or has
    another name than its experiment; nothing is copied then.
    """
    given = [(path, _checked(path)) for path in _below(folder)]
    book = records(root)
    _of_the_same_data(given, book)
    complete = [(path, record) for path, record in given if record.status == "complete"]
    strange = [(path, record) for path, record in complete if record.experiment.id not in book]
    papers = _papers([record.experiment for _, record in strange])
    fresh = dict[str, tuple[Path, Record]]()
    for path, record in strange:
        paper, name = path.parent.name, record.experiment.id
        paper = papers.get(name, ADHOC) if paper == ADHOC else paper
        home = (root or RESULTS) / paper / path.name
        if not (home.exists() and Record.load(home).status == "complete"):
            fresh[name] = home, record
    for home, record in fresh.values():
        record.save(home)
    return Imported(
        new=len(fresh),
        of_no_table=len(fresh.keys() - papers.keys()),
        known=len(complete) - len(fresh),
        unfinished=len(given) - len(complete),
    )


def beside_the_book(folder: str | Path) -> dict[str, Record]:
    """The book's records by id, and a folder's complete ones that it lacks. InputError as `records_below`,
    and for one measured on other data than the book's.
    """
    book = records()
    given = [(path, Record.load(path)) for path in _below(folder)]
    _of_the_same_data(given, book)
    own = {r.experiment.id: r for _, r in given if r.status == "complete"}
    return {**own, **book}


def _of_the_same_data(given: Sequence[tuple[Path, Record]], book: Mapping[str, Record]) -> None:
    """Raise InputError for a record that was measured on a data set, or a file of a split, which is
    another one under this name in the book's records: their means would be of two things.
    """
    known = dict[str, str]()
    for record in book.values():
        known |= record.fingerprints
    for path, record in given:
        for name, digest in record.fingerprints.items():
            if known.setdefault(name, digest) != digest:
                raise InputError(
                    f"the record {path} was measured on other data than other records have under the "
                    f"name {name}, the book's or those beside it (another order or version of it): it "
                    "stays apart"
                )


def records_below(folder: str | Path) -> list[Record]:
    """All records in a folder that `run --out` filled, or in one called `adhoc` in it, those of
    unfinished runs too. Raises InputError when there is none, or one of them is damaged.
    """
    return [Record.load(path) for path in _below(folder)]


def _below(given: str | Path) -> list[Path]:
    folder = path_of(given) or Path()
    paths = sorted(folder.glob("*.json" if folder.name == ADHOC else "*/*.json"))
    if not paths:
        raise InputError(
            f"there are no records below {folder}; give the folder that was given to run as --out: "
            "records lie in OUT/PAPER/ID.json"
        )
    return paths


def _papers(runs: Sequence[Experiment]) -> dict[str, str]:
    """Map ids to the paper in whose table runs of these settings are. The others are not there."""
    names = {name: run.id for run in runs for name in run.ids}
    profiles = {run.profile for run in runs}
    cells = (cell for spec in TableSpec.all() for name in profiles for cell in spec.cells(name))
    asked = ((run.id, cell.paper) for cell in cells for run in cell.experiments)
    return {names[name]: paper for name, paper in asked if name in names}


def _checked(path: Path) -> Record:
    """A record that comes from elsewhere."""
    record = Record.load(path, "import takes the folder that was given to run as --out")
    try:
        check_settings(record)
    except InputError as error:
        raise InputError(f"the record {path} does not fit this code: {error}") from None
    if path.stem != record.experiment.id:
        raise InputError(f"the record {path} must be called {record.experiment.id}.json")
    if not re.fullmatch("[a-z0-9_]{1,40}", path.parent.name):
        raise InputError(f"the record {path} lies in a folder that is not named after a paper")
    return record


def settings_of(experiment: Experiment) -> dict[str, Any]:
    """All settings of an experiment's algorithm as a record has them, and those that are `GONE`."""
    settings = json.loads(json.dumps(attrs.asdict(experiment.new_algorithm().settings)))
    return GONE.get(experiment.algorithm, {}) | settings


def check_settings(record: Record) -> None:
    """Raise InputError where the algorithm or network is unknown, or the record's settings are not its
    experiment's: a later one may be missing, and a `GONE` one there.
    """
    experiment = record.experiment
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", experiment.dataset):
        raise InputError(f"dataset must be a name, not {brief(experiment.dataset)}")
    if experiment.model not in models.every_name():
        raise unknown("model", experiment.model, models.every_name())
    asked = settings_of(experiment)
    for name in (*record.settings, *experiment.settings):
        if name not in asked:
            raise unknown(f"setting of {experiment.algorithm}", name, asked)
        value = record.settings.get(name)
        if name not in record.settings or value != asked[name]:
            raise InputError(
                f"setting {name} must be {brief(asked[name])}, as its experiment says, not "
                f"{brief(value)}"
            )
