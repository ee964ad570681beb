"""Experiments, records and imports."""

import json
from types import SimpleNamespace

import attrs
import numpy as np
import pytest

from core.errors import InputError
from core.federation import Runtime, Task
from lab import Experiment, Record, importing, make_task, queue, record, records
from lab.running import run
from tests.data import layouts
from tests.lab.small_runs import PLAIN, small


def test_an_id_stands_for_the_data():
    one = Experiment.from_dict(PLAIN)
    assert (
        one.id
        == Experiment.from_dict({**PLAIN, "clients": 10, "settings": {}}).id
        == Experiment(**PLAIN).id
    )
    others = [
        {"seed": 1},
        {"profile": "quick"},
        {"settings": {"lr": 0.1}},
        {"clients": 9},
        {"variant": "released"},
    ]
    assert len({one.id, *(Experiment.from_dict(PLAIN | other).id for other in others)}) == 6
    assert Experiment.from_dict(json.loads(json.dumps(one.to_dict()))) == one


def test_the_order_of_settings_does_not_matter():
    a, b = ({"lr": 0.1, "momentum": 0.5}, {"momentum": 0.5, "lr": 0.1})
    assert Experiment(**PLAIN, settings=a).id == Experiment(**PLAIN, settings=b).id


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"algorithm": "fedavg"},
        PLAIN | {"aplha": 1},
        PLAIN | {"clients": 0},
        PLAIN | {"rounds": 1.5},
        PLAIN | {"active": 11},
        PLAIN | {"train_fraction": 0},
        PLAIN | {"train_fraction": 1.1},
        PLAIN | {"seed": True},
        PLAIN | {"profile": "fast"},
        PLAIN | {"settings": {"lr": float("nan")}},
        PLAIN | {"settings": [1]},
        PLAIN | {"partition": {1: 2}},
        PLAIN | {"dataset": ""},
    ],
)
def test_bad_experiments_are_refused(fields):
    with pytest.raises(InputError):
        Experiment.from_dict(fields)


def test_a_record_comes_back_as_it_was_written(tmp_path):
    record, path, computed = queue.measure(small(), "adhoc", out=tmp_path, runtime=Runtime())
    assert computed and record.status == "complete" and len(record.rounds) == 3
    assert Record.load(path) == record
    assert record.metrics == record.rounds[-1]["metrics"] and 0 <= record.metrics["accuracy"] <= 1
    assert sum(record.bytes["up"].values()) == sum(row["up"] for row in record.rounds)
    assert records(tmp_path) == {small().id: record}
    assert record.settings["lr"] == 0.01 and record.settings["local_steps"] == 1


def test_a_record_that_was_replaced_is_read_again(tmp_path, monkeypatch):
    _, path, _ = queue.measure(small(), "adhoc", out=tmp_path, runtime=Runtime())
    (first,) = records(tmp_path).values()
    loads = []
    load = Record.load
    monkeypatch.setattr(Record, "load", lambda path: loads.append(path) or load(path))
    assert records(tmp_path) == {first.experiment.id: first} and not loads
    path.write_text(path.read_text().replace('"notes": []', '"notes": ["!"]'))
    assert records(tmp_path)[first.experiment.id].notes == ["!"] and loads == [path]
    path.write_text("{")
    with pytest.raises(InputError, match=path.name):
        list(records(tmp_path))


def test_a_record_is_read_when_it_is_asked_for(tmp_path):
    for seed in range(3):
        queue.measure(small(seed=seed), "adhoc", out=tmp_path, runtime=Runtime())
    one, unfinished, damaged = (tmp_path / "adhoc" / f"{small(seed=s).id}.json" for s in range(3))
    attrs.evolve(Record.load(unfinished), status="running").save(unfinished)
    damaged.write_text("{")
    known = records(tmp_path)
    assert known[one.stem].status == "complete" and one.stem in known
    assert unfinished.stem not in known and "anything" not in known
    with pytest.raises(InputError, match=damaged.name):
        known.get(damaged.stem)
    with pytest.raises(InputError, match=damaged.name):
        len(known)
    damaged.unlink()
    assert list(records(tmp_path)) == [one.stem] and len(records(tmp_path)) == 1
    # what was read stays as it was, for a page shows one state of the book
    one.write_text("{")
    assert known[one.stem].status == "complete"


def test_a_record_under_another_name_is_refused(tmp_path):
    _, path, _ = queue.measure(small(), "adhoc", out=tmp_path, runtime=Runtime())
    other = path.rename(path.with_name("0123456789ab.json"))
    with pytest.raises(InputError, match=f"{other.name} must be called {path.name}"):
        list(records(tmp_path))


