"""Mistakes: each gives one clear line and a non-zero status, no traceback, and leaves existing
records alone.
"""

import hashlib
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import attrs
import numpy as np
import pytest

from core.__main__ import main
from core.experiments import Experiment, Record, TableSpec, importing, queue, record

QUICK = [
    "run",
    "--algorithm",
    "fedavg",
    "--dataset",
    "digits",
    "--profile",
    "quick",
    "--rounds",
    "1",
    "--set",
    "local_steps=1",
    "--model-set",
    "width=4",
    "--device",
    "cpu",
]


@pytest.fixture(autouse=True)
def data_root(tmp_path, monkeypatch):
    """An empty data folder, and results of the test's own with one record that no mistake may
    touch.
    """
    root, results = tmp_path / "data", tmp_path / "results"
    root.mkdir()
    experiment = Experiment(algorithm="fedavg", dataset="digits", rounds=1)
    metrics, none = {"accuracy": 0.5}, {"up": 0, "down": 0, "seconds": {}}
    Record(
        experiment,
        {},
        fingerprint="0" * 64,
        environment={},
        code="0" * 12,
        status="complete",
        rounds=[{"round": 1, "metrics": metrics, **none}],
        metrics=metrics,
        bytes={"up": {}, "down": {}},
    ).save(results / "reference" / f"{experiment.id}.json")
    monkeypatch.setenv("FEDCON_DATA", str(root))
    monkeypatch.setattr(record, "RESULTS", results)
    monkeypatch.setattr(queue, "RESULTS", results)
    monkeypatch.setattr(importing, "RESULTS", results)
    return root


