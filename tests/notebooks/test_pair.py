"""A .py and its .ipynb agree, survive jupytext, and install `core` where it is missing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab.report import classroom, notebooks

cli = pytest.importorskip("jupytext.cli")
nbformat = pytest.importorskip("nbformat")

SOURCES = sorted(notebooks.NOTEBOOKS.glob("*.py"))
#: where `core` is missing: git clones for real, and what pip is asked for is kept
STUB = """
import subprocess, types
asked = []
get_ipython = lambda: types.SimpleNamespace(
    system=lambda line: subprocess.run(line, shell=True, check=True),
    run_line_magic=lambda *line: asked.append(line))
"""


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_the_pair_agrees_and_has_no_outputs(source):
    """And a .py has the setup cell of this repository, and no text behind the mark of a cell."""
    assert source.read_text(encoding="utf-8") == notebooks.with_setup(source), "make sync"
    pair = source.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert pair == notebooks.paired(source), "make sync"
    for cell in json.loads(pair)["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None
        assert "title" not in cell["metadata"]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_what_colab_and_binder_open_is_current_and_plain(source):
    text = (classroom.PLAIN / f"{source.stem}.ipynb").read_text(encoding="utf-8")
    assert text == classroom.plain_copy(source), "make sync"
    prose = [c["source"] for c in json.loads(text)["cells"] if c["cell_type"] == "markdown"]
    for raw in (r"\{[a-z:]+\}`", r"```\{", r"^\([\w-]+\)=$", r"\$\$ \(eq:", r"\{glue:"):
        assert not re.search(raw, "\n".join(map("".join, prose)), re.MULTILINE), raw


def test_sources_survive_jupytext_both_ways(tmp_path):
    """Also as an editor saves a notebook: later than the .py was written."""
    shutil.copy(notebooks.ROOT / "pyproject.toml", tmp_path)
    folder = tmp_path / "notebooks"
    folder.mkdir()
    sources = {path.name: path.read_text(encoding="utf-8") for path in SOURCES}
    assert {path.stem for path in notebooks.NOTEBOOKS.glob("*.ipynb")} == {p.stem for p in SOURCES}
    for path in SOURCES:
        notebook = nbformat.read(path.with_suffix(".ipynb"), as_version=4)
        notebook.metadata["language_info"] = {"name": "python", "version": sys.version.split()[0]}
        for cell in notebook.cells:
            cell.metadata["editable"] = cell.metadata["collapsed"] = True
        nbformat.write(notebook, folder / f"{path.stem}.ipynb")
    assert cli.jupytext(["-q", "--sync", *sorted(map(str, folder.glob("*.ipynb")))]) in (0, None)
    assert {path.name: path.read_text() for path in folder.glob("*.py")} == sources


def test_what_changed_in_an_editor_comes_back(tiny):
    shutil.copy(notebooks.ROOT / "pyproject.toml", tiny.parent)
    notebooks.sync(tiny.parent)
    pair = tiny.with_suffix(".ipynb")
    pair.write_text(pair.read_text().replace("1 + 1", "1 + 2"))
    os.utime(pair, (2e9, 2e9))
    cli.jupytext(["-q", "--sync", str(pair)])
    assert tiny.read_text() == notebooks.with_setup(tiny) and "1 + 2" in tiny.read_text()
    notebooks.sync(tiny.parent)
    assert notebooks.sync(tiny.parent) == []


TEXT = "# %% [markdown]\n# # Tiny\n\n# %%\n1 + 1\n"


def run_setup(address: str, here: Path, before: str = "", after: str = "") -> str:
    """What the setup cell prints or raises in a folder, without this project on the path."""
    here.mkdir(exist_ok=True)
    cell = notebooks.SETUP.format(address=address)
    code = f"{before}\n{STUB}\n{cell}\n{after}\nprint(asked)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], cwd=here, capture_output=True, text=True
    )
    return done.stdout + done.stderr


def test_core_is_fetched_installed_and_imported_where_it_is_missing(tmp_path):
    origin = tmp_path / "origin"
    (origin / "core").mkdir(parents=True)
    (origin / "core" / "__init__.py").write_text("home = __file__\n")
    git = ["git", "-C", str(origin), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    out = run_setup(origin.as_uri(), tmp_path / "here", after="import core; print(core.home)")
    assert "here/fedcon-book/core" in out and "('pip', 'install -q -e ./fedcon-book[pages]')" in out


def test_nothing_happens_where_core_is(tmp_path):
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "__init__.py").touch()
    start = f"import sys; sys.path.insert(0, {str(tmp_path)!r})"
    assert run_setup("nowhere", tmp_path, before=start) == "[]\n"


def test_nothing_is_fetched_from_an_address_that_nobody_owns(tmp_path):
    out = run_setup("https://github.com/OWNER/REPOSITORY", tmp_path)
    assert "AssertionError: this copy has no public address yet" in out
    assert not (tmp_path / "fedcon-book").exists()


def test_the_cell_has_the_address_of_the_repository(monkeypatch, tiny):
    (tiny.parent / "_config.yml").write_text("repository: {url: 'https://github.com/a/b/'}")
    monkeypatch.setattr(notebooks, "ROOT", tiny.parent)
    notebooks.sync(tiny.parent)
    assert 'address = "https://github.com/a/b"' in tiny.read_text()
