"""Bad files and folders: each is named in one line, and existing records are left alone."""

import json
import resource
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from lab import TableSpec, queue
from lab.__main__ import main
from tests.e2e.mistakes import refused, run_with

pytestmark = pytest.mark.usefixtures("data_root")


@pytest.mark.parametrize(
    ("content", "clue"),
    [
        ("{not json", "file.json"),
        ('{"client_idx": 3}', "client_idx"),
        ('{"client_idx": [[0, 0], [1]]}', "0"),
        ('{"client_idx": [[0, 999999], [1]]}', "999999"),
        ('{"client_idx": [[0, -1], [1]]}', "-1"),
        ('{"client_idx": [[0], [1, 0]]}', "0"),
        ('{"client_idx": [[], []]}', "without data"),
        ('{"client_idx": [[0], [1], [2]]}', "clients"),
    ],
)
def test_a_bad_partition_file(capsys, data_root, tmp_path, content, clue):
    (data_root / "file.json").write_text(content)
    line = refused(
        capsys,
        run_with("--clients", "2", "--partition", "file.json", "--out", str(tmp_path / "out")),
    )
    assert clue in line


def medmnist(root: Path, **changes) -> Path:
    arrays = {
        f"{split}_{what}": value
        for split in ("train", "val", "test")
        for what, value in (
            ("images", np.zeros((20, 28, 28), np.uint8)),
            ("labels", np.arange(20).reshape(-1, 1) % 2),
        )
    } | changes
    path = root / "hospital.npz"
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"train_images": np.full((20, 28, 28), 7, np.float32)},
        {"train_images": np.zeros((20, 28), np.uint8)},
        {"train_images": np.zeros((19, 28, 28), np.uint8)},
        {"train_labels": None},
        {"train_labels": np.full((20, 1), -1)},
        {"train_labels": np.full((20, 1), 0.5)},
        {"test_labels": np.full((20, 1), 7), "classes": np.array(["a", "b"])},
        {"train_labels": np.array([{}] * 20, dtype=object)},
    ],
)
def test_a_broken_data_file_is_named(capsys, data_root, tmp_path, changes):
    medmnist(data_root, **changes)
    line = refused(
        capsys,
        ["run", "--algorithm", "fedavg", "--dataset", "hospital", "--out", str(tmp_path / "out")],
    )
    assert "hospital.npz" in line


def test_a_truncated_data_file_is_named(capsys, data_root, tmp_path):
    path = medmnist(data_root)
    path.write_bytes(path.read_bytes()[:-400])
    line = refused(
        capsys,
        ["run", "--algorithm", "fedavg", "--dataset", "hospital", "--out", str(tmp_path / "out")],
    )
    assert "hospital.npz" in line


def test_a_folder_that_cannot_be_written(capsys, tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert "file" in refused(capsys, run_with("--out", str(tmp_path / "file")))


@contextmanager
def files_of_at_most(size: int):
    """The system refuses to write more to a file, as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [100, 3000])
def test_a_full_disk_leaves_what_was_there_and_the_run_goes_on_when_there_is_space(
    capsys, tmp_path, size
):
    """The first limit stops the record, the second one the checkpoint."""
    assert main(run_with("--out", str(tmp_path))) == 0
    (path,) = (tmp_path / "adhoc").glob("*.json")
    before = path.read_bytes()
    more = run_with("--seed", "1", "--rounds", "2", "--out", str(tmp_path))
    capsys.readouterr()
    with files_of_at_most(size):
        line = refused(capsys, more, ends=1)
    assert "cannot be written" in line and "too large" in line and path.read_bytes() == before
    left = [one for one in (tmp_path / "adhoc").glob("*") if one != path]
    assert all(json.loads(one.read_text())["status"] == "running" for one in left)
    assert main(more) == 0
    assert not list((tmp_path / "checkpoints").glob("*.safetensors"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:100],
        lambda text: text.replace("fedavg", "fedprox"),
        lambda text: text.replace('"rounds"', '"rond"'),
        lambda text: "[]",
    ],
)
def test_a_damaged_record_is_not_imported(capsys, tmp_path, damage):
    assert main(run_with("--out", str(tmp_path))) == 0
    capsys.readouterr()
    (path,) = (tmp_path / "adhoc").glob("*.json")
    path.write_text(damage(path.read_text()))
    assert path.name in refused(capsys, ["import", str(tmp_path)])


def test_a_damaged_record_among_the_results_is_named(capsys):
    """By what needs it; a table that shows other runs is printed."""
    (path,) = queue.RESULTS.glob("*/*.json")
    path.write_text(path.read_text()[:50])
    for verb in (["pending", "--only", "reference/1"], ["table", "reference/1"]):
        assert main(verb) == 0
    run = TableSpec.find("reference", 1).cells("laptop")[0].experiments[0]
    shown = path.rename(path.with_name(f"{run.id}.json"))
    capsys.readouterr()
    for verb in (["pending", "--only", "reference/1"], ["table", "reference/1"]):
        said = refused(capsys, verb)
        assert shown.name in said and "delete it and measure the run again" in said


def test_a_damaged_checkpoint_is_named(capsys, tmp_path):
    from lab.profiles import apply
    from lab.queue import places

    experiment = apply(
        "quick",
        {
            "algorithm": "fedavg",
            "dataset": "digits",
            "rounds": 1,
            "seed": 0,
            "settings": {"local_steps": 1},
            "model_options": {"width": 4},
        },
    )
    _, checkpoint = places(experiment, "adhoc", tmp_path)
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"not a checkpoint")
    assert checkpoint.name in refused(capsys, run_with("--out", str(tmp_path)), ends=1)


def test_a_split_file_is_found_where_the_shell_is(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    parts = [list(range(k, 90, 3)) for k in range(3)]
    Path("mine.json").write_text(json.dumps({"client_idx": parts}))
    arguments = run_with("--partition", "mine.json", "--clients", "3", "--out", "here")
    assert main([text for text in arguments if text not in ("--alpha", "0.1")]) == 0


def test_a_record_of_another_precision_is_no_answer(capsys, tmp_path):
    assert main(run_with("--out", str(tmp_path), "--precision", "float32")) == 0
    capsys.readouterr()
    line = refused(capsys, run_with("--out", str(tmp_path), "--precision", "bfloat16"))
    assert "precision float32, not bfloat16" in line
