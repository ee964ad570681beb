"""What a terminal shows: tables, what is to be run for them, and that a run was interrupted."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import attrs
import pytest

from lab import TableSpec, records
from lab.__main__ import main
from tests.data import layouts
from tests.e2e.mistakes import QUICK, run_with

pytestmark = pytest.mark.usefixtures("data_root")


def test_a_warning_is_one_line_without_the_source(tmp_path):
    """This file of a known set is ours, not MedMNIST's."""
    layouts.npz(tmp_path / "pneumoniamnist.npz", 28, 1, labels=2)
    given = run_with("--dataset", "pneumoniamnist", "--clients", "2", "--out", str(tmp_path))
    said = subprocess.run(
        [sys.executable, "-m", "lab", *given],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"FEDCON_DATA": str(tmp_path)},
    ).stderr
    told = [line for line in said.replace("\r", "\n").splitlines() if "official" in line]
    assert len(told) == 1 and told[0].startswith(f"warning: {tmp_path}") and "Warning:" not in said


@pytest.mark.parametrize(
    ("how", "ctrl_c"),
    [
        (signal.SIGINT, signal.SIG_DFL),
        (signal.SIGTERM, signal.SIG_DFL),
        # a shell that runs a script ignores Ctrl-C for what it starts in the background
        (signal.SIGTERM, signal.SIG_IGN),
    ],
)
def test_an_interrupted_run_says_that_it_goes_on(tmp_path, how, ctrl_c):
    """Ctrl-C, and what schedulers send."""
    command = [sys.executable, "-m", "lab", *run_with("--rounds", "5000", "--out", str(tmp_path))]
    # a shell that starts the tests in the background has them ignore SIGINT, and children inherit
    # that
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, ctrl_c),
    )
    for _ in range(3000):
        if list(tmp_path.glob("adhoc/*.json")):
            break
        time.sleep(0.02)
    process.send_signal(how)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT and "Traceback" not in errors
    assert (
        errors.strip().splitlines()[-1] == "interrupted; the same command goes on where it stopped"
    )
    (record,) = tmp_path.glob("adhoc/*.json")
    assert json.loads(record.read_text())["status"] == "running"


def test_ctrl_c_ends_a_loop_of_a_shell(tmp_path):
    """A shell goes on with its loop where the command that Ctrl-C ended only exits with a status."""
    run = shlex.join([sys.executable, "-m", "lab", *run_with("--rounds", "5000")])
    loop = f"for k in 1 2; do {run} --out {shlex.quote(str(tmp_path))}/$k; done"
    process = subprocess.Popen(
        ["bash", "-c", loop],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        for _ in range(3000):
            if list(tmp_path.glob("1/adhoc/*.json")):
                break
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the shell and its command
        _, errors = process.communicate(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGINT and errors.count("interrupted;") == 1
    assert not (tmp_path / "2").exists()


def terminal(*arguments: str, **environment: str) -> subprocess.Popen:
    """The command line in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "lab", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | environment,
        cwd=Path(__file__).parents[2],
    )


def test_a_table_says_what_was_run_and_how_to_run_the_rest():
    shown, errors = terminal("table", "fedvck/3").communicate(timeout=60)
    lines = shown.decode().splitlines()
    head, last = lines[2].split(), lines[-1]
    alike = "metric accuracy, profile laptop"
    assert lines[1] == alike and not {"metric", "profile"} & set(head)
    assert {"measured", "seeds"} <= set(head) and not errors
    stands_in = next(line for line in lines if "pneumoniamnist_224-0.05" in line)
    assert "†" in stands_in and " of 3" in stands_in
    assert "† pneumoniamnist in place of pneumoniamnist_224" in lines
    assert last.startswith("pending: run the first with fedcon run --cell fedvck/3/")


def test_a_table_asks_for_no_run_that_another_profile_has_on_record(monkeypatch):
    import lab
    from lab.cli import waiting as cli
    from lab.report import table_frame

    spec = lab.TableSpec.find("fedmk", 6)
    waiting = table_frame("fedmk", "6", "converged", {})
    some = next(iter(lab.records().values()))
    done = {}
    for cell in spec.cells("paper"):  # nothing is scaled down there
        for run in cell.experiments:
            done[run.id] = attrs.evolve(some, experiment=run)
    said = cli.first_of(waiting, spec, done)
    assert said == "pending: the very same runs are on record with another profile"
    first = spec.cells("converged")[0]
    for run in first.experiments:
        del done[attrs.evolve(run, profile="paper").id]
    assert f"--cell {first.address} " in cli.first_of(waiting, spec, done)


def test_a_table_asks_for_no_run_that_would_stop_too_early():
    """At two rounds nothing fills a column of a hundred."""
    import lab
    from lab.cli import waiting as cli
    from lab.report import table_frame

    spec, waiting = lab.TableSpec.find("fedvck", 2), table_frame("fedvck", "2", "quick", {})
    assert all(cell.cut for cell in spec.cells("quick"))
    assert cli.first_of(waiting, spec, {}).startswith("pending: runs at quick stop before")


def test_a_cell_that_lacks_a_seed_has_a_command_too(monkeypatch, capsys):
    some = next(iter(records().values()))
    cells = TableSpec.find("fedvck", "estimators").cells("laptop")
    known = {
        run.id: attrs.evolve(some, experiment=run) for cell in cells for run in cell.experiments
    }
    monkeypatch.setattr("lab.records", lambda: known)

    def pending() -> list[str]:
        assert main(["table", "fedvck/estimators", "--profile", "laptop"]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("pending")]

    assert pending() == []
    del known[cells[0].experiments[1].id]
    (line,) = pending()
    assert f"--cell {cells[0].address} " in line


def test_a_table_shows_the_printed_deviation(capsys):
    assert main(["table", "fedmk/1", "--profile", "paper"]) == 0
    shown = capsys.readouterr().out.splitlines()
    (line,) = (one for one in shown if one.split()[:2] == ["FedAvg", "mnist-0.5"])
    assert "74.61 ± 2.79" in line


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


def test_who_reads_may_stop_reading():
    """As `fedcon table fedvck/3 | head -1` does."""
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["book"], "goes on where it stopped"),
        (["book", "slides"], "goes on where it stopped"),
        (["book", "pdf"], "starts anew"),
    ],
)
def test_what_an_interrupted_command_does_next(arguments, said, monkeypatch, capsys):
    monkeypatch.setattr("lab.__main__.app", lambda *_, **__: 130)
    assert main(arguments) == 130
    assert capsys.readouterr().err == f"interrupted; the same command {said}\n"
