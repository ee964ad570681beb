"""What the command line says where a user tries things of their own."""

import json
import runpy
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

import lab
from core.errors import InputError
from lab import TableSpec, queue, records
from lab.__main__ import main
from lab.cli.run import stated_runs
from lab.record import REPOSITORY
from lab.report import notebooks, table_frame

RUN = (
    *("run", "--algorithm", "fedavg", "--dataset", "digits", "--profile", "quick", "--rounds", "1"),
    *("--set", "local_steps=2", "--model-set", "width=4", "--device", "cpu"),
)


@pytest.mark.parametrize(
    ("algorithm", "rate", "said"),
    [("fedavg", "1e6", "the upload of client"), ("centralized", "1e38", "not finite")],
)
def test_a_seed_that_diverges_does_not_stop_the_others(capsys, tmp_path, algorithm, rate, said):
    """Two seeds, of which none can stand such a rate; one that is named twice is run once."""
    run = [algorithm if text == "fedavg" else text for text in RUN]
    more = ["--alpha", "0.1", "--set", f"lr={rate}", "--out", str(tmp_path)]
    seeds = [text for seed in (3, 4, 4) for text in ("--seed", str(seed))]
    assert main([*run, *more, *seeds]) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert len(lines) == 2
    for seed, line in zip((3, 4), lines, strict=True):
        assert f"error: seed {seed}: " in line and said in line
    kept = [json.loads(path.read_text()) for path in tmp_path.glob("adhoc/*.json")]
    assert [one["status"] for one in kept] == ["failed"] * 2


def test_a_sweep_in_one_command_is_compared_and_drawn(capsys, tmp_path):
    given = [*RUN, "--set", "lr=0.05, 1e38", "--seed", "0", "--out", str(tmp_path / "mine")]
    assert main(given) == 1
    assert "error: lr=1e+38, seed 0: the upload" in capsys.readouterr().err
    given[given.index("lr=0.05, 1e38")] = "lr=0.05,0.1"
    plot = ["runs", str(tmp_path / "mine"), "--plot", str(tmp_path / "curves.svg"), "--by", "lr"]
    assert main(given) == main(plot) == 0
    said = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in said if line.split()[:2] == ["fedavg", "digits"]]
    assert [row[4] for row in rows] == ["0.05", "0.1"] * 2
    assert "<svg" in (tmp_path / "curves.svg").read_text()
    assert main([*RUN, "--set", "lr=0.1,a"]) == 2
    assert "lr must be" in capsys.readouterr().err
    for file in ("curves.xyz", "no/curves.png"):
        assert main([*plot[:2], "--plot", str(tmp_path / file)]) == 2
        assert f"--plot {tmp_path / file}: " in capsys.readouterr().err


def test_a_run_by_code_of_before_is_run_again(tmp_path):
    given = [*RUN, "--out", str(tmp_path)]
    assert main(given) == 0
    (path,) = tmp_path.glob("adhoc/*.json")
    ours = json.loads(path.read_text())
    path.write_text(json.dumps(ours | {"code": "0" * 12}))
    with pytest.warns(UserWarning, match="seed 0 ran with other code, so it is run again"):
        assert main(given) == 0
    assert json.loads(path.read_text())["code"] == ours["code"]


@pytest.mark.parametrize(
    ("options", "partition"),
    [
        ({"alpha": 1}, {"name": "dirichlet", "alpha": 1.0}),
        ({"partition": "dirichlet,alpha=1"}, {"name": "dirichlet", "alpha": 1.0}),
        (
            {"partition": "dirichlet,min_size=0,cap=true", "alpha": 0.5},
            {"name": "dirichlet", "alpha": 0.5, "min_size": 0, "cap": True},
        ),
        ({"partition": "split.json"}, {"name": "file"}),
        ({"partition": "file,file=split.json"}, {"name": "file"}),
    ],
)
def test_a_partition_may_be_stated_in_two_ways(options, partition, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("split.json").write_text(json.dumps({"client_idx": [[0, 1, 2], [3, 4]]}))
    if partition["name"] == "file":
        partition = partition | {"file": str(tmp_path / "split.json")}
    (run,) = stated_runs("quick", {"algorithm": "fedavg", **options}, None)
    # 1 and 1.0 would be two ids
    assert json.dumps(run.partition, sort_keys=True) == json.dumps(partition, sort_keys=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"algorithm": "random_selection", "rounds": 3}, "rests after the first round"),
        ({"algorithm": "fedavg", "variant": "released"}, "fedavg has no released values"),
    ],
)
def test_what_changes_nothing_is_told(options, said):
    with pytest.warns(UserWarning, match=said):
        stated_runs("quick", options, None)


