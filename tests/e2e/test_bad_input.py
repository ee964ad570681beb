"""Mistakes on the command line: each gives one clear line and a non-zero status, no traceback, and
leaves existing records alone.
"""

import json
from pathlib import Path

import pytest

from lab.__main__ import main
from tests.e2e.mistakes import QUICK, refused, run_with

pytestmark = pytest.mark.usefixtures("data_root")

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
    "a cell for a table": (["table", "fedmk/1/FedAvg/mnist-0.5"], "fedcon table fedmk/1` shows"),
    "capitals": (["algorithms", "FedIOD"], "did you mean 'fediod'"),
    "a data set in capitals": (["run", "--algorithm", "fedavg", "--dataset", "MNIST"], "'mnist'"),
    "the queue of nothing": (["pending", "--only", "fedmk/99"], "fedmk/99"),
    "a part of the queue without it": (run_with("--only", "fedmk"), "--pending"),
    "a profile without a table": (["table", "fedmk", "--profile", "laptop"], "need a table"),
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


def test_a_diverging_run_fails_by_name_and_says_so_in_its_record(capsys, tmp_path):
    given = run_with("--set", "lr=1e30", "--set", "local_steps=20", "--out", str(tmp_path))
    line = refused(capsys, given, ends=1)
    assert "not finite" in line
    (path,) = (tmp_path / "adhoc").glob("*.json")
    assert json.loads(path.read_text())["status"] == "failed"


def test_a_folder_that_cannot_be_is_named_as_the_option(capsys, tmp_path):
    (tmp_path / "file").touch()
    out = str(tmp_path / "file" / "x")
    assert f"--out {out} cannot be written" in refused(capsys, run_with("--out", out))
    pending = ["run", "--pending", "--profile", "quick", "--out", out]
    assert f"--out {out} cannot be written" in refused(capsys, pending)


def test_a_mistake_in_an_option_points_to_the_help_of_its_command(capsys):
    assert "(see fedcon run --help)" in refused(capsys, ["run", "--seed", "x"])


def test_who_asks_for_released_values_is_told_where_there_are_none(capsys):
    assert main([*QUICK, "--variant", "released"]) == 0
    assert "fedavg has no released values on record that differ" in capsys.readouterr().err
    assert main(QUICK) == 0
    assert "released" not in capsys.readouterr().err
