"""What the command line says where a user tries things of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import attrs
import numpy as np
import pytest
import torch
import typer

from core.errors import InputError
from core.federation import Runtime
from core.files import FileError, alone
from lab import TableSpec, forms, queue, records, table
from lab.__main__ import main
from lab.cli.pending import _run_pending
from lab.record import REPOSITORY
from lab.report import notebooks, table_frame
from tests.data import layouts

RUN = (
    *("run", "--algorithm", "fedavg", "--dataset", "digits", "--profile", "quick", "--rounds", "1"),
    *("--set", "local_steps=2", "--model-set", "width=4", "--device", "cpu"),
)


def test_a_seed_that_diverges_does_not_stop_the_others(capsys, tmp_path):
    """Two seeds, of which none can stand such a rate; one that is named twice is run once."""
    more = ["--alpha", "0.1", "--set", "lr=1e6", "--out", str(tmp_path)]
    seeds = [text for seed in (3, 4, 4) for text in ("--seed", str(seed))]
    assert main([*RUN, *more, *seeds]) == 1
    said = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert len(said) == 2
    for seed, line in zip((3, 4), said, strict=True):
        assert f"error: seed {seed}: the upload of client" in line and "diverge" in line
    assert len(list(tmp_path.glob("adhoc/*.json"))) == 2


def test_a_seed_whose_server_diverges_does_not_stop_the_others(capsys, tmp_path):
    run = ["centralized" if text == "fedavg" else text for text in RUN]
    given = ["--out", str(tmp_path), "--seed", "0", "--seed", "1", "--set", "lr=1e38"]
    assert main([*run, *given]) == 1
    said = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert len(said) == 2 and all("not finite" in line for line in said)


def test_an_option_that_takes_one_value_is_given_once(capsys, tmp_path):
    given = [*RUN, "--out", str(tmp_path), "--algorithm", "moon"]
    assert main(given) == 2
    assert "--algorithm is given more than once" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_run_by_code_of_before_is_run_again_and_it_is_said(capsys, tmp_path):
    given = [*RUN, "--out", str(tmp_path)]
    assert main(given) == 0
    (path,) = tmp_path.glob("adhoc/*.json")
    ours = json.loads(path.read_text())
    path.write_text(json.dumps(ours | {"code": "0" * 12}))
    capsys.readouterr()
    assert main(given) == 0
    said = f"seed 0 ran with code 000000000000, now it is {ours['code']}: it is run again"
    assert capsys.readouterr().err.count(said) == 1
    assert json.loads(path.read_text())["code"] == ours["code"]


def test_a_dirichlet_partition_takes_its_options_beside_alpha(capsys, tmp_path):
    split = ["--partition", "dirichlet,min_size=0,cap=true"]
    assert main([*RUN, *split, "--alpha", "0.5", "--out", str(tmp_path)]) == 0
    (made,) = tmp_path.glob("adhoc/*.json")
    told = json.loads(made.read_text())["experiment"]["partition"]
    assert told == {"name": "dirichlet", "alpha": 0.5, "min_size": 0, "cap": True}


def test_one_concentration_is_one_run_however_it_is_written(capsys, tmp_path):
    for said in (["--alpha", "1"], ["--partition", "dirichlet,alpha=1"]):
        assert main([*RUN, *said, "--out", str(tmp_path)]) == 0
    assert len(list(tmp_path.glob("adhoc/*.json"))) == 1


def test_a_split_is_told_with_its_number_of_classes(capsys, tmp_path):
    assert (
        main([*RUN, "--partition", "pathological,classes_per_client=2", "--out", str(tmp_path)])
        == 0
    )
    assert "pathological, 2 classes" in capsys.readouterr().out


def test_data_of_ones_own_are_listed_with_what_is_wrong_with_them(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCON_DATA", str(tmp_path))
    images, labels = np.zeros((4, 6, 6), np.uint8), np.array([0, 1, 0, 1])
    for name, shown, told in (
        ("sound", images, labels),
        ("floats", images + 9.5, labels),
        ("alike", images, 0 * labels),
        ("gaps", images, 2 * labels),
    ):
        arrays = {f"{part}_images": shown for part in ("train", "test")}
        arrays |= {f"{part}_labels": told for part in ("train", "test")}
        np.savez(tmp_path / f"{name}.npz", **arrays)
    np.savez(tmp_path / "halved.npz", train_images=images, train_labels=labels)
    np.savez(tmp_path / "weights.npz", w=images)
    np.savez(tmp_path / "my+data.npz", **arrays)
    (tmp_path / "broken.npz").write_bytes(b"PK")
    assert main(["data"]) == 0
    said = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert said["sound"].endswith("here, your own file")
    assert "here, but" in said["floats"] and "from 0 to 1" in said["floats"]
    assert "all images are of one class" in said["alike"]
    assert said["gaps"].endswith("your own file, but no training image is of class 1")
    assert "test_images" in said["halved"]
    for name in ("weights.npz", "broken.npz"):
        assert said[name].endswith("not a data set: is no npz file with an array train_images")
    assert "not a data set" in said["my+data.npz"]


def test_a_python_without_the_packages_gets_one_line(tmp_path):
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError('no', name='typer')")
    done = subprocess.run(
        [sys.executable, "-m", "lab"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "the package typer is not installed" in done.stderr and "make install" in done.stderr


def memory_of_a_gpu_runs_out():
    raise torch.OutOfMemoryError("CUDA out of memory.")


@pytest.mark.parametrize(
    "greedy", [lambda: bytes(2**62), lambda: torch.empty(2**50), memory_of_a_gpu_runs_out]
)
def test_memory_that_runs_out_is_told_in_one_line(greedy, capsys, monkeypatch):
    monkeypatch.setattr(queue, "measure", lambda *given, **named: greedy())
    assert main(list(RUN)) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: memory ran out") and "--model-set width=" in line


def test_an_error_of_the_program_is_no_lack_of_memory(monkeypatch):
    monkeypatch.setattr(queue, "measure", lambda *given, **named: torch.eye(2) @ torch.eye(3))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        main(list(RUN))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["notebook", "11_fedvck", "-p", "alpha", "--out", "x.ipynb"], "-p alpha lacks a value"),
        ([*RUN, "--out", __file__], "is a file, not a folder"),
        ([*RUN, "--partition", "dirichlet,alpha=1", "--alpha", "2"], "alpha is stated twice"),
        (
            [*RUN, "--partition", "iid", "--alpha", "2"],
            "--alpha belongs to the dirichlet partition",
        ),
        (
            ["notebook", "00_quickstart", "-p", "dataset=cifr10"],
            "did you mean 'cifar10'? known: bloodmnist, bloodmnist_pbc,",
        ),
        (
            [*RUN, "--partition", "missing.json"],
            f"no split file missing.json, in the working folder {Path.cwd()} or in the data folder",
        ),
        ([*RUN, "--partition", "/no/missing.json"], "there is no split file /no/missing.json\n"),
        ([*RUN, "--partition", "splits/missing.json"], "repository Youth-49/FedVCK_2024"),
        ([*RUN, "--set", "zzz=1"], "`fedcon algorithms fedavg` explains each"),
        ([*RUN, "--set", "rounds=3"], "rounds is none of fedavg's settings: give it as --rounds 3"),
        (["pending", "--only", "fednova"], "no paper, table, cell or algorithm"),
    ],
)
def test_a_mistake_is_told_with_the_way_out(capsys, arguments, said):
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_an_algorithm_of_a_table_that_is_not_here_is_named(capsys, monkeypatch, tmp_path):
    """Its cells would wait without a word; it may be misspelt."""
    for path in (forms.TABLES / "profiles.yaml", *(forms.TABLES / "gddfl").iterdir()):
        copy = tmp_path / path.relative_to(forms.TABLES)
        copy.parent.mkdir(exist_ok=True)
        text = path.read_text(encoding="utf-8")
        copy.write_text(text.replace("algorithm: random_selection", "algorithm: random_choice"))
    for module in (forms, table, queue):
        monkeypatch.setattr(module, "TABLES", tmp_path)
    said = "gddfl/1: its cells wait, as there is no algorithm named 'random_choice'; did you mean "
    assert main(["table", "gddfl/1"]) == 0 and said in capsys.readouterr().out
    assert main(["pending", "--only", "gddfl/1"]) == 0 and said in capsys.readouterr().out
    assert main(["pending", "--only", "gddfl/ladder"]) == 0
    assert said not in capsys.readouterr().out


def test_who_finds_nothing_pending_is_told_where_the_tables_are_run(capsys, monkeypatch):
    monkeypatch.setattr("lab.queue.pending", lambda profile, only: [])
    assert main(["pending", "--only", "GDDFL", "--profile", "paper"]) == 0
    assert "gddfl/ladder is run at the profile quick or laptop\n" in capsys.readouterr().out


def test_an_algorithm_that_no_table_has_is_told_from_one_that_is_not_there(capsys, monkeypatch):
    monkeypatch.setattr("core.algorithms.names", lambda: ["fednova"])
    assert main(["pending", "--only", "fednova"]) == 2
    assert "no table has a row with the algorithm fednova yet" in capsys.readouterr().err


def test_a_table_without_records_goes_with_the_profile_that_the_queue_runs():
    spec = TableSpec.find("gddfl", "starts")
    assert "paper" not in spec.run_at
    assert set(table_frame("gddfl", "starts", measured={}).profile) == {"laptop"}


def test_a_run_that_another_process_holds_is_no_failure(capsys, tmp_path):
    """The queue goes on with the others; there are none here."""
    (item, *_) = queue.pending("quick", tmp_path, only="fedmk/6")
    held = queue.places(item.experiment, item.paper, tmp_path)[1].with_suffix(".lock")
    with alone(held, "this test"):
        _run_pending([item], 1, tmp_path, Runtime())
    shown = capsys.readouterr()
    assert "another process is at" in shown.err
    assert "0 runs completed, 1 still pending here; the same command goes on" in shown.out


def test_a_set_is_told_with_the_sizes_that_are_here(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCON_DATA", str(tmp_path))
    layouts.npz(tmp_path / "pneumoniamnist_224.npz", 224, 1, labels=2)
    assert main(["data"]) == 0
    said = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert "here at 224 pixels, missing at 28" in said["pneumoniamnist"]


def test_own_records_of_other_data_are_not_laid_beside_the_books(capsys, tmp_path):
    some = next(one for one in records().values() if one.experiment.dataset == "mnist")
    other = attrs.evolve(some, fingerprint="0" * 64)
    other.save(tmp_path / "fedmk" / f"{some.experiment.id}.json")
    assert main(["table", "fedmk/1", "--records", str(tmp_path)]) == 2
    assert "measured on other data" in capsys.readouterr().err


def test_own_records_of_another_table_are_told(capsys, tmp_path):
    some = next(one for one in records().values() if one.experiment.dataset == "mnist")
    some.save(tmp_path / "fedmk" / f"{some.experiment.id}.json")
    assert main(["table", "gddfl/starts", "--records", str(tmp_path)]) == 0
    assert "none of the 1 records below" in capsys.readouterr().out


def test_a_method_that_communicates_once_says_where_it_rests(capsys, tmp_path):
    run = ("run", "--algorithm", "random_selection", "--profile", "quick", "--clients", "2")
    more = ("--set", "server_epochs=1", "--model-set", "width=4", "--out", str(tmp_path))
    assert main([*run, *more, "--rounds", "3", "--device", "cpu"]) == 0
    assert "communicates once: it rests after the first of 3 rounds" in capsys.readouterr().err
    assert main([*run, *more, "--rounds", "1", "--device", "cpu"]) == 0
    assert "communicates once" not in capsys.readouterr().err


def test_a_setting_that_is_given_as_an_option_is_told_where_it_goes(capsys):
    assert main([*RUN, "0", "--lr", "0.1"]) == 2
    assert "a setting goes as --set NAME=VALUE (see fedcon run --help)" in (capsys.readouterr().err)


def test_a_gpu_is_named_as_it_is_called_here(capsys, tmp_path):
    assert main([*RUN[:-1], "gpu", "--out", str(tmp_path)]) == 2
    assert "--device cuda" in capsys.readouterr().err


def test_a_page_is_found_by_its_number(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(notebooks, "run_notebook", lambda *given: None)
    assert main(["notebook", "28"]) == 0
    assert capsys.readouterr().out == "executed: 28_fedmk_rules.executed.ipynb\n"
    assert main(["notebook", "28", "--out", str(tmp_path)]) == 0  # a folder
    assert capsys.readouterr().out == f"executed: {tmp_path / '28_fedmk_rules.executed.ipynb'}\n"
    assert notebooks.find("3") == notebooks.find("03")
    with pytest.raises(InputError, match="no notebook named '280'"):
        notebooks.find("280")


def test_a_number_is_led_back_to_its_records(capsys):
    """Each seed's value and file, below the repository; then the verdict, with its reason."""
    assert main(["explain", "fedvck/11/FedVCK/cifar10-0.05", "--profile", "laptop"]) == 0
    *_, first, _, _, verdict = capsys.readouterr().out.splitlines()
    seed, value, path = first.split("  ")
    assert seed == "seed 0" and path.startswith("book/results/fedvck/")
    held = json.loads((REPOSITORY / path).read_text())
    assert value == f"{100 * held['metrics']['accuracy']:.2f}"
    frame = table_frame("fedvck", "11", "laptop").query("row == 'FedVCK'").iloc[0]
    assert verdict.endswith(f"printed 61.89; {frame.verdict}: {frame.reason}")
    assert verdict.startswith(f"measured {frame.measured:.2f} ± {frame['std']:.2f} over 3 seeds")


