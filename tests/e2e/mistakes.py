"""A small run on the command line, and the form that every refusal has."""

import itertools
import shlex

from lab import queue
from lab.__main__ import main

QUICK = shlex.split(
    "run --algorithm fedavg --dataset digits --profile quick --rounds 1 --set local_steps=1 "
    "--model-set width=4 --device cpu"
)


def refused(capsys, arguments: list[str], ends: int = 2) -> str:
    """Run the command line, check the form of the refusal and its status, and return its one line."""
    before = {path: path.read_bytes() for path in queue.RESULTS.rglob("*.json")}
    status = main(arguments)
    printed = capsys.readouterr().err.replace("\r", "\n").splitlines()
    lines = [line for line in printed if line.strip() and "%|" not in line]
    assert status == ends
    assert len(lines) == 1 and lines[0].startswith("error: ") and len(lines[0]) < 300, lines
    assert "Traceback" not in lines[0]
    assert {path: path.read_bytes() for path in queue.RESULTS.rglob("*.json")} == before
    return lines[0]


def run_with(*more: str) -> list[str]:
    """The quick run with other options; what they set takes the place of what is set there."""
    again = {text.partition("=")[0] for text in more}
    kept = [
        (option, text)
        for option, text in zip(QUICK[1::2], QUICK[2::2], strict=True)
        if (text.partition("=")[0] if option in ("--set", "--model-set") else option) not in again
    ]
    return ["run", *itertools.chain(*kept), *more]