def test_a_python_without_the_packages_gets_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.setattr(lab, "cli", lab.cli)
    for name in [name for name in sys.modules if name.startswith("lab.cli")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(SystemExit, match=r"the package typer is not installed .* `make install`"):
        runpy.run_path(str(REPOSITORY / "lab" / "__main__.py"))


@pytest.mark.parametrize(
    "greedy",
    [
        lambda: bytes(2**62),
        lambda: torch.empty(2**50),
        Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory.")),
    ],
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


def test_a_table_without_records_goes_with_the_profile_that_the_queue_runs():
    spec = TableSpec.find("gddfl", "initialisation")
    assert "paper" not in spec.run_at
    assert set(table_frame("gddfl", "initialisation", measured={}).profile) == {"laptop"}


def test_a_page_is_found_by_its_number(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(notebooks, "run_notebook", lambda *given: None)
    assert main(["notebook", "19"]) == 0
    assert capsys.readouterr().out == "executed: 19_fedmk_rules.executed.ipynb\n"
    assert main(["notebook", "19", "--out", str(tmp_path)]) == 0  # a folder
    assert capsys.readouterr().out == f"executed: {tmp_path / '19_fedmk_rules.executed.ipynb'}\n"
    assert notebooks.find("1") == notebooks.find("01")
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


def test_a_cell_of_several_metrics_has_the_value_of_each(capsys):
    cell = TableSpec.find_cell("fedvck/6/FedVCK/organsmnist-0.05", "laptop")
    assert len(cell.siblings()) > 1
    plain = cell.address.rpartition("/")[0]
    assert main(["explain", plain, "--profile", "laptop"]) == 0
    assert capsys.readouterr().out.count("\nmeasured ") == len(cell.siblings())
    assert main(["explain", cell.address, "--profile", "laptop"]) == 0
    assert capsys.readouterr().out.count("\nmeasured ") == 1


def test_a_table_says_what_was_run_and_what_is_to_be_known_of_it(capsys):
    assert main(["table", "fedvck/3", "--profile", "laptop"]) == 0
    lines = capsys.readouterr().out.splitlines()
    head, last = lines[2].split(), lines[-1]
    assert lines[1] == "metric accuracy, budget laptop"
    assert not {"metric", "profile"} & set(head) and {"measured", "seeds"} <= set(head)
    stands_in = next(line for line in lines if "pneumoniamnist_224-0.05" in line)
    assert "†" in stands_in and " of 3" in stands_in
    assert "† pneumoniamnist in place of pneumoniamnist_224" in lines
    assert "`fedcon pending --only fedvck/3 --profile laptop` lists the runs" in last
    assert main(["table", "fedmk/1", "--profile", "paper"]) == 0
    shown = capsys.readouterr().out.splitlines()
    (line,) = (one for one in shown if one.split()[:2] == ["FedAvg", "mnist-0.5"])
    assert "74.61 ± 2.79" in line
    assert main(["table", "fedmk/work"]) == 0
    note = " ".join(TableSpec.find("fedmk", "work").note.split())
    assert note in " ".join(capsys.readouterr().out.split())


def test_a_pending_run_has_its_command(capsys, monkeypatch):
    run = next(iter(records().values())).experiment
    item = queue.Pending(run, "fedmk", ("fedmk/1/FedAvg/a b", "x"), 0)
    monkeypatch.setattr(queue, "pending", lambda profile, only: [item])
    assert main(["pending", "--only", "fedmk/1"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    command = f"fedcon run --cell 'fedmk/1/FedAvg/a b' --profile laptop --seed {run.seed}"
    assert first == f"{command}  and 1 more cells"
    assert second == "1 runs pending at the budget laptop, 1 can run here"


def test_tables_and_algorithms_are_listed_where_no_name_is_given(capsys):
    assert main(["table"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert next(line for line in shown if line.startswith("gddfl/")).startswith("gddfl/1 ")
    assert len(shown) == len(TableSpec.all())
    assert main(["algorithms"]) == 0 and "fedvck " in capsys.readouterr().out
    assert main(["algorithms", "fedprox"]) == 0 and "  mu=" in capsys.readouterr().out
    assert main(["--help"]) == 0  # a command there can be copied
    assert "--rounds 8 --set lr=0.1 --set local_steps=10\n" in capsys.readouterr().out