def test_import_copies_what_is_complete_and_keeps_what_is_there(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    for seed in range(2):
        queue.measure(small(seed=seed), "adhoc", out=there, runtime=Runtime())
    unfinished = Record.load(there / "adhoc" / f"{small(seed=1).id}.json")
    unfinished.status = "running"
    unfinished.save(there / "adhoc" / f"{small(seed=1).id}.json")
    assert importing.import_records(there, here) == importing.Imported(
        1, apart=1, known=0, unfinished=1
    )
    kept = here / "adhoc" / f"{small().id}.json"
    before = kept.read_bytes()
    changed = attrs.evolve(Record.load(kept), notes=["measured elsewhere"])
    changed.save(there / "adhoc" / kept.name)
    assert importing.import_records(there, here) == importing.Imported(
        0, apart=0, known=1, unfinished=1
    )
    assert kept.read_bytes() == before
    # other files are not called damaged, and nobody is told to delete them
    (there / "adhoc" / "manifest.json").write_text('{"a": 1}')
    with pytest.raises(InputError, match=r"manifest\.json is no record of a run; import takes"):
        importing.import_records(there, here)


def test_records_of_other_data_under_the_same_name_stay_apart(tmp_path):
    """Of two copies of a data set in another order the means would be of two things."""
    here, there = tmp_path / "here", tmp_path / "there"
    for out, seed in ((here, 0), (there, 1)):
        queue.measure(small(seed=seed), "adhoc", out=out, runtime=Runtime())
    (path,) = there.glob("adhoc/*.json")
    attrs.evolve(Record.load(path), fingerprint="0" * 64).save(path)
    with pytest.raises(InputError, match="measured on other data than other records"):
        importing.import_records(there, here)
    assert len(list(here.glob("adhoc/*.json"))) == 1
    # nor do two of one folder lie in one table, where the book has none
    queue.measure(small(seed=2), "adhoc", out=there, runtime=Runtime())
    with pytest.raises(InputError, match="measured on other data than other records"):
        importing.import_records(there, tmp_path / "nowhere")


def test_records_of_other_files_of_a_split_stay_apart(tmp_path):
    drawn = measured_record(tmp_path)
    for seed, digit in ((0, "0"), (1, "1")):
        run = small(seed=seed, partition={"name": "file", "file": "splits/a.json"})
        path = tmp_path / "there" / "adhoc" / f"{run.id}.json"
        attrs.evolve(drawn, experiment=run, split=digit * 64).save(path)
    with pytest.raises(InputError, match=r"splits/a\.json"):
        importing.import_records(tmp_path / "there", tmp_path / "here")


@pytest.mark.parametrize("partition", [{"name": "x"}, {"name": "dirichlet", "alpha": "x"}])
def test_a_record_of_a_partition_that_cannot_be_is_none(tmp_path, partition):
    bad = attrs.evolve(measured_record(tmp_path), experiment=small(partition=partition))
    with pytest.raises(InputError, match=r"no partition named 'x'|alpha must be a number"):
        bad.save(tmp_path / "bad.json")


def measured_record(folder):
    """The record of a small run, as it was written."""
    queue.measure(small(), "adhoc", out=folder, runtime=Runtime())
    (path,) = folder.glob("adhoc/*.json")
    return Record.load(path)


def test_a_run_is_the_books_where_a_table_asks_for_it(tmp_path, monkeypatch):
    """One that was run by its settings is set aside, and imported to the paper of its table."""
    book, own = tmp_path / "results", tmp_path / "own"
    monkeypatch.setattr(record, "RESULTS", book)
    monkeypatch.setattr(queue, "RESULTS", book)
    monkeypatch.setattr(importing, "RESULTS", book)
    asked = small(seed=1)
    for one in (small(), asked):
        queue.measure(one, "adhoc", out=own, runtime=Runtime())
    cell = SimpleNamespace(experiments=(asked,), paper="reference")
    table = SimpleNamespace(cells=lambda profile: [cell])
    monkeypatch.setattr(importing.TableSpec, "all", lambda: [table])
    assert importing.import_records(own) == importing.Imported(2, apart=1, known=0, unfinished=0)
    assert records().keys() == {asked.id} and (book / "adhoc" / f"{small().id}.json").exists()
    assert importing.import_records(own) == importing.Imported(0, apart=0, known=2, unfinished=0)
    # a run that was begun here and ended elsewhere
    here = book / "reference" / f"{asked.id}.json"
    attrs.evolve(Record.load(here), status="running").save(here)
    assert importing.import_records(own) == importing.Imported(1, apart=0, known=1, unfinished=0)
    assert Record.load(here).status == "complete"
    assert queue.measure(small(), "reference", runtime=Runtime())[2]


def test_a_class_that_is_tested_and_never_taught_is_named(tmp_path, monkeypatch):
    """Labels from 0 in one half of the user's file and from 1 in the other."""
    monkeypatch.setenv("FEDCON_DATA", str(tmp_path))
    layouts.npz(tmp_path / "clinic.npz", test_labels=np.arange(6)[:, None] % 3 + 1)
    with pytest.raises(InputError, match="the test set of clinic has class 3, of which"):
        run(attrs.evolve(small(), dataset="clinic"), runtime=Runtime())


def test_a_test_that_gives_no_number_ends_the_run(tmp_path, monkeypatch):
    """A record with it could be read by nobody."""
    monkeypatch.setattr(Task, "evaluate", lambda *_: {"accuracy": float("nan")})
    with pytest.raises(InputError, match="the test after round 1 gives 'accuracy' = nan"):
        run(small(), runtime=Runtime(), record=tmp_path / "r.json")
    found = Record.load(tmp_path / "r.json")
    assert found.status == "failed" and not found.rounds


@pytest.mark.parametrize("given", ["\x1b[31m red", "\x00", "\ud800", "x" * 5000, "two\nlines"])
def test_whatever_ends_a_run_its_record_can_be_read(given, tmp_path, monkeypatch):
    """A damaged one would end every table that looks into its folder."""

    def fail(*_):
        raise InputError(given)

    monkeypatch.setattr(Task, "evaluate", fail)
    with pytest.raises(InputError):
        queue.measure(small(), "adhoc", out=tmp_path, runtime=Runtime())
    assert records(tmp_path) == {} and queue.failed_before(small(), "adhoc", tmp_path)


@pytest.mark.parametrize(
    "metrics", [{"accuracy": 1.5}, {"accuracy": 0.5, "a b": 1.0}, {"loss": 1.0}]
)
def test_a_round_that_no_record_can_hold_ends_the_run_and_is_not_written(
    metrics, tmp_path, monkeypatch
):
    monkeypatch.setattr(Task, "evaluate", lambda *_: metrics)
    with pytest.raises(InputError, match="round 1"):
        run(small(), runtime=Runtime(), record=tmp_path / "r.json")
    found = Record.load(tmp_path / "r.json")
    assert found.status == "failed" and not found.rounds and "round 1" in found.notes[0]


def test_a_record_that_could_not_be_read_is_not_written(tmp_path):
    found = record.new_record(small(), make_task(small(), Runtime()))
    found.notes.append("\x1b")
    with pytest.raises(InputError, match="notes"):
        found.save(tmp_path / "r.json")
    assert not list(tmp_path.iterdir())


def test_every_record_of_the_book_stands_for_what_it_ran():
    """A record's experiment gives the settings that the record holds, also where `released()` has
    changed since; a setting that is newer than the record has its default.
    """
    for one in records().values():
        settings = one.experiment.new_algorithm().settings
        now = json.loads(json.dumps(attrs.asdict(settings)))
        newer = {
            field.name: field.default
            for field in attrs.fields(type(settings))
            if field.name not in one.settings
        }
        assert now == one.settings | newer, one.experiment.id


def test_a_method_for_other_data_is_a_mistake_and_leaves_no_record(tmp_path):
    path = tmp_path / "record.json"
    with pytest.raises(InputError, match="is a method for"):
        run(Experiment(algorithm="fedad", dataset="digits", profile="quick"), record=path)
    assert not path.exists()


@pytest.mark.parametrize(
    "partition, said",
    [
        ({"name": "iid"}, "iid"),
        ({"name": "dirichlet", "alpha": 0.05}, "alpha 0.05"),
        ({"name": "file", "file": "splits/of_ten.json"}, "of_ten"),
    ],
)
def test_the_line_of_a_run_names_its_split(partition, said, tmp_path):
    from lab.cli.run import _summary

    record = next(iter(records().values()))
    known = attrs.evolve(record, experiment=attrs.evolve(record.experiment, partition=partition))
    head, row, _ = _summary(known, tmp_path).splitlines()
    assert row[head.index("split") :].startswith(said)


@pytest.mark.parametrize("inside", [False, True])
def test_a_record_of_a_newer_version_is_not_called_damaged(inside, tmp_path):
    """Its advice would be to delete it."""
    _, path, _ = queue.measure(small(), "adhoc", out=tmp_path)
    told = json.loads(path.read_text())
    (told["experiment"] if inside else told)["mood"] = 3
    path.write_text(json.dumps(told))
    with pytest.raises(InputError, match=r"'mood'.*newer one; update this one") as said:
        Record.load(path)
    assert "delete" not in str(said.value)
