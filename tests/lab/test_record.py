"""Experiments and their records: what is written comes back, and what no run can have written is
neither read nor imported.
"""

import json
from types import SimpleNamespace

import attrs
import numpy as np
import pytest
import yaml

from core.checks import plain
from core.errors import InputError
from core.federation import Runtime, Task
from lab import Experiment, Record, importing, make_task, queue, record, records
from lab.importing import Imported, import_records
from lab.record import LARGEST
from lab.running import run
from tests.lab.small_runs import PLAIN, measured, put, small, written

# --- experiments


def test_an_id_stands_for_what_differs_from_the_defaults():
    one = Experiment.from_dict(PLAIN)
    same = [PLAIN | {"clients": 10, "settings": {}}, PLAIN | {"train_fraction": 1}]
    assert {one.id} == {Experiment.from_dict(fields).id for fields in same}
    others = [{"seed": 1}, {"profile": "quick"}, {"clients": 9}, {"variant": "released"}]
    others += [{"settings": {"lr": value}} for value in (1, 1.0)]  # nothing is coerced
    assert len({one.id, *(Experiment.from_dict(PLAIN | other).id for other in others)}) == 7
    assert Experiment.from_dict(json.loads(json.dumps(one.to_dict()))) == one
    a, b = ({"lr": 0.1, "momentum": 0.5}, {"momentum": 0.5, "lr": 0.1})
    assert Experiment(**PLAIN, settings=a).id == Experiment(**PLAIN, settings=b).id


def test_numbers_of_numpy_are_pythons():
    given = {"a": np.int64(3), "b": [np.float32(0.5), np.array([1, 2])], "c": ("x", np.bool_(True))}
    assert repr(plain(given)) == "{'a': 3, 'b': [0.5, [1, 2]], 'c': ('x', True)}"
    ours, theirs = (
        small(rounds=whole(2), settings={"lr": real(0.1)})
        for whole, real in ((np.int32, np.float64), (int, float))
    )
    assert ours.id == theirs.id and repr(ours) == repr(theirs)


@pytest.mark.parametrize(
    "fields",
    [
        *({}, {"algorithm": "fedavg"}, PLAIN | {"aplha": 1}, PLAIN | {"clients": 0}),
        *(PLAIN | {"rounds": 1.5}, PLAIN | {"active": 11}, PLAIN | {"train_fraction": 0}),
        *(PLAIN | {"train_fraction": 1.1}, PLAIN | {"seed": True}, PLAIN | {"profile": "fast"}),
        *(PLAIN | {"settings": {"lr": float("nan")}}, PLAIN | {"settings": [1]}),
        *(PLAIN | {"partition": {1: 2}}, PLAIN | {"dataset": ""}),
    ],
)
def test_bad_experiments_are_refused(fields):
    with pytest.raises(InputError):
        Experiment.from_dict(fields)


def drawn(alpha: float) -> Experiment:
    return small(partition={"name": "dirichlet", "alpha": alpha})


def test_a_record_is_found_however_a_whole_concentration_was_written():
    one, other = drawn(1), drawn(1.0)
    assert one.id != other.id and set(one.ids) == set(other.ids) == {one.id, other.id}
    assert drawn(0.5).ids == (drawn(0.5).id,) and small().ids == (small().id,)
    assert record.find({one.id: "it"}, other) == "it" and record.find({}, other) is None


# --- what is written comes back


def test_a_record_comes_back_as_it_was_written(tmp_path):
    found = measured(tmp_path)
    assert found.status == "complete" and len(found.rounds) == 3
    assert found.metrics == found.rounds[-1]["metrics"] and 0 <= found.metrics["accuracy"] <= 1
    assert sum(found.bytes["up"].values()) == sum(row["up"] for row in found.rounds)
    assert found.settings["lr"] == 0.01 and found.settings["local_steps"] == 1
    assert records(str(tmp_path)) == {small().id: found}
    again = put(tmp_path / "again", found)
    assert Record.load(again) == found and json.loads(again.read_text()) == json.loads(written())


def test_a_path_may_be_a_text_with_home_in_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    found = run(small(rounds=1), runtime=Runtime(), record="~/r.json", checkpoint="~/c")
    assert Record.load(tmp_path / "r.json") == found and not (tmp_path / "c").exists()


