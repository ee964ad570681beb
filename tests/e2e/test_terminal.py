"""What a terminal shows: tables, warnings, and that a run was interrupted."""

import contextlib
import io
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
COMMAND = [sys.executable, "-m", "lab"]


def test_signs_that_a_terminal_lacks_end_no_run(tmp_path, monkeypatch):
    """Standalone has a deviation over clients, which is shown behind ±."""
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))
    given = run_with("--clients", "2", "--out", str(tmp_path))
    assert main(["standalone" if text == "fedavg" else text for text in given]) == 0
    assert b" ? " in written.getvalue()


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
        errors = None
        while (
            errors is None
        ):  # Python loses an interrupt that comes within a destructor: press again
            os.killpg(process.pid, how)  # as a terminal does: the shell and its command
            with contextlib.suppress(subprocess.TimeoutExpired):
                _, errors = process.communicate(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGINT
    return errors


def test_an_interrupted_run_says_that_it_goes_on(tmp_path, data_root):
    """SIGTERM, as schedulers send it, where Ctrl-C is ignored, as for what a script starts in the
    background. A warning before it is one line: this file of a known set is ours, not MedMNIST's.
    """
    layouts.npz(data_root / "pneumoniamnist.npz", 28, 1, labels=2)
    given = run_with("--dataset", "pneumoniamnist", "--rounds", "5000", "--out", str(tmp_path))
    said = interrupt([*COMMAND, *given], tmp_path, signal.SIGTERM, signal.SIG_IGN)
    lines = said.replace("\r", "\n").strip().splitlines()
    assert lines[-1] == "interrupted; the same command goes on where it stopped"
    (told,) = (line for line in lines if "official" in line)
    assert told.startswith(f"warning: {data_root}") and "Warning:" not in said
    (record,) = tmp_path.glob("adhoc/*.json")
    assert json.loads(record.read_text())["status"] == "running"


def test_ctrl_c_ends_a_loop_of_a_shell(tmp_path):
    """A shell goes on with its loop where the command that Ctrl-C ended only exits with a status."""
    run = shlex.join([*COMMAND, *run_with("--rounds", "5000")])
    loop = f"for k in 1 2; do {run} --out {shlex.quote(str(tmp_path))}/$k; done"
    errors = interrupt(["bash", "-c", loop], tmp_path, signal.SIGINT)
    assert errors.count("interrupted;") == 1 and not (tmp_path / "2").exists()


@pytest.mark.parametrize(("verb", "goes_on"), [("book", True), ("data", False)])
def test_what_an_interrupted_command_does_next(verb, goes_on, monkeypatch, capsys):
    monkeypatch.setattr("lab.__main__.app", lambda *_, **__: 130)
    assert main([verb]) == 130
    assert ("the same command goes on" in capsys.readouterr().err) == goes_on


def test_who_reads_may_stop_reading():
    line = f"set -o pipefail; {shlex.join(COMMAND)} table fedvck/3 | head -1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and done.stdout.count("\n") == 1 and not done.stderr


def test_a_closed_output_is_one_line(tmp_path, monkeypatch, capsys):
    """Else the next file that is opened would be written into."""
    monkeypatch.setattr("sys.stdout", None)
    assert main([*QUICK, "--out", str(tmp_path / "out")]) == 1
    assert not (tmp_path / "out").exists()
    said = capsys.readouterr().err
    assert said.startswith("error: standard output or") and said.count("\n") == 1
