"""Slides: how a notebook is cut, and that a file of slides asks no other server."""

from __future__ import annotations

import pytest

from core.report.site import slides, static

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbconvert")
pytest.importorskip("sphinx_revealjs")


@pytest.fixture
def executed():
    new = nbformat.v4
    shown = new.new_output("execute_result", {"text/plain": "<RESULT>"}, execution_count=1)
    long = "\n".join(f"x{i} = {i}" for i in range(slides.LINES + 1))
    cells = [
        new.new_markdown_cell(
            "# Title\n\nWords with $a$.\n\n## Part\n\n" + "\n\n".join(["w " * 300] * 3)
        ),
        new.new_code_cell("import os\nfrom re import (\n    match,\n)"),
        new.new_code_cell("short = 1", outputs=[shown], execution_count=1),
        new.new_code_cell(long, outputs=[shown], execution_count=2),
        new.new_code_cell("secret = 1", metadata={"tags": ["solution", "remove-cell"]}),
    ]
    return new.new_notebook(cells=cells)


def test_headings_begin_slides_long_code_and_hidden_cells_stay_out(executed):
    kinds = [cell.metadata["slideshow"]["slide_type"] for cell in slides.deck(executed).cells]
    assert kinds == ["slide", "slide", "subslide", "subslide", "subslide", "subslide"]
    texts = [cell.source for cell in executed.cells]
    assert not any("import os" in text or "secret" in text for text in texts)
    assert executed.cells[-1].metadata["tags"] == ["hide_input"]


def test_a_file_of_slides_needs_nothing_from_other_servers(executed, tmp_path, monkeypatch):
    source = tmp_path / "deck.ipynb"
    nbformat.write(executed, source)
    monkeypatch.setattr(slides, "execute_all", lambda sources, folder: list(sources))
    (written,) = slides.write_slides([source], tmp_path / "out")
    html = written.read_text()
    assert "&lt;RESULT&gt;" in html and "x14 = 14" not in html
    assert not static.external_problems(tmp_path / "out", "deck")
    assert not static.link_problems(tmp_path / "out", "deck")
