"""The form of a record, wherever it comes from: nothing is computed from one that no run can have written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from core.data import partition
from core.errors import InputError, brief
from core.federation import Schedule
from core.metrics import headline
from lab.forms import mistake

#: metrics whose names begin so are shares, from 0 to 1
SHARES = (
    *("accuracy", "balanced_accuracy", "precision_", "recall_", "f1_", "auc_"),
    *("dice", "obj_dice", "aji", "sensitivity", "specificity"),
)
#: the longest text in a record
TEXT = 2000
NAME = re.compile(r"\w[\w.:@/-]{0,99}")


def _printable(text: str) -> str:
    if not text.isprintable():
        raise InputError(f"must be printable, not {brief(text)}")
    return text


Name = Annotated[str, StringConstraints(pattern=f"^{NAME.pattern}$")]
Text = Annotated[str, StringConstraints(max_length=TEXT), AfterValidator(_printable)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=0, lt=2**63)]
Digest = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
Code = Annotated[str, StringConstraints(pattern="^[0-9a-f]{12}$")]


class Form(BaseModel):
    """A part of a record: these keys and no others."""

    model_config = ConfigDict(strict=True, extra="forbid")


class RoundForm(Form):
    """A row of `rounds`."""

    round: int
    metrics: dict[Name, Number]
    up: Bytes
    down: Bytes
    seconds: dict[Name, Annotated[Number, Field(ge=0)]]
    refused: dict[Name, Number | Text] | None = None


class RecordForm(Form):
    """A record without its experiment."""

    settings: dict[str, Any]
    fingerprint: Digest
    inputs: dict[Text, Digest]
    environment: dict[Name, Number | Text]
    code: Code
    status: Literal["running", "complete", "failed"]
    rounds: list[RoundForm]
    metrics: dict[Name, Number]
    bytes: dict[Literal["up", "down"], dict[Name, Bytes]]
    notes: list[Text]
    peak_memory: Bytes


def check(data: Mapping[str, Any], schedule: Schedule, stated: Mapping[str, Any]) -> None:
    """Raise InputError, naming the field, for a record that no run of this schedule and partition can
    have written. Whether the algorithm and its settings are known is for an import to say.
    """
    try:
        RecordForm.model_validate(data)
    except ValidationError as error:
        raise InputError(mistake(error, data, "")) from None
    partition.parse(stated)
    threads = data["environment"].get("threads", 1)
    _need(isinstance(threads, int) and threads >= 1, "threads", "a whole number from 1", threads)
    rounds = data["rounds"]
    for number, row in enumerate(rounds, 1):
        where, metrics = f"round {number}", row["metrics"]
        _need(row["round"] == number, where, "numbered in order", row["round"])
        tested = not schedule.tests(number) or headline(metrics) is not None
        _need(tested, where, "tested", metrics)
        for name, value in metrics.items():
            if name.startswith(SHARES):
                _need(0 <= value <= 1, f"{where}, {name}", "a share from 0 to 1", value)
        loss = metrics.get("cross_entropy", 0)
        _need(loss >= 0, f"{where}, cross_entropy", "positive", loss)
    done, wanted = len(rounds), schedule.rounds
    right = done == wanted if data["status"] == "complete" else done <= wanted
    _need(right, "rounds", f"{wanted}, as its experiment has", done)
    last = rounds[-1]["metrics"] if rounds else {}
    _need(data["metrics"] == last, "metrics", "those of its last round", data["metrics"])
    totals = {way: sum(kinds.values()) for way, kinds in data["bytes"].items()}
    sent = {way: sum(row[way] for row in rounds) for way in ("up", "down")}
    _need(totals == (sent if rounds else {}), "bytes", f"those of its rounds, {sent}", totals)


def _need(fine: bool, name: str, wanted: str, given: Any) -> None:
    if not fine:
        raise InputError(f"{name} must be {wanted}, not {brief(given)}")