def fingerprint() -> str:
    digest = hashlib.sha256()
    for path in sorted(queue.RESULTS.rglob("*.json")):
        digest.update(path.as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def refused(capsys, arguments: list[str]) -> str:
    """Run the command line, check the form of the refusal and return its one line."""
    before = fingerprint()
    status = main(arguments)
    printed = capsys.readouterr().err.replace("\r", "\n").splitlines()
    lines = [line for line in printed if line.strip() and "%|" not in line]
    assert status == 2
    assert len(lines) == 1 and lines[0].startswith("error: ") and len(lines[0]) < 300, lines
    assert "Traceback" not in lines[0]
    assert fingerprint() == before
    return lines[0]


def run_with(*more: str) -> list[str]:
    """The quick run with other options; what they set takes the place of what is set there."""
    again = {text.partition("=")[0] for text in more}
    kept = [
        (option, text)
        for option, text in itertools.pairwise(QUICK)
        if option in ("--set", "--model-set") and text.partition("=")[0] not in again
    ]
    return [*QUICK[: QUICK.index("--set")], "--device", "cpu", *itertools.chain(*kept), *more]


CASES = {
    "unknown verb": (["rum"], "rum"),
    "unknown option": (run_with("--epochs", "3"), "--epochs"),
    "nothing to run": (["run"], "--algorithm"),
    "no data set": (["run", "--algorithm", "fedavg", "--profile", "laptop"], "--dataset"),
    "unknown algorithm": (
        ["run", "--algorithm", "fedavgg", "--dataset", "digits"],
        "did you mean 'fedavg'",
    ),
    "unknown data set": (["run", "--algorithm", "fedavg", "--dataset", "cifar11"], "cifar10"),
    "missing data set": (["run", "--algorithm", "fedavg", "--dataset", "svhn"], "svhn"),
    "alpha zero": (run_with("--alpha", "0"), "alpha"),
    "alpha negative": (run_with("--alpha", "-1"), "alpha"),
    "alpha not a number": (run_with("--alpha", "nan"), "alpha"),
    "alpha a word": (run_with("--alpha", "small"), "--alpha"),
    "no clients": (run_with("--clients", "0"), "clients"),
    "more clients than samples": (run_with("--clients", "100000"), "clients"),
    "more active than clients": (run_with("--clients", "3", "--active", "4"), "active"),
    "none active": (run_with("--active", "0"), "active"),
    "no rounds": (run_with("--rounds", "0"), "rounds"),
    "negative rounds": (run_with("--rounds", "-3"), "rounds"),
    "half a round": (run_with("--rounds", "2.5"), "--rounds"),
    "negative seed": (run_with("--seed", "-1"), "seed"),
    "wrong profile": (run_with("--profile", "desktop"), "laptop"),
    "wrong variant": (run_with("--variant", "leaked"), "released"),
    "unknown model": (run_with("--model", "convnext"), "convnet"),
    "unknown model option": (run_with("--model-set", "colour=3"), "colour"),
    "impossible width": (run_with("--model-set", "width=0"), "width"),
    "unknown setting": (run_with("--set", "learning_rate=1"), "learning_rate"),
    "zero learning rate": (run_with("--set", "lr=0"), "lr"),
    "infinite learning rate": (run_with("--set", "lr=Infinity"), "lr"),
    "setting without value": (run_with("--set", "lr"), "NAME=VALUE"),
    "fedprox below zero": (
        ["run", "--algorithm", "fedprox", "--dataset", "digits", "--set", "mu=-1"],
        "mu",
    ),
    "alpha without dirichlet": (run_with("--alpha", "1", "--partition", "iid"), "alpha"),
    "unknown partition": (run_with("--partition", "dirichlett"), "dirichlet"),
    "unknown partition option": (run_with("--partition", "iid,alfa=3"), "alfa"),
    "too many classes per client": (
        run_with("--partition", "pathological,classes_per_client=11"),
        "classes",
    ),
    "natural without centres": (run_with("--partition", "natural"), "centre"),
    "dirichlet without alpha": (run_with("--partition", "dirichlet"), "--alpha 0.1"),
    "alpha that is no number": (run_with("--alpha", "nan"), "--alpha"),
    "partition file missing": (run_with("--partition", "nowhere.json"), "nowhere.json"),
    "unknown device": (run_with("--device", "tpu"), "tpu"),
    "unknown precision": (run_with("--precision", "int8"), "bfloat16"),
    "unknown cell": (["run", "--cell", "fedvck/3/fedavgg/pathmnist"], "fedvck/3"),
    "cell of no table": (["run", "--cell", "fedvck"], "PAPER/TABLE/ROW/COLUMN"),
    "cell and algorithm": (["run", "--cell", "fedvck/3/a/b", "--algorithm", "fedavg"], "--cell"),
    "pending and algorithm": (["run", "--pending", "--algorithm", "fedavg"], "--pending"),
    "no time": (["run", "--pending", "--minutes", "0"], "minutes"),
    "unknown paper": (["table", "fedvock/3"], "fedvck"),
    "unknown table": (["table", "fedvck/99"], "99"),
    "a cell for a table": (["table", "fedmk/1/FedAvg/mnist-0.5"], "core table fedmk/1` shows"),
    "capitals": (["algorithms", "FedIOD"], "did you mean 'fediod'"),
    "a data set in capitals": (["run", "--algorithm", "fedavg", "--dataset", "MNIST"], "'mnist'"),
    "the queue of nothing": (["pending", "--only", "fedmk/99"], "fedmk/99"),
    "a part of the queue without it": (run_with("--only", "fedmk"), "--pending"),
    "table at a wrong profile": (["table", "fedvck/3", "--profile", "huge"], "laptop"),
    "pending at a wrong profile": (["pending", "--profile", "huge"], "laptop"),
    "a negative number of runs": (["pending", "--limit", "-1"], "--limit"),
    "explain without a cell": (["explain"], "cell"),
    "explain of an unknown row": (["explain", "fedvck/3/fedavgg/pathmnist-0.05"], "FedAvg"),
    "explain of a table": (["explain", "fedvck/3"], "PAPER/TABLE/ROW/COLUMN"),
    "explain at a wrong profile": (
        ["explain", "fedvck/3/fedavg/pathmnist-0.05", "--profile", "huge"],
        "laptop",
    ),
    "notebook missing": (["notebook", "notebooks/77_nothing.py"], "77_nothing"),
    "notebook parameter unknown": (
        ["notebook", "notebooks/00_quickstart.py", "-p", "alhpa", "1"],
        "alhpa",
    ),
    "notebook parameter of a wrong kind": (
        ["notebook", "notebooks/00_quickstart.py", "-p", "rounds", "many"],
        "rounds",
    ),
    "data verb unknown": (["data", "fetch"], "get"),
    "data get of nothing": (["data", "get"], "get"),
    "data get unknown": (["data", "get", "cifar11"], "cifar10"),
    "data convert of nothing": (["data", "convert", "brats2018"], "convert NAME FOLDER"),
    "data convert unknown": (["data", "convert", "brats2019", "."], "brats2018"),
    "data convert from nowhere": (["data", "convert", "brats2018", "nowhere"], "no folder nowhere"),
    "bench unknown": (["bench", "speed"], "local-training"),
    "book verb unknown": (["book", "burn"], "build"),
    "import of an empty folder": (["import", "tests/e2e"], "no records"),
    **{
        f"{option} of {len(text)} {kind}": (run_with(option, text), option.strip("-"))
        for option in ("--rounds", "--clients", "--active", "--seed", "--alpha")
        for kind, text in {"nines": "9" * 400, "digits": "9" * 5000, "signs": "-" * 400}.items()
        if (option, kind) != ("--alpha", "signs")
    },
    **{
        f"setting of {len(text)} {kind}": (run_with("--set", f"lr={text}"), "lr")
        for kind, text in {
            "nines": "9" * 400,
            "digits": "9" * 5000,
            "brackets": "[" * 100_000,
            "braces": '{"a":' * 50_000,
            "letters": "x" * 100_000,
        }.items()
    },
    "steps of 400 digits": (run_with("--set", "local_steps=" + "9" * 400), "local_steps"),
    "a model option of 5,000 digits": (run_with("--model-set", "width=" + "9" * 5000), "width"),
    "a model option that is the name": (run_with("--model-set", "name=x"), "name"),
    "a model option that is an argument": (run_with("--model-set", "classes=3"), "classes"),
    "a model option that is the generator": (run_with("--model-set", "rng=3"), "rng"),
    "a width of 10^9": (run_with("--model-set", "width=1000000000"), "width"),
    "a width of 60,000": (run_with("--model-set", "width=60000"), "too large"),
    "a depth of 10^9": (run_with("--model-set", "depth=1000000000"), "depth"),
    "a device that is no number": (run_with("--device", "cpu:x"), "cpu:x"),
    "a device that is not there": (run_with("--device", "cuda:99"), "CUDA"),
    "an empty device": (run_with("--device", ""), "device"),
    "an empty profile": (run_with("--profile", ""), "profile"),
    "pending at an empty profile": (["run", "--pending", "--profile", ""], "profile"),
    "table at an empty profile": (["table", "fedvck/3", "--profile", ""], "profile"),
    "a setting given twice": (run_with("--set", "lr=1", "--set", "lr=2"), "'lr' is set twice"),
    "a model option given twice": (
        run_with("--model-set", "width=8", "--model-set", "width=4"),
        "'width' is set twice",
    ),
    "a setting without a name": (run_with("--set", "=3"), "NAME=VALUE"),
    "minutes without pending": (run_with("--minutes", "3"), "--minutes"),
    "a share of a GPU without pending": (run_with("--gpus-per-run", "0.5"), "--gpus-per-run"),
    "a share of a GPU without Ray": (["run", "--pending", "--gpus-per-run", "0.5"], "--on ray"),
    "a classifier for pixels": (
        ["run", "--algorithm", "fedavg", "--dataset", "nuclei_drawn", "--profile", "quick"],
        "take unet",
    ),
    "a network for pixels and one class": (run_with("--model", "unet"), "take convnet"),
    "minutes that are no number": (["run", "--pending", "--minutes", "nan"], "minutes"),
    **{
        f"{mode[0]} and {option}": (["run", *mode, option, text], option)
        for mode in (["--cell", "reference/1/FedAvg/mnist-0.05"], ["--pending"])
        for option, text in {
            "--dataset": "digits",
            "--model": "lenet",
            "--alpha": "0.5",
            "--partition": "iid",
            "--clients": "3",
            "--active": "2",
            "--rounds": "1",
            "--set": "lr=1",
            "--model-set": "width=4",
            "--variant": "released",
        }.items()
    },
    "pending and a seed": (["run", "--pending", "--seed", "1"], "--seed"),
    "an unknown algorithm of 10^5 letters": (
        ["run", "--algorithm", "x" * 100_000, "--dataset", "digits"],
        "algorithm",
    ),
    "an unknown data set of 10^5 letters": (
        ["run", "--algorithm", "fedavg", "--dataset", "x" * 100_000],
        "data set",
    ),
    "a refusal that is none": (run_with("--set", "refused=never"), "refused"),
    "import of nothing": (["import", "no/such/folder"], "no records"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_on_the_command_line(capsys, monkeypatch, tmp_path, name):
    monkeypatch.chdir(Path(__file__).parents[2])
    arguments, clue = CASES[name]
    extra = ["--out", str(tmp_path / "out")] if arguments[0] == "run" and len(arguments) > 1 else []
    assert clue in refused(capsys, [*arguments, *extra])


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
        {"train_images": np.zeros((20, 28, 28), np.float32)},
        {"train_images": np.zeros((20, 28, 14), np.uint8)},
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


def test_a_diverging_run_fails_by_name_and_says_so_in_its_record(capsys, tmp_path):
    line = refused(
        capsys, run_with("--set", "lr=1e30", "--set", "local_steps=20", "--out", str(tmp_path))
    )
    assert "not finite" in line
    (path,) = (tmp_path / "adhoc").glob("*.json")
    assert json.loads(path.read_text())["status"] == "failed"


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
        line = refused(capsys, more)
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


def test_a_folder_that_cannot_be_is_named_as_the_option(capsys, tmp_path):
    (tmp_path / "file").touch()
    out = str(tmp_path / "file" / "x")
    assert f"--out {out} cannot be written" in refused(capsys, run_with("--out", out))
    pending = ["run", "--pending", "--profile", "quick", "--out", out]
    assert f"--out {out} cannot be written" in refused(capsys, pending)


def test_a_mistake_in_an_option_points_to_the_help_of_its_command(capsys):
    assert "(see python -m core run --help)" in refused(capsys, ["run", "--seed", "x"])


def test_a_damaged_record_among_the_results_is_named(capsys):
    (path,) = queue.RESULTS.glob("*/*.json")
    path.write_text(path.read_text()[:50])
    said = refused(capsys, ["table", "reference/1"])
    assert path.name in said and "delete it and measure the run again" in said


def test_a_damaged_checkpoint_is_named(capsys, tmp_path):
    from core.experiments.profiles import apply
    from core.experiments.queue import places

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
    assert checkpoint.name in refused(capsys, run_with("--out", str(tmp_path)))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_that_it_goes_on(tmp_path, how):
    """Ctrl-C, and what schedulers send."""
    command = [sys.executable, "-m", "core", *QUICK, "--rounds", "5000", "--out", str(tmp_path)]
    # a shell that starts the tests in the background has them ignore SIGINT, and children inherit
    # that
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    for _ in range(3000):
        if list(tmp_path.glob("adhoc/*.json")):
            break
        time.sleep(0.02)
    process.send_signal(how)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in errors
    assert (
        errors.strip().splitlines()[-1] == "interrupted; the same command goes on where it stopped"
    )
    (record,) = tmp_path.glob("adhoc/*.json")
    assert json.loads(record.read_text())["status"] == "running"


def terminal(*arguments: str, **environment: str) -> subprocess.Popen:
    """The command line in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "core", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | environment,
        cwd=Path(__file__).parents[2],
    )


def test_a_table_says_what_was_run_and_how_to_run_the_rest():
    shown, errors = terminal("table", "fedvck/3").communicate(timeout=60)
    lines = shown.decode().splitlines()
    head, last = lines[1].split(), lines[-1]
    assert {"measured", "seeds", "profile"} <= set(head) and not errors
    stands_in = next(line for line in lines if "pneumoniamnist_224-0.05" in line)
    assert "†" in stands_in and " of 3" in stands_in
    assert "† pneumoniamnist in place of pneumoniamnist_224" in lines
    assert last.startswith("pending: run the first with python -m core run --cell fedvck/3/")


def test_a_table_asks_for_no_run_that_another_profile_has_on_record(monkeypatch):
    from core import experiments
    from core.cli import cells as cli
    from core.report import table_frame

    spec = experiments.TableSpec.find("fedmk", 6)
    waiting = table_frame("fedmk", "6", "converged", {})
    some = next(iter(experiments.records().values()))
    done = {}
    for cell in spec.cells("paper"):  # nothing is scaled down there
        for run in cell.experiments:
            done[run.id] = attrs.evolve(some, experiment=run)
    said = cli._first_of(waiting, spec, done)
    assert said == "pending: the very same runs are on record with another profile"
    first = spec.cells("converged")[0]
    for run in first.experiments:
        del done[attrs.evolve(run, profile="paper").id]
    assert f"--cell {first.address} " in cli._first_of(waiting, spec, done)


def test_a_table_says_what_is_to_be_known_of_it(capsys):
    assert main(["table", "fedmk/work"]) == 0
    note = TableSpec.find("fedmk", "work").note.split()
    assert " ".join(note) in " ".join(capsys.readouterr().out.split())


def test_tables_and_algorithms_are_listed_where_no_name_is_given(capsys):
    assert main(["table"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert next(line for line in shown if line.startswith("gddfl/")).startswith("gddfl/1 ")
    assert len(shown) == len(TableSpec.all())
    assert main(["algorithms"]) == 0 and "fedvck " in capsys.readouterr().out
    assert main(["algorithms", "fedprox"]) == 0 and "  mu=" in capsys.readouterr().out


def test_a_split_file_is_found_where_the_shell_is(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    parts = [list(range(k, 90, 3)) for k in range(3)]
    Path("mine.json").write_text(json.dumps({"client_idx": parts}))
    arguments = run_with("--partition", "mine.json", "--clients", "3", "--out", "here")
    assert main([text for text in arguments if text not in ("--alpha", "0.1")]) == 0


def test_who_reads_may_stop_reading():
    """As `python -m core table fedvck/3 | head -1` does."""
    process = terminal("table", "fedvck/3")
    assert process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(60) in (0, 1) and errors == b""


def test_a_terminal_without_the_sign_of_deviations_ends_no_run(tmp_path):
    """Standalone has a deviation over clients, which is shown behind ±."""
    arguments = ["standalone" if text == "fedavg" else text for text in QUICK]
    process = terminal(*arguments, "--out", str(tmp_path), PYTHONIOENCODING="ascii", LC_ALL="C")
    output, errors = process.communicate(timeout=100)
    assert process.returncode == 0 and b"Traceback" not in errors and b" ? " in output


def test_a_record_of_another_precision_is_no_answer(capsys, tmp_path):
    assert main(run_with("--out", str(tmp_path), "--precision", "float32")) == 0
    capsys.readouterr()
    line = refused(capsys, run_with("--out", str(tmp_path), "--precision", "bfloat16"))
    assert "precision float32, not bfloat16" in line


def test_who_asks_for_released_values_is_told_where_there_are_none(capsys):
    assert main([*QUICK, "--variant", "released"]) == 0
    assert "fedavg has no released values on record that differ" in capsys.readouterr().err
    assert main(QUICK) == 0
    assert "released" not in capsys.readouterr().err
