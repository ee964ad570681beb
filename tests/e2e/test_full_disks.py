"""A disk that takes no more: one line, what was there stays, and the run goes on when there is room."""

import errno
import json
import os
import pathlib
import shlex

import pytest

from core import files
from lab.__main__ import main
from tests.lab.small_runs import put, written

RUN = shlex.split(
    "run --algorithm fedavgm --dataset digits --clients 2 --rounds 2 --profile quick --device cpu "
    "--set local_steps=1 --model-set width=4"
)


def contents(out: pathlib.Path) -> dict[pathlib.Path, bytes]:
    return {path: path.read_bytes() for path in out.rglob("*.json")}


@pytest.mark.parametrize(
    ("owner", "name", "what", "reason"),
    [
        (pathlib.Path, "mkdir", "", errno.EROFS),
        (pathlib.Path, "replace", "", errno.ENOSPC),
        (files, "create", "", errno.EDQUOT),
        (files, "create", ".safetensors", errno.ENOSPC),
        (os, "open", "", errno.EIO),
    ],
    ids=["a folder", "a file in its place", "a record", "a checkpoint", "a lock"],
)
def test_whatever_cannot_be_made(capsys, tmp_path, monkeypatch, owner, name, what, reason):
    """The system's answer, at each place where something is written."""
    true, out = getattr(owner, name), tmp_path / "out"
    put(out / "before", written())
    known = contents(out)

    def refusing(*given, **named):
        if any(str(out) in str(one) and what in str(one) for one in given):
            raise OSError(reason, os.strerror(reason))
        return true(*given, **named)

    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, refusing)
        assert main([*RUN, "--out", str(out)]) == 1
    printed = capsys.readouterr().err.replace("\r", "\n").splitlines()
    (line,) = (one for one in printed if one.strip() and "%|" not in one)
    assert line.startswith("error: ") and len(line) < 300
    assert "cannot be written" in line and os.strerror(reason) in line
    kinds = {".json", ".lock"}  # nothing is left that no run will look at again
    assert {path.suffix for path in out.rglob("*") if path.is_file()} <= kinds
    assert contents(out).items() >= known.items()
    assert main([*RUN, "--out", str(out)]) == 0
    (text,) = (text for path, text in contents(out).items() if path not in known)
    assert json.loads(text)["status"] == "complete"