def test_a_record_has_the_settings_of_the_algorithm_that_ran():
    mine = small(settings={"local_steps": 1, "lr": 0.5}).new_algorithm()
    found = run(small(), runtime=Runtime(), algorithm=mine)
    assert found.settings["lr"] == 0.5 and found.experiment == small()
    with pytest.raises(InputError, match="setting lr must be"):  # and does not enter the book
        importing.check_settings(found)


def test_an_older_record_names_its_split_file_another_way(tmp_path):
    data, file = json.loads(written()), {"name": "file", "file": "a.json"}
    data["experiment"]["partition"], data["split"] = file, "1" * 64
    data["id"] = Experiment.from_dict(data["experiment"]).id
    del data["inputs"]
    found = Record.load(put(tmp_path, data))
    assert found.fingerprints == {"digits": data["fingerprint"], "a.json": "1" * 64}


def test_a_record_is_read_when_it_is_asked_for(tmp_path):
    measured(tmp_path)
    measured(tmp_path, seed=1, status="running")
    one, unfinished, damaged = (tmp_path / "adhoc" / f"{small(seed=s).id}.json" for s in range(3))
    damaged.write_text("{")
    known = records(tmp_path)
    assert known[one.stem].status == "complete" and one.stem in known
    assert unfinished.stem not in known and "anything" not in known
    for ask in (lambda: known.get(damaged.stem), lambda: len(known)):
        with pytest.raises(InputError, match=damaged.name):
            ask()
    damaged.unlink()
    assert list(records(tmp_path)) == [one.stem] and len(records(tmp_path)) == 1
    # what was read stays as it was, for a page shows one state of the book
    one.write_text(one.read_text().replace('"notes": []', '"notes": ["!"]'))
    assert not known[one.stem].notes and records(tmp_path)[one.stem].notes == ["!"]


def test_a_record_under_another_name_is_refused(tmp_path):
    put(tmp_path, written(), "0123456789ab.json")
    with pytest.raises(InputError, match=f"must be called {small().id}.json"):
        list(records(tmp_path))


@pytest.mark.parametrize("inside", [False, True])
def test_a_record_of_a_newer_version_is_not_called_damaged(inside, tmp_path):
    """Its advice would be to delete it."""
    told = json.loads(written())
    (told["experiment"] if inside else told)["mood"] = 3
    with pytest.raises(InputError, match=r"'mood'.*newer one; update this one") as said:
        Record.load(put(tmp_path, told))
    assert "delete" not in str(said.value)


# --- what no run can have written


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
    "accuracy 1.0001": share(1.0001),
    "accuracy of 400 digits": share(10**400),
    "negative entropy": lambda data: everywhere(data, "cross_entropy", -1.0),
    "no accuracy": lambda data: [
        one.pop("accuracy") for one in (data["metrics"], data["rounds"][-1]["metrics"])
    ],
    "a metric with a script for a name": lambda data: everywhere(data, SCRIPT, 0.5),
    "a better metric than the last round": at("metrics", "accuracy", to=0.999),
    "a round too few": lambda data: data["rounds"].pop(0),
    "a round with a further entry": at("rounds", 0, "note", to="x"),
    "a round without bytes": lambda data: data["rounds"][0].pop("up"),
    "an untested round": at("rounds", 0, "metrics", to={}),
    "bytes negative": at("rounds", 0, "up", to=-1),
    "totals unlike the rounds": at("bytes", "up", "parameters", to=1),
    "another status": at("status", to="done"),
    "a fingerprint with a script": at("fingerprint", to=SCRIPT),
    "an input that is no hash": at("inputs", to={"own": "x"}),
    "no threads": at("environment", "threads", to=0),
    "settings that are nested very deeply": at("experiment", "settings", to={"x": nested(700)}),
    "a setting unlike the experiment's": at("settings", "local_steps", to=50),
    "a setting unlike the default": at("settings", "lr", to=0.5),
    "an unknown setting": at("settings", "luck", to=1),
    "a stated setting left out": lambda data: data["settings"].pop("local_steps"),
    "another id": at("id", to="0" * 12),
    "id missing": lambda data: data.pop("id"),
    "an experiment of more rounds": at("experiment", "rounds", to=4),
}


@pytest.fixture
def results(tmp_path, monkeypatch):
    for module in (record, queue, importing):
        monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_record_that_no_run_wrote_is_refused(results, tmp_path, name):
    data = json.loads(written())
    IMPOSSIBLE[name](data)
    path = put(tmp_path / "from", data, f"{small().id}.json")
    with pytest.raises(InputError, match="record") as error:
        import_records(tmp_path / "from")
    assert str(path) in str(error.value) and len(str(error.value)) < 300 + len(str(path))
    assert not results.exists()


