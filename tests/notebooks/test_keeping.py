"""What nbval executes is kept for the book, and compared with what was kept."""

from __future__ import annotations

import subprocess
import sys

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


@pytest.mark.timeout(600)
def test_a_page_is_kept_and_must_give_what_was_kept(tiny):
    notebooks.sync(tiny.parent)
    folder, number = tiny.parent / "executed", tiny.parent / "number"

    def nbval() -> str:
        plugin = ["-p", "tests.notebooks.keeping", "--nbval-current-env", "--keep", str(folder)]
        sanitize = ["--nbval-sanitize-with", str(notebooks.ROOT / "tests/notebooks/sanitize.cfg")]
        page = str(tiny.with_suffix(".ipynb"))
        command = [sys.executable, "-m", "pytest", "-q", *plugin, *sanitize, "--nbval", page]
        done = subprocess.run(command, cwd=notebooks.ROOT, capture_output=True, text=True)
        return done.stdout + done.stderr

    copy = folder / "tiny.ipynb"
    number.write_text("41")
    assert "3 passed" in nbval() and "41 images" in copy.read_text()
    assert executing.execute_all([tiny], folder) == [copy] and "papermill" not in copy.read_text()
    number.write_text("42")
    # a time may be another one
    assert "1 failed, 2 passed" in nbval() and "41 images" in copy.read_text()
