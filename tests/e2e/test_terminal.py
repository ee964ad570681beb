"""What a terminal shows: tables, warnings, and that a run was interrupted."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.__main__ import main
from tests.data import layouts
from tests.e2e.mistakes import QUICK, run_with

pytestmark = [pytest.mark.usefixtures("data_root"), pytest.mark.timeout(400)]
ROOT = Path(__file__).parents[2]


def terminal(*arguments: str, **environment: str) -> subprocess.Popen:
    """The command line in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "lab", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
        cwd=ROOT,
    )


def shell(text: str) -> subprocess.CompletedProcess:
    """A line of a shell, in which `fedcon` is the command line."""
    line = text.replace("fedcon", shlex.join([sys.executable, "-m", "lab"]))
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=ROOT)


def test_a_warning_is_one_line_without_the_source(tmp_path):
    """This file of a known set is ours, not MedMNIST's."""
    layouts.npz(tmp_path / "pneumoniamnist.npz", 28, 1, labels=2)
    given = run_with("--dataset", "pneumoniamnist", "--clients", "2", "--out", str(tmp_path))
    _, said = terminal(*given, FEDCON_DATA=str(tmp_path)).communicate(timeout=300)
    told = [line for line in said.replace("\r", "\n").splitlines() if "official" in line]
    assert len(told) == 1 and told[0].startswith(f"warning: {tmp_path}") and "Warning:" not in said


def interrupt(command: list[str], folder: Path, how: int, ctrl_c: object = signal.SIG_DFL) -> str:
    """Send a signal to a command and its children when it has a record in the folder; what it said. It died
    of Ctrl-C. A shell that starts the tests in the background has them ignore SIGINT, and children inherit
    that: `ctrl_c` is what it does here.
    """
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, ctrl_c),
    )
    try:
        while not list(folder.glob("**/adhoc/*.json")) and process.poll() is None:
            time.sleep(0.02)
        os.killpg(process.pid, how)  # as a terminal does: the shell and its command
        _, errors = process.communicate(timeout=200)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGINT and "Traceback" not in errors
    return errors


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
    last = interrupt(command, tmp_path, how, ctrl_c).strip().splitlines()[-1]
    assert last == "interrupted; the same command goes on where it stopped"
    (record,) = tmp_path.glob("adhoc/*.json")
    assert json.loads(record.read_text())["status"] == "running"


def test_ctrl_c_ends_a_loop_of_a_shell(tmp_path):
    """A shell goes on with its loop where the command that Ctrl-C ended only exits with a status."""
    run = shlex.join([sys.executable, "-m", "lab", *run_with("--rounds", "5000")])
    loop = f"for k in 1 2; do {run} --out {shlex.quote(str(tmp_path))}/$k; done"
    errors = interrupt(["bash", "-c", loop], tmp_path, signal.SIGINT)
    assert errors.count("interrupted;") == 1 and not (tmp_path / "2").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["book"], "goes on where it stopped"),
        (["book", "slides"], "goes on where it stopped"),
        (["book", "pdf"], "starts anew"),
        (["data"], "starts anew"),
    ],
)
def test_what_an_interrupted_command_does_next(arguments, said, monkeypatch, capsys):
    monkeypatch.setattr("lab.__main__.app", lambda *_, **__: 130)
    assert main(arguments) == 130
    assert capsys.readouterr().err == f"interrupted; the same command {said}\n"


@pytest.mark.parametrize("command", ["fedcon table fedvck/3", "fedcon --help"])
def test_who_reads_may_stop_reading(command):
    done = shell(f"set -o pipefail; {command} | head -1")
    assert done.returncode == 0 and done.stdout.count("\n") == 1 and not done.stderr


def test_a_closed_output_is_one_line(tmp_path):
    """Else the next file that is opened would be written into."""
    done = shell(f"{shlex.join(['fedcon', *QUICK])} --out {tmp_path}/out >&-")
    assert done.returncode == 1 and not (tmp_path / "out").exists()
    assert done.stderr.startswith("error: standard output or") and done.stderr.count("\n") == 1


def test_a_terminal_without_the_sign_of_deviations_ends_no_run(tmp_path):
    """Standalone has a deviation over clients, which is shown behind ±."""
    arguments = ["standalone" if text == "fedavg" else text for text in QUICK]
    process = terminal(*arguments, "--out", str(tmp_path), PYTHONIOENCODING="ascii", LC_ALL="C")
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0 and "Traceback" not in errors and " ? " in output
