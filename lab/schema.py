"""What a record must be before anything is computed from it, wherever it comes from."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from core import models
from core.checks import is_number, is_whole
from core.data import partition
from core.errors import InputError, brief, unknown
from core.metrics import headline

if TYPE_CHECKING:
    from lab.record import Record

STATUSES = ("running", "complete", "failed")
#: metrics whose names begin so are shares, from 0 to 1
SHARES = (
    *("accuracy", "balanced_accuracy", "precision_", "recall_", "f1_", "auc_"),
    *("dice", "obj_dice", "aji", "sensitivity", "specificity"),
)
#: the longest text in a record
TEXT = 2000
ROW = {"round", "metrics", "up", "down", "seconds"}
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@/-]{0,99}")


def check(record: Record, since: int = 0) -> None:
    """Raise InputError, naming the field, for a record that no run can have written. Of its rounds
    those after the first `since` are looked at.

    Whether the algorithm and its settings are known is for `check_settings` to say.
    """
    _need(record.status in STATUSES, "status", f"one of {', '.join(STATUSES)}", record.status)
    _need(_is(record.fingerprint, "[0-9a-f]{64}"), "fingerprint", "a SHA-256", record.fingerprint)
    _need(_is(record.split, "([0-9a-f]{64})?"), "split", "a SHA-256 or nothing", record.split)
    _need(_is(record.code, "[0-9a-f]{12}"), "code", "a hash of 12 digits", record.code)
    _need(isinstance(record.settings, dict), "settings", "a mapping", record.settings)
    _mapping(record.environment, "environment", _plain)
    threads = record.environment.get("threads", 1)
    _need(is_whole(threads, 1), "environment, threads", "a whole number from 1", threads)
    _need(_is_bytes(record.peak_memory), "peak_memory", "a number of bytes", record.peak_memory)
    partition.stated(record.experiment.partition)
    notes = record.notes
    fine = isinstance(notes, list) and all(isinstance(one, str) and _plain(one) for one in notes)
    _need(fine, "notes", "a list of texts", notes)
    _rounds(record, since)
    if record.status == "complete":
        done, wanted = len(record.rounds), record.experiment.rounds
        _need(done == wanted, "rounds", f"{wanted}, as its experiment has", done)
    last = record.rounds[-1]["metrics"] if record.rounds else {}
    _need(record.metrics == last, "metrics", "those of its last round", record.metrics)
    _bytes(record)


def _rounds(record: Record, since: int) -> None:
    rounds, experiment = record.rounds, record.experiment
    _need(isinstance(rounds, list), "rounds", "a list", rounds)
    most = experiment.rounds
    _need(len(rounds) <= most, "rounds", f"at most {most}, as its experiment has", len(rounds))
    for number, row in enumerate(rounds[since:], since + 1):
        where = f"round {number}"
        _need(
            isinstance(row, dict) and set(row) - {"refused"} == ROW, where, "a row of a round", row
        )
        _need(row["round"] == number, where, "numbered in order", row["round"])
        _mapping(row["metrics"], f"{where}, metrics", is_number)
        tested = experiment.tests(number)
        _need(not tested or headline(row["metrics"]) is not None, where, "tested", row["metrics"])
        for name, value in row["metrics"].items():
            share = name.startswith(SHARES)
            fine = 0 <= value <= 1 if share else name != "cross_entropy" or value >= 0
            _need(fine, f"{where}, {name}", "a share from 0 to 1" if share else "positive", value)
        for way in ("up", "down"):
            _need(_is_bytes(row[way]), f"{where}, {way}", "a number of bytes", row[way])
        _mapping(row.get("refused", {}), f"{where}, refused", _plain)
        _mapping(row["seconds"], f"{where}, seconds", lambda one: is_number(one) and one >= 0)


def _bytes(record: Record) -> None:
    """The totals are those of the rounds."""
    if not record.rounds and not record.bytes:
        return
    _need(set(record.bytes) == {"up", "down"}, "bytes", "up and down", record.bytes)
    for way, kinds in record.bytes.items():
        _mapping(kinds, f"bytes {way}", _is_bytes)
        total = sum(row[way] for row in record.rounds)
        _need(sum(kinds.values()) == total, f"bytes {way}", f"{total}, as the rounds say", kinds)


def check_settings(record: Record) -> None:
    """Raise InputError where the algorithm or the network is not known here, or the record's
    settings are not those that its experiment asks for.

    A record may lack a setting that came later, if its experiment does not state it.
    """
    experiment = record.experiment
    _need(
        _is(experiment.dataset, r"[A-Za-z0-9_.-]{1,100}"), "dataset", "a name", experiment.dataset
    )
    if experiment.model not in models.every_name():
        raise unknown("model", experiment.model, models.every_name())
    asked = json.loads(json.dumps(attrs.asdict(experiment.new_algorithm().settings)))
    for name, value in record.settings.items():
        if name not in asked:
            raise unknown(f"setting of {experiment.algorithm}", name, asked)
        _need(value == asked[name], f"setting {name}", repr(asked[name]), value)
    for name in experiment.settings:
        _need(name in record.settings, f"setting {name}", "stated", record.settings)


def _need(fine: bool, name: str, wanted: str, given: Any) -> None:
    if not fine:
        raise InputError(f"{name} must be {wanted}, not {brief(given)}")


def _is(value: Any, pattern: str) -> bool:
    return isinstance(value, str) and re.fullmatch(pattern, value) is not None


def _is_bytes(value: Any) -> bool:
    return is_whole(value, 0, 2**63 - 1)


def _plain(value: Any) -> bool:
    return is_number(value) or (
        isinstance(value, str) and len(value) <= TEXT and value.isprintable()
    )


def _mapping(values: Any, where: str, fits: Callable[[Any], bool]) -> None:
    """A mapping of names to values that fit."""
    _need(isinstance(values, Mapping), where, "a mapping of names to values", values)
    for name, value in values.items():
        _need(NAME.fullmatch(name) is not None, where, "a mapping of plain names", name)
        _need(fits(value), f"{where}, {name}", "a plain value in its range", value)
