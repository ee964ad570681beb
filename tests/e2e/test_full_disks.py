"""A disk without space: one line, what was there stays, and the run goes on when there
is room.
"""

import errno
import json
import os
import pathlib
import shlex
import subprocess

import pytest

from core import files
from lab.__main__ import main

RUN = shlex.split(
    "run --algorithm fedavgm --dataset digits --clients 2 --rounds 2 --profile quick --device cpu "
    "--set local_steps=1 --model-set width=4 --seed"
)


def records(out: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.glob("adhoc/*.json")}


def leftovers(out: pathlib.Path) -> list[pathlib.Path]:
    """Files that no run will look at again."""
    kinds = {".json", ".safetensors", ".lock"}
    return [path for path in out.rglob("*") if path.is_file() and path.suffix not in kinds]


def fails_in_one_line(capsys, arguments: list[str]) -> str:
    capsys.readouterr()
    assert main(arguments) == 1
    printed = capsys.readouterr().err.replace("\r", "\n").splitlines()
    lines = [line for line in printed if line.strip() and "%|" not in line]
    assert len(lines) == 1 and lines[0].startswith("error: ") and len(lines[0]) < 300, lines
    return lines[0]


@pytest.fixture
def disk(tmp_path):
    """A disk of its own, and a function that gives it other limits."""
    where = tmp_path / "disk"
    where.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", where], capture_output=True)
    if made.returncode:
        pytest.skip("only root may make a disk")

    def limit(**options: str | int) -> pathlib.Path:
        text = ",".join(["remount", *(f"{name}={value}" for name, value in options.items())])
        subprocess.run(["mount", "-o", text, where], check=True)
        return where

    yield limit
    subprocess.run(["umount", "-l", where], check=True)


@pytest.mark.parametrize("pages", [1, 4])
def test_a_disk_that_fills_up(capsys, disk, pages):
    """The record has room on it, or not even that; the checkpoint has none."""
    out = disk(nr_blocks=100)
    assert main([*RUN, "0", "--out", str(out)]) == 0
    known = records(out)
    used = sum(-(-path.stat().st_size // 4096) for path in out.rglob("*") if path.is_file())
    disk(nr_blocks=used + pages)
    line = fails_in_one_line(capsys, [*RUN, "1", "--out", str(out)])
    assert "cannot be written" in line and "No space left on device" in line
    assert not leftovers(out) and records(out).items() >= known.items()
    disk(nr_blocks=1000)
    assert main([*RUN, "1", "--out", str(out)]) == 0
    assert len(records(out)) == 2 and not list(out.rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("owner", "name", "reason"),
    [
        (pathlib.Path, "mkdir", errno.EROFS),
        (pathlib.Path, "replace", errno.ENOSPC),
        (files, "create", errno.EDQUOT),
        (os, "open", errno.EIO),
    ],
    ids=["a folder", "a file in its place", "a record or a checkpoint", "a lock"],
)
def test_whatever_cannot_be_made(capsys, tmp_path, monkeypatch, owner, name, reason):
    """Where nobody may make a disk: the system's answer, at each place where something is written."""
    true = getattr(owner, name)

    def refusing(*given, **named):
        if any(str(tmp_path) in str(one) for one in given):
            raise OSError(reason, os.strerror(reason))
        return true(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, refusing)
        line = fails_in_one_line(capsys, [*RUN, "0", "--out", str(tmp_path / "out")])
    assert "cannot be written" in line and os.strerror(reason) in line
    assert not leftovers(tmp_path)
    assert main([*RUN, "0", "--out", str(tmp_path / "out")]) == 0
    (text,) = records(tmp_path / "out").values()
    assert json.loads(text)["status"] == "complete"
