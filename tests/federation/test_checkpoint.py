"""What a run resumes from: the same run, whole, or one clear line."""

import json
import os
import shutil
import time
from pathlib import Path

import attrs
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from core.baselines.fedavg import FedAvg
from core.federation import Ledger, Runtime, State
from core.federation.checkpoint import Checkpoint, restore, save
from core.federation.tensors import fingerprint
from core.files import FileError, write_json
from lab import Record, running
from lab.running import run
from tests.lab.small_runs import small

TINY = small(algorithm="fedavgm")


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    """A run that a clock stopped after its first round."""
    folder = tmp_path_factory.mktemp("cut")
    files = {"record": folder / "r.json", "checkpoint": folder / "c.safetensors"}
    assert run(TINY, runtime=Runtime(), deadline=time.monotonic(), **files).status == "running"
    return folder


@pytest.fixture
def files(cut, tmp_path):
    shutil.copytree(cut, tmp_path, dirs_exist_ok=True)
    return {"record": tmp_path / "r.json", "checkpoint": tmp_path / "c.safetensors"}


def refused(files, match, **more) -> None:
    """One line, and the record and the checkpoint are as they were."""
    before = files["record"].read_bytes()
    with pytest.raises(FileError, match=match) as error:
        run(attrs.evolve(TINY, **more.pop("changes", {})), **{"runtime": Runtime()} | more, **files)
    assert "\n" not in str(error.value)
    assert files["record"].read_bytes() == before


def test_what_was_done_stays_in_the_record_where_time_is_up_at_once(files, monkeypatch):
    """Rounds of a checkpoint are saved once, none is lost, nor the most memory of a part before."""
    saves, save_ = [], Record.save
    monkeypatch.setattr(
        Record, "save", lambda one, path: saves.append(len(one.rounds)) or save_(one, path)
    )
    cut, answers = {"runtime": Runtime(), "deadline": time.monotonic()}, iter([True, True, False])
    with monkeypatch.context() as patch:
        patch.setattr(Runtime, "peak_memory", lambda self: 2**40)
        patch.setattr(running, "_in_time", lambda deadline: answers.__next__)
        assert len(run(TINY, **cut, **files).rounds) == 2
    again = run(TINY, **cut, **files)
    assert again.status == "running" and again == Record.load(files["record"])
    whole = run(TINY, runtime=Runtime(), **files)
    assert whole.status == "complete" and whole.peak_memory == 2**40
    assert saves == [1, 2, 2, 2, 3, 3]


def test_tensors_that_share_memory_come_back_as_they_were(tmp_path):
    task, numbers = running.make_task(TINY, Runtime()), torch.arange(6.0)
    parts = {"a": numbers[:4], "b": numbers[2:], "c": numbers.view(2, 3), "d": numbers[:0]}
    path, key = tmp_path / "c.safetensors", {"run": "one"}
    save(path, key, Checkpoint(State(task, parts), Ledger(), []), [])
    found = restore(path, key, task, []).state.tensors
    assert all(torch.equal(found[name], value) for name, value in parts.items())


def test_runs_are_not_mixed(files, monkeypatch):
    """Experiment, precision, code and, as the order of sums depends on it, number of threads."""
    refused(files, "begun with experiment", changes={"seed": 1})
    short = Runtime(precision="bfloat16")
    refused(files, "begun with precision 'float32', not 'bfloat16'", runtime=short)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    refused(files, "begun with threads")
    monkeypatch.undo()
    monkeypatch.setattr(running, "code_version", lambda name: "0" * 12)
    refused(files, "begun with code")


def changed(change):
    """The file with other bytes."""
    return lambda path: path.write_bytes(change(path.read_bytes()))


FACTS = {"key": {}, "meta": {}, "ledger": [], "history": [], "peak_memory": 0, "same": {}}


def signed(text):
    """A file of other facts with their hash."""
    return with_facts(facts=text, sha256=fingerprint(text, {"w": torch.zeros(2)}))


def with_facts(**facts):
    """A file of other facts, without their hash where none is given."""
    return lambda path: save_file({"w": torch.zeros(2)}, path, facts)


def without_a_tensor(path):
    with safe_open(path, "pt") as file:
        names, metadata = sorted(file.keys()), file.metadata()
        tensors = {name: file.get_tensor(name) for name in names[1:]}
    save_file(tensors, path, metadata)


def replaced(make):
    """Something that is no file in its place."""
    return lambda path: (path.unlink(), make(path))


DAMAGE = {
    "cut short": changed(lambda content: content[: len(content) // 2]),
    "one bit": changed(lambda content: content[:-5] + bytes([content[-5] ^ 1]) + content[-4:]),
    "a header of 2^60 bytes": changed(lambda content: (2**60).to_bytes(8, "little") * 4),
    "a tensor missing": without_a_tensor,
    "no facts": with_facts(),
    "facts of another kind": with_facts(facts='{"key": 3}', sha256="0"),
    "facts that are no JSON": signed("{"),
    "facts that are nested": signed("[" * 10**5 + "]" * 10**5),
    "facts that are a list": signed("[]"),
    "facts of other kinds": signed(json.dumps(dict.fromkeys(FACTS, 1))),
    "facts that name no tensor": signed(json.dumps({**FACTS, "same": {"a": "b"}})),
    "a folder": replaced(Path.mkdir),
    "a link to itself": replaced(lambda path: path.symlink_to(path)),
    "a device": replaced(lambda path: path.symlink_to("/dev/zero")),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_checkpoint_is_named_and_the_record_kept(files, damage):
    damage(files["checkpoint"])
    refused(files, r"c\.safetensors is (damaged|not a plain file)")


def test_a_state_that_is_not_finite_ends_the_run_in_its_round(tmp_path, monkeypatch):
    """Though only the last one is tested; not one round later, by blaming a client."""
    true = FedAvg.server_update

    def poisoned(self, state, uploads, rng):
        new = true(self, state, uploads, rng)
        next(iter(new.tensors.values())).fill_(torch.inf)
        return new

    monkeypatch.setattr(FedAvg, "server_update", poisoned)
    plain = attrs.evolve(TINY, algorithm="fedavg", evaluate_every=3)
    with pytest.raises(ValueError, match=r"round 1 left 'parameters/.*not finite"):
        run(plain, runtime=Runtime(), record=tmp_path / "r.json")
    record = Record.load(tmp_path / "r.json")
    assert record.status == "failed" and "round 1" in record.notes[0] and not record.rounds


@pytest.mark.parametrize("plant", [os.mkfifo, lambda path: path.symlink_to("victim")])
def test_what_is_planted_in_a_shared_folder_is_not_written_through(plant, tmp_path):
    """A pipe or a link under the name that any file has before it is whole."""
    (tmp_path / "victim").write_text("as it was")
    plant(tmp_path / ".a.json.part")
    write_json(tmp_path / "a.json", 1)
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {"victim": "as it was", "a.json": "1\n"}
