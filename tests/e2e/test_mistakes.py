"""Mistakes on the command line and in files: each gives one clear line and a non-zero status, no traceback,
and leaves existing records alone.
"""

import shlex
from pathlib import Path

import numpy as np
import pytest

from lab import TableSpec, queue
from lab.__main__ import main
from lab.profiles import apply
from tests.e2e.mistakes import refused, run_with

pytestmark = pytest.mark.usefixtures("data_root")

#: a command, and what its one line says; options alone are those of a quick run. What an experiment, a
#: table or a data set refuses is in their own tests
CASES = """
--epochs 3 -> a setting goes as --set NAME=VALUE (see fedcon run --help)
run -> --algorithm
run --algorithm fedavg --profile laptop -> needs 'dataset'
run --algorithm fedavg --dataset nuclei_drawn --profile quick -> take unet
--alpha 1 --partition iid -> alpha
--alpha 2 --partition dirichlet,alpha=1 -> 'alpha' is set twice
--seed -1 -> seed
--seed x -> (see fedcon run --help)
--profile desktop -> laptop
--variant leaked -> released
--model unet -> take convnet
--model-set width=60000 -> too large
--model-set width=8 --model-set width=4 -> 'width' is set twice
--set learning_rate=1 -> `fedcon algorithms fedavg` explains each
--set lr -> NAME=VALUE
--set lr=1 --set lr=2 -> 'lr' is set twice
--partition dirichlett -> dirichlet
--partition dirichlet -> needs 'alpha'
--partition natural -> centre
--partition nowhere.json -> there is no split file
--partition splits/missing.json -> repository Youth-49/FedVCK_2024
--device tpu -> tpu
--device cuda:99 -> CUDA
--precision int8 -> bfloat16
--out FILE -> is a file, not a folder
--minutes 3 -> --minutes
--only fedmk -> --pending
--gpus-per-run 0.5 -> --gpus-per-run
run --cell fedvck/3/fedavgg/pathmnist -> fedvck/3
run --pending --seed 1 -> --seed
run --pending --gpus-per-run 0.5 -> --on ray
run --pending --profile quick --out FILE/x -> --out FILE/x cannot be written
table fedvock/3 -> fedvck
table fedmk/1/FedAvg/mnist-0.5 -> no table of fedmk
table fedvck/3 --profile huge -> laptop
pending --only fednova -> no paper, table, cell or algorithm
pending --limit -1 -> --limit
explain -> cell
notebook 11_fedvck -p alpha --out x.ipynb -> -p alpha lacks a value
notebook 01_quickstart -p alhpa 1 -> alhpa
data fetch -> get
data convert brats2018 -> convert NAME FOLDER
book burn -> build
book build 11_fedvck -> it takes no pages
import tests/e2e -> no records
runs ~nobodys/runs -> home directory
"""
ALONE = {
    f"run {mode} {option} {text}": option
    for mode in ("--cell reference/1/FedAvg/mnist-0.05", "--pending")
    for option, text in {
        **{"--dataset": "digits", "--model": "lenet", "--alpha": "0.5", "--partition": "iid"},
        **{"--clients": "3", "--active": "2", "--rounds": "1", "--variant": "released"},
        **{"--set": "lr=1", "--model-set": "width=4", "--algorithm": "fedavg"},
    }.items()
}
LONG = {
    **{
        f"{option} {text}": option.strip("-")
        for option in ("--rounds", "--seed", "--alpha")
        for text in ("9" * 5000, "=" * 400)
    },
    **{f"--set lr={text}": "lr" for text in ("9" * 5000, "[" * 10**4, "x" * 10**4)},
    f"--set local_steps={'9' * 400}": "local_steps",
    f"run --algorithm {'x' * 10**4} --dataset digits": "algorithm",
    f"run --algorithm fedavg --dataset {'x' * 10**4}": "data set",
}
TABLE = dict(line.split(" -> ") for line in CASES.strip().splitlines())


@pytest.mark.parametrize("case", [*TABLE, *ALONE, *LONG], ids=lambda text: text[:70])
def test_a_mistake_on_the_command_line(capsys, monkeypatch, tmp_path, case):
    monkeypatch.chdir(Path(__file__).parents[2])
    (tmp_path / "file").touch()
    clue, file = (TABLE | ALONE | LONG)[case], str(tmp_path / "file")
    arguments = shlex.split(case.replace("FILE", file))
    if case.startswith("--"):
        arguments = run_with(*arguments)
    if arguments[0] == "run" and len(arguments) > 1 and "--out" not in arguments:
        arguments += ["--out", str(tmp_path / "out")]
    assert clue.replace("FILE", file) in refused(capsys, arguments)


def test_a_broken_file_is_named(capsys, data_root, tmp_path):
    """Of a split or of data; tests of each reader have the forms."""
    (data_root / "split.json").write_text('{"client_idx": [[0], [1, 0]]}')
    np.savez(data_root / "hospital.npz", train_images=np.full((20, 28, 28), 7, np.float32))
    given = run_with("--clients", "2", "--partition", "split.json", "--out", str(tmp_path / "out"))
    assert "split.json" in refused(capsys, given)
    given = run_with("--dataset", "hospital", "--out", str(tmp_path / "out"))
    assert "hospital.npz" in refused(capsys, given)


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
    stated = {"algorithm": "fedavg", "dataset": "digits", "rounds": 1, "seed": 0}
    stated |= {"settings": {"local_steps": 1}, "model_options": {"width": 4}}
    _, checkpoint = queue.places(apply("quick", stated), "adhoc", tmp_path)
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"not a checkpoint")
    assert checkpoint.name in refused(capsys, run_with("--out", str(tmp_path)), ends=1)


def test_a_record_of_another_precision_is_no_answer(capsys, tmp_path):
    assert main(run_with("--out", str(tmp_path), "--precision", "float32")) == 0
    capsys.readouterr()
    line = refused(capsys, run_with("--out", str(tmp_path), "--precision", "bfloat16"))
    assert "precision float32, not bfloat16" in line


def test_a_data_folder_of_nobody_is_named(capsys, monkeypatch):
    monkeypatch.setenv("FEDCON_DATA", "~no_such_user/x")
    assert "the data folder ~no_such_user/x" in refused(capsys, ["data"])
