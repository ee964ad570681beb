"""Records that no run can have written are neither read nor imported; a true result is never
replaced.
"""

import copy
import json
import os
from pathlib import Path

import pytest

from core.errors import InputError
from core.federation import Runtime
from lab import Experiment, Record, importing, queue, record
from lab.record import LARGEST

TINY = Experiment(
    algorithm="fedavg",
    dataset="digits",
    clients=2,
    rounds=2,
    settings={"local_steps": 1},
    model_options={"width": 4},
    profile="quick",
)
NAME = f"{TINY.id}.json"


@pytest.fixture(scope="module")
def true(tmp_path_factory) -> dict:
    """What a run wrote."""
    folder = tmp_path_factory.mktemp("true")
    _, path, _ = queue.measure(TINY, "fedvck", out=folder, runtime=Runtime())
    return json.loads(path.read_text())


@pytest.fixture
def results(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "results"
    monkeypatch.setattr(record, "RESULTS", folder)
    monkeypatch.setattr(queue, "RESULTS", folder)
    monkeypatch.setattr(importing, "RESULTS", folder)
    return folder


def put(folder: Path, text: str, name: str = NAME, paper: str = "fedvck") -> Path:
    path = folder / paper / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def everywhere(data: dict, name: str, value) -> None:
    """Set a metric in the last round and in the record."""
    data["metrics"][name] = data["rounds"][-1]["metrics"][name] = value


def at(*keys, to):
    def change(data):
        for key in keys[:-1]:
            data = data[key]
        data[keys[-1]] = to

    return change


def share(value):
    return lambda data: everywhere(data, "accuracy", value)


def nested(levels: int) -> list:
    return [nested(levels - 1)] if levels else []


SCRIPT = "<script>alert(1)</script>"
IMPOSSIBLE = {
    "accuracy NaN": share(float("nan")),
    "accuracy infinite": share(float("inf")),
    "accuracy 97": share(97),
    "accuracy 1.0001": share(1.0001),
    "accuracy negative": share(-1),
    "accuracy a text": share("0.9"),
    "accuracy a script": share(SCRIPT),
    "accuracy true": share(True),
    "accuracy null": share(None),
    "accuracy a list": share([0.9]),
    "accuracy of 400 digits": share(10**400),
    "f1 above one": lambda data: everywhere(data, "f1_macro", 1.5),
    "auc below zero": lambda data: everywhere(data, "auc_macro", -0.1),
    "negative entropy": lambda data: everywhere(data, "cross_entropy", -1.0),
    "no accuracy": lambda data: [
        one.pop("accuracy") for one in (data["metrics"], data["rounds"][-1]["metrics"])
    ],
    "a metric with a script for a name": lambda data: everywhere(data, SCRIPT, 0.5),
    "a better metric than the last round": at("metrics", "accuracy", to=0.999),
    "a metric that the last round lacks": at("metrics", "extra", to=0.5),
    "metrics no mapping": at("metrics", to=[0.5]),
    "no rounds": at("rounds", to=[]),
    "a round too few": lambda data: data["rounds"].pop(0),
    "a round too many": lambda data: data["rounds"].append(
        data["rounds"][-1] | {"round": 3, "up": 0, "down": 0}
    ),
    "rounds out of order": lambda data: data["rounds"].reverse(),
    "rounds no list": at("rounds", to={}),
    "a round no mapping": at("rounds", 0, to=3),
    "a round with a further entry": at("rounds", 0, "note", to="x"),
    "a round without bytes": lambda data: data["rounds"][0].pop("up"),
    "an untested round": at("rounds", 0, "metrics", to={}),
    "round zero": at("rounds", 0, "round", to=0),
    "round a text": at("rounds", 0, "round", to="1"),
    "bytes negative": at("rounds", 0, "up", to=-1),
    "bytes a float": at("rounds", 0, "up", to=1.5),
    "bytes of 2^63": at("rounds", 0, "down", to=2**63),
    "seconds negative": at("rounds", 0, "seconds", "clients", to=-1.0),
    "seconds infinite": at("rounds", 0, "seconds", "clients", to=float("inf")),
    "seconds no mapping": at("rounds", 0, "seconds", to=3.0),
    "totals unlike the rounds": at("bytes", "up", "parameters", to=1),
    "totals of one way only": lambda data: data["bytes"].pop("up"),
    "totals no mapping": at("bytes", to=[]),
    "totals negative": at("bytes", "up", "meta", to=-5),
    "another status": at("status", to="done"),
    "status null": at("status", to=None),
    "a fingerprint that is none": at("fingerprint", to="f"),
    "a fingerprint with a script": at("fingerprint", to=SCRIPT),
    "a code that is none": at("code", to="0" * 11),
    "code a number": at("code", to=12),
    "notes a text": at("notes", to=SCRIPT),
    "notes of numbers": at("notes", to=[3]),
    "a note of a million letters": at("notes", to=["x" * 10**6]),
    "a note of many lines": at("notes", to=["a\nb"]),
    "an environment of lists": at("environment", "device", to=["cpu"]),
    "environment null": at("environment", to=None),
    "threads a text": at("environment", "threads", to="2"),
    "no threads": at("environment", "threads", to=0),
    "settings that are nested deeply": at("experiment", "settings", to={"x": nested(700)}),
    "memory negative": at("peak_memory", to=-1),
    "memory a text": at("peak_memory", to="much"),
    "settings a list": at("settings", to=[]),
    "a setting unlike the experiment's": at("settings", "local_steps", to=50),
    "a setting unlike the default": at("settings", "lr", to=0.5),
    "an unknown setting": at("settings", "luck", to=1),
    "a stated setting left out": lambda data: data["settings"].pop("local_steps"),
    "another id": at("id", to="0" * 12),
    "id null": at("id", to=None),
    "id missing": lambda data: data.pop("id"),
    "an unknown field": at("colour", to="red"),
    "an experiment of more rounds": at("experiment", "rounds", to=3),
    "another seed": at("experiment", "seed", to=1),
    "an experiment with an unknown field": at("experiment", "luck", to=1),
    "no experiment": lambda data: data.pop("experiment"),
    "an experiment that is a list": at("experiment", to=[]),
    "a profile that is none": at("experiment", "profile", to="huge"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_record_that_no_run_wrote_is_refused(true, results, tmp_path, name):
    data = copy.deepcopy(true)
    IMPOSSIBLE[name](data)
    path = put(tmp_path / "from", json.dumps(data))
    with pytest.raises(InputError, match="record") as error:
        importing.import_records(tmp_path / "from")
    assert str(path) in str(error.value) and len(str(error.value)) < 300 + len(str(path))
    assert not results.exists()


UNKNOWN = {
    "algorithm": {"algorithm": "nosuch"},
    "algorithm with a path": {"algorithm": "../fedavg"},
    "algorithm a script": {"algorithm": SCRIPT},
    "model": {"model": "nosuch"},
    "model a script": {"model": SCRIPT},
    "data set a script": {"dataset": SCRIPT},
    "setting": {"settings": {"local_steps": 1, "luck": 3}},
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_sound_record_of_something_unknown_is_not_imported(true, results, tmp_path, name):
    """Its id is the hash of its experiment, so only the names give it away."""
    other = Experiment.from_dict(true["experiment"] | UNKNOWN[name])
    data = true | {"id": other.id, "experiment": other.to_dict()}
    put(tmp_path / "from", json.dumps(data), f"{other.id}.json")
    with pytest.raises(InputError, match="does not fit"):
        importing.import_records(tmp_path / "from")
    assert not results.exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "3",
        "null",
        '{"id": ',
        "[" * 100_000,
        '{"a":' * 100_000,
        "1" * 5000,
        '{"id": ' + "1" * 5000 + "}",
        '{"id": 1e999}',
        "\ufeff{}",
    ],
)
def test_texts_that_are_no_record(results, tmp_path, text):
    path = put(tmp_path / "from", text)
    with pytest.raises(InputError, match="record") as error:
        importing.import_records(tmp_path / "from")
    assert len(str(error.value)) < 200 + len(str(path))


def test_a_record_is_not_read_where_it_is_too_large(results, tmp_path):
    path = put(tmp_path / "from", "")
    with path.open("wb") as file:
        file.truncate(LARGEST + 1)
    with pytest.raises(InputError, match="too large"):
        Record.load(path)


@pytest.mark.parametrize("kind", ["folder", "pipe", "/dev/zero", "nothing", "loop", "bytes"])
def test_what_lies_in_the_place_of_a_record(results, tmp_path, kind):
    path = tmp_path / "from" / "fedvck" / NAME
    path.parent.mkdir(parents=True)
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "/dev/zero":
            path.symlink_to("/dev/zero")
        case "nothing":
            path.symlink_to("nowhere")
        case "loop":
            path.symlink_to(path)
        case "bytes":
            path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(InputError, match=NAME):
        importing.import_records(tmp_path / "from")


def test_a_true_record_is_never_replaced(true, results, tmp_path):
    """Not by a record of the same id in another folder, and not by one under another name."""
    kept = put(results, json.dumps(true))
    before = kept.read_bytes()
    better = copy.deepcopy(true)
    everywhere(better, "accuracy", 1.0)
    put(tmp_path / "from", json.dumps(better), paper="zzz")
    assert importing.import_records(tmp_path / "from") == importing.Imported(
        new=0, apart=0, known=1, unfinished=0
    )
    put(tmp_path / "from", json.dumps(better), "best.json")
    with pytest.raises(InputError, match=f"must be called {NAME}"):
        importing.import_records(tmp_path / "from")
    put(tmp_path / "strange", json.dumps(better), paper="<b>")
    with pytest.raises(InputError, match="named after a paper"):
        importing.import_records(tmp_path / "strange")
    assert list(results.rglob("*.json")) == [kept] and kept.read_bytes() == before


def test_what_a_run_wrote_is_imported(true, results, tmp_path):
    put(tmp_path / "from", json.dumps(true))
    assert importing.import_records(tmp_path / "from") == importing.Imported(
        new=1, apart=1, known=0, unfinished=0
    )
    assert json.loads((results / "fedvck" / NAME).read_text()) == true


def test_a_setting_that_came_later_may_be_missing(true, results, tmp_path):
    older = copy.deepcopy(true)
    del older["settings"]["weight_decay"]
    put(tmp_path / "from", json.dumps(older))
    assert importing.import_records(tmp_path / "from").new == 1


def test_the_books_records_pass():
    """Those that are there, all of them, and their settings are still what their experiments say."""
    known = record.records()
    assert len(known) >= 892
    for one in known.values():
        record.schema.check_settings(one)
