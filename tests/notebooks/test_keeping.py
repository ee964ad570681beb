"""What nbval executes is kept for the book, and compared with what was kept."""

from __future__ import annotations

import os

import pytest

from lab.report import notebooks
from lab.report.site import executing

pytest.importorskip("nbval")
TEXT = """# %% [markdown]
# # Tiny

# %%
import pathlib, time

print(f"in {time.perf_counter()} s")

# %%
print(pathlib.Path("number").read_text(), "images")
"""


@pytest.fixture
def nbval(tiny, capsys, monkeypatch):
    """A function that has nbval run the page, with the plugin, and returns what pytest says."""
    sanitize = ["--nbval-sanitize-with", str(notebooks.ROOT / "tests/notebooks/sanitize.cfg")]
    plugins = ["-p", "tests.notebooks.keeping", "-p", "no:timeout", "--capture=no"]
    given = ["--nbval-current-env", "--nbval", str(tiny.with_suffix(".ipynb")), *sanitize]
    monkeypatch.setattr(os, "environ", os.environ.copy())

    def run() -> str:
        pytest.main(["-q", *plugins, "--keep", str(tiny.parent / "executed"), *given])
        return capsys.readouterr().out

    return run


@pytest.mark.timeout(600)
def test_a_page_is_kept_and_must_give_what_was_kept(tiny, nbval):
    notebooks.sync(tiny.parent)
    folder, number = tiny.parent / "executed", tiny.parent / "number"
    copy = folder / "tiny.ipynb"
    number.write_text("41")
    assert "3 passed" in nbval() and "41 images" in copy.read_text()
    assert executing.execute_all([tiny], folder) == [copy] and "papermill" not in copy.read_text()
    number.write_text("42")
    # a time may be another one
    assert "1 failed, 2 passed" in nbval() and "41 images" in copy.read_text()