@pytest.mark.parametrize(
    "fields",
    [
        *({"algorithm": name} for name in ("nosuch", "../fedavg", SCRIPT)),
        *({"model": "nosuch"}, {"dataset": SCRIPT}, {"settings": {"local_steps": 1, "luck": 3}}),
    ],
)
def test_a_sound_record_of_something_unknown_is_not_imported(results, tmp_path, fields):
    """Its id is the hash of its experiment, so only the names give it away."""
    other = small(**fields)
    data = json.loads(written()) | {"id": other.id, "experiment": other.to_dict()}
    put(tmp_path / "from", data)
    with pytest.raises(InputError, match="does not fit"):
        import_records(tmp_path / "from")
    assert not results.exists()


TEXTS = ["", "[]", "3", '{"id": ', "[" * 100_000, '{"a":' * 100_000, "1" * 5000, '{"id": 1e999}']


@pytest.mark.parametrize("text", [*TEXTS, "\ufeff{}", '{"id": "\\ud800"}', "{" + " " * LARGEST])
def test_texts_that_are_no_record(tmp_path, text):
    path = put(tmp_path, text, "x.json")
    with pytest.raises(InputError, match="record") as error:
        import_records(tmp_path)
    assert len(str(error.value)) < 200 + len(str(path))


# --- imports


def test_import_copies_what_is_complete_and_never_replaces_a_record(results, tmp_path):
    there = tmp_path / "there"
    put(there, written(), paper="fedvck")
    measured(there, seed=1, status="running")
    assert import_records(there) == Imported(1, of_no_table=1, known=0, unfinished=1)
    kept = results / "fedvck" / f"{small().id}.json"
    before = kept.read_bytes()
    assert json.loads(before) == json.loads(written())
    better = json.loads(written())
    everywhere(better, "accuracy", 1.0)
    put(there, better, paper="zzz")
    assert import_records(str(there)) == Imported(0, of_no_table=0, known=2, unfinished=1)
    for name, paper, said in (
        ("best.json", "zzz", f"must be called {kept.name}"),
        ("", "<b>", "named after a paper"),
        ("manifest.json", "adhoc", r"manifest\.json is no record of a run; import takes"),
    ):
        wrong = put(there, {"a": 1} if "manifest" in name else better, name, paper)
        with pytest.raises(InputError, match=said):
            import_records(there)
        wrong.unlink()
    assert list(results.rglob("*.json")) == [kept] and kept.read_bytes() == before


def test_a_setting_that_came_later_may_be_missing(results, tmp_path):
    older = json.loads(written())
    del older["settings"]["weight_decay"]
    put(tmp_path / "from", older)
    assert import_records(tmp_path / "from").new == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"fingerprint": "0" * 64},
        {
            "experiment": small(seed=1, partition={"name": "file", "file": "a"}),
            "inputs": {"a": "0"},
        },
        {"inputs": {"own28": "0"}},
    ],
)
def test_records_of_other_inputs_under_the_same_name_stay_apart(tmp_path, changes):
    """Of two copies of a data set in another order the means would be of two things."""
    here, there = tmp_path / "here", tmp_path / "there"
    if "inputs" in changes:
        ((name, digit),) = changes["inputs"].items()
        changes = changes | {"inputs": {name: digit * 64}}
        measured(here, inputs={name: "1" * 64})
    else:
        measured(here)
    measured(there, seed=1, **changes)
    with pytest.raises(InputError, match="measured on other data than other records"):
        import_records(there, here)
    assert len(list(here.glob("adhoc/*.json"))) == 1
    # nor do two of one folder lie in one table, where the book has none
    put(there, next(iter(records(here).values())))
    with pytest.raises(InputError, match="measured on other data than other records"):
        import_records(there, tmp_path / "nowhere")