def test_a_seed_without_a_record_is_told(capsys):
    given = ["explain", "fedvck/11/FedVCK/cifar10-0.05", "--profile", "quick"]
    assert main(given) == 0
    said = capsys.readouterr().out
    assert "accuracy (percent)\nseed 0  not run\n" in said
    assert said.endswith("\nmeasured nothing, printed 61.89; pending\n")


def test_a_cell_of_several_metrics_has_the_value_of_each(capsys):
    cell = next(
        one
        for spec in TableSpec.all()
        if len(spec.metrics) > 1
        for one in spec.cells("laptop")
        if len(one.siblings()) > 1
    )
    plain = cell.address.rpartition("/")[0]
    assert main(["explain", plain, "--profile", "laptop"]) == 0
    assert capsys.readouterr().out.count("\nmeasured ") == len(cell.siblings())
    assert main(["explain", cell.address, "--profile", "laptop"]) == 0
    assert capsys.readouterr().out.count("\nmeasured ") == 1


def test_a_file_with_the_name_of_a_known_set_is_told(capsys, tmp_path, monkeypatch):
    """No run can load that set then; a file that belongs to a set is in nobody's way."""
    monkeypatch.setenv("FEDCON_DATA", str(tmp_path))
    for name in ("digits", "pneumoniamnist"):
        layouts.npz(tmp_path / f"{name}.npz", 28, 1, labels=2)
    assert main(["data"]) == 0
    said = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert f"known here; rename your file {tmp_path / 'digits.npz'}" in said["digits.npz"]
    assert "rename" not in said["pneumoniamnist"]
    assert main(list(RUN)) == 2
    assert f"rename your file {tmp_path / 'digits.npz'}" in capsys.readouterr().err


def test_a_run_that_cannot_go_on_as_it_stands_did_not_fail(capsys, tmp_path, monkeypatch):
    (item, *_) = queue.pending("quick", tmp_path, only="fedmk/6")
    other = FileError("the checkpoint was begun with threads 1, not 2")
    monkeypatch.setattr(queue, "run_pending", lambda *_: [(item, other)])
    with pytest.raises(typer.Exit):
        _run_pending([item], 1, tmp_path, Runtime())
    shown = capsys.readouterr()
    assert "left as it is" in shown.err and "failed" not in shown.err + shown.out
    assert "1 still pending here, 1 of them cannot go on as they stand\n" in shown.out


def test_a_split_file_can_be_stated_as_explain_shows_it(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.json").write_text(json.dumps({"client_idx": [[0, 1, 2], [3, 4]]}))
    for said in ("mine.json", "file,file=mine.json"):
        assert main([*RUN, "--clients", "2", "--partition", said, "--out", "here"]) == 0
    assert len(list(Path("here").glob("adhoc/*.json"))) == 1


def test_commands_in_the_help_can_be_copied(capsys):
    assert main(["--help"]) == 0
    assert "--rounds 8 --set lr=0.1 --set local_steps=10\n" in capsys.readouterr().out
