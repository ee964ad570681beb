"""The first cell of every notebook: it installs `core` where it is missing, and only there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lab.report import notebooks

pytest.importorskip("yaml")

#: clones for real, and notes what pip is asked for
STUB = """
import subprocess, sys
real, asked = subprocess.run, []
def run(command, check):
    if command[0] == "git":
        return real(command, check=check)
    asked.append(command[1:])
subprocess.run = run
"""


@pytest.fixture
def origin(tmp_path):
    """A repository with a package `core` that knows where it lies."""
    folder = tmp_path / "origin"
    (folder / "core").mkdir(parents=True)
    (folder / "core" / "__init__.py").write_text("home = __file__\n")
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    return folder.as_uri()


def executed(code: str, folder: Path) -> str:
    """What a program prints that is run in a folder, without this project on its path."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_core_is_fetched_installed_and_imported_where_it_is_missing(origin, tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    cell = notebooks.SETUP.format(address=origin)
    out = executed(f"{STUB}\n{cell}\nimport core\nprint(asked, core.home)", here)
    assert "['-m', 'pip', 'install', '-q', '-e', './fedcon-book[pages]']" in out
    assert "fedcon-book" in out.split()[-1]


def test_nothing_happens_where_core_is(tmp_path):
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "__init__.py").touch()
    cell = notebooks.SETUP.format(address="nowhere")
    start = f"import sys; sys.path.insert(0, {str(tmp_path)!r})"
    assert executed(f"{start}\n{STUB}\n{cell}\nprint(asked)", tmp_path) == "[]\n"
    assert not (tmp_path / "fedcon-book").exists()


def test_the_cell_has_the_address_of_the_repository(monkeypatch, tmp_path):
    (tmp_path / "_config.yml").write_text("repository: {url: 'https://github.com/a/b/'}")
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    assert '"https://github.com/a/b"' in notebooks.setup()


def test_a_notebook_that_was_brought_back_gets_the_cell_once(tmp_path):
    source = tmp_path / "tiny.py"
    source.write_text('# %% [markdown]\n# # T\n\n# %% tags=["setup"]\nold = 1\n\n# %%\n1\n')
    cells = notebooks.for_readers(source).cells
    assert [cell.source for cell in cells] == ["# T", notebooks.setup(), "1"]