def test_a_run_is_the_books_where_a_table_asks_for_it(results, tmp_path, monkeypatch):
    """One that was run by its settings is set aside, and imported to the paper of its table; also
    where its whole concentration is written in another way.
    """
    own, asked = tmp_path / "own", drawn(1)
    measured(own)
    measured(own, seed=1, experiment=drawn(1.0))
    cell = SimpleNamespace(experiments=(asked,), paper="reference")
    table = SimpleNamespace(cells=lambda profile: [cell])
    monkeypatch.setattr(importing.TableSpec, "all", lambda: [table])
    assert import_records(own) == Imported(2, of_no_table=1, known=0, unfinished=0)
    assert records().keys() == {drawn(1.0).id} and record.find(records(), asked)
    assert (results / "adhoc" / f"{small().id}.json").exists()
    assert import_records(own) == Imported(0, of_no_table=0, known=2, unfinished=0)
    # a run that was begun here and ended elsewhere
    here = results / "reference" / f"{drawn(1.0).id}.json"
    attrs.evolve(Record.load(here), status="running").save(here)
    assert import_records(own) == Imported(1, of_no_table=0, known=1, unfinished=0)
    assert Record.load(here).status == "complete"


# --- how a run ends


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"accuracy": float("nan")}, "the test after round 1 gives 'accuracy' = nan"),
        ({"accuracy": 1.5}, "round 1"),
        ({"accuracy": 0.5, "a b": 1.0}, "rounds, 1, metrics"),
        ({"loss": 1.0}, "round 1 must be tested"),
    ],
)
def test_a_round_that_no_record_can_hold_ends_the_run(metrics, said, tmp_path, monkeypatch):
    """A record with it could be read by nobody."""
    monkeypatch.setattr(Task, "evaluate", lambda *_: metrics)
    with pytest.raises(InputError, match=said):
        run(small(), runtime=Runtime(), record=tmp_path / "r.json")
    found = Record.load(tmp_path / "r.json")
    assert found.status == "failed" and not found.rounds and found.notes


@pytest.mark.parametrize("given", ["\x1b[31m red", "\x00", "\ud800", "x" * 5000, "two\nlines"])
def test_whatever_ends_a_run_its_record_can_be_read(given, tmp_path, monkeypatch):
    """A damaged one would end every table that looks into its folder."""

    def fail(*_):
        raise InputError(given)

    monkeypatch.setattr(Task, "evaluate", fail)
    with pytest.raises(InputError):
        queue.measure(small(), "adhoc", out=tmp_path, runtime=Runtime())
    assert records(tmp_path) == {} and queue.failed_before(small(), "adhoc", tmp_path)


def test_a_record_that_could_not_be_read_is_not_written(tmp_path):
    found = record.new_record(small(), make_task(small(), Runtime()))
    found.notes.append("\x1b")
    with pytest.raises(InputError, match="notes"):
        found.save(tmp_path / "r.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("experiment", "said"),
    [
        (Experiment(algorithm="fedad", dataset="digits", profile="quick"), "is a method for"),
        (small(clients=5000), "clients"),
    ],
)
def test_a_run_that_cannot_begin_leaves_no_record(experiment, said, tmp_path):
    with pytest.raises(InputError, match=said):
        run(experiment, record=tmp_path / "record.json")
    assert not list(tmp_path.iterdir())


# --- the book's records

#: settings that came after records, by the value that means what those did: an entry here is the
#: author's word that a default changes nothing
AS_BEFORE = yaml.safe_load("""{
server_draws: batch, plain_pass: contrast, round_decay: 1.0, last_lr: 0.0, image_optimiser: sgd,
stop_factor: null, refresh: null, tell_loss: false, local_augmentation: none, class_weights: none,
replacement: true, order: random, counted: images, augmentation_draws: fresh, networks: fresh,
encoders: one, choice: random, server_cosine: false, last_client_chooses: false, aggregation:
mean, trim: 0.1, generator_form: plain, discriminator_norm: instance, discriminator_first: false,
discriminator_rests: false, init: noise, generated_steps: null, statistics: own, encoder: task,
encoder_width: 128, encoder_depth: 3, transferability_form: printed, temperature: 1.0,
embedding_bound: 0.0, output: pixels, draws: once, moments: kept, ema_start: generator,
perceptual: 1.0, kernel: linear,
}""")


def drift(then: dict, now: dict) -> dict[str, tuple]:
    """Settings that a record and the program of today disagree about: (then, now)."""
    then = {key: value for key, value in AS_BEFORE.items() if key in now} | then
    pairs = {key: (then.get(key, "not stated"), now.get(key, "gone")) for key in then | now}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def test_every_record_of_the_book_is_what_its_experiment_would_run_today():
    """A default that changes would let an old record stand for a new experiment of the same id."""
    known, found = records(), {}
    assert len(known) > 800
    for name, one in known.items():
        importing.check_settings(one)
        if wrong := drift(one.settings, importing.settings_of(one.experiment)):
            found[name] = wrong
    assert found == {}
